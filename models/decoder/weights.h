#pragma once
// Weights of a decoder as whole tensors on one device, and its adapters to and from PEFT directories.

#include "models/decoder/decoder.h"
#include "trireme/formats/huggingface/peft_adapter.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace trireme {

/// All units of the model, whole: base weights read from `source`, adapters drawn from `seed` (B
/// zero). Trained units require gradients. ModelError naming the first missing or ill-shaped
/// tensor.
std::vector<std::vector<at::Tensor>> load_whole(const DecoderModel& model, const WeightSource& source,
                                                at::ScalarType dtype, at::Device device, uint64_t seed = 0);
/// The same with random base weights.
std::vector<std::vector<at::Tensor>> random_whole(const DecoderModel& model, at::ScalarType dtype, at::Device device,
                                                  uint64_t seed);

/// One checkpoint tensor as an fp32 CPU tensor. ModelError when it is missing or not floating.
at::Tensor read_tensor(const WeightSource& source, const std::string& name);

/// Tensors of the adapters unit by their part names
/// ("model.layers.0.self_attn.q_proj.lora_A.weight"), fp32 on the CPU, from a PEFT adapter. The
/// model's rank, alpha and targets must be the adapter's. A model with the fused qkv_proj takes q,
/// k, v pairs when their A are equal. ModelError otherwise, with advice.
std::map<std::string, at::Tensor> import_adapter(const Adapter& adapter, const DecoderModel& model);

/// The PEFT adapter of the adapters unit's tensors (the names above). A fused qkv_proj becomes its
/// exact equivalent: q, k and v with the same A each and their rows of B.
/// Trained rows of the vocabulary are put into `token_rows`, what the adapter holds of it.
Adapter export_adapter(const std::map<std::string, at::Tensor>& tensors, const DecoderModel& model,
                       const std::string& base_model, std::map<std::string, TokenRows> token_rows = {});

/// Identity of the base model in the directory `base`, of the content of its safetensors files; empty where there are
/// none.
std::string base_hash(const std::filesystem::path& base);

/// A sentence where the adapter says that it is of another base than the directory `base`, `what` ("model.path"): by
/// the hash of the base's files where the adapter has one, else by its name. Empty where it does not.
std::string other_base(const Adapter& adapter, const std::filesystem::path& base, const char* what);

/// The model that takes this PEFT adapter: its rank, alpha, dropout and the targets of its modules.
/// ModelError when there is none.
DecoderModel model_for_adapter(const DecoderConfig& config, const Adapter& adapter);

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
