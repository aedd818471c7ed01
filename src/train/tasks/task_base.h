#pragma once
// Private to train/: what all tasks share: the rank, checking, loading and exporting weights, reading a step ahead, and
// whether FP8 is possible.

#include "task.h"
#include "trireme/base/error.h"
#include "trireme/formats/huggingface/weight_source.h"
#include "trireme/plan/cost.h"
#include "trireme/plan/precision.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// A step's data, read in the background. One step is under way at a time; its reading is waited for before another
/// starts or this ends.
template <class T>
class ReadAhead {
 public:
  ~ReadAhead() {
    if (next_.valid()) next_.wait();
  }
  void start(int64_t step, const std::function<T(int64_t)>& read) {
    if (step_ == step && next_.valid()) return;
    if (next_.valid()) next_.wait();
    step_ = step;
    next_ = std::async(std::launch::async, read, step);
  }
  T take() { return next_.get(); }
  /// Waits for what is under way and forgets it.
  void drop() {
    if (next_.valid()) next_.wait();
    next_ = {};
  }

 private:
  std::future<T> next_;
  int64_t step_ = -1;
};

/// Host values on `device`, of the same type; through pinned memory and without waiting where it is a GPU. [n]
template <class T>
at::Tensor to_tensor(const std::vector<T>& values, at::Device device) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())},
                              at::TensorOptions(c10::CppTypeToScalarType<T>::value).pinned_memory(device.is_cuda()));
  std::copy(values.begin(), values.end(), host.template mutable_data_ptr<T>());
  return host.to(device, /*non_blocking=*/true);
}

/// For data.valid or data.test (`files`) without any target: its evaluation would be 0 / 0. `why`: "every loss_mask is
/// 0".
DataError without_targets(const std::vector<std::string>& files, const char* why);

/// Why precision.linear: fp8 cannot multiply with this recipe on this device in this type; empty: it can. `sizes`: of
/// the matrices, by their names in the model's configuration; `tokens`: of a micro-batch, 0: not asked. A CPU emulates
/// any.
std::string fp8_problem(const RankInfo& rank, const RecipeTraits& recipe,
                        std::vector<std::pair<const char*, int64_t>> sizes, int64_t tokens = 0);

class TaskBase : public TrainingTask {
 public:
  void check_weights() final;
  void load_weights(ShardedUnits& units) final;

 protected:
  TaskBase(const Config& config, const RankInfo& rank) : config_(config), rank_(rank) {}

  /// Reads what the run starts from beside the weights of model.path: an adapter. ModelError.
  virtual void check_start() {}
  /// Opens the weights of model.path for the model. ModelError.
  virtual std::unique_ptr<WeightSource> open_weights() const = 0;
  /// All units have their weights, from `source` or, null, drawn at random. Collective.
  virtual void weights_loaded(ShardedUnits&, const WeightSource*) {}

  uint64_t seed() const { return static_cast<uint64_t>(config_.train.seed); }

  /// Writes all weights in the compute dtype with a Writer that has append(name, tensor), called on rank 0 in the order
  /// of the units; collective. `make` is called on rank 0. Returns the writer there, null elsewhere.
  template <class MakeWriter>
  auto export_model(ShardedUnits& units, const MakeWriter& make) const {
    auto writer = rank_.grid.world.rank == 0 ? make() : nullptr;
    units.export_tensors(
        rank_.compute_dtype, [](int) { return true; },
        [&](const std::string& name, const at::Tensor& value) { writer->append(name, value); });
    return writer;
  }

  const Config config_;
  const RankInfo rank_;

 private:
  bool checked_ = false;
  std::unique_ptr<WeightSource> source_;  // from check_weights() to load_weights()
};

}  // namespace trireme
