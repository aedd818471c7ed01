#include "matmul/recipe.h"

#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

/// The store's codes [out, in].
Fp8Matrix stored_codes(const Weight& weight) {
  const at::Tensor& inverse = weight.state.inverse_scale;
  TRIREME_CHECK(inverse.defined() && inverse.numel() == 1, "an FP8 weight ", weight.matrix.sizes(), " has ",
                inverse.defined() ? inverse.numel() : 0, " inverse scales, not one");
  return {weight.matrix, inverse.view(at::IntArrayRef{})};
}

/// The transpose of the store's codes [in, out]: the one that the store keeps, or one that is freed after its use.
at::Tensor transposed_codes(const Weight& weight) {
  TransposedCodes* const kept = weight.state.transposed.get();
  if (kept == nullptr) return transpose_codes(weight.matrix);
  if (!kept->valid) (void)transpose_codes(weight.matrix, kept->codes);
  kept->valid = true;
  return kept->codes;
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

/// Products in FP8: W, E4M3 with one scale, times x or dy with one scale each (Operand::codes) or one per row
/// (Operand::rows). Forward accumulates fast. A recipe says which forms it takes.
class Fp8Recipe : public LinearRecipe {
 public:
  const RecipeTraits& traits() const final { return traits_; }
  at::Tensor forward(const Operand& x, const Weight& weight, at::ScalarType dtype, const at::Tensor& bias,
                     const Addend& addend, Kept& kept) const final;
  void keep(const Operand& x, const Weight& weight, Kept& kept) const final { (void)multiplied_codes(x, weight, kept); }
  at::Tensor dgrad(const Operand& dy, const Weight& weight, const Kept& kept, at::ScalarType dtype,
                   const Addend& addend) const final;
  void wgrad(const Operand& dy, const at::Tensor& plain_x, const Kept& kept, const GradientTarget& target) const final;

 protected:
  /// `gradients`: how dgrad and wgrad accumulate. A recipe of trained matrices names only the traits of its own.
  Fp8Recipe(const RecipeTraits& own, Accumulate gradients)
      : traits_(own.trains ? trained(own, gradients) : own), gradients_(gradients) {}

 private:
  static RecipeTraits trained(RecipeTraits own, Accumulate gradients);
  /// The codes of W that forward multiplies by; fills `kept`.
  Fp8Matrix multiplied_codes(const Operand& x, const Weight& weight, Kept& kept) const;
  /// Codes of a matrix in the compute dtype: with the scale of its own amax.
  virtual Fp8Codes make_weight_codes(const Weight& weight) const;

  RecipeTraits traits_;
  Accumulate gradients_;
};

RecipeTraits Fp8Recipe::trained(RecipeTraits own, Accumulate gradients) {
  own.forward = {.fp8 = true};
  own.dgrad = own.wgrad = {.fp8 = true, .slowdown = gradients == Accumulate::kSplit ? kSplitSlowdown : 1};
  own.needs_16_bit = true;
  own.size_multiple = own.token_multiple = 16;
  own.kept_input_bytes = 1;
  own.gradient_bytes = 2;
  return own;
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
/// pass over their bytes.
at::Tensor Fp8Recipe::dgrad(const Operand& dy, const Weight& weight, const Kept& kept, at::ScalarType dtype,
                            const Addend& addend) const {
  Fp8Matrix w = kept.weight_transposed;
  if (!w.codes.defined()) {
    w = stored_codes(weight);
    w.codes = transposed_codes(weight);
  }
  return multiply(dy, w, gradients_, dtype, {}, addend);
}

void Fp8Recipe::wgrad(const Operand& dy, const at::Tensor&, const Kept& kept, const GradientTarget& target) const {
  TRIREME_CHECK(traits_.trains, "wgrad of a frozen FP8 weight: frozen weights have no gradient");
  fp8_product_to(target, transposed(dy), kept.x_transposed, gradients_);
}

/// Products in the compute dtype, by the library.
class ComputeRecipe final : public LinearRecipe {
 public:
  const RecipeTraits& traits() const override {
    static const RecipeTraits traits = {.name = "compute", .trains = true, .wgrad_reads_plain_input = true};
    return traits;
  }
  OperandForms input_forms(const Weight&, bool) const override { return {.plain = true}; }
  OperandForms gradient_forms(const Weight&) const override { return {.plain = true}; }

  at::Tensor forward(const Operand& x, const Weight& weight, at::ScalarType, const at::Tensor& bias,
                     const Addend& addend, Kept&) const override {
    return plain_product(x.plain, weight.matrix.t(), bias, addend);
  }
  void keep(const Operand&, const Weight&, Kept&) const override {}
  at::Tensor dgrad(const Operand& dy, const Weight& weight, const Kept&, at::ScalarType,
                   const Addend& addend) const override {
    return plain_product(dy.plain, weight.matrix, {}, addend);
  }
  void wgrad(const Operand& dy, const at::Tensor& plain_x, const Kept&, const GradientTarget& target) const override {
    plain_product_to(target, dy.plain.t(), plain_x);
  }
};

/// Frozen weights in E4M3 with one scale each; inputs and output gradients are quantized with one scale per row. All in
/// E4M3: a scale per row makes the range of E5M2 unnecessary, and E4M3 has one more bit of mantissa.
class Fp8FrozenRecipe final : public Fp8Recipe {
 public:
  /// The norm and the activation before a product write codes, one byte, instead of the plain form. The transposition
  /// of the weight's codes is not in the traffic: TrainingPlan::transposes.
  Fp8FrozenRecipe()
      : Fp8Recipe({.name = "frozen",
                   .trains = false,
                   .forward = {.fp8 = true},
                   .dgrad = {.fp8 = true},
                   .stores_codes = true,
                   .scales_rows = true,
                   .size_multiple = 16,
                   .gradient_bytes = 1,
                   .keeps_activations_in_fp8 = true,
                   .operand_traffic = 1},
                  Accumulate::kFast) {}
  OperandForms input_forms(const Weight&, bool) const override { return {.rows = true}; }
  OperandForms gradient_forms(const Weight&) const override { return {.rows = true}; }
};

/// FP8 products of trained weights, all operands in E4M3. x and dy have one scale per row of each product's operand,
/// from the row's own amax: forward and dgrad read their rows, wgrad reads their columns, which are the rows of x^T and
/// dy^T.
///
/// W has one scale. A scale per row of W cannot serve dgrad, whose sum runs over the rows of W; W would have to be
/// quantized twice, in rows and in columns, and both kept or gathered. One scale gives the same error: of weights with
/// a normal distribution 2.64 % (rms) either way, of rows whose sizes are lognormal with sigma 1 2.67 % against 2.64 %,
/// whereas quantizing row-scaled codes again for dgrad gives 3.7 %. Forward and dgrad then multiply by the same values,
/// and the store's codes serve both.
///
/// Scales are amax / 448, not powers of two as in torchao: the norms, SwiGLU and the row kernel write these.
class Fp8RowwiseRecipe final : public Fp8Recipe {
 public:
  /// Rows and columns are quantized apart, each with its own amax; 9 bytes an element are what Llama2-7B on two H200s
  /// shows. Codes of the store are only transposed, in backward.
  Fp8RowwiseRecipe()
      : Fp8Recipe({.name = "rowwise",
                   .trains = true,
                   .stores_codes = true,
                   .scales_rows = true,
                   .operand_traffic = 9,
                   .weight_traffic = 2},
                  Accumulate::kSplit) {}
  OperandForms input_forms(const Weight&, bool trains) const override { return {.rows = true, .columns = trains}; }
  OperandForms gradient_forms(const Weight& weight) const override {
    return {.rows = true, .columns = weight.trained()};
  }
};

/// FP8 products of trained weights with one scale per tensor, from its own amax (current scaling; torchao: tensorwise,
/// TransformerEngine: Float8CurrentScaling). x and W are E4M3, dy is E5M2. The amax is exact, so that the scale maps it
/// to the largest code. Gradients are sums over more terms that cancel, so dgrad and wgrad accumulate in fp32.
class Fp8TensorwiseRecipe final : public Fp8Recipe {
 public:
  /// A matrix of 2 bytes an element is read twice, for its amax and for its codes in two layouts. Codes of the store
  /// are only transposed, in backward.
  Fp8TensorwiseRecipe()
      : Fp8Recipe({.name = "tensorwise",
                   .trains = true,
                   .stores_codes = true,
                   .rows_apart = false,
                   .operand_traffic = 6,
                   .weight_traffic = 2},
                  Accumulate::kSplit) {}
  OperandForms input_forms(const Weight&, bool) const override { return {.current = CurrentCodes::kE4m3}; }
  OperandForms gradient_forms(const Weight&) const override { return {.current = CurrentCodes::kE5m2}; }
};

/// FP8 products of trained weights with one scale per tensor, from the amax of the previous step. x and W are E4M3, dy
/// is E5M2; results are in the compute dtype. All products accumulate fast, as in the MLPerf submissions.
class Fp8DelayedRecipe final : public Fp8Recipe {
 public:
  /// Reads a matrix of 2 bytes an element once and writes its codes in two layouts, weights too.
  Fp8DelayedRecipe()
      : Fp8Recipe({.name = "delayed",
                   .trains = true,
                   .delayed_scales = true,
                   .rows_apart = false,
                   .operand_traffic = 4,
                   .weight_traffic = 4},
                  Accumulate::kFast) {}
  OperandForms input_forms(const Weight& weight, bool) const override {
    return {.codes = &weight.state.scales.x, .codes_known = *weight.state.scales.known};
  }
  OperandForms gradient_forms(const Weight& weight) const override {
    return {.codes = &weight.state.scales.dy, .codes_known = *weight.state.scales.known};
  }

 private:
  Fp8Codes make_weight_codes(const Weight& weight) const override {
    const Fp8LinearScales& scales = weight.state.scales;
    return make_codes({weight.matrix, {}, {}}, scales.weight, *scales.known, false).codes;
  }
};

}  // namespace

const LinearRecipe& recipe_of(Recipe recipe) {
  static const ComputeRecipe compute;
  static const Fp8FrozenRecipe frozen;
#define TRIREME_RECIPE(Name, word) static const Fp8##Name##Recipe word;
  TRIREME_TRAINED_FP8_RECIPES(TRIREME_RECIPE)
#undef TRIREME_RECIPE
  switch (recipe) {
    case Recipe::kCompute: return compute;
    case Recipe::kFp8Frozen: return frozen;
#define TRIREME_CASE(Name, word) \
  case Recipe::kFp8##Name: return word;
      TRIREME_TRAINED_FP8_RECIPES(TRIREME_CASE)
#undef TRIREME_CASE
  }
  TRIREME_CHECK(false, "no recipe ", static_cast<int>(recipe));
  return compute;
}

const RecipeTraits& traits_of(Recipe recipe) { return recipe_of(recipe).traits(); }

const std::vector<Recipe>& trained_fp8_recipes() {
#define TRIREME_VALUE(Name, word) Recipe::kFp8##Name,
  static const std::vector<Recipe> all = {TRIREME_TRAINED_FP8_RECIPES(TRIREME_VALUE)};
#undef TRIREME_VALUE
  return all;
}

}  // namespace trireme
