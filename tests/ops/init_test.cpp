#include "trireme/nn/init.h"

#include "gradient_check.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

ParameterSpec spec_of(Init init, double scale) {
  return {"w", {1 << 12, 1 << 11}, {{"w", 1 << 12}}, init, scale, true};
}

TEST(InitialValues, DoNotDependOnTheCut) {
  const ParameterSpec spec = spec_of(Init::kNormal, 0.02);
  const int64_t n = spec.numel();
  const at::Tensor whole = at::empty({n}, at::kFloat);
  draw_initial_values(spec, spec.parts[0], 5, 0, whole);
  // A range that starts off every natural boundary and crosses the block boundary at 2^22.
  const int64_t begin = (1 << 22) - 1001, count = 2003;
  const at::Tensor part = at::empty({count}, at::kFloat);
  draw_initial_values(spec, spec.parts[0], 5, begin, part);
  EXPECT_EQ(max_difference(part, whole.narrow(0, begin, count)), 0);
  EXPECT_NEAR(whole.to(at::kDouble).std().item<double>(), 0.02, 2e-5);
  EXPECT_NEAR(whole.to(at::kDouble).mean().item<double>(), 0, 3e-5);
}

TEST(InitialValues, DependOnSeedAndName) {
  const ParameterSpec spec = spec_of(Init::kUniform, 0.5);
  std::vector<at::Tensor> draws;
  for (const auto& [seed, name] : {std::pair<uint64_t, std::string>{1, "a"}, {2, "a"}, {1, "b"}}) {
    draws.push_back(at::empty({1000}, at::kFloat));
    draw_initial_values(spec, {name, 1 << 12}, seed, 0, draws.back());
    EXPECT_LE(draws.back().abs().max().item<double>(), 0.5);
    EXPECT_GT(draws.back().abs().max().item<double>(), 0.45);
  }
  EXPECT_GT(max_difference(draws[0], draws[1]), 0.1);
  EXPECT_GT(max_difference(draws[0], draws[2]), 0.1);
}

TEST(InitialValues, OnesAndZeros) {
  const at::Tensor target = at::full({9}, 7.0, at::kBFloat16);
  draw_initial_values(spec_of(Init::kOnes, 0), {"w", 1}, 1, 0, target);
  EXPECT_EQ(target.sum().item<double>(), 9);
  draw_initial_values(spec_of(Init::kZeros, 0), {"w", 1}, 1, 0, target);
  EXPECT_EQ(target.sum().item<double>(), 0);
}

}  // namespace
}  // namespace trireme
