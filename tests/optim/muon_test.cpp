// Muon on the CPU: the Newton-Schulz steps, skipped steps, and the elements that are in no matrix.
#include "trireme/comm/communicator.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace trireme {
namespace {

at::Tensor random_values(at::IntArrayRef shape, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::empty(shape).normal_(0.0, 1.0, generator);
}

TEST(Muon, SingularValuesNearOneForEveryShape) {
  for (const auto& [rows, columns] : {std::pair{96, 96}, {33, 120}, {120, 33}, {1, 40}, {7, 7}}) {
    const at::Tensor matrices = random_values({3, rows, columns}, 1).to(at::kBFloat16);
    const at::Tensor whole = orthogonalised(matrices.clone()), halves = orthogonalised(matrices.clone(), 1);
    ASSERT_EQ(whole.sizes(), matrices.sizes());
    const at::Tensor values = at::linalg_svdvals(whole.to(at::kFloat));
    // Five steps bring values to 0.68 to 1.14, but not those near 0, which square random matrices have.
    EXPECT_GT(values.mean().item<double>(), 0.67) << rows << " x " << columns;
    EXPECT_LT(values.max().item<double>(), 1.2) << rows << " x " << columns;
    EXPECT_LT((whole - halves).to(at::kFloat).norm().item<double>() / whole.to(at::kFloat).norm().item<double>(), 0.02)
        << rows << " x " << columns << ": mirrored products differ from whole ones by more than rounding";
    const at::Tensor alone = orthogonalised(matrices.narrow(0, 1, 1).clone());
    EXPECT_LT((whole.narrow(0, 1, 1) - alone).to(at::kFloat).abs().max().item<double>(), 0.02);
  }
  EXPECT_TRUE(orthogonalised(at::zeros({1, 4, 6}, at::kBFloat16)).eq(0).all().item<bool>());
}

TEST(Muon, OrthogonalisesAsPyTorchDoes) {
  const auto reference = [](const at::Tensor& matrix) {
    at::Tensor x = matrix.size(0) > matrix.size(1) ? matrix.t().clone() : matrix.clone();
    x.div_(x.norm().clamp_min(1e-7));
    for (int step = 0; step < 5; ++step) {
      const at::Tensor gram = at::mm(x, x.t());
      x = at::addmm(x, at::addmm(gram, gram, gram, -4.7750, 2.0315), x, 3.4445, 1);
    }
    return matrix.size(0) > matrix.size(1) ? x.t() : x;
  };
  for (const auto& [rows, columns] : {std::pair{48, 48}, {64, 172}, {172, 64}}) {
    const at::Tensor matrices = random_values({3, rows, columns}, 2).to(at::kBFloat16);
    const at::Tensor ours = orthogonalised(matrices.clone());
    for (int i = 0; i < 3; ++i) {
      // The norm's sum may be in another order, which seldom changes its rounding.
      const at::Tensor theirs = reference(matrices[i]), difference = (ours[i] - theirs).to(at::kFloat);
      EXPECT_LT(difference.norm().item<double>(), 0.02 * theirs.to(at::kFloat).norm().item<double>()) << rows;
    }
  }
}

/// A unit of a vector of 5 elements, a fused matrix of two times [8, 16], and a bias of 16, each from a multiple of
/// 128.
TrainedShard make_shard(uint64_t seed) {
  TrainedShard shard;
  shard.name = "unit";
  shard.master = shard.compute = random_values({640}, seed);
  shard.ranges = {{0, 5, 0, false}, {128, 256, 1, true}, {256, 384, 2, true}, {384, 400, 3, false}};
  shard.num_tensors = 4;
  shard.unit_numel = 512;
  shard.matrices = {{128, 8, 16, true}, {256, 8, 16, true}};
  shard.master.narrow(0, 512, 128).zero_();
  return shard;
}

OptimizerSection muon(OptimizerSection::Moments moments = OptimizerSection::Moments::kFp32) {
  OptimizerSection options;
  options.name = OptimizerSection::Name::kMuon;
  options.weight_decay = 0.1;
  options.moments = moments;
  return options;
}

TEST(Muon, StateCoversTheUnitOnce) {
  const auto comm = make_self_communicator();
  std::vector<TrainedShard> shards = {make_shard(1)};
  const auto optimizer = make_optimizer(muon(), shards, *comm);
  std::vector<std::string> found;
  for (const StateTensor& state : optimizer->state())
    if (state.shard != nullptr)
      found.push_back(state.shard->name + " " + std::to_string(static_cast<int>(state.kind)) + " " +
                      std::to_string(state.tensor.numel()));
  // The momentum of the whole shard; both moments of the 256 elements that are in no matrix.
  EXPECT_EQ(found, (std::vector<std::string>{"unit.vectors 1 256", "unit.vectors 2 256", "unit 1 640"}));
}

TEST(Muon, VectorsAreAdamws) {
  const auto comm = make_self_communicator();
  std::vector<TrainedShard> ours = {make_shard(1)}, plain = {make_shard(1)};
  plain[0].matrices.clear();
  OptimizerSection adamw = muon();
  adamw.name = OptimizerSection::Name::kAdamw;
  const auto one = make_optimizer(muon(), ours, *comm), two = make_optimizer(adamw, plain, *comm);
  for (uint64_t step = 0; step < 3; ++step) {
    ours[0].gradient = plain[0].gradient = random_values({640}, 10 + step);
    one->step(1e-2, at::ones({}) * 0.5, at::zeros({}));
    two->step(1e-2, at::ones({}) * 0.5, at::zeros({}));
  }
  for (const auto& [begin, count] : {std::pair{0, 5}, {384, 16}})
    EXPECT_TRUE(ours[0].master.narrow(0, begin, count).equal(plain[0].master.narrow(0, begin, count)));
  EXPECT_FALSE(ours[0].master.narrow(0, 128, 256).allclose(plain[0].master.narrow(0, 128, 256)));
}

TEST(Muon, ASkippedStepChangesNothing) {
  for (const auto moments : {OptimizerSection::Moments::kFp32, OptimizerSection::Moments::kBf16}) {
    const auto comm = make_self_communicator();
    std::vector<TrainedShard> shards = {make_shard(1)};
    const auto optimizer = make_optimizer(muon(moments), shards, *comm);
    const auto values = [&] {
      std::vector<at::Tensor> all = {shards[0].master.clone()};
      for (const StateTensor& state : optimizer->state()) all.push_back(state.tensor.clone());
      return all;
    };
    shards[0].gradient = random_values({640}, 2);
    optimizer->step(1e-2, at::ones({}), at::zeros({}));
    const auto before = values();
    shards[0].gradient = at::full({640}, std::numeric_limits<float>::quiet_NaN());
    optimizer->step(1e-2, at::full({}, std::numeric_limits<float>::infinity()), at::ones({}));
    const auto after = values();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].equal(after[i])) << i;
  }
}

TEST(Muon, Bf16MomentumStaysClose) {
  const auto comm = make_self_communicator();
  std::vector<TrainedShard> exact = {make_shard(1)}, rounded = {make_shard(1)};
  const auto one = make_optimizer(muon(), exact, *comm),
             two = make_optimizer(muon(OptimizerSection::Moments::kBf16), rounded, *comm);
  for (uint64_t step = 0; step < 40; ++step) {
    exact[0].gradient = rounded[0].gradient = random_values({640}, 10 + step);
    one->step(1e-3, at::ones({}), at::zeros({}));
    two->step(1e-3, at::ones({}), at::zeros({}));
  }
  const at::Tensor start = make_shard(1).master, moved = exact[0].master - start;
  EXPECT_LT((rounded[0].master - exact[0].master).norm().item<double>(), 0.05 * moved.norm().item<double>());
}

}  // namespace
}  // namespace trireme
