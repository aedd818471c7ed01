#pragma once
// Private to optim/: our CUDA kernels over one trained shard. Where kernels_serve() is false, the LibTorch compositions
// in adamw.cpp and lamb.cpp compute the same.

#include "trireme/config/config.h"
#include "trireme/nn/trained_shard.h"
#include "trireme/optim/optimizer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::shard_kernels {

/// Data that is constant over the steps: the shard's chunks, on its device.
struct Tables {
  at::Tensor chunks, tensor_chunks;
  int64_t num_chunks = 0;
  int num_tensors = 0;
  int first_tensor = 0;  // number of the shard's tensor 0 among those of all shards
  bool defined() const { return chunks.defined(); }
};

/// State of one shard and the scalars of one step; multiplier, skip and step_count are fp32 device scalars.
struct Step {
  const TrainedShard& shard;
  const Tables& tables;
  const at::Tensor &exp_avg, &exp_avg_sq, &step_count, &multiplier, &skip;
  double lr;
};

#ifdef TRIREME_WITH_CUDA
bool kernels_run_on(at::Device device);
bool kernels_serve(const TrainedShard& shard);
Tables make_tables(const TrainedShard& shard, bool decay_norms, int first_tensor = 0);
/// Writes TrainedShard::amax as well, where the shard has it, or raises what is in it.
void adamw(const Step& step, const OptimizerSection& options, bool clears_amax = true);
/// Updates the moments and writes squares of weights (row 0) and updates (row 1), divided by the shard's copies, in the
/// columns of its tensors. `steps` of one step, not empty; squares: fp64 [2, number of tensors of all shards].
void lamb_moments(const std::vector<Step>& steps, const OptimizerSection& options, const at::Tensor& squares);
void lamb_apply(const std::vector<Step>& steps, const OptimizerSection& options, const at::Tensor& squares);
at::Tensor sum_of_squares(const std::vector<GradientPart>& parts);
#else
inline bool kernels_run_on(at::Device) { return false; }
inline bool kernels_serve(const TrainedShard&) { return false; }
inline Tables make_tables(const TrainedShard&, bool, int = 0) { return {}; }
inline void adamw(const Step&, const OptimizerSection&, bool = true) {}
inline void lamb_moments(const std::vector<Step>&, const OptimizerSection&, const at::Tensor&) {}
inline void lamb_apply(const std::vector<Step>&, const OptimizerSection&, const at::Tensor&) {}
inline at::Tensor sum_of_squares(const std::vector<GradientPart>&) { return {}; }
#endif

}  // namespace trireme::shard_kernels
