#pragma once
// Private to ops/: trained weights as FP8 operands with one scale: the store's codes, or codes of a matrix that comes
// in the compute dtype.

#include "matmul/recipe.h"

namespace trireme {

/// W as operand of forward, with the scale of its own amax. Keeps the transposed copy for dgrad if it is made here.
Fp8Matrix current_weight(const Weight& weight, LinearRecipe::Kept& kept);

/// The store's codes [out, in].
Fp8Matrix stored_weight(const Weight& weight);

/// W^T [in, out] as operand of dgrad: the kept copy, or the store's codes transposed in one pass over their bytes.
Fp8Matrix transposed_weight(const Weight& weight, const LinearRecipe::Kept& kept);

}  // namespace trireme
