#include "trireme/ops/norm.h"

#include "gradient_check.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

TEST(RmsNorm, ForwardEqualsThePlainComposition) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = random({3, 5, 37}, 1, dtype), w = random({37}, 2, dtype);
    EXPECT_EQ(max_difference(apply_norm(x, rms_norm(w, 1e-5)), rms_norm_reference(x, w, 1e-5)), 0)
        << c10::toString(dtype);
  }
}

TEST(RmsNorm, GradientEqualsDifferences) {
  const std::vector<at::Tensor> inputs = {random({2, 3, 7}, 1), random({7}, 2)};
  EXPECT_LT(gradient_error([](const auto& t) { return project(apply_norm(t[0], rms_norm(t[1], 1e-5))); }, inputs),
            1e-8);
}

TEST(RmsNorm, GradientInFp32EqualsAutogradOfThePlainComposition) {
  const std::vector<at::Tensor> inputs = {random({4, 129}, 3, at::kFloat), random({129}, 4, at::kFloat)};
  const auto ours = gradients([](const auto& t) { return project(apply_norm(t[0], rms_norm(t[1], 1e-6))); }, inputs);
  const auto plain = gradients([](const auto& t) { return project(rms_norm_reference(t[0], t[1], 1e-6)); }, inputs);
  for (int i = 0; i < 2; ++i) EXPECT_LT(relative_difference(ours[i], plain[i]), 1e-6);
}

TEST(RmsNorm, FrozenWeightGetsNoGradient) {
  const at::Tensor x = random({2, 8}, 1).requires_grad_(), w = random({8}, 2);
  project(apply_norm(x, rms_norm(w, 1e-5))).backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
}

TEST(RmsNorm, TinyRowsStayFinite) {
  const at::Tensor x = at::zeros({2, 16}, at::kFloat).requires_grad_(), w = at::ones({16}, at::kFloat);
  const at::Tensor y = apply_norm(x, rms_norm(w, 1e-5));
  y.sum().backward();
  EXPECT_EQ(y.abs().max().item<float>(), 0);
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
}

TEST(RmsNorm, RowsWiderThanTheKernelsAreComposed) {
  const at::Tensor x = random({2, 20480}, 1, at::kFloat), w = random({20480}, 2, at::kFloat);
  EXPECT_LT(relative_difference(apply_norm(x, rms_norm(w, 1e-5)), rms_norm_reference(x, w, 1e-5)), 1e-6);
}

TEST(RmsNorm, PlusOneRoundsOnceAsGemmas) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random({3, 5, 37}, 1, dtype), w = random({37}, 2, dtype);
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor normed = x.to(wide) * at::rsqrt(x.to(wide).square().mean(-1, true) + 1e-5);
    const at::Tensor expected = (normed * (1.0 + w.to(wide))).to(dtype);
    EXPECT_EQ(max_difference(apply_norm(x, rms_norm_plus_one(w, 1e-5)), expected), 0) << c10::toString(dtype);
  }
  const auto call = [](const auto& t) { return project(apply_norm(t[0], rms_norm_plus_one(t[1], 1e-5)).square()); };
  EXPECT_LT(gradient_error(call, {random({2, 3, 7}, 1), random({7}, 2)}), 1e-7);
}

TEST(LayerNorm, ValueAndGradients) {
  const std::vector<at::Tensor> in = {random({5, 6}, 1), random({6}, 2), random({6}, 3)};
  const auto call = [](const std::vector<at::Tensor>& t) { return apply_norm(t[0], layer_norm(t[1], t[2], 1e-3)); };
  const at::Tensor centred = in[0] - in[0].mean(-1, true);
  const at::Tensor expected = centred / (centred.square().mean(-1, true) + 1e-3).sqrt() * in[1] + in[2];
  EXPECT_LT(max_difference(call(in), expected), 1e-12);
  EXPECT_LT(gradient_error([&](const std::vector<at::Tensor>& t) { return project(call(t).square()); }, in), 1e-6);
}

}  // namespace
}  // namespace trireme
