#include "matmul/recipe.h"

#include "trireme/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

const LinearRecipe& recipe_of(Recipe recipe) {
  switch (recipe) {
    case Recipe::kCompute: return compute_recipe();
    case Recipe::kFp8Frozen: return fp8_frozen_recipe();
#define TRIREME_CASE(Name, word) \
  case Recipe::kFp8##Name: return fp8_##word##_recipe();
      TRIREME_TRAINED_FP8_RECIPES(TRIREME_CASE)
#undef TRIREME_CASE
  }
  TRIREME_CHECK(false, "no recipe ", static_cast<int>(recipe));
  return compute_recipe();
}

const RecipeTraits& traits_of(Recipe recipe) { return recipe_of(recipe).traits(); }

const std::vector<Recipe>& trained_fp8_recipes() {
#define TRIREME_VALUE(Name, word) Recipe::kFp8##Name,
  static const std::vector<Recipe> all = {TRIREME_TRAINED_FP8_RECIPES(TRIREME_VALUE)};
#undef TRIREME_VALUE
  return all;
}

namespace {

/// The store's codes [out, in].
Fp8Matrix stored_codes(const Weight& weight) {
  const at::Tensor& inverse = weight.state.inverse_scale;
  TRIREME_CHECK(inverse.defined() && inverse.numel() == 1, "an FP8 weight ", weight.matrix.sizes(), " has ",
                inverse.defined() ? inverse.numel() : 0, " inverse scales, not one");
  return {weight.matrix, inverse.view(at::IntArrayRef{})};
}

/// x^T or dy^T as operand of wgrad; none where only forward or dgrad read x or dy.
Fp8Matrix transposed(const Operand& x) {
  if (!x.rows.defined()) return {x.codes.transposed, x.codes.inverse};
  return x.columns.defined() ? of_rows(x.columns) : Fp8Matrix();
}

at::Tensor multiply(const Operand& x, const Fp8Matrix& w, Accumulate accumulate, at::ScalarType dtype,
                    const at::Tensor& bias, const Addend& addend) {
  if (x.rows.defined())
    return fp8_product(of_rows(x.rows), of_rows(w.codes, w.inverse), accumulate, dtype, bias, addend);
  return fp8_product({x.codes.data, x.codes.inverse}, w, accumulate, dtype, bias, addend);
}

}  // namespace

RecipeTraits Fp8Recipe::trained_traits(const char* name, Accumulate gradients) {
  const ProductTraits gradient = {.fp8 = true, .slowdown = gradients == Accumulate::kSplit ? kSplitSlowdown : 1};
  return {.name = name,
          .trains = true,
          .forward = {.fp8 = true},
          .dgrad = gradient,
          .wgrad = gradient,
          .needs_sm90 = true,
          .needs_16_bit = true,
          .size_multiple = 16,
          .token_multiple = 16,
          .kept_input_bytes = 1,
          .gradient_bytes = 2};
}

Fp8Codes Fp8Recipe::make_weight_codes(const Weight& weight) const {
  return make_current_codes(weight.matrix, CurrentCodes::kE4m3, false).codes;
}

Fp8Matrix Fp8Recipe::multiplied_codes(const Operand& x, const Weight& weight, Kept& kept) const {
  Fp8Matrix w;
  if (weight.quantized()) {
    w = stored_codes(weight);
  } else {
    TRIREME_CHECK(traits_.trains, "a frozen FP8 weight ", weight.matrix.sizes(), " has no codes");
    const Fp8Codes codes = make_weight_codes(weight);
    w = {codes.data, codes.inverse};
    kept.weight_transposed = {codes.transposed, codes.inverse};
  }
  if (traits_.trains) kept.x_transposed = transposed(x);
  return w;
}

at::Tensor Fp8Recipe::forward(const Operand& x, const Weight& weight, at::ScalarType dtype, const at::Tensor& bias,
                              const Addend& addend, Kept& kept) const {
  return multiply(x, multiplied_codes(x, weight, kept), Accumulate::kFast, dtype, bias, addend);
}

/// Hopper multiplies FP8 operands along their inner dimension only, so the store's codes are transposed first, in one
/// pass over their bytes. The transposed copy is freed afterwards.
at::Tensor Fp8Recipe::dgrad(const Operand& dy, const Weight& weight, const Kept& kept, at::ScalarType dtype,
                            const Addend& addend) const {
  Fp8Matrix w = kept.weight_transposed;
  if (!w.codes.defined()) {
    w = stored_codes(weight);
    w.codes = transpose_codes(w.codes);
  }
  return multiply(dy, w, gradients_, dtype, {}, addend);
}

void Fp8Recipe::wgrad(const Operand& dy, const at::Tensor&, const Kept& kept, const GradientTarget& target) const {
  TRIREME_CHECK(traits_.trains, "wgrad of a frozen FP8 weight: frozen weights have no gradient");
  fp8_product_to(target, transposed(dy), kept.x_transposed, gradients_);
}

}  // namespace trireme
