#include "kernels/global_norm/global_norm.h"

#include "testing.h"

#include <memory>

namespace trireme::kernels::testing::global_norm_tests {

namespace {

class GlobalNormTest : public KernelTest {};

TEST_F(GlobalNormTest, SumsManyBuffersOfAnySize) {
  for (const Element element : kElements) {
    std::vector<std::unique_ptr<DeviceArray>> arrays;
    std::vector<GradientBuffer> buffers;
    double expected = 3.0;
    for (int b = 0; b < 150; ++b) {
      const int64_t count = b == 40 ? 300001 : (b * 37) % 500;
      const Values values = normal_values(count, element, 100 + b);
      const double share = b % 3 == 0 ? 0.25 : 1.0;
      for (const double v : values) expected += v * v * share;
      arrays.push_back(std::make_unique<DeviceArray>(values, element, b % 5));
      buffers.push_back({arrays.back()->data(), count, share});
    }
    DeviceBytes square(8), workspace(8 * global_norm_workspace());
    const double before = 3.0;
    square.write(&before);
    std::vector<unsigned char> first;
    for (int run = 0; run < 100; ++run) {
      square.write(&before);
      workspace.poison();
      CUDA_OK(global_square(buffers.data(), static_cast<int>(buffers.size()), element, square.as<double>(), true,
                            workspace.as<double>(), nullptr));
      const std::vector<unsigned char> bytes = square.read();
      if (run == 0) {
        double result;
        std::memcpy(&result, bytes.data(), 8);
        // Squares of 16-bit values are summed in fp32 eight at a time.
        EXPECT_NEAR(result, expected, expected * (element == Element::kF32 ? 1e-12 : 1e-7)) << name_of(element);
        first = bytes;
      } else {
        ASSERT_EQ(bytes, first) << "run " << run;
      }
    }
    workspace.read();
  }
}

TEST_F(GlobalNormTest, FactorClipsAndSkips) {
  struct Case {
    double value, max_norm, unscale, norm, multiplier, skip;
  };
  const double inf = std::numeric_limits<double>::infinity();
  // 16 equal values: norm = 4 * value.
  for (const Case& c : {Case{0.5, 0.3, 1, 2.0, 0.3 / (2.0 + 1e-6), 0},
                        {0.05, 0.3, 1, 0.2, 1, 0},
                        {0.5, 0, 1, 2.0, 1, 0},
                        {512, 0.5, 1.0 / 1024, 2.0, 0.5 / (2.0 + 1e-6) / 1024, 0},
                        {inf, 0.3, 1, inf, 0, 1},
                        {std::nan(""), 0.3, 1, std::nan(""), 0, 1},
                        {1e30, 1.0, 1, 4e30, 1 / 4e30, 0}}) {
    Values values(16, c.value);
    DeviceArray g(values, Element::kF32), unscale(Values{c.unscale}, Element::kF32), norm(1, Element::kF32),
        multiplier(1, Element::kF32), skip(1, Element::kF32);
    DeviceBytes square(8), workspace(8 * global_norm_workspace());
    const GradientBuffer buffer{g.data(), 16};
    CUDA_OK(global_square(&buffer, 1, Element::kF32, square.as<double>(), false, workspace.as<double>(), nullptr));
    CUDA_OK(clip_factor(square.as<double>(), unscale.fp32(), c.max_norm, norm.fp32(), multiplier.fp32(), skip.fp32(),
                        nullptr));
    if (std::isnan(c.norm))
      EXPECT_TRUE(std::isnan(norm.values()[0]));
    else if (std::isinf(c.norm))
      EXPECT_TRUE(std::isinf(norm.values()[0]));
    else
      EXPECT_NEAR(norm.values()[0], c.norm, c.norm * 1e-6);
    EXPECT_NEAR(multiplier.values()[0], c.multiplier, c.multiplier * 1e-6);
    EXPECT_EQ(skip.values()[0], c.skip);
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::global_norm_tests
