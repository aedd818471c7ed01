#include "trireme/ops/block_layers.h"

#include "gradient_check.h"
#include "lora_reference.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

Dropout dropout_of(double p, int64_t rows) { return {p, 17, at::arange(rows, at::TensorOptions(at::kLong)) + 100}; }

/// Two adapters on a fused weight of 3 + 2 + 4 rows; the middle rows have none.
std::vector<LoraAdapter> two_adapters(const std::vector<at::Tensor>& t, size_t first) {
  return {{t[first], t[first + 1], 0, 1}, {t[first + 2], t[first + 3], 5, 2}};
}

/// Any numbers in the shape of x W^T.
at::Tensor residual_of(const at::Tensor& x, const at::Tensor& weight) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return random(shape, 9, x.scalar_type());
}

at::Tensor added(const at::Tensor& x, const at::Tensor& weight, const std::vector<LoraAdapter>& adapters,
                 const LoraSettings& lora) {
  return linear_add(x, residual_of(x, weight), {weight, {}}, adapters, lora);
}

std::vector<at::Tensor> inputs(at::ScalarType dtype = at::kDouble) {
  return {random({2, 3, 5}, 1, dtype), random({9, 5}, 2, dtype), random({2, 5}, 3, dtype),
          random({3, 2}, 4, dtype),    random({3, 5}, 5, dtype), random({4, 3}, 6, dtype)};
}

TEST(LinearAdd, EqualsThePlainCompositionWithAndWithoutDropout) {
  for (const double p : {0.0, 0.3}) {
    const auto t = inputs();
    const at::Tensor ours = added(t[0], t[1], two_adapters(t, 2), {1.7, dropout_of(p, 2)});
    const at::Tensor plain =
        lora_linear_reference(t[0], t[1], two_adapters(t, 2), {1.7, dropout_of(p, 2)}) + residual_of(t[0], t[1]);
    EXPECT_LT(max_difference(ours, plain), 1e-12) << p;
  }
}

TEST(LinearAdd, GradientEqualsDifferences) {
  for (const double p : {0.0, 0.3}) {
    const auto f = [p](const std::vector<at::Tensor>& t) {
      return project(added(t[0], t[1], two_adapters(t, 2), {1.7, dropout_of(p, 2)}));
    };
    EXPECT_LT(gradient_error(f, inputs()), 1e-8) << p;
  }
}

TEST(LinearAdd, FrozenWeightGetsNoGradientAndAdaptersDo) {
  auto t = inputs();
  for (const size_t i : {0, 2, 3, 4, 5}) t[i].requires_grad_();
  project(added(t[0], t[1], two_adapters(t, 2), {1.7, {}})).backward();
  for (const size_t i : {0, 2, 3, 4, 5}) EXPECT_TRUE(t[i].grad().defined()) << i;
  EXPECT_FALSE(t[1].grad().defined());
}

TEST(LinearAdd, AdaptersTrainWhenTheInputNeedsNoGradient) {
  auto t = inputs();
  for (const size_t i : {2, 3, 4, 5}) t[i].requires_grad_();
  project(added(t[0], t[1], two_adapters(t, 2), {1.7, dropout_of(0.2, 2)})).backward();
  for (const size_t i : {2, 3, 4, 5}) EXPECT_TRUE(t[i].grad().defined()) << i;
  EXPECT_FALSE(t[0].grad().defined());
}

TEST(LinearAdd, FullTrainingEqualsAtLinear) {
  const auto t = inputs();
  const auto ours = gradients(
      [](const auto& u) { return project(added(u[0], u[1], {}, {}) - residual_of(u[0], u[1])); }, {t[0], t[1]});
  const auto plain = gradients([](const auto& u) { return project(at::linear(u[0], u[1])); }, {t[0], t[1]});
  for (int i = 0; i < 2; ++i) EXPECT_LT(max_difference(ours[i], plain[i]), 1e-13) << i;
}

TEST(LinearAdd, ReadsTheWeightAgainInBackward) {
  // A sharded unit's storage is gone between forward and backward and comes back elsewhere: a copy
  // would go unnoticed here.
  const at::Tensor x = random({1, 2, 5}, 1).requires_grad_(), w = random({3, 5}, 2);
  const at::Tensor y = added(x, w, {}, {});
  w.data().mul_(2);
  y.sum().backward();
  EXPECT_LT(max_difference(x.grad()[0][0], w.sum(0)), 1e-13);
}

TEST(LinearAdd, RefusesShapesThatDoNotFit) {
  const auto t = inputs();
  EXPECT_ANY_THROW(added(t[0], random({9, 6}, 1), {}, {1, {}}));
  EXPECT_ANY_THROW(added(t[0], t[1], {{t[2], t[3], 7, 0}}, {1, {}}));  // rows 7 to 10 of 9
  EXPECT_ANY_THROW(added(t[0], t[1], {{t[2], t[5], 0, 0}}, {1, {}}));  // ranks 2 and 3
  EXPECT_ANY_THROW(added(t[0], t[1].to(at::kFloat), {}, {1, {}}));
}

}  // namespace
}  // namespace trireme
