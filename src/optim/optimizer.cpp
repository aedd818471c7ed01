#include "optimizers.h"

#include "shard_kernels.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSection& options, std::vector<TrainedShard>& shards, Communicator& world) {
  TRIREME_CHECK(options.betas.size() == 2, "optimizer.betas has ", options.betas.size(), " values, not 2");
  if (options.name == "lamb") return make_lamb(options, shards, world);
  TRIREME_CHECK(options.name == "adamw", "optimizer '", options.name, "'");
  return make_adamw(options, shards);
}

at::Tensor local_gradient_square(const std::vector<TrainedShard>& shards) {
  TRIREME_CHECK(!shards.empty(), "nothing is trained");
  at::NoGradGuard no_grad;
  if (shard_kernels::kernels_serve(shards[0])) return shard_kernels::gradient_square(shards);
  at::Tensor sum = at::zeros({}, shards[0].master.options().dtype(at::kDouble));
  for (const TrainedShard& shard : shards) {
    // fp32 sums of squares over long vectors: the library's reduction is pairwise; the total over shards is kept in fp64.
    const at::Tensor norm = at::linalg_vector_norm(shard.gradient, 2, {}, false, at::kFloat).to(at::kDouble);
    sum.add_(norm.square(), 1.0 / shard.copies);
  }
  return sum;
}

}  // namespace trireme
