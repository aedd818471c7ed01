// The FP8 recipes with current scaling in the CPU's emulation, against formulas in fp64 that are written here.
#include "block_testing.h"
#include "matmul/operand.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace trireme {
namespace {

using namespace testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A floating-point format without infinities: bits of the mantissa, smallest exponent, largest value.
struct Format {
  int mantissa, least_exponent;
  double largest;
};
constexpr Format kE4m3{3, -6, 448}, kE5m2{2, -14, 57344};

/// The values that stay of x [R, C] when parts of it, each with the scale of its own amax, are rounded to the format.
enum class Part { kTensor, kRow, kColumn };
at::Tensor rounded(const at::Tensor& x, Part part, Format format) {
  const at::Tensor wide = x.detach().to(at::kDouble).contiguous();
  at::Tensor result = at::empty_like(wide);
  const int64_t num_rows = wide.size(0), columns = wide.size(1);
  const auto values = wide.accessor<double, 2>();
  auto out = result.accessor<double, 2>();
  const auto part_of = [&](int64_t r, int64_t c) { return part == Part::kTensor ? 0 : part == Part::kRow ? r : c; };
  std::vector<double> top(static_cast<size_t>(std::max(num_rows, columns)));
  for (int64_t r = 0; r < num_rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      double& most = top[static_cast<size_t>(part_of(r, c))];
      most = std::max(most, std::abs(values[r][c]));
    }
  for (int64_t r = 0; r < num_rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const double inverse = top[static_cast<size_t>(part_of(r, c))] / format.largest;
      const double scaled = inverse > 0 ? values[r][c] / inverse : 0;
      int exponent = 0;
      std::frexp(scaled, &exponent);
      const double step = std::ldexp(1.0, std::max(exponent - 1, format.least_exponent) - format.mantissa);
      out[r][c] = std::nearbyint(scaled / step) * step * inverse;
    }
  return result;
}

struct Results {
  at::Tensor y, dx, dw, db;
};

/// What the recipe's definition gives for y = x W^T + b with the output gradient dy.
Results defined_results(Recipe recipe, const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                        const at::Tensor& dy) {
  const bool rows = recipe == Recipe::kFp8Rowwise;
  const Format gradient = rows ? kE4m3 : kE5m2;
  const Part by_row = rows ? Part::kRow : Part::kTensor, by_column = rows ? Part::kColumn : Part::kTensor;
  const at::Tensor weight = rounded(w, Part::kTensor, kE4m3), wide_dy = dy.to(at::kDouble);
  return {at::mm(rounded(x, by_row, kE4m3), weight.t()) + b.detach().to(at::kDouble),
          at::mm(rounded(dy, by_row, gradient), weight),
          at::mm(rounded(dy, by_column, gradient).t(), rounded(x, by_column, kE4m3)), wide_dy.sum(0)};
}

/// Takes the gradient of a matrix of codes.
class HeldGradient final : public GradientSink {
 public:
  explicit HeldGradient(at::IntArrayRef shape) : sum(at::full(shape, std::nan(""), at::kFloat)) {}
  GradientTarget target() override { return {sum, false}; }
  void written() override {}
  at::Tensor sum;
};

Results run_linear(const Weight& weight, const at::Tensor& x, const at::Tensor& b, const at::Tensor& dy) {
  const at::Tensor input = x.detach().clone().requires_grad_(true), bias = b.detach().clone().requires_grad_(true);
  Weight used = weight;
  HeldGradient held(weight.matrix.sizes());
  if (weight.quantized())
    used.state.sink = &held;
  else
    used.matrix = weight.matrix.detach().clone().requires_grad_(true);
  const auto [y, same] = norm_linear(input, {}, {used, bias, {}});
  (y * dy).sum().backward();
  return {y.detach(), input.grad(), weight.quantized() ? held.sum : used.matrix.grad(), bias.grad()};
}

/// Rows and columns of different sizes, so that a wrong scale shows.
at::Tensor uneven(at::IntArrayRef shape, uint64_t seed) {
  return (random(shape, seed) * random({shape[0], 1}, seed + 50).exp() * random({1, shape[1]}, seed + 60).exp())
      .to(at::kFloat);
}

class CurrentFp8 : public ::testing::TestWithParam<Recipe> {
 protected:
  Results run(const at::Tensor& x, const at::Tensor& w, const at::Tensor& dy) {
    return run_linear({w, {.recipe = GetParam()}}, x, bias_, dy);
  }
  at::Tensor x_ = uneven({32, 48}, 3), w_ = uneven({64, 48}, 4), dy_ = uneven({32, 64}, 5),
             bias_ = random({64}, 6).to(at::kFloat);
};

TEST_P(CurrentFp8, ProductsAreThoseOfTheDefinition) {
  const Results got = run(x_, w_, dy_), expected = defined_results(GetParam(), x_, w_, bias_, dy_);
  EXPECT_LT(relative_distance(got.y.to(at::kDouble), expected.y), 1e-5);
  EXPECT_LT(relative_distance(got.dx.to(at::kDouble), expected.dx), 1e-5);
  EXPECT_LT(relative_distance(got.dw.to(at::kDouble), expected.dw), 1e-5);
  EXPECT_LT(relative_distance(got.db.to(at::kDouble), expected.db), 1e-6);
}

TEST_P(CurrentFp8, GradientsAreThoseOfThePlainBlockButForRounding) {
  for (const BlockChoices& base : {kBertBlock, kGptBlock, kLlamaBlock}) {
    std::vector<std::vector<at::Tensor>> kept_and_recomputed;
    for (const bool recompute : {false, true}) {
      BlockChoices choices = base;
      choices.recompute_up = recompute;
      const TestBlock block(choices, {.samples = 4, .length = 32, .width = 64, .inner = 256, .extra = 128});
      const auto plain = block.run(at::kCPU, at::kFloat, {}), fp8 = block.run(at::kCPU, at::kFloat, {GetParam()});
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_GT(cosine(fp8[i], plain[i]), 0.99) << base.name << " value " << i;
        EXPECT_NEAR((fp8[i].norm() / plain[i].norm()).item<double>(), 1, 0.04) << base.name << " value " << i;
      }
      EXPECT_GT(relative_distance(fp8[0], plain[0]), 1e-4) << "nothing was quantized";
      kept_and_recomputed.push_back(fp8);
    }
    for (size_t i = 0; i < kept_and_recomputed[0].size(); ++i)
      EXPECT_TRUE(at::equal(kept_and_recomputed[0][i], kept_and_recomputed[1][i]))
          << base.name << ": value " << i << " depends on the recomputation";
  }
}

TEST_P(CurrentFp8, RowsColumnsAndMatricesOfZerosStayZeros) {
  at::Tensor x = x_.clone(), dy = dy_.clone();
  x[5].zero_(), x.select(1, 7).zero_(), dy[5].zero_(), dy[6].zero_(), dy.select(1, 9).zero_();
  const Results some = run(x, w_, dy);
  for (const at::Tensor& value : {some.y, some.dx, some.dw, some.db}) EXPECT_TRUE(value.isfinite().all().item<bool>());
  EXPECT_TRUE(some.y[5].equal(bias_));
  EXPECT_EQ(some.dx[6].abs().max().item<float>(), 0);
  EXPECT_EQ(some.dw[9].abs().max().item<float>(), 0);
  EXPECT_EQ(some.dw.select(1, 7).abs().max().item<float>(), 0);
  // Sizes whose quotient with the largest code is 0 or subnormal, among zeros.
  for (const double size : {0.0, 1e-44, 1e-38}) {
    const auto tiny = [&](const at::Tensor& of) { return of.gt(0).to(at::kFloat) * size; };
    const Results none = run(tiny(x), tiny(w_), tiny(dy));
    EXPECT_TRUE(none.y.equal(bias_.expand_as(none.y))) << size;
    for (const at::Tensor& value : {none.dx, none.dw}) EXPECT_LT(value.abs().max().item<float>(), 1e-30) << size;
  }
}

TEST_P(CurrentFp8, NonFiniteValuesAreSeen) {
  const auto finite = [](const at::Tensor& value) { return value.isfinite().all().item<bool>(); };
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    at::Tensor x = x_.clone(), w = w_.clone(), dy = dy_.clone();
    x[3][2] = bad, w[3][2] = bad, dy[3][2] = bad;
    const Results of_x = run(x, w_, dy_), of_w = run(x_, w, dy_), of_dy = run(x_, w_, dy);
    EXPECT_FALSE(finite(of_x.y[3]) || finite(of_x.dw)) << bad;
    EXPECT_FALSE(finite(of_w.y) || finite(of_w.dx)) << bad;
    EXPECT_FALSE(finite(of_dy.dx[3]) || finite(of_dy.dw[2])) << bad;
    if (GetParam() == Recipe::kFp8Rowwise) {
      EXPECT_TRUE(finite(of_x.y[4]) && finite(of_dy.dx[4])) << bad;
    }
  }
}

TEST_P(CurrentFp8, CodesOfTheStoreGiveTheSameBits) {
  const Results here = run(x_, w_, dy_);
  const Fp8Codes codes = make_current_codes(w_, CurrentCodes::kE4m3, false).codes;
  const Results stored =
      run_linear({codes.data, {.recipe = GetParam(), .inverse_scale = codes.inverse}}, x_, bias_, dy_);
  EXPECT_TRUE(stored.y.equal(here.y));
  EXPECT_TRUE(stored.dx.equal(here.dx));
  EXPECT_TRUE(stored.dw.equal(here.dw));
}

TEST_P(CurrentFp8, EvaluationGivesTheForwardOfTraining) {
  const Results trained = run(x_, w_, dy_);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(norm_linear(x_, {}, {{w_, {.recipe = GetParam()}}, bias_, {}})[0].equal(trained.y));
}

INSTANTIATE_TEST_SUITE_P(Recipes, CurrentFp8, ::testing::Values(Recipe::kFp8Tensorwise, Recipe::kFp8Rowwise),
                         [](const auto& each) {
                           return std::string(each.param == Recipe::kFp8Rowwise ? "Rowwise" : "Tensorwise");
                         });

TEST(DelayedFp8, CodesOfTheStoreGiveTheSameBits) {
  const at::Tensor x = uneven({32, 48}, 3), w = uneven({64, 48}, 4), dy = uneven({32, 64}, 5), b = at::ones({64});
  Fp8Scales scales(1, at::kCPU);
  const Fp8LinearScales& own = scales.linear(0);
  const Results here = run_linear({w, {Recipe::kFp8Delayed, {}, own}}, x, b, dy);
  const Fp8Codes codes = make_codes({w, {}, {}}, own.weight, *own.known, false).codes;
  const Results stored = run_linear({codes.data, {Recipe::kFp8Delayed, codes.inverse, own}}, x, b, dy);
  EXPECT_TRUE(stored.y.equal(here.y));
  EXPECT_TRUE(stored.dx.equal(here.dx));
  EXPECT_TRUE(stored.dw.equal(here.dw));
}

TEST(CurrentCodes, TheLargestMagnitudeIsTheLargestCode) {
  for (const double size : {1e-30, 3e-5, 1.0, 1e30}) {
    const at::Tensor x = (random({48, 32}, 8) * size).to(at::kFloat);
    for (const auto& [format, largest] : {std::pair{CurrentCodes::kE4m3, 448.0}, {CurrentCodes::kE5m2, 57344.0}}) {
      const Operand made = make_current_codes(x, format, true);
      EXPECT_EQ(made.codes.data.to(at::kFloat).abs().max().item<double>(), largest) << size;
      EXPECT_TRUE(made.codes.transposed.to(at::kFloat).equal(made.codes.data.to(at::kFloat).t()));
      EXPECT_TRUE(at::allclose(made.column_sums, x.sum(0)));
    }
    const Fp8Rows columns = quantize_columns(x), rows = quantize_rows(x.t().contiguous());
    EXPECT_TRUE(columns.data.to(at::kFloat).equal(rows.data.to(at::kFloat)));
    EXPECT_TRUE(columns.inverse_scale.equal(rows.inverse_scale));
    EXPECT_TRUE((columns.data.to(at::kFloat).abs().amax(1) == 448).all().item<bool>()) << size;
  }
}

}  // namespace
}  // namespace trireme
