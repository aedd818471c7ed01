#include "kernels/optimizer/optimizer.h"

#include "testing.h"

#include <memory>

namespace trireme::kernels::testing::global_norm_tests {

namespace {

class GlobalNormTest : public KernelTest {};

TEST_F(GlobalNormTest, SumsManyBuffersOfAnySize) {
  for (const Element element : kElements) {
    std::vector<std::unique_ptr<DeviceArray>> arrays;
    std::vector<GradientBuffer> buffers;
    double expected = 0;
    for (int b = 0; b < 150; ++b) {
      const int64_t count = b == 40 ? 300001 : (b * 37) % 500;
      const Values values = normal_values(count, element, 100 + b);
      const double share = b % 3 == 0 ? 0.25 : 1.0;
      for (const double v : values) expected += v * v * share;
      arrays.push_back(std::make_unique<DeviceArray>(values, element, b % 5));
      buffers.push_back({arrays.back()->data(), count, share});
    }
    DeviceBytes square(8), workspace(8 * global_norm_workspace());
    std::vector<unsigned char> first;
    for (int run = 0; run < 100; ++run) {
      square.poison(), workspace.poison();
      CUDA_OK(global_square(buffers.data(), static_cast<int>(buffers.size()), element, square.as<double>(),
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

}  // namespace

}  // namespace trireme::kernels::testing::global_norm_tests
