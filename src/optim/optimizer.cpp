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

at::Tensor local_gradient_square(const std::vector<TrainedShard>& shards) {
  TRIREME_CHECK(!shards.empty(), "the optimizer got no trained units");
  at::NoGradGuard no_grad;
  if (shard_kernels::kernels_serve(shards[0])) return shard_kernels::gradient_square(shards);
  at::Tensor sum = at::zeros({}, shards[0].gradient.options().dtype(at::kDouble));
  // A plain fp32 sum loses precision with its length, so rows of a fixed length are summed in fp32 and their sums in
  // fp64.
  constexpr int64_t kRow = int64_t{1} << 16;
  for (const TrainedShard& shard : shards) {
    const int64_t length = shard.gradient.numel(), whole = length / kRow * kRow;
    const at::Tensor rows = shard.gradient.narrow(0, 0, whole).view({-1, kRow}),
                     rest = shard.gradient.narrow(0, whole, length - whole);
    for (const at::Tensor& part : {at::linalg_vector_norm(rows, 2, {1}, false, at::kFloat),
                                   at::linalg_vector_norm(rest, 2, {}, false, at::kFloat)})
      sum.add_(part.to(at::kDouble).square().sum(), 1.0 / shard.copies);
  }
  return sum;
}

}  // namespace trireme
