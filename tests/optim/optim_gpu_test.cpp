// The optimizers on a GPU against the same optimizers on the CPU, where the LibTorch compositions run.
#include "trireme/comm/communicator.h"
#include "trireme/config/keys.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

struct Case {
  std::string optimizer;
  at::ScalarType compute;
  at::ScalarType gradient = at::kFloat;
};

class OptimizersGpu : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  }

  /// Three shards: tensors of odd sizes with padding in between, one without weight decay, one of zeros (trust ratio
  /// 1), one in two ranges.
  static std::vector<TrainedShard> make_shards(at::Device device, at::ScalarType compute) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(11);
    std::vector<TrainedShard> shards;
    for (int s = 0; s < 3; ++s) {
      TrainedShard shard;
      shard.name = "unit." + std::to_string(s);
      shard.master = at::empty({20000}).normal_(0.0, 1.0, generator).to(device);
      shard.ranges = {
          {0, 5, 0, true}, {8, 4111, 1, false}, {4112, 9000, 2, true}, {9003, 9004, 3, true}, {12000, 20000, 2, true}};
      shard.num_tensors = 5;
      shard.unit_numel = 20000;
      shard.matrices = {{4112, 47, 104, true}, {12000, 80, 100, true}};
      shard.copies = s + 1;
      if (s == 1) shard.master.narrow(0, 4112, 4888).zero_();
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{5, 8}, {4111, 4112}, {9000, 9003}, {9004, 12000}})
        shard.master.narrow(0, begin, end - begin).zero_();
      shard.compute = compute == at::kFloat ? shard.master : shard.master.to(compute);
      shards.push_back(shard);
    }
    return shards;
  }

  static void give_gradients(std::vector<TrainedShard>& shards, int step, at::ScalarType dtype) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(100 + static_cast<uint64_t>(step));
    for (TrainedShard& shard : shards) {
      at::Tensor gradient = at::empty({20000}).normal_(0.0, 0.1, generator);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{5, 8}, {4111, 4112}, {9000, 9003}, {9004, 12000}})
        gradient.narrow(0, begin, end - begin).zero_();
      if (step == 2) gradient[77] = std::numeric_limits<float>::infinity();
      shard.gradient = gradient.to(dtype).to(shard.master.device());
    }
  }
};

TEST_P(OptimizersGpu, Bf16MomentsAreRoundedAsTheCompositionRounds) {
  if (GetParam().optimizer != "adamw") return;
  OptimizerSection options;
  options.betas = {0.9, 0.999};
  options.moments = OptimizerSection::Moments::kBf16;
  const std::unique_ptr<Communicator> comm = make_self_communicator();
  std::vector<TrainedShard> host = make_shards(at::kCPU, at::kBFloat16), device = make_shards(at::kCUDA, at::kBFloat16);
  for (size_t s = 0; s < host.size(); ++s) host[s].first_element = device[s].first_element = (int64_t{1} << 32) + 3;
  const auto on_host = make_optimizer(options, host, *comm), on_device = make_optimizer(options, device, *comm);
  give_gradients(host, 0, at::kFloat);
  give_gradients(device, 0, at::kFloat);
  on_host->step(1e-3, at::ones({}), at::zeros({}));
  on_device->step(1e-3, at::ones({}, at::kCUDA), at::zeros({}, at::kCUDA));
  const auto expected = on_host->state(), actual = on_device->state();
  for (size_t i = 1; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i].tensor.scalar_type(), at::kBFloat16) << i;
    const at::Tensor equal = actual[i].tensor.cpu().eq(expected[i].tensor);
    // fp32 sums may differ in the last bit, which decides the rounding of few elements.
    EXPECT_GT(equal.to(at::kDouble).mean().item<double>(), 0.999) << i;
  }
}

TEST_P(OptimizersGpu, Bf16MastersAreRoundedAsTheCompositionRounds) {
  if (GetParam().optimizer != "adamw" || GetParam().compute != at::kBFloat16) return;
  OptimizerSection options;
  options.betas = {0.9, 0.999};
  options.weight_decay = 0.1;
  const std::unique_ptr<Communicator> comm = make_self_communicator();
  for (const auto moments : {OptimizerSection::Moments::kFp32, OptimizerSection::Moments::kBf16}) {
    options.moments = moments;
    const auto make = [&](at::Device device) {
      std::vector<TrainedShard> shards = make_shards(device, at::kBFloat16);
      for (TrainedShard& shard : shards) {
        shard.master = shard.compute;
        shard.first_element = (int64_t{1} << 32) + 3;
        shard.rounding_key = 0xDEADBEEF;
      }
      return shards;
    };
    std::vector<TrainedShard> host = make(at::kCPU), device = make(at::kCUDA);
    const auto on_host = make_optimizer(options, host, *comm), on_device = make_optimizer(options, device, *comm);
    for (const int step : {0, 1}) {
      give_gradients(host, step, GetParam().gradient);
      give_gradients(device, step, GetParam().gradient);
      on_host->step(1e-3, at::ones({}), at::zeros({}));
      on_device->step(1e-3, at::ones({}, at::kCUDA), at::zeros({}, at::kCUDA));
      for (size_t s = 0; s < host.size(); ++s) {
        ASSERT_EQ(device[s].master.scalar_type(), at::kBFloat16);
        // fp32 sums may differ in the last bit, which decides the rounding of few elements.
        EXPECT_GT(device[s].master.cpu().eq(host[s].master).to(at::kDouble).mean().item<double>(), 0.998)
            << s << ", step " << step;
      }
    }
  }
}

TEST_P(OptimizersGpu, OrthogonaliseAsTheCpuDoes) {
  if (GetParam().optimizer != "muon") return;
  for (const auto& [rows, columns] : {std::pair{256, 256}, {200, 301}, {301, 200}}) {
    const at::Tensor matrices = at::randn({3, rows, columns}).to(at::kBFloat16);
    const at::Tensor expected = orthogonalised(matrices.clone()).to(at::kFloat);
    for (const int64_t symmetric_from : {1, 2048}) {
      const at::Tensor ours = orthogonalised(matrices.to(at::kCUDA), symmetric_from).to(at::kFloat).cpu();
      EXPECT_LT((ours - expected).norm().item<double>(), 0.02 * expected.norm().item<double>())
          << rows << " x " << columns;
    }
  }
}

TEST_P(OptimizersGpu, EqualTheCompositionOnTheCpu) {
  OptimizerSection options;
  options.name = choice_of<OptimizerSection::Name>(GetParam().optimizer).value();
  options.betas = {0.9, 0.95};
  options.eps = 1e-6;
  options.weight_decay = 0.1;
  const std::unique_ptr<Communicator> comm = make_self_communicator();
  std::vector<TrainedShard> host = make_shards(at::kCPU, GetParam().compute),
                            device = make_shards(at::kCUDA, GetParam().compute);
  const auto on_host = make_optimizer(options, host, *comm), on_device = make_optimizer(options, device, *comm);
  for (int step = 0; step < 6; ++step) {
    give_gradients(host, step, GetParam().gradient);
    give_gradients(device, step, GetParam().gradient);
    double square = 0;
    for (const TrainedShard& shard : host)
      square += shard.gradient.to(at::kDouble).square().sum().item<double>() / shard.copies;
    const double on_gpu = local_gradient_square(device).item<double>();
    if (step == 2) {
      EXPECT_FALSE(std::isfinite(on_gpu));
    } else {
      EXPECT_NEAR(on_gpu / square, 1.0, 1e-6);
      // The CPU sums in plain fp32.
      EXPECT_NEAR(local_gradient_square(host).item<double>() / square, 1.0, 1e-5);
    }
    // The step with the NaN multiplier is skipped.
    const at::Tensor multiplier = at::full({}, step == 2 ? std::numeric_limits<float>::quiet_NaN() : 0.5f),
                     skip = at::full({}, step == 2 ? 1.0f : 0.0f);
    on_host->step(1e-2, multiplier, skip);
    on_device->step(1e-2, multiplier.to(at::kCUDA), skip.to(at::kCUDA));
  }
  for (size_t s = 0; s < host.size(); ++s) {
    // bf16 rounds Muon's updates, of 2e-3 an element, where sums differ in their last bit.
    EXPECT_LT((device[s].master.cpu() - host[s].master).abs().max().item<double>(),
              options.name == OptimizerSection::Name::kMuon ? 3e-4 : 3e-6)
        << s;
    EXPECT_TRUE(device[s].compute.equal(device[s].master.to(GetParam().compute))) << s;
  }
  const auto a = on_host->state(), b = on_device->state();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].kind, b[i].kind);
    EXPECT_LT((b[i].tensor.cpu() - a[i].tensor).abs().max().item<double>(), 1e-6) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizersGpu,
                         testing::Values(Case{"adamw", at::kBFloat16}, Case{"adamw", at::kHalf},
                                         Case{"adamw", at::kFloat}, Case{"lamb", at::kBFloat16},
                                         Case{"lamb", at::kHalf}, Case{"lamb", at::kFloat},
                                         Case{"adamw", at::kBFloat16, at::kBFloat16},
                                         Case{"lamb", at::kHalf, at::kHalf}, Case{"muon", at::kBFloat16},
                                         Case{"muon", at::kFloat, at::kBFloat16}),
                         [](const auto& each) {
                           return each.param.optimizer + std::string(c10::toString(each.param.compute)) +
                                  (each.param.gradient == at::kFloat ? "" : "Gradients");
                         });

}  // namespace
}  // namespace trireme
