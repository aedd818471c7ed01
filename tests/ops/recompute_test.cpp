#include "trireme/nn/recompute.h"

#include "gradient_check.h"
#include "trireme/nn/unit.h"

#include <gtest/gtest.h>

#include <limits>

namespace trireme {
namespace {

using namespace testing;

at::Tensor body(const at::Tensor& x, const std::vector<at::Tensor>& w) { return at::tanh(at::linear(x, w[0])) * w[1]; }
at::Tensor recomputed_body(const at::Tensor& x, const std::vector<at::Tensor>& w, BlockRun&) { return body(x, w); }

TEST(Recomputed, GradientsEqualThoseWithoutToTheBit) {
  const std::vector<at::Tensor> inputs = {random({3, 5}, 1), random({4, 5}, 2), random({4}, 3)};
  const auto plain = gradients([](const auto& t) { return project(body(t[0], {t[1], t[2]})); }, inputs);
  const auto again =
      gradients([](const auto& t) { return project(recomputed(recomputed_body, t[0], {t[1], t[2]})); }, inputs);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(max_difference(plain[i], again[i]), 0) << i;
}

TEST(Recomputed, InputWithoutGradientAndFrozenParameter) {
  const at::Tensor x = random({3, 5}, 1), frozen = random({4, 5}, 2), trained = random({4}, 3).requires_grad_();
  project(recomputed(recomputed_body, x, {frozen, trained})).backward();
  EXPECT_TRUE(trained.grad().defined());
  EXPECT_FALSE(frozen.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Recomputed, TheSecondRunGetsWhatTheFirstLeaves) {
  // The second run may return any values: only its graph counts.
  const auto f = [](const at::Tensor& x, const std::vector<at::Tensor>& w, BlockRun& run) {
    if (!run.again) {
      EXPECT_TRUE(run.kept.empty());
      run.kept = {at::exp(x), at::Tensor()};
      return x * run.kept[0] * w[0];
    }
    EXPECT_EQ(run.kept.size(), 2u);
    EXPECT_FALSE(run.kept[0].requires_grad());
    return x * run.kept[0] * w[0] + 1000;
  };
  const at::Tensor x = random({3}, 1).requires_grad_(), w = random({3}, 2).requires_grad_();
  const at::Tensor y = recomputed(f, x, {w});
  EXPECT_EQ(max_difference(y.detach(), (x * at::exp(x) * w).detach()), 0);
  y.sum().backward();
  EXPECT_EQ(max_difference(x.grad(), (at::exp(x) * w).detach()), 0);
  EXPECT_EQ(max_difference(w.grad(), (x * at::exp(x)).detach()), 0);
}

TEST(Recomputed, RunsTheBodyOncePerPassAndKeepsNoGraph) {
  int calls = 0;
  const at::Tensor w = random({4}, 3).requires_grad_(), x = random({3, 4}, 1);
  const at::Tensor y = recomputed(
      [&calls](const at::Tensor& in, const std::vector<at::Tensor>& p, BlockRun&) {
        ++calls;
        return at::tanh(in) * p[0];
      },
      x, {w});
  EXPECT_EQ(calls, 1);
  y.sum().backward();
  EXPECT_EQ(calls, 2);
}

TEST(Recomputed, AParameterSeesOneGradientWithItsHooks) {
  const at::Tensor w = random({4}, 3).requires_grad_(), x = random({3, 4}, 1);
  int hooks = 0;
  w.register_hook([&hooks](const at::Tensor&) { ++hooks; });
  const auto f = [](const at::Tensor& in, const std::vector<at::Tensor>& p, BlockRun&) { return in * p[0]; };
  project(recomputed(f, x, {w})).backward();
  EXPECT_EQ(hooks, 1);
  EXPECT_LT(max_difference(w.grad(), (x * random({3, 4}, 99)).sum(0)), 1e-14);
}

/// A store that provides a unit's weights only while they may be used, and records the order of calls.
class FickleStore : public UnitStore {
 public:
  FickleStore(int units, int64_t width) {
    for (int u = 0; u < units; ++u) {
      values_.push_back(random({width, width}, 50 + u) * 0.3);
      units_.push_back(
          {at::full({width, width}, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions(at::kDouble))});
    }
  }
  const std::vector<at::Tensor>& parameters(int unit) override { return units_.at(unit); }
  const std::vector<WeightState>& weight_states(int) override { return states_; }
  void pre_forward(int unit) override { fill("f", unit); }
  void post_forward(int unit) override { drop(unit); }
  void pre_backward(int unit) override { fill("b", unit); }
  void post_backward(int unit) override { drop(unit); }
  std::string order;
  std::vector<at::Tensor> values_;

 private:
  void fill(const char* pass, int unit) {
    order += pass + std::to_string(unit) + " ";
    units_[unit][0].data().copy_(values_[unit]);
  }
  void drop(int unit) {
    order += "-" + std::to_string(unit) + " ";
    units_[unit][0].data().fill_(std::numeric_limits<double>::quiet_NaN());
  }
  std::vector<std::vector<at::Tensor>> units_;
  std::vector<WeightState> states_{1};
};

at::Tensor layer(const at::Tensor& x, const std::vector<at::Tensor>& w) { return x + at::tanh(at::mm(x, w[0])) * w[1]; }

TEST(Recomputed, UsesUnitsOnlyBetweenTheirHooks) {
  FickleStore store(3, 4);
  const at::Tensor x0 = random({2, 4}, 1), trained = random({4}, 2).requires_grad_();
  at::Tensor x = x0;
  for (int u = 0; u < 3; ++u) {
    x = enter_unit(x, store, u);
    const auto f = [](const at::Tensor& in, const std::vector<at::Tensor>& w, BlockRun&) { return layer(in, w); };
    x = recomputed(f, x, {store.parameters(u)[0], trained});
    x = leave_unit(x, store, u);
  }
  const at::Tensor loss = project(x);
  EXPECT_EQ(store.order, "f0 -0 f1 -1 f2 -2 ");
  store.order.clear();
  loss.backward();
  // The first unit's input needs no gradient, so its backward does not call post_backward().
  EXPECT_EQ(store.order, "b2 -2 b1 -1 b0 ");

  const at::Tensor again = trained.detach().clone().requires_grad_();
  at::Tensor y = x0;
  for (int u = 0; u < 3; ++u) y = layer(y, {store.values_[u], again});
  project(y).backward();
  EXPECT_EQ(max_difference(trained.grad(), again.grad()), 0);
}

}  // namespace
}  // namespace trireme
