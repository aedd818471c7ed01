#include "kernels/swiglu/swiglu.h"

#include "kernels/swiglu/swiglu_oracle.h"
#include "testing.h"

namespace trireme::kernels::testing {

namespace {

struct Shape {
  int64_t tokens, f, shift;
};
constexpr Shape kShapes[] = {{1, 1, 0}, {3, 7, 0}, {5, 8, 0}, {4, 1000, 0}, {4, 1001, 0}, {3, 1024, 1}, {7, 4096, 0}, {2, 11008, 0}, {2, 28672, 0}, {66000, 8, 0}};

class SwigluTest : public KernelTest {};

TEST_F(SwigluTest, MatchesTheOracle) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      if (too_large(s.tokens * s.f)) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.tokens) + " x " + std::to_string(s.f));
      Values gate_up = normal_values(s.tokens * 2 * s.f, element, 1, 2.0);
      if (s.f > 6) gate_up[0] = 90, gate_up[1] = -90, gate_up[2] = 0, gate_up[3] = -200, gate_up[4] = 200;
      const Values dy = normal_values(s.tokens * s.f, element, 2);
      DeviceArray in(gate_up, element, s.shift), gradient(dy, element, s.shift), y(s.tokens * s.f, element, s.shift), out(s.tokens * 2 * s.f, element, s.shift);
      CUDA_OK(swiglu_forward(in.data(), y.data(), s.tokens, s.f, element, nullptr));
      CUDA_OK(swiglu_backward(gradient.data(), in.data(), out.data(), s.tokens, s.f, element, nullptr));
      // The smallest numbers of fp16 have fewer digits; the derivative of silu changes sign near -1.28.
      const double tiny = element == Element::kF16 ? std::ldexp(1.0, -25) : 1e-37;
      expect_close(y.values(), oracle::swiglu(gate_up, s.tokens, s.f), element, 1.05, tiny, "y");
      expect_close(out.values(), oracle::swiglu_backward(dy, gate_up, s.tokens, s.f), element, 1.05, 4e-6, "d_gate_up");
    }
  }
}

TEST_F(SwigluTest, GradientMayReplaceItsInput) {
  const int64_t tokens = 9, f = 4096;
  const Values gate_up = normal_values(tokens * 2 * f, Element::kBF16, 1), dy = normal_values(tokens * f, Element::kBF16, 2);
  DeviceArray in(gate_up, Element::kBF16), gradient(dy, Element::kBF16), out(tokens * 2 * f, Element::kBF16);
  CUDA_OK(swiglu_backward(gradient.data(), in.data(), out.data(), tokens, f, Element::kBF16, nullptr));
  CUDA_OK(swiglu_backward(gradient.data(), in.data(), in.data(), tokens, f, Element::kBF16, nullptr));
  EXPECT_EQ(in.values(), out.values());
}

}  // namespace

}  // namespace trireme::kernels::testing
