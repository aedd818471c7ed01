#pragma once
// Weights of a decoder as whole tensors on the CPU.

#include "models/common/stored.h"
#include "models/decoder/decoder.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace trireme {

/// All units of the model, whole: base weights read from `source`, adapters drawn from seed 0 (B
/// zero; DoRA's magnitudes one). Trained units require gradients. ModelError naming the first missing or ill-shaped
/// tensor.
std::vector<std::vector<at::Tensor>> load_whole(const DecoderModel& model, const WeightSource& source,
                                                at::ScalarType dtype);
/// The same with random base weights, drawn from `seed`.
std::vector<std::vector<at::Tensor>> random_whole(const DecoderModel& model, at::ScalarType dtype, uint64_t seed);

/// A store that reads each unit from a checkpoint when it is entered and drops it when it is left:
/// forward passes of models larger than memory. Adapters, if any, are given; no backward.
class StreamedStore : public UnitStore {
 public:
  StreamedStore(const DecoderModel& model, const WeightSource& source, at::ScalarType dtype,
                const std::map<std::string, at::Tensor>& adapter = {});
  const std::vector<at::Tensor>& parameters(int unit) override { return units_.at(unit); }
  const std::vector<WeightState>& weight_states(int unit) override { return states_.at(unit); }
  void pre_forward(int unit) override;
  void post_forward(int unit) override;
  void pre_backward(int unit) override;
  void post_backward(int unit) override;

 private:
  const DecoderModel& model_;
  const WeightSource& source_;
  at::ScalarType dtype_;
  std::vector<std::vector<at::Tensor>> units_;
  std::vector<std::vector<WeightState>> states_;
};

/// Copies imported adapter tensors into the whole units of load_whole().
void assign_adapter(const DecoderModel& model, const std::map<std::string, at::Tensor>& tensors,
                    std::vector<std::vector<at::Tensor>>& units);

}  // namespace trireme
