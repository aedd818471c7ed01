#include "kernels/scale/scale.h"

#include "testing.h"

namespace trireme::kernels::testing {

namespace {

class ScaleTest : public KernelTest {};

TEST_F(ScaleTest, MultipliesInFp32AndRoundsOnce) {
  for (const Element from : kElements) {
    for (const Element to : kElements) {
      for (const int64_t count : {1, 7, 4096, 5001, 100000}) {
        for (const int64_t shift : {0, 1}) {
          const Values x = normal_values(count, from, 1);
          Values expected;
          for (const double v : x) expected.push_back(round_to(static_cast<float>(v) * 0.37f, to));
          DeviceArray in(x, from, shift), out(count, to, shift), factor(Values{0.37}, Element::kF32);
          CUDA_OK(scale(in.data(), from, factor.fp32(), out.data(), to, count, nullptr));
          EXPECT_EQ(out.values(), expected)
              << name_of(from) << " to " << name_of(to) << ", " << count << " elements, shift " << shift;
        }
      }
    }
  }
}

TEST_F(ScaleTest, InPlace) {
  const Values x = normal_values(1001, Element::kBF16, 1);
  DeviceArray data(x, Element::kBF16), factor(Values{2.0}, Element::kF32);
  CUDA_OK(scale(data.data(), Element::kBF16, factor.fp32(), data.data(), Element::kBF16, 1001, nullptr));
  const Values now = data.values();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(now[i], 2 * x[i]);
}

}  // namespace

}  // namespace trireme::kernels::testing
