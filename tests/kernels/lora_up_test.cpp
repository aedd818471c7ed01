#include "kernels/lora/lora.h"

#include "lora_oracle.h"
#include "testing.h"

#include <algorithm>
#include <memory>

namespace trireme::kernels::testing::lora_up_tests {

namespace {

struct Shape {
  int64_t tokens, columns;
  int rank;
  int64_t before = 0, after = 0;  // columns of the packed rows before and after the slice
  int64_t stride() const { return before + columns + after; }
  std::string text() const {
    return std::to_string(tokens) + " x " + std::to_string(columns) + " of stride " + std::to_string(stride()) +
           ", rank " + std::to_string(rank);
  }
};

constexpr float kScale = 0.6875f;

/// The arguments and their memory. Outputs, workspace and the columns outside the slices are NaN.
struct Case {
  Case(const Shape& s, Element element_)
      : shape(s),
        element(element_),
        b_values(normal_values(s.columns * s.rank, element, 1, 0.3)),
        t_values(normal_values(s.tokens * s.rank, element, 2)),
        y_values(normal_values(s.tokens * s.columns, element, 3)),
        dy_values(normal_values(s.tokens * s.columns, element, 4)),
        b(b_values, element),
        t(t_values, element),
        y(packed(y_values), element),
        dy(packed(dy_values), element),
        d(s.tokens * s.rank, element),
        db(s.columns * s.rank, element) {
    p.rank = s.rank, p.tokens = s.tokens, p.columns = s.columns, p.stride = s.stride(), p.scale = kScale,
    p.element = element;
    p.b = b.data(), p.t = t.data(), p.d = d.data(), p.db = db.data();
    p.y = y.as<char>() + s.before * size_of(element), p.dy = dy.as<char>() + s.before * size_of(element);
    workspace = std::make_unique<DeviceBytes>(static_cast<int64_t>(lora_up_gradients_workspace(p)));
    p.workspace = workspace->data();
  }
  Values packed(const Values& values) const {
    Values rows(static_cast<size_t>(shape.tokens * shape.stride()), std::nan(""));
    for (int64_t row = 0; row < shape.tokens; ++row)
      std::copy_n(values.begin() + row * shape.columns, shape.columns,
                  rows.begin() + row * shape.stride() + shape.before);
    return rows;
  }
  Values slice(const Values& rows) const {
    Values values;
    for (int64_t row = 0; row < shape.tokens; ++row) {
      const auto from = rows.begin() + row * shape.stride() + shape.before;
      values.insert(values.end(), from, from + shape.columns);
    }
    return values;
  }

  Shape shape;
  Element element;
  Values b_values, t_values, y_values, dy_values;
  DeviceArray b, t, y, dy, d, db;
  std::unique_ptr<DeviceBytes> workspace;
  LoraUpProducts p;
};

/// One run with fewer columns than a block; half of a warp's columns and odd numbers of runs; several column blocks and
/// parts of the tokens; enough tokens for a dozen runs per block.
constexpr Shape kShapes[] = {
    {16, 32, 16}, {48, 96, 16, 8, 0},    {1040, 1056, 16, 40, 24}, {512, 10240, 16, 0, 2048}, {33808, 96, 16, 8, 24},
    {16, 96, 32}, {1040, 32, 32, 0, 8},  {48, 1056, 32, 64, 64},   {33808, 32, 32, 0, 16},    {16, 1056, 64, 8, 8},
    {48, 32, 64}, {1040, 96, 64, 16, 0}, {33808, 32, 64}};

class LoraUpTest : public KernelTest {
 protected:
  template <class F>
  static void each(const F& f) {
    for (const Element element : {Element::kBF16, Element::kF16})
      for (const Shape& s : kShapes) {
        if (too_large(s.tokens * s.columns)) continue;
        SCOPED_TRACE(std::string(name_of(element)) + " " + s.text());
        Case c(s, element);
        ASSERT_TRUE(lora_up_fits(c.p));
        f(c);
      }
  }
};

TEST_F(LoraUpTest, ProductFollowsTheFormula) {
  each([](Case& c) {
    CUDA_OK(lora_up(c.p, nullptr));
    const Values rows = c.y.values();
    Values expected = c.y_values;
    oracle::lora_up(expected, c.t_values, c.b_values, c.shape.tokens, c.shape.columns, c.shape.rank, kScale);
    expect_close(c.slice(rows), expected, c.element, 1, 1e-5, "y");
    int64_t nans = 0;
    for (const double value : rows) nans += std::isnan(value);
    EXPECT_EQ(nans, c.shape.tokens * (c.shape.stride() - c.shape.columns)) << "NaNs outside the slice";
  });
}

TEST_F(LoraUpTest, GradientsFollowTheFormulas) {
  each([](Case& c) {
    CUDA_OK(lora_up_gradients(c.p, nullptr));
    (void)c.workspace->read();
    const auto& [tokens, columns, rank, before, after] = c.shape;
    // fp32 sums of n products of values of size 1 have errors of 2^-24 * sqrt(n) * size.
    expect_close(c.d.values(), oracle::lora_up_d(c.dy_values, c.b_values, tokens, columns, rank, kScale), c.element, 1,
                 2e-6 * std::sqrt(static_cast<double>(columns)), "d");
    expect_close(c.db.values(), oracle::lora_up_db(c.dy_values, c.t_values, tokens, columns, rank, kScale), c.element,
                 1, 4e-6 * std::sqrt(static_cast<double>(tokens)), "dB");
  });
}

// The output memory is full of NaN.
TEST_F(LoraUpTest, ProductAloneIsNotAddedToWhatWasThere) {
  each([](Case& c) {
    DeviceArray y(Values(static_cast<size_t>(c.shape.tokens * c.shape.stride()), std::nan("")), c.element);
    c.p.y = y.as<char>() + c.shape.before * size_of(c.element), c.p.adds = false;
    CUDA_OK(lora_up(c.p, nullptr));
    const Values rows = y.values();
    Values expected(c.y_values.size());
    oracle::lora_up(expected, c.t_values, c.b_values, c.shape.tokens, c.shape.columns, c.shape.rank, kScale);
    expect_close(c.slice(rows), expected, c.element, 1, 1e-5, "y");
    int64_t nans = 0;
    for (const double value : rows) nans += std::isnan(value);
    EXPECT_EQ(nans, c.shape.tokens * (c.shape.stride() - c.shape.columns)) << "NaNs outside the slice";
  });
}

// A NaN of one token or column stays in its row: neither the columns that pad a tile nor the order of tiles spread it.
TEST_F(LoraUpTest, NonFiniteGradientsStayInTheirRow) {
  for (const int rank : {16, 32, 64}) {
    const Shape s{176, 1120, rank, 8, 24};
    SCOPED_TRACE(s.text());
    Case c(s, Element::kBF16);
    const int64_t token = 101, column = 1117;
    c.dy_values[static_cast<size_t>(token * s.columns + column)] = std::numeric_limits<double>::infinity();
    DeviceArray dy(c.packed(c.dy_values), c.element);
    c.p.dy = dy.as<char>() + s.before * 2;
    CUDA_OK(lora_up_gradients(c.p, nullptr));
    const Values d = c.d.values(), db = c.db.values();
    for (int64_t i = 0; i < s.tokens * rank; ++i)
      ASSERT_EQ(std::isfinite(d[static_cast<size_t>(i)]), i / rank != token) << "d, element " << i;
    for (int64_t i = 0; i < s.columns * rank; ++i)
      ASSERT_EQ(std::isfinite(db[static_cast<size_t>(i)]), i / rank != column) << "dB, element " << i;
  }
}

TEST_F(LoraUpTest, SameBitsEveryTime) {
  for (const Shape& s :
       {Shape{1040, 2080, 16, 0, 32}, Shape{33808, 32, 16}, Shape{33808, 32, 32}, Shape{33808, 32, 64}}) {
    Case c(s, Element::kBF16);
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < 20; ++run) {
      c.d.poison(), c.db.poison(), c.workspace->poison();
      DeviceArray y(c.packed(c.y_values), c.element);
      c.p.y = y.data();
      CUDA_OK(lora_up(c.p, nullptr));
      CUDA_OK(lora_up_gradients(c.p, nullptr));
      std::vector<std::vector<unsigned char>> now = {y.read(), c.d.read(), c.db.read()};
      if (run == 0)
        first = std::move(now);
      else
        ASSERT_TRUE(now == first) << s.text() << ", run " << run;
    }
  }
}

TEST_F(LoraUpTest, RefusesWhatItCannotDo) {
  Case c({64, 128, 16, 0, 64}, Element::kBF16);
  const auto refused = [&](const auto& change) {
    LoraUpProducts p = c.p;
    change(p);
    return !lora_up_fits(p) && lora_up(p, nullptr) == cudaErrorInvalidValue &&
           lora_up_gradients(p, nullptr) == cudaErrorInvalidValue && lora_up_gradients_workspace(p) == 0;
  };
  EXPECT_FALSE(refused([](LoraUpProducts&) {}));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.rank = 8; }));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.rank = 48; }));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.columns = 112; }));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.columns = 0; }));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.tokens = 56; }));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.tokens = 0; }));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.stride = 96; }));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.stride = 132; }));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.element = Element::kF32; }));
  EXPECT_TRUE(refused([](LoraUpProducts& p) { p.b = static_cast<const char*>(p.b) + 8; }));
  const auto gradients_refused = [&](const auto& change) {
    LoraUpProducts p = c.p;
    change(p);
    return lora_up_gradients(p, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(gradients_refused([](LoraUpProducts& p) { p.dy = nullptr; }));
  EXPECT_TRUE(gradients_refused([](LoraUpProducts& p) { p.b = nullptr; }));
  EXPECT_TRUE(gradients_refused([](LoraUpProducts& p) { p.t = nullptr; }));
  EXPECT_TRUE(gradients_refused([](LoraUpProducts& p) { p.d = nullptr; }));
  EXPECT_TRUE(gradients_refused([](LoraUpProducts& p) { p.db = nullptr; }));
  EXPECT_TRUE(gradients_refused([](LoraUpProducts& p) { p.workspace = nullptr; }));
  EXPECT_TRUE(gradients_refused([](LoraUpProducts& p) { p.workspace = static_cast<char*>(p.workspace) + 16; }));
}

}  // namespace

}  // namespace trireme::kernels::testing::lora_up_tests
