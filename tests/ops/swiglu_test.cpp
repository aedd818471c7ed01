#include "trireme/ops/swiglu.h"

#include "gradient_check.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

at::Tensor plain(const at::Tensor& x) {
  const int64_t f = x.size(-1) / 2;
  return at::silu(x.narrow(-1, 0, f)) * x.narrow(-1, f, f);
}

TEST(Swiglu, ForwardEqualsThePlainComposition) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random({2, 3, 26}, 1, dtype);
    EXPECT_EQ(max_difference(swiglu(x), plain(x)), 0) << c10::toString(dtype);
  }
}

TEST(Swiglu, GradientEqualsDifferences) {
  EXPECT_LT(
      gradient_error([](const auto& t) { return project(swiglu(t[0])); }, {random({2, 3, 10}, 1)}),
      1e-8);
}

TEST(Swiglu, OddWidthIsRefused) { EXPECT_ANY_THROW(swiglu(random({2, 5}, 1))); }

}  // namespace
}  // namespace trireme
