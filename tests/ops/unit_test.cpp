#include "trireme/nn/unit.h"

#include "gradient_check.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

struct RecordingStore : UnitStore {
  const std::vector<at::Tensor>& parameters(int) override { return none; }
  const std::vector<WeightState>& weight_states(int) override { return no_states; }
  void pre_forward(int unit) override { calls += "enter" + std::to_string(unit) + " "; }
  void post_forward(int unit) override { calls += "leave" + std::to_string(unit) + " "; }
  void pre_backward(int unit) override { calls += "back-enter" + std::to_string(unit) + " "; }
  void post_backward(int unit) override { calls += "back-leave" + std::to_string(unit) + " "; }
  std::vector<at::Tensor> none;
  std::vector<WeightState> no_states;
  std::string calls;
};

TEST(UnitHooks, BracketForwardAndBackward) {
  RecordingStore store;
  const at::Tensor x = random({3}, 1).requires_grad_();
  const at::Tensor a = leave_unit(enter_unit(x, store, 0) * 2, store, 0);
  const at::Tensor b = leave_unit(enter_unit(a, store, 1) * 3, store, 1);
  EXPECT_EQ(store.calls, "enter0 leave0 enter1 leave1 ");
  store.calls.clear();
  b.sum().backward();
  EXPECT_EQ(store.calls, "back-enter1 back-leave1 back-enter0 back-leave0 ");
  EXPECT_EQ(max_difference(x.grad(), at::full({3}, 6.0, at::kDouble)), 0);
}

TEST(UnitHooks, TheReleaseWaitsForBothBranchesOfAResidual) {
  RecordingStore store;
  const at::Tensor x = random({3}, 1).requires_grad_();
  bool inside = false;
  const at::Tensor in = enter_unit(x, store, 0);
  const at::Tensor branch = at::tanh(in);
  branch.register_hook([&](const at::Tensor&) { inside = store.calls.find("back-leave0") == std::string::npos; });
  const at::Tensor y = leave_unit(in + branch, store, 0);
  y.sum().backward();
  EXPECT_TRUE(inside);
  EXPECT_TRUE(store.calls.ends_with("back-leave0 "));
}

TEST(UnitHooks, WithoutGradientOnlyTheForwardHooksRun) {
  RecordingStore store;
  const at::Tensor tokens = at::arange(3, at::TensorOptions(at::kLong));
  EXPECT_FALSE(leave_unit(enter_unit(tokens, store, 4), store, 4).requires_grad());
  EXPECT_EQ(store.calls, "enter4 leave4 ");
}

TEST(UnitSpec, CountsElements) {
  UnitSpec unit;
  unit.parameters = {{"a", {3, 5}, {{"a", 3}}, Init::kNormal, 0.02, true},
                     {"b", {7}, {{"b", 7}}, Init::kOnes, 0, false}};
  EXPECT_EQ(unit.numel(), 22);
}

}  // namespace
}  // namespace trireme
