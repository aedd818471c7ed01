#include "kernels/scale/scale.h"

#include "testing.h"

#include <cmath>
#include <utility>

namespace trireme::kernels::testing::scale_tests {

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
          CUDA_OK(scale(in.data(), from, factor.fp32(), out.data(), to, count, false, nullptr));
          EXPECT_EQ(out.values(), expected)
              << name_of(from) << " to " << name_of(to) << ", " << count << " elements, shift " << shift;
          for (size_t i = 0; i < expected.size(); ++i)
            expected[i] = round_to(std::fma(static_cast<float>(x[i]), 0.37f, static_cast<float>(expected[i])), to);
          CUDA_OK(scale(in.data(), from, factor.fp32(), out.data(), to, count, true, nullptr));
          EXPECT_EQ(out.values(), expected)
              << name_of(from) << " added to " << name_of(to) << ", " << count << " elements, shift " << shift;
        }
      }
    }
  }
}

TEST_F(ScaleTest, RowsByFactorsOfTheirOwn) {
  for (const Element element : kElements) {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {9, 1024}, {600, 40}, {2, 5001}, {5, 8200}, {3, 70000}}) {
      for (const int64_t shift : {0, 1}) {
        const Values x = normal_values(rows * columns, element, 1), factors = normal_values(rows, Element::kF32, 2);
        Values expected;
        for (int64_t i = 0; i < rows * columns; ++i)
          expected.push_back(round_to(static_cast<float>(x[static_cast<size_t>(i)]) *
                                          static_cast<float>(factors[static_cast<size_t>(i / columns)]),
                                      element));
        DeviceArray in(x, element, shift), out(rows * columns, element, shift), by(factors, Element::kF32);
        CUDA_OK(scale_rows(in.data(), by.fp32(), out.data(), rows, columns, element, nullptr));
        EXPECT_EQ(out.values(), expected) << name_of(element) << " " << rows << " x " << columns << " shift " << shift;
      }
    }
  }
}

TEST_F(ScaleTest, ColumnsByFactorsOfTheirOwn) {
  for (const Element element : kElements) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {9, 1024}, {600, 40}, {2, 5001}}) {
      for (const int64_t shift : {0, 1}) {
        for (const bool more : {false, true}) {
          const Values x = normal_values(rows * columns, element, 1),
                       factors = normal_values(columns, Element::kF32, 2), bias = normal_values(columns, element, 3),
                       addend = normal_values(rows * columns, element, 4);
          Values expected;
          for (int64_t i = 0; i < rows * columns; ++i) {
            const auto at = static_cast<size_t>(i), column = static_cast<size_t>(i % columns);
            const float rest = more ? static_cast<float>(bias[column]) + static_cast<float>(addend[at]) : 0.0f;
            expected.push_back(
                round_to(std::fma(static_cast<float>(x[at]), static_cast<float>(factors[column]), rest), element));
          }
          const DeviceArray in(x, element, shift), out(rows * columns, element, shift), by(factors, Element::kF32),
              added_bias(bias, element, shift), added(addend, element, shift);
          CUDA_OK(scale_columns(in.data(), by.fp32(), more ? added_bias.data() : nullptr, more ? added.data() : nullptr,
                                out.data(), rows, columns, element, nullptr));
          EXPECT_EQ(out.values(), expected)
              << name_of(element) << " " << rows << " x " << columns << " shift " << shift << (more ? ", more" : "");
        }
      }
    }
  }
}

TEST_F(ScaleTest, InPlace) {
  const Values x = normal_values(1001, Element::kBF16, 1);
  DeviceArray data(x, Element::kBF16), factor(Values{2.0}, Element::kF32);
  CUDA_OK(scale(data.data(), Element::kBF16, factor.fp32(), data.data(), Element::kBF16, 1001, false, nullptr));
  const Values now = data.values();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(now[i], 2 * x[i]);
}

}  // namespace

}  // namespace trireme::kernels::testing::scale_tests
