#pragma once
// Private to ops/: loss and gradients of the loss head, chunk by chunk. Shapes and dtypes as for loss_head().

#include "matmul/operand.h"
#include "trireme/ops/layers/loss_head.h"
#include "trireme/ops/trained_rows.h"

#include <ATen/ATen.h>

#include <cstdint>

namespace trireme {

/// Token weights relative to the largest one, [T], which may be negative, as a product of two factors. The first
/// multiplies d_logits. The second (`row_factor`) multiplies rows of d_hidden, and of the hidden states from which
/// d_weight is computed, where nothing underflows.
///
/// With bf16 and fp32 the first factor is the whole weight and the second is undefined. fp16 has no positive value
/// below 6e-8: for a token with 1/2000 of the largest weight, all logits but the target's would have gradient 0. With
/// fp16 the first factor is therefore in (1/2, 1], so that small weights lose no precision in d_logits, and the second
/// is a power of two, which causes no rounding.
struct RelativeWeights {
  at::Tensor in_logits, row_factor;

  /// `type`: dtype of the products.
  RelativeWeights(const at::Tensor& relative, at::ScalarType type);
  /// The factors of tokens begin, …, begin + count - 1.
  RelativeWeights narrow(int64_t begin, int64_t count) const;
};

/// Gradients belong to loss / largest.
struct HeadResult {
  at::Tensor loss;        // scalar
  at::Tensor losses;      // [T] weighted, in accumulate_type(); `loss` is their sum
  at::Tensor d_hidden;    // rows must still be multiplied by `row_factor` if that is defined
  at::Tensor row_factor;  // RelativeWeights::row_factor [T]
  at::Tensor d_weight;    // in accumulate_type()
  at::Tensor d_bias;      // in accumulate_type()
  at::Tensor largest;     // scalar, the largest token weight, without its sign
};

/// hidden weight^T (+ bias) [T, V].
at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias);

/// Row t of x [T, D] times factors[t]; the product is computed in fp32, a few rows at a time.
at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors);

/// The composition. Computes d_hidden if `need_hidden`, d_weight (of `rows` where there are some) and d_bias if
/// `need_weight`.
HeadResult run_chunks(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& targets, const at::Tensor& token_weight, bool need_hidden, bool need_weight,
                      const TrainedRows& rows, const LabelSmoothing& smoothing);

namespace launch {

/// With our kernels: the logits of a chunk are overwritten by their gradient, so the memory used beyond the results is
/// one chunk's buffer. No synchronisation with the host.
HeadResult run_chunks(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& targets, const at::Tensor& token_weight, bool need_hidden, bool need_weight,
                      const TrainedRows& rows, const LabelSmoothing& smoothing, int64_t most_logits);

/// Cross-entropy of logits [T, V] (the row stride may exceed V). If gradients are wanted, logits become
/// gradient_weights * (softmax - smoothed one-hot). weights and gradient_weights: fp32 [T], zero for the same tokens.
/// losses: fp32 [T], weighted.
void cross_entropy_(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                    const at::Tensor& gradient_weights, at::Tensor& losses, bool want_gradient,
                    const LabelSmoothing& smoothing);
/// Sum of `values` as fp32 scalar; fp64 inside, in one fixed order.
at::Tensor sum(const at::Tensor& values);
/// x * factor in `dtype`; factor is an fp32 scalar, the product is computed in fp32.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype);
/// x * factor, written to a contiguous target or added to it.
void scale_to(const GradientTarget& target, const at::Tensor& x, const at::Tensor& factor);
/// Row t of x [T, D] (contiguous) times factors[t] (fp32); the product is computed in fp32.
at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors);

}  // namespace launch

}  // namespace trireme
