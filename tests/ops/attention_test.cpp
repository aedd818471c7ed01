#include "trireme/ops/attention.h"

#include "gradient_check.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

struct Shape {
  int64_t rows, length, heads, kv_heads, head_dim;
  std::vector<int32_t> bounds;
};

const std::vector<Shape> kShapes = {
    {1, 7, 2, 2, 4, {0, 7}},          // one sequence
    {2, 5, 4, 2, 6, {0, 5, 10}},      // rows, grouped queries
    {1, 11, 6, 2, 8, {0, 3, 4, 11}},  // packed, one of length 1
    {2, 6, 3, 1, 4, {0, 2, 6, 12}},   // packed and whole rows together
};

TEST(Attention, EqualsScoresWrittenOut) {
  for (const Shape& shape : kShapes) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const SequenceLayout layout = make_sequence_layout(shape.bounds, shape.rows, shape.length, at::kCPU);
      const at::Tensor q = random({shape.rows, shape.length, shape.heads, shape.head_dim}, 1, dtype);
      const at::Tensor k = random({shape.rows, shape.length, shape.kv_heads, shape.head_dim}, 2, dtype);
      const at::Tensor v = random({shape.rows, shape.length, shape.kv_heads, shape.head_dim}, 3, dtype);
      const double bound = dtype == at::kDouble ? 1e-12 : 1e-5;
      EXPECT_LT(max_difference(attention(q, k, v, layout, 0.4), attention_reference(q, k, v, layout, 0.4)), bound)
          << shape.rows << "x" << shape.length << " " << c10::toString(dtype);
    }
  }
}

TEST(Attention, GradientEqualsDifferences) {
  for (const Shape& shape : {kShapes[1], kShapes[3]}) {
    const SequenceLayout layout = make_sequence_layout(shape.bounds, shape.rows, shape.length, at::kCPU);
    const std::vector<at::Tensor> inputs = {random({shape.rows, shape.length, shape.heads, shape.head_dim}, 1),
                                            random({shape.rows, shape.length, shape.kv_heads, shape.head_dim}, 2),
                                            random({shape.rows, shape.length, shape.kv_heads, shape.head_dim}, 3)};
    EXPECT_LT(gradient_error([&](const auto& t) { return project(attention(t[0], t[1], t[2], layout, 0.5)); }, inputs),
              1e-7);
  }
}

TEST(Attention, APackOfThreeEqualsTheThreeAlone) {
  const int64_t lengths[] = {4, 1, 6};
  const at::Tensor q = random({1, 11, 4, 8}, 1), k = random({1, 11, 2, 8}, 2), v = random({1, 11, 2, 8}, 3);
  const at::Tensor packed = attention(q, k, v, make_sequence_layout({0, 4, 5, 11}, 1, 11, at::kCPU), 0.3);
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    const SequenceLayout alone = make_sequence_layout({0, static_cast<int32_t>(length)}, 1, length, at::kCPU);
    const at::Tensor want =
        attention(q.narrow(1, begin, length), k.narrow(1, begin, length), v.narrow(1, begin, length), alone, 0.3);
    EXPECT_LT(max_difference(packed.narrow(1, begin, length), want), 1e-14);
    begin += length;
  }
}

TEST(Attention, NeverLooksAhead) {
  const SequenceLayout layout = make_sequence_layout({0, 6}, 1, 6, at::kCPU);
  const at::Tensor q = random({1, 6, 2, 4}, 1), k = random({1, 6, 2, 4}, 2), v = random({1, 6, 2, 4}, 3);
  const at::Tensor before = attention(q, k, v, layout, 0.5);
  k.narrow(1, 4, 2).fill_(100);
  v.narrow(1, 4, 2).fill_(100);
  const at::Tensor after = attention(q, k, v, layout, 0.5);
  EXPECT_EQ(max_difference(before.narrow(1, 0, 4), after.narrow(1, 0, 4)), 0);
  EXPECT_GT(max_difference(before.narrow(1, 4, 2), after.narrow(1, 4, 2)), 1);
}

TEST(SequenceLayout, RefusesImpossibleBoundaries) {
  EXPECT_ANY_THROW(make_sequence_layout({0, 5}, 1, 6, at::kCPU));        // ends early
  EXPECT_ANY_THROW(make_sequence_layout({1, 6}, 1, 6, at::kCPU));        // begins late
  EXPECT_ANY_THROW(make_sequence_layout({0, 3, 3, 6}, 1, 6, at::kCPU));  // empty sequence
  EXPECT_ANY_THROW(make_sequence_layout({0, 12}, 2, 6, at::kCPU));       // crosses a row
  EXPECT_ANY_THROW(make_sequence_layout({}, 1, 6, at::kCPU));
  EXPECT_TRUE(make_sequence_layout({0, 6, 12}, 2, 6, at::kCPU).one_per_row);
  EXPECT_FALSE(make_sequence_layout({0, 1, 6, 12}, 2, 6, at::kCPU).one_per_row);
}

}  // namespace
}  // namespace trireme
