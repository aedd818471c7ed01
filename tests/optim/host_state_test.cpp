// State that waits on the host: passes through the device, and AdamW with it, which gives the bits of AdamW without.
#include "trireme/nn/host_state.h"

#include "../base/base_testing.h"
#include "trireme/comm/communicator.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace trireme {
namespace {

constexpr int64_t kCount = 5000, kPadded = 5120;  // the last 120 elements are padding

at::Tensor random_values(int64_t count, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::empty({count}).normal_(0.0, 1.0, generator);
}

/// On a CPU with copies, and on a GPU.
class HostStateOn : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (device_.is_cuda() && (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0))
      GTEST_SKIP() << "no GPU found";
  }
  HostState store(int64_t piece) {
    return HostState({.device = device_, .piece_elements = piece, .copies_on_cpu = true});
  }
  at::Device device_{GetParam(), GetParam() == at::kCPU ? c10::DeviceIndex(-1) : c10::DeviceIndex(0)};
};

TEST_P(HostStateOn, PassesEveryPieceAndBringsBackWhatChanged) {
  for (const int pieces : {0, 1, 2, 3, 4, 11}) {
    HostState store = this->store(1 << 16);
    std::vector<HostState::Piece> host;
    for (int i = 0; i < pieces; ++i) {
      const int64_t count = (1 << 16) - 128 * i;
      host.push_back({store.zeros(count, at::kFloat), store.zeros(count, at::kBFloat16)});
      EXPECT_TRUE(host.back()[0].is_cpu());
      EXPECT_EQ(host.back()[0].abs().max().item<float>(), 0);
      host.back()[0].fill_(i);
    }
    // The second pass follows at once, and sees what the first wrote.
    for (const bool writes : {true, true, false}) {
      size_t next = 0;
      store.pass(
          host,
          [&](size_t i, const HostState::Piece& here) {
            EXPECT_EQ(i, next++);
            EXPECT_EQ(here[0].device().type(), device_.type());
            here[0].mul_(2).add_(1);
            here[1].copy_(here[0]);
          },
          writes);
      EXPECT_EQ(next, host.size());
    }
    store.settle();
    for (int i = 0; i < pieces; ++i) {
      EXPECT_TRUE(host[static_cast<size_t>(i)][0].eq(4 * i + 3).all().item<bool>()) << i << " of " << pieces;
      EXPECT_TRUE(host[static_cast<size_t>(i)][1].eq(4 * i + 3).all().item<bool>()) << i << " of " << pieces;
    }
  }
}

TEST_P(HostStateOn, AdamWHasTheBitsOfAdamWWithoutIt) {
  using Moments = OptimizerSection::Moments;
  enum class Copy { kBf16, kNone, kSame };
  const auto comm = make_self_communicator();
  for (const auto& [moments, copy, piece, masters] : {std::tuple{Moments::kFp32, Copy::kBf16, 1024, at::kFloat},
                                                      {Moments::kFp32, Copy::kNone, 1024, at::kFloat},
                                                      {Moments::kBf16, Copy::kBf16, 128, at::kFloat},
                                                      {Moments::kBf16, Copy::kSame, 2048, at::kFloat},
                                                      {Moments::kFp32, Copy::kSame, 256, at::kFloat},
                                                      {Moments::kBf16, Copy::kNone, 1 << 20, at::kFloat},
                                                      {Moments::kBf16, Copy::kSame, 256, at::kBFloat16},
                                                      {Moments::kFp32, Copy::kNone, 1024, at::kBFloat16}}) {
    OptimizerSection options;
    options.betas = {0.9, 0.95};
    options.weight_decay = 0.1;
    options.moments = moments;
    HostState store = this->store(piece);
    const auto make = [&, copy = copy, masters = masters](HostState* host) {
      std::vector<TrainedShard> shards;
      for (const int s : {0, 1}) {
        TrainedShard shard;
        shard.name = "unit" + std::to_string(s);
        at::Tensor values = random_values(kPadded, static_cast<uint64_t>(s + 1));
        values.narrow(0, kCount, kPadded - kCount).zero_();
        // Only the first unit's state waits.
        shard.host = s == 0 ? host : nullptr;
        const bool away = shard.host != nullptr && copy != Copy::kSame;
        shard.master =
            away ? host->zeros(kPadded, masters) : at::empty({kPadded}, at::TensorOptions(device_).dtype(masters));
        shard.master.copy_(values);
        if (copy == Copy::kBf16) shard.compute = values.to(device_).to(at::kBFloat16);
        if (copy == Copy::kSame) shard.compute = shard.master;
        if (copy == Copy::kNone) shard.amax = at::zeros({3}, device_);
        shard.ranges = {{0, 1000, 0, true}, {1024, 1100, 1, false}, {1152, kCount, 2, true}};
        shard.num_tensors = 3;
        shard.first_element = s * (int64_t{1} << 33);
        shards.push_back(std::move(shard));
      }
      return shards;
    };
    std::vector<TrainedShard> plain = make(nullptr), hosted = make(&store);
    const auto one = make_optimizer(options, plain, *comm), two = make_optimizer(options, hosted, *comm);
    for (uint64_t step = 0; step < 6; ++step) {
      for (size_t s = 0; s < 2; ++s)  // each its own: LibTorch's step multiplies them in place
        for (TrainedShard* shard : {&plain[s], &hosted[s]})
          shard->gradient = random_values(kPadded, 10 * step + s).to(device_);
      const at::Tensor multiplier = at::full({}, 0.7, at::TensorOptions(device_).dtype(at::kFloat));
      const at::Tensor skip = at::full({}, step == 3 ? 1.0 : 0.0, multiplier.options());
      one->step(1e-2, multiplier, skip);
      two->step(1e-2, multiplier, skip);
    }
    store.settle();
    const auto expect_equal = [&](const at::Tensor& got, const at::Tensor& want, const std::string& what) {
      if (!want.defined()) return;
      EXPECT_TRUE(got.cpu().equal(want.cpu())) << what << ", pieces of " << piece;
    };
    for (size_t s = 0; s < 2; ++s) {
      expect_equal(hosted[s].master, plain[s].master, "master");
      expect_equal(hosted[s].compute, plain[s].compute, "compute");
      EXPECT_EQ(hosted[s].amax_known, plain[s].amax_known);
      if (plain[s].amax_known) expect_equal(hosted[s].amax, plain[s].amax, "amax");
    }
    const auto want = one->state(), got = two->state();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) expect_equal(got[i].tensor, want[i].tensor, "state");
    EXPECT_TRUE(got[1].tensor.is_cpu());
    EXPECT_EQ(got[3].tensor.device().type(), device_.type());
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, HostStateOn, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& device) { return device.param == at::kCPU ? "cpu" : "gpu"; });

TEST(HostState, OptimizersThatNeedWholeUnitsRefuseIt) {
  const auto comm = make_self_communicator();
  HostState store({});
  std::vector<TrainedShard> shards(1);
  shards[0].host = &store;
  shards[0].master = shards[0].compute = at::zeros({128});
  for (const auto name : {OptimizerSection::Name::kLamb, OptimizerSection::Name::kMuon}) {
    OptimizerSection options;
    options.name = name;
    options.betas = {0.9, 0.95};
    EXPECT_THROW(make_optimizer(options, shards, *comm), InternalError);
  }
}

TEST(HostState, SaysHowMuchTheHostGives) {
  const std::string text = message_of<ConfigError>([] {
    throw_no_pinned_memory(int64_t{3} << 30, int64_t{80} << 30, "state waits", "out of memory\nbacktrace", "do this");
  });
  EXPECT_EQ(text.find("the host gives 3.0 GiB of the 80.0 GiB of pinned memory in which state waits (out of memory"), 0)
      << text;
  EXPECT_FALSE(contains(text, "backtrace"));
  EXPECT_TRUE(contains(text, "): do this"));
}

}  // namespace
}  // namespace trireme
