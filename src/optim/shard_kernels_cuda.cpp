#include "shard_kernels.h"

#include "kernels/optimizer/optimizer.h"
#include "launch.h"
#include "trireme/base/error.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::shard_kernels {

namespace {

using launch::element;
using launch::launched;
using launch::stream_of;
using launch::to_device;

template <class Arguments>
Arguments arguments(const Step& s, const OptimizerSection& options) {
  const TrainedShard& shard = s.shard;
  Arguments a;
  a.master = shard.master.mutable_data_ptr();
  a.master_element = element(shard.master);
  a.exp_avg = s.exp_avg.mutable_data_ptr();
  a.exp_avg_sq = s.exp_avg_sq.mutable_data_ptr();
  a.gradient = shard.gradient.const_data_ptr();
  a.gradient_element = element(shard.gradient);
  if (shard.has_compute_copy()) {
    a.compute = shard.compute.mutable_data_ptr();
    a.compute_element = element(shard.compute);
  }
  a.multiplier = s.multiplier.const_data_ptr<float>();
  a.skip = s.skip.const_data_ptr<float>();
  a.step = s.step_count.const_data_ptr<float>();
  a.chunks = static_cast<const kernels::ShardChunk*>(s.tables.chunks.const_data_ptr());
  a.num_chunks = s.tables.num_chunks;
  a.lr = s.lr;
  a.beta1 = options.betas[0];
  a.beta2 = options.betas[1];
  a.eps = options.eps;
  a.weight_decay = options.weight_decay;
  return a;
}

std::vector<kernels::Lamb> lamb_shards(const std::vector<Step>& steps, const OptimizerSection& options) {
  std::vector<kernels::Lamb> shards;
  for (const Step& step : steps) {
    auto& a = shards.emplace_back(arguments<kernels::Lamb>(step, options));
    a.tensor_chunks = static_cast<const int32_t*>(step.tables.tensor_chunks.const_data_ptr());
    a.num_tensors = step.tables.num_tensors;
    a.first_tensor = step.tables.first_tensor;
    a.share = 1.0 / step.shard.copies;
  }
  return shards;
}

}  // namespace

bool kernels_run_on(at::Device device) { return kernel_class(device) != KernelClass::kNone; }

bool kernels_serve(const TrainedShard& shard) {
  return kernels_run_on(shard.device()) && shard.master.is_contiguous() &&
         (!shard.compute.defined() || shard.compute.is_contiguous());
}

Tables make_tables(const TrainedShard& shard, bool decay_norms, int first_tensor) {
  std::vector<kernels::ShardPiece> pieces;
  for (const ShardRange& range : shard.ranges)
    pieces.push_back({range.begin, range.end, range.tensor, range.decay || decay_norms});
  const kernels::ShardTable table = kernels::make_shard_table(pieces, shard.num_tensors);
  return {to_device(table.chunks, shard.device()), to_device(table.tensor_chunks, shard.device()),
          static_cast<int64_t>(table.chunks.size()), shard.num_tensors, first_tensor};
}

void adamw(const Step& step, const OptimizerSection& options, bool clears_amax) {
  const c10::cuda::CUDAGuard guard(step.shard.master.device());
  auto a = arguments<kernels::AdamW>(step, options);
  a.moment_element = element(step.exp_avg);
  a.first_element = static_cast<uint64_t>(step.shard.first_element);
  a.master_key = step.shard.rounding_key;
  if (step.shard.amax.defined()) {
    if (clears_amax) step.shard.amax.zero_();
    a.amax = step.shard.amax.mutable_data_ptr<float>();
  }
  launched(kernels::adamw(a, stream_of(step.shard.master)), "adamw");
}

void lamb_moments(const std::vector<Step>& steps, const OptimizerSection& options, const at::Tensor& squares) {
  const c10::cuda::CUDAGuard guard(squares.device());
  const auto shards = lamb_shards(steps, options);
  int64_t chunks = 0;
  for (const Step& step : steps) chunks += step.tables.num_chunks;
  at::Tensor partial = at::empty({2 * chunks}, squares.options());
  launched(kernels::lamb_moments(shards.data(), static_cast<int>(shards.size()), partial.mutable_data_ptr<double>(),
                                 squares.mutable_data_ptr<double>(), squares.size(1), stream_of(squares)),
           "lamb_moments");
}

void lamb_apply(const std::vector<Step>& steps, const OptimizerSection& options, const at::Tensor& squares) {
  const c10::cuda::CUDAGuard guard(squares.device());
  const auto shards = lamb_shards(steps, options);
  launched(kernels::lamb_apply(shards.data(), static_cast<int>(shards.size()), squares.const_data_ptr<double>(),
                               squares.size(1), stream_of(squares)),
           "lamb_apply");
}

at::Tensor sum_of_squares(const std::vector<GradientPart>& parts) {
  const at::Tensor& first = parts[0].gradient;
  const c10::cuda::CUDAGuard guard(first.device());
  std::vector<kernels::GradientBuffer> buffers;
  for (const auto& [gradient, copies] : parts)
    buffers.push_back({gradient.const_data_ptr(), gradient.numel(), 1.0 / copies});
  const auto options = first.options().dtype(at::kDouble);
  at::Tensor square = at::empty({}, options), workspace = at::empty({kernels::global_norm_workspace()}, options);
  launched(
      kernels::global_square(buffers.data(), static_cast<int>(buffers.size()), element(first),
                             square.mutable_data_ptr<double>(), workspace.mutable_data_ptr<double>(), stream_of(first)),
      "global_square");
  return square;
}

}  // namespace trireme::shard_kernels
