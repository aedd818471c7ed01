#pragma once
// The work of one block for one row, from which the plan predicts a step's time.

#include <algorithm>
#include <cstdint>

namespace trireme {

/// FLOPs of forward: `gate_up` is contained in `matrices`. Bytes that norms, rotary positions, activation and residuals
/// read and write, in the compute dtype; `norms` is the part of forward's that backward repeats with Recompute::kNorms.
struct BlockWork {
  double matrices = 0, gate_up = 0, attention = 0;
  double forward_bytes = 0, backward_bytes = 0, norms_bytes = 0;
  // Bytes of quantisation where trained matrices are multiplied in FP8: inputs and output gradients are read and
  // written in both layouts; of the weights once a pass, whatever its rows.
  double fp8_forward_bytes = 0, fp8_backward_bytes = 0, fp8_weight_bytes = 0;
  // unhidden_bytes() of the products of forward, and of the gradients to their inputs.
  double unhidden_forward = 0, unhidden_backward = 0;
};

/// Bytes of a product's result [rows, columns] whose writing is not part of the rate of large products. A tile of the
/// result is written when its sums over the inner dimension are complete; the shorter the sums, the larger the part of
/// the time in which that is not hidden. The rates are those of products with inner dimensions from 4,096 on.
inline double unhidden_bytes(double rows, double columns, double inner, double element_size) {
  return rows * columns * element_size * std::max(0.0, 1 - inner / 4096);
}

}  // namespace trireme
