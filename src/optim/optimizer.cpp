#include "trireme/optim/optimizer.h"

#include "shard_kernels.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace trireme {

const OptimizerTraits& traits_of(OptimizerSection::Name name) {
  switch (name) {
#define TRIREME_CASE(Value, word) \
  case OptimizerSection::Name::k##Value: return word##_optimizer();
    TRIREME_OPTIMIZERS(TRIREME_CASE)
#undef TRIREME_CASE
  }
  throw InternalError("an optimizer without a name");
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSection& options, std::vector<TrainedShard>& shards,
                                          Communicator& world) {
  TRIREME_CHECK(options.betas.size() == 2, "optimizer.betas has ", options.betas.size(), " values, not 2");
  for (const TrainedShard& shard : shards) {
    TRIREME_CHECK(shard.master.scalar_type() == at::kFloat || traits_of(options.name).bf16_masters,
                  "the master weights of unit ", shard.name, " are ", shard.master.scalar_type(),
                  ", which the optimizer does not round");
    TRIREME_CHECK(shard.host == nullptr || traits_of(options.name).streams, "the state of unit ", shard.name,
                  " is on the host, and the optimizer needs it on the device");
  }
  return traits_of(options.name).make(options, shards, world);
}

std::vector<StateTensor> Optimizer::moment_state(const std::vector<TrainedShard>& shards, const at::Tensor& steps,
                                                 const std::vector<at::Tensor>& first,
                                                 const std::vector<at::Tensor>& second) {
  std::vector<StateTensor> state = {{StateKind::kOptimizerSteps, nullptr, steps}};
  for (size_t s = 0; s < shards.size(); ++s) {
    state.push_back({StateKind::kFirstMoment, &shards[s], first[s]});
    state.push_back({StateKind::kSecondMoment, &shards[s], second[s]});
  }
  return state;
}

at::Tensor sum_of_squares(const std::vector<GradientPart>& parts) {
  TRIREME_CHECK(!parts.empty(), "there are no gradients");
  const at::ScalarType type = parts[0].gradient.scalar_type();
  for (const GradientPart& part : parts)
    TRIREME_CHECK(part.gradient.scalar_type() == type && part.gradient.is_contiguous(), "one gradient is ",
                  part.gradient.scalar_type(), ", another ", type);
  at::NoGradGuard no_grad;
  if (shard_kernels::kernels_run_on(parts[0].gradient.device())) return shard_kernels::sum_of_squares(parts);
  at::Tensor sum = at::zeros({}, parts[0].gradient.options().dtype(at::kDouble));
  // A plain fp32 sum loses precision with its length, so rows of a fixed length are summed in fp32 and their sums in
  // fp64.
  constexpr int64_t kRow = int64_t{1} << 16;
  for (const auto& [gradient, copies] : parts) {
    const int64_t length = gradient.numel(), whole = length / kRow * kRow;
    const at::Tensor rows = gradient.narrow(0, 0, whole).view({-1, kRow}),
                     rest = gradient.narrow(0, whole, length - whole);
    for (const at::Tensor& part : {at::linalg_vector_norm(rows, 2, {1}, false, at::kFloat),
                                   at::linalg_vector_norm(rest, 2, {}, false, at::kFloat)})
      sum.add_(part.to(at::kDouble).square().sum(), 1.0 / copies);
  }
  return sum;
}

at::Tensor local_gradient_square(const std::vector<TrainedShard>& shards) {
  std::vector<GradientPart> parts;
  for (const TrainedShard& shard : shards) parts.push_back({shard.gradient, shard.copies});
  return sum_of_squares(parts);
}

}  // namespace trireme
