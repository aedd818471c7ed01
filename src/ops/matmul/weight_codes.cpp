#include "matmul/weight_codes.h"

#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

Fp8Matrix stored_weight(const Weight& weight) {
  const at::Tensor& inverse = weight.state.inverse_scale;
  TRIREME_CHECK(inverse.defined() && inverse.numel() == 1, "an FP8 weight ", weight.matrix.sizes(), " has ",
                inverse.defined() ? inverse.numel() : 0, " inverse scales, not one");
  return {weight.matrix, inverse.view(at::IntArrayRef{})};
}

Fp8Matrix current_weight(const Weight& weight, LinearRecipe::Kept& kept) {
  if (weight.quantised()) return stored_weight(weight);
  const Fp8Codes codes = make_current_codes(weight.matrix, CurrentCodes::kE4m3, false).codes;
  kept.weight_transposed = {codes.transposed, codes.inverse};
  return {codes.data, codes.inverse};
}

Fp8Matrix transposed_weight(const Weight& weight, const LinearRecipe::Kept& kept) {
  if (kept.weight_transposed.codes.defined()) return kept.weight_transposed;
  const Fp8Matrix stored = stored_weight(weight);
  return {transpose_codes(stored.codes), stored.inverse};
}

}  // namespace trireme
