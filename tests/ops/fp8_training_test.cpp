// FP8 products of trained layers as a CPU emulates them: the formulas of their gradients, and how scales follow.
#include "fp8_block.h"

#include <gtest/gtest.h>

#include <limits>

namespace trireme {
namespace {

using namespace testing;

TEST(Fp8Training, GradientsAreThoseOfThePlainBlockButForRounding) {
  const Fp8Block block{128, 64, 256, 4, 0.1};
  const auto inputs = block.inputs();
  Fp8Scales scales(4, at::kCPU);
  const auto plain = block.run(inputs, at::kCPU, at::kFloat, nullptr);
  for (const bool followed : {false, true}) {
    const auto fp8 = block.run(inputs, at::kCPU, at::kFloat, &scales);
    for (size_t i = 0; i < plain.size(); ++i) {
      // E4M3 rounds by 2.6 % on average, E5M2 by twice that; sums of products average it out.
      EXPECT_GT(cosine(fp8[i], plain[i]), 0.995)
          << "output " << i << " (0: y, then the inputs' gradients), followed " << followed;
      EXPECT_NEAR((fp8[i].norm() / plain[i].norm()).item<double>(), 1, 0.03) << "output " << i;
    }
    EXPECT_GT(relative_distance(fp8[0], plain[0]), 1e-4) << "nothing was quantised";
    EXPECT_EQ(scales.update().item<double>(), 0);
  }
}

TEST(Fp8Training, ProductsAreOfTheCodes) {
  // Quarters up to 7/4, which make the scales powers of two and fit both formats: nothing is rounded.
  const auto quarters = [](at::IntArrayRef shape, uint64_t seed) {
    at::Tensor values = random(shape, seed).mul_(4).round_().clamp_(-7, 7).div_(4).to(at::kFloat);
    values[0][0] = 1.75;
    return values;
  };
  at::Tensor x = quarters({32, 16}, 3), w = quarters({48, 16}, 4);
  x.requires_grad_(true), w.requires_grad_(true);
  at::Tensor bias = at::arange(48, at::kFloat).requires_grad_(true);
  Fp8Scales scales(1, at::kCPU);
  const auto [y, same] = fp8_linear_bias(x, w, bias, scales.linear(0));
  EXPECT_TRUE(y.equal(at::addmm(bias, x, w.t())));
  const at::Tensor dy = quarters({32, 48}, 5), dx = random({32, 16}, 6).round_().to(at::kFloat);
  (y * dy).sum().add((same * dx).sum()).backward();
  EXPECT_TRUE(x.grad().equal(at::mm(dy, w.detach()) + dx));
  EXPECT_TRUE(w.grad().equal(at::mm(dy.t(), x.detach())));
  EXPECT_TRUE(bias.grad().equal(dy.sum(0)));
}

TEST(Fp8Training, ScalesFollowTheNewestStep) {
  Fp8Scales scales(1, at::kCPU);
  EXPECT_TRUE(scales.state().empty());
  const Fp8Tensor& x = scales.linear(0).x;
  const Fp8Tensor& dy = scales.linear(0).dy;
  const auto operand = [&](const Fp8Tensor& tensor, double top) {
    return fp8_operand(at::full({16, 16}, top), tensor, *scales.linear(0).known);
  };
  (void)operand(x, 7.0);  // before any step its own amax
  EXPECT_EQ(x.scale.item<double>(), 448.0 / 2 / 7);
  scales.begin_step();
  EXPECT_EQ(x.amax.item<double>(), 0) << "what ran before the first step counts";
  (void)operand(x, 2.0), (void)operand(dy, 0.5);
  EXPECT_EQ(scales.update().item<double>(), 0);
  EXPECT_EQ(x.scale.item<double>(), 112);
  EXPECT_EQ(dy.scale.item<double>(), 57344);
  EXPECT_TRUE(dy.inverse.equal(dy.scale.reciprocal()));

  const Fp8Operand doubled = operand(x, 4.0),
                   beyond = operand(x, -8.0);  // known now: the scale stays for the whole step
  EXPECT_EQ(doubled.data.to(at::kFloat).max().item<double>(), 448);
  EXPECT_EQ(beyond.data.to(at::kFloat).min().item<double>(), -448);
  EXPECT_EQ(scales.update().item<double>(), 1) << "the tensor that was cut off";
  EXPECT_EQ(x.scale.item<double>(), 28);
  EXPECT_EQ(dy.scale.item<double>(), 57344) << "a tensor of which nothing was seen keeps its scale";

  (void)operand(x, std::numeric_limits<double>::infinity()),
      (void)operand(dy, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(scales.update().item<double>(), 2);
  EXPECT_EQ(x.scale.item<double>(), 28);
  EXPECT_EQ(dy.scale.item<double>(), 57344);

  Fp8Scales again(1, at::kCPU), other(2, at::kCPU);
  EXPECT_TRUE(again.restore(scales.state()));
  EXPECT_TRUE(*again.linear(0).known);
  EXPECT_TRUE(again.linear(0).x.scale.equal(x.scale));
  EXPECT_TRUE(again.linear(0).x.inverse.equal(x.inverse));
  EXPECT_FALSE(other.restore(scales.state()));
}

}  // namespace
}  // namespace trireme
