// Attention on a GPU, with our kernels or the library's, against fp64 on the CPU.
#include "trireme/ops/attention.h"

#include "gradient_check.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace trireme {
namespace {

using namespace testing;

struct Case {
  std::string name;
  std::vector<int32_t> bounds;
  int64_t heads, kv_heads, head_dim;
  bool causal;
  double p;
  int64_t window = 0;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class AttentionGpu : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  }
};

/// The output and the gradient of the packed heads.
std::vector<at::Tensor> run(const Case& c, const at::Tensor& heads, at::Device device, at::ScalarType dtype) {
  std::vector<int64_t> keys;
  for (size_t i = 0; i + 1 < c.bounds.size(); ++i) keys.push_back(100 + 7 * static_cast<int64_t>(i));
  const Sequences sequences = make_sequences(c.bounds, keys, device);
  const at::Tensor leaf = heads.to(device, dtype).clone().requires_grad_(true);
  const at::Tensor out = attention_of_packed(leaf, c.kv_heads, sequences,
                                             {.scale = 1 / std::sqrt(static_cast<double>(c.head_dim)),
                                              .causal = c.causal,
                                              .window = c.window,
                                              .dropout = c.p > 0 ? Dropout{c.p, 5, {}, 3} : Dropout{}});
  (out.to(at::kDouble) * random(out.sizes(), 9).to(device)).sum().backward();
  return {out.detach().to(at::kCPU, at::kDouble), leaf.grad().to(at::kCPU, at::kDouble)};
}

TEST_P(AttentionGpu, EqualsFp64WithTheSameDecisions) {
  const Case& c = GetParam();
  const at::Tensor heads =
      random({c.bounds.back(), c.heads + 2 * c.kv_heads, c.head_dim}, 1).to(at::kBFloat16).to(at::kDouble);
  const auto expected = run(c, heads, at::kCPU, at::kDouble);
  for (const auto& [dtype, bound] : {std::pair{at::kHalf, 3e-3}, {at::kBFloat16, 2e-2}}) {
    const auto got = run(c, heads, at::kCUDA, dtype);
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = ((got[i] - expected[i]).norm() / expected[i].norm()).item<double>();
      EXPECT_LT(error, bound) << c10::toString(dtype) << (i == 0 ? " output" : " gradient");  // NaN fails too
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<int32_t> pack{0, 130, 131, 400, 700}, equal{0, 256, 512};
  std::vector<int32_t> short_ones{0};  // several of backward's ranges, a long sequence in one of them
  for (int i = 0; i < 120; ++i) short_ones.push_back(short_ones.back() + (i == 70 ? 300 : 3 + i % 16));
  for (const int64_t d : {64, 128}) {
    const std::string size = "d" + std::to_string(d);
    for (const bool causal : {false, true}) {
      const std::string mask = causal ? "_causal" : "_full";
      all.push_back({size + mask + "_pack", pack, 4, 2, d, causal, 0});
      all.push_back({size + mask + "_equal", equal, 4, 4, d, causal, 0});
      all.push_back({size + mask + "_short", short_ones, 4, 2, d, causal, 0});
      // Without a mask and with dropout the library runs heads of 128, with its own dropout decisions.
      if (causal || d == 64) all.push_back({size + mask + "_pack_dropout", pack, 4, 2, d, causal, 0.1});
      if (causal || d == 64) all.push_back({size + mask + "_short_dropout", short_ones, 4, 2, d, causal, 0.1});
    }
  }
  for (const int64_t d : {64, 96, 128, 256})
    for (const int64_t window : {1, 100, 256}) {
      const std::string name = "d" + std::to_string(d) + "_window" + std::to_string(window);
      all.push_back({name + "_pack", pack, 4, 2, d, true, 0, window});
      all.push_back({name + "_equal", equal, 4, 4, d, true, 0, window});
    }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, AttentionGpu, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

TEST(AttentionGpuDropout, IsTheSameAgainAndKeepsTheMean) {
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  for (const bool causal : {false, true}) {
    at::Tensor heads = random({512, 12, 64}, 1);
    heads.narrow(1, 8, 4).fill_(1.0);  // with values of one, attention gives the sum of the kept probabilities
    const at::Tensor x = heads.to(at::kCUDA, at::kHalf);
    const Sequences sequences = make_sequences({0, 200, 512}, {9, 10}, at::kCUDA);
    const auto at_stream = [&](uint64_t stream) {
      return attention_of_packed(x, 4, sequences, {.scale = 0.125, .causal = causal, .dropout = {0.1, 5, {}, stream}});
    };
    const at::Tensor a = at_stream(3), b = at_stream(3), other = at_stream(4);
    EXPECT_EQ(max_difference(a, b), 0);
    EXPECT_GT(max_difference(a, other), 0.01);
    EXPECT_NEAR(a.to(at::kDouble).mean().item<double>(), 1.0, 0.01);
  }
}

}  // namespace
}  // namespace trireme
