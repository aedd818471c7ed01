#include "kernels/fp8/fp8.h"

#include "fp8_testing.h"

namespace trireme::kernels::testing::fp8_current_tests {

namespace {

constexpr int64_t kColumns = 48;

class Fp8CurrentTest : public KernelTest {
 protected:
  /// Checks the operands of a matrix of kColumns columns with the scale of its own amax: it is one row of codes.
  static void check(const Values& values, Element element, Fp8Format format, const std::string& what) {
    const auto count = static_cast<int64_t>(values.size()), rows = count / kColumns;
    DeviceArray x(values, element), amax(Values(1, 0.0), Element::kF32), inverse(1, Element::kF32);
    DeviceBytes data(count), transposed(count);
    CUDA_OK(kernels::amax(x.data(), count, element, amax.fp32(), nullptr));
    Fp8Operands a;
    a.x = x.data(), a.element = element, a.rows = rows, a.columns = kColumns, a.format = format;
    a.own_amax = amax.fp32(), a.inverse = inverse.fp32();
    a.data = data.as<uint8_t>(), a.transposed = transposed.as<uint8_t>();
    CUDA_OK(fp8_operands(a, nullptr));
    const std::vector<unsigned char> codes = data.read(), turned = transposed.read();
    expect_quantized_rows(values, codes, inverse.values(), 1, count, format, what);
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(turned[static_cast<size_t>(i % kColumns * rows + i / kColumns)], codes[static_cast<size_t>(i)])
          << what << ": value " << i;
  }
};

TEST_F(Fp8CurrentTest, TheScaleMapsTheLargestMagnitudeToTheLargestCode) {
  for (const Element element : {Element::kF16, Element::kBF16})
    for (const Fp8Format format : kFormats)
      for (const int64_t rows : {16, 400, 8192}) {
        Values x = normal_values(rows * kColumns, element, 1);
        x[static_cast<size_t>(rows * kColumns / 2)] = -13.25;
        check(x, element, format, std::string(name_of(element)) + " " + std::to_string(rows));
      }
}

TEST_F(Fp8CurrentTest, ZerosAndTinyValuesHaveAFiniteScale) {
  check(Values(16 * kColumns, 0.0), Element::kBF16, Fp8Format::kE4M3, "zeros");
  check(Values(16 * kColumns, std::ldexp(1.0, -133)), Element::kBF16, Fp8Format::kE5M2, "tiny");
}

TEST_F(Fp8CurrentTest, NonFiniteValuesShow) {
  for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    Values x = normal_values(96 * kColumns, Element::kF16, 4);
    x[4321] = bad;
    check(x, Element::kF16, Fp8Format::kE4M3, std::to_string(bad));
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::fp8_current_tests
