#include "kernels/fp8/fp8.h"

#include "fp8_testing.h"

#include <algorithm>

namespace trireme::kernels::testing::fp8_current_tests {

namespace {

class Fp8CurrentTest : public KernelTest {
 protected:
  /// {amax, scale, inverse}
  static Values run(const Values& values, Element element, Fp8Format format, int64_t shift = 0) {
    DeviceArray x(values, element, shift), amax(1, Element::kF32), scale(1, Element::kF32), inverse(1, Element::kF32);
    CurrentScale a;
    a.x = x.data(), a.count = static_cast<int64_t>(values.size()), a.element = element, a.format = format;
    a.amax = amax.fp32(), a.scale = scale.fp32(), a.inverse = inverse.fp32();
    EXPECT_EQ(current_scale(a, nullptr), cudaSuccess);
    return {amax.values()[0], scale.values()[0], inverse.values()[0]};
  }
};

TEST_F(Fp8CurrentTest, TheScaleMapsTheLargestMagnitudeToTheLargestCode) {
  for (const Element element : kElements)
    for (const Fp8Format format : kFormats)
      for (const int64_t count : {1, 7, 4096, 1 << 20})
        for (const int64_t shift : {0, 1}) {
          Values x = normal_values(count, element, 1);
          x[static_cast<size_t>(count / 2)] = -3.25;
          double top = 0;
          for (const double v : x) top = std::max(top, std::abs(v));
          const float inverse = static_cast<float>(top) / (format == Fp8Format::kE4M3 ? 448.0f : 57344.0f);
          const Values got = run(x, element, format, shift);
          EXPECT_EQ(got[0], top) << name_of(element) << " " << count;
          EXPECT_EQ(got[1], 1.0f / inverse) << name_of(element) << " " << count;
          EXPECT_EQ(got[2], inverse) << name_of(element) << " " << count;
        }
}

TEST_F(Fp8CurrentTest, ZerosAndTinyValuesHaveAFiniteScale) {
  EXPECT_EQ(run(Values(640, 0.0), Element::kBF16, Fp8Format::kE4M3), (Values{0, 1, 1}));
  const double least = std::numeric_limits<float>::min();
  const Values tiny = run(Values(640, std::ldexp(1.0, -133)), Element::kBF16, Fp8Format::kE5M2);
  EXPECT_EQ(tiny, (Values{std::ldexp(1.0, -133), 1 / least, least}));
}

TEST_F(Fp8CurrentTest, NonFiniteValuesShow) {
  for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    Values x = normal_values(5000, Element::kF16, 4);
    x[4321] = bad;
    const Values got = run(x, Element::kF16, Fp8Format::kE4M3);
    EXPECT_FALSE(std::isfinite(got[0]) || std::isfinite(got[2])) << bad;
    EXPECT_FALSE(got[1] > 0) << bad;  // 0 or NaN: an infinite value times it is NaN
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::fp8_current_tests
