#pragma once
// Norms over the last dimension.

#include "trireme/ops/branch_gradient.h"
#include "trireme/ops/norm_kind.h"

#include <ATen/core/Tensor.h>

#include <memory>

namespace trireme {

/// kRms:        to(T, x / sqrt(mean(x^2) + eps)) * weight, rounded to x's type T before the multiplication
///              (Zhang & Sennrich 2019; rounding as in Hugging Face's LlamaRMSNorm)
/// kRmsPlusOne: to(T, x / sqrt(mean(x^2) + eps) * (1 + weight)), as in Hugging Face's Gemma3RMSNorm
/// kLayer:      (x - mean) / sqrt(var + eps) * weight + bias, biased variance (Ba et al. 2016)
/// weight and bias [D] have x's dtype; statistics are fp32 (fp64 for fp64).
struct Norm {
  NormKind kind = NormKind::kNone;
  at::Tensor weight, bias;  // bias: kLayer only
  double eps = 0;
  std::shared_ptr<BranchGradient> branch{};  // of the sub-layer whose result x is; null: none
};

inline Norm rms_norm(const at::Tensor& weight, double eps) { return {NormKind::kRms, weight, {}, eps}; }
inline Norm rms_norm_plus_one(const at::Tensor& weight, double eps) { return {NormKind::kRmsPlusOne, weight, {}, eps}; }
inline Norm layer_norm(const at::Tensor& weight, const at::Tensor& bias, double eps) {
  return {NormKind::kLayer, weight, bias, eps};
}

/// norm(x), x [.., D]; differentiable. kNone, or vectors of another width or dtype, are an internal error.
at::Tensor apply_norm(const at::Tensor& x, const Norm& norm);

}  // namespace trireme
