// The layers of a BERT block on a GPU, with its kernels, against the same layers in fp64 on the CPU.
#include "trireme/ops/bert_layers.h"
#include "trireme/ops/pack_attention.h"

#include "gradient_check.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

constexpr int64_t kTokens = 700, kWidth = 256, kInner = 1024, kHeads = 4;

struct Case {
  at::ScalarType dtype;
  double dropout, tolerance;
};

/// y, then the gradients of all inputs, in fp64 on the CPU.
std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, at::Device device, at::ScalarType dtype, double p) {
  std::vector<at::Tensor> t;
  for (const at::Tensor& input : inputs) t.push_back(input.to(device, dtype).detach().clone().requires_grad_(true));
  const at::Tensor keys = (at::arange(kTokens, at::TensorOptions(at::kLong)) * 31 + 7).to(device);
  const Dropout dropout = p > 0 ? Dropout{p, 21, keys} : Dropout{};
  const PackLayout layout = make_pack_layout({0, 130, 131, 400, kTokens}, {4, 5, 6, 7}, device);
  const auto [qkv, same] = linear_bias(t[0], t[1], t[2]);
  const at::Tensor attended =
      pack_attention(qkv.view({kTokens, 3, kHeads, kWidth / kHeads}), layout, 0.125, dropout, 5);
  const at::Tensor h = linear_add_norm(attended, t[3], t[4], same, {t[5], t[6], 1e-12}, dropout, 2);
  const auto [activated, middle] = linear_gelu(h, t[7], t[8], GeluForm::kTanh);
  const at::Tensor y = linear_add_norm(activated, t[9], t[10], middle, {t[11], t[12], 1e-12}, dropout, 3);
  (y.to(at::kDouble) * random(y.sizes(), 99).to(device)).sum().backward();
  std::vector<at::Tensor> result = {y.detach().to(at::kCPU, at::kDouble)};
  for (const at::Tensor& leaf : t) result.push_back(leaf.grad().to(at::kCPU, at::kDouble));
  return result;
}

at::Tensor rounded(at::IntArrayRef shape, uint64_t seed, double scale) {
  return random(shape, seed).mul_(scale).to(at::kBFloat16).to(at::kDouble);
}

class BertLayersGpu : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
};

TEST_P(BertLayersGpu, EqualTheCompositionInDouble) {
  const Case c = GetParam();
  const std::vector<at::Tensor> inputs = {rounded({kTokens, kWidth}, 1, 1), rounded({3 * kWidth, kWidth}, 2, 0.06),
                                          rounded({3 * kWidth}, 3, 0.1),    rounded({kWidth, kWidth}, 4, 0.06),
                                          rounded({kWidth}, 5, 0.1),        rounded({kWidth}, 6, 0.1).add_(1),
                                          rounded({kWidth}, 7, 0.1),        rounded({kInner, kWidth}, 8, 0.06),
                                          rounded({kInner}, 9, 0.1),        rounded({kWidth, kInner}, 10, 0.03),
                                          rounded({kWidth}, 11, 0.1),       rounded({kWidth}, 12, 0.1).add_(1),
                                          rounded({kWidth}, 13, 0.1)};
  const auto expected = run(inputs, at::kCPU, at::kDouble, c.dropout), got = run(inputs, at::kCUDA, c.dtype, c.dropout);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = ((got[i] - expected[i]).norm() / expected[i].norm().clamp_min(1e-12)).item<double>();
    EXPECT_LT(error, c.tolerance) << "output " << i << " (0: y, then the inputs' gradients)";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BertLayersGpu,
                         ::testing::Values(Case{at::kFloat, 0.0, 2e-5}, Case{at::kFloat, 0.1, 2e-5},
                                           Case{at::kHalf, 0.0, 6e-3}, Case{at::kHalf, 0.1, 6e-3},
                                           Case{at::kBFloat16, 0.1, 4e-2}));

TEST(PackAttentionGpu, DropoutIsTheSameAgainAndKeepsTheMean) {
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  at::Tensor qkv = rounded({512, 3, 4, 64}, 1, 1);
  qkv.select(1, 2).fill_(1.0);  // attention of ones is the mean of what dropout keeps
  const at::Tensor x = qkv.to(at::kCUDA, at::kHalf);
  const PackLayout layout = make_pack_layout({0, 200, 512}, {9, 10}, at::kCUDA);
  const Dropout dropout{0.1, 5, at::arange(512, at::TensorOptions(at::kLong)).to(at::kCUDA)};
  const at::Tensor a = pack_attention(x, layout, 0.125, dropout, 3), b = pack_attention(x, layout, 0.125, dropout, 3),
                   other = pack_attention(x, layout, 0.125, dropout, 4);
  EXPECT_EQ(max_difference(a, b), 0);
  EXPECT_GT(max_difference(a, other), 0.01);
  EXPECT_NEAR(a.to(at::kDouble).mean().item<double>(), 1.0, 0.01);
}

}  // namespace
}  // namespace trireme
