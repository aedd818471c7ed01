#include "norm_rows.h"

#include "trireme/base/error.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

#include <tuple>

namespace trireme {

namespace {

/// Widest rows of the layer norm kernel with gradients of vectors, in bytes; of the RMS norm kernels, in elements.
constexpr int64_t kWidestLayerNormBytes = 16384, kWidestNormRow = 16384;

/// The kernels' samples begin at their first row.
Choice layer_norm_choice(std::string_view operation, const at::Tensor& x, const Dropout& dropout) {
  // Elements of a sample for which the kernels compute the hash of dropout.h.
  constexpr int64_t kMostElements = int64_t{1} << 33;
  const bool large = dropout.samples() > 0 && x.numel() / dropout.samples() > kMostElements;
  if (dropout.sample_rows == 0 && !large) return row_kernel_choice(operation, x, kWidestLayerNormBytes);
  return Dispatch(operation, x)
      .needs(false, "dropout is of a slice of samples, or of samples of 2^33 elements")
      .choice();
}

LayerNormed normed_sum(const at::Tensor& x, const ResidualBranch& branch, const Norm& norm, bool want_plain,
                       bool want_rows) {
  const bool plain_input = !branch.bias.defined() && !branch.dropout.active() && !branch.residual.defined();
  TRIREME_RETURN_LAUNCH(layer_norm_choice("layer_norm", x, branch.dropout),
                        layer_norm_forward(x, branch, norm, /*keep_sum=*/!plain_input, want_plain, want_rows));
  at::Tensor sum = branch.bias.defined() ? x + branch.bias : x;
  if (branch.dropout.active()) sum = apply_dropout(sum, branch.dropout);
  if (branch.residual.defined()) sum = sum + branch.residual;
  const at::Tensor wide = sum.to(accumulate_type(x));
  const at::Tensor mean = wide.mean(-1);
  const at::Tensor centred = wide - mean.unsqueeze(-1);
  const at::Tensor rstd = at::rsqrt(centred.square().mean(-1).add_(norm.eps));
  const at::Tensor normed = centred.mul_(rstd.unsqueeze(-1));
  LayerNormed result;
  result.y.plain = (normed * norm.weight + norm.bias).to(x.scalar_type());
  result.sum = sum;
  result.mean = mean;
  result.rstd = rstd;
  return result;
}

}  // namespace

LayerNormed layer_norm_forward(const at::Tensor& x, const ResidualBranch& branch, const Norm& norm,
                               const OperandForms& wanted) {
  TRIREME_CHECK(norm.kind == NormKind::kLayer && norm.weight.size(0) == x.size(1), "layer_norm: x ", x.sizes(),
                ", weight ", norm.weight.sizes());
  LayerNormed result = normed_sum(x, branch, norm, wanted.need_plain(), wanted.rows);
  complete(result.y, wanted);
  return result;
}

at::Tensor layer_norm_recompute(const at::Tensor& sum, const at::Tensor& mean, const at::Tensor& rstd,
                                const Norm& norm) {
  // The kernel recomputes the statistics to the same bits: one pass over the sum is cheaper than reading them.
  TRIREME_RETURN_LAUNCH(row_kernel_choice("layer_norm", sum, kWidestLayerNormBytes),
                        layer_norm_forward(sum, {}, norm, false, true, false).y.plain);
  const at::Tensor normed = (sum.to(accumulate_type(sum)) - mean.unsqueeze(-1)).mul_(rstd.unsqueeze(-1));
  return (normed * norm.weight + norm.bias).to(sum.scalar_type());
}

LayerNormGradients layer_norm_backward(const at::Tensor& dy, const LayerNormed& kept, const Norm& norm,
                                       const Dropout& dropout, const at::Tensor& d_sum, bool want_norm,
                                       bool want_branch_bias, const Fp8Scale* codes) {
  TRIREME_RETURN_LAUNCH(layer_norm_choice("layer_norm_backward", kept.sum, dropout),
                        layer_norm_backward(dy, kept, norm, dropout, d_sum, want_norm, want_branch_bias, codes));
  const at::ScalarType type = accumulate_type(kept.sum), narrow = kept.sum.scalar_type();
  const at::Tensor rstd = kept.rstd.unsqueeze(-1), d = dy.to(type);
  const at::Tensor normed = (kept.sum.to(type) - kept.mean.unsqueeze(-1)).mul_(rstd);
  LayerNormGradients result;
  if (want_norm) {
    result.d_weight = d.mul(normed).sum(0).to(narrow);
    result.d_bias = d.sum(0).to(narrow);
  }
  const at::Tensor g = d.mul(norm.weight);
  at::Tensor sum_gradient = (g - g.mean(-1, true) - normed * g.mul(normed).mean(-1, true)).mul_(rstd);
  if (d_sum.defined()) sum_gradient.add_(d_sum);
  result.d_sum = sum_gradient.to(narrow);
  result.dx = dropout.active() ? apply_dropout(result.d_sum, dropout) : result.d_sum;
  if (want_branch_bias) result.d_branch_bias = sum_columns(result.dx);
  return result;
}

namespace {

Choice rms_norm_choice(const at::Tensor& x, const Norm& norm) {
  TRIREME_CHECK(norm.kind == NormKind::kRms || norm.kind == NormKind::kRmsPlusOne, "rms_norm of another kind of norm");
  // The library rounds as kRms.
  const bool library = x.is_cuda() && norm.kind == NormKind::kRms;
  return Dispatch("rms_norm", x)
      .needs(x.size(-1) <= kWidestNormRow, "rows are wider than 16,384 elements")
      .choice(library ? Runs::kLibrary : Runs::kComposition);
}

/// The factor of a kRmsPlusOne norm, in the type of its arithmetic.
at::Tensor one_plus(const at::Tensor& weight) { return weight.to(accumulate_type(weight)).add(1); }

/// y from the normalised values, which may be overwritten.
at::Tensor weighted(const at::Tensor& normed, at::ScalarType type, const Norm& norm) {
  if (norm.kind == NormKind::kRmsPlusOne) return (normed * one_plus(norm.weight)).to(type);
  return normed.to(type).mul_(norm.weight);
}

RmsNormed normed_rows(const at::Tensor& x, const Norm& norm, const OperandForms& written) {
  const Choice choice = rms_norm_choice(x, norm);
  TRIREME_RETURN_LAUNCH(choice, rms_norm_forward(x, norm, written));
  RmsNormed result;
  if (choice.who == Runs::kLibrary) {
    std::tie(result.y.plain, result.rstd) = at::_fused_rms_norm(x, {x.size(-1)}, norm.weight, norm.eps);
    return result;
  }
  const at::Tensor wide = x.to(accumulate_type(x));
  result.rstd = at::rsqrt(wide.square().mean(-1, true).add_(norm.eps));
  result.y.plain = weighted(wide.mul(result.rstd), x.scalar_type(), norm);
  return result;
}

}  // namespace

RmsNormed rms_norm_forward(const at::Tensor& x, const Norm& norm, const OperandForms& wanted) {
  // The kernel of kRmsPlusOne writes no codes.
  OperandForms written = wanted;
  written.rows = wanted.rows && norm.kind == NormKind::kRms;
  written.plain = wanted.need_plain() || wanted.rows != written.rows;
  RmsNormed result = normed_rows(x, norm, written);
  complete(result.y, wanted);
  return result;
}

at::Tensor rms_norm_recompute(const at::Tensor& x, const at::Tensor& rstd, const Norm& norm) {
  // The kernel recomputes rstd to the same bits: one pass over x is cheaper than reading it.
  if (rms_norm_choice(x, norm).who != Runs::kComposition) return normed_rows(x, norm, {.plain = true}).y.plain;
  return weighted(x.to(accumulate_type(x)).mul(rstd), x.scalar_type(), norm);
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const Norm& norm,
                             const at::Tensor& d_residual, at::Tensor* d_weight) {
  const Choice choice = rms_norm_choice(x, norm);
  TRIREME_RETURN_LAUNCH(choice, rms_norm_backward(dy, x, rstd, norm, d_residual, d_weight));
  if (choice.who == Runs::kLibrary) {
    const auto [dx, dw] =
        at::_fused_rms_norm_backward(dy.contiguous(), x, {x.size(-1)}, rstd, norm.weight, {true, d_weight != nullptr});
    if (d_weight != nullptr) *d_weight = dw;
    return d_residual.defined() ? dx.add(d_residual) : dx;
  }
  const at::ScalarType type = accumulate_type(x);
  const at::Tensor normed = x.to(type).mul(rstd);
  const bool plus_one = norm.kind == NormKind::kRmsPlusOne;
  if (d_weight != nullptr) {
    // Forward of kRms multiplied the weight by the rounded normalised value.
    const at::Tensor factor = plus_one ? normed : normed.to(x.scalar_type()).to(type);
    *d_weight = dy.to(type).mul(factor).sum(0).to(norm.weight.scalar_type());
  }
  const at::Tensor dn = plus_one ? dy.to(type) * one_plus(norm.weight) : dy.mul(norm.weight).to(type);
  const at::Tensor mean = dn.mul(normed).mean(-1, true);
  at::Tensor dx = dn.sub(normed.mul(mean)).mul_(rstd);
  if (d_residual.defined()) dx.add_(d_residual);
  return dx.to(x.scalar_type());
}

NormLayer::NormLayer(const Norm& norm, const at::Tensor& x, const char* what, InputList& inputs) : norm_(norm) {
  if (!present()) return;
  TRIREME_CHECK(norm.weight.dim() == 1 && x.size(-1) == norm.weight.size(0), what, ": rows of ", x.size(-1),
                ", norm of ", norm.weight.numel());
  TRIREME_CHECK(x.scalar_type() == norm.weight.scalar_type(), what, ": x is ", x.scalar_type(), ", norm ",
                norm.weight.scalar_type());
  TRIREME_CHECK(norm.bias.defined() == (norm.kind == NormKind::kLayer), what,
                ": a layer norm has a bias, an RMS norm none");
  weight_ = inputs.add(norm.weight);
  bias_ = inputs.add(norm.bias);
}

Operand NormLayer::forward(const at::Tensor& x, const OperandForms& wanted) {
  if (!present()) return make_operand(x, wanted);
  if (norm_.kind == NormKind::kLayer) {
    LayerNormed normed = layer_norm_forward(x, {}, norm_, wanted);
    mean_ = normed.mean;
    rstd_ = normed.rstd;
    return std::move(normed.y);
  }
  RmsNormed normed = rms_norm_forward(x, norm_, wanted);
  rstd_ = normed.rstd;
  return std::move(normed.y);
}

Operand NormLayer::recompute(const at::Tensor& x, const OperandForms& wanted) const {
  // The forward kernel writes forms other than the plain one in the same pass.
  if (!present() || wanted.rows) return NormLayer(*this).forward(x, wanted);
  if (norm_.kind == NormKind::kLayer) return make_operand(layer_norm_recompute(x, mean_, rstd_, norm_), wanted);
  return make_operand(rms_norm_recompute(x, rstd_, norm_), wanted);
}

at::Tensor NormLayer::backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& d_residual,
                               Gradients& gradients) {
  if (norm_.kind != NormKind::kLayer) {
    at::Tensor d_weight;
    const at::Tensor dx =
        rms_norm_backward(dy, x, rstd_, norm_, d_residual, gradients.wanted(weight_) ? &d_weight : nullptr);
    gradients.set(weight_, d_weight);
    return dx;
  }
  BranchGradient* const branch =
      norm_.branch != nullptr && norm_.branch->expected(x.size(0)) ? norm_.branch.get() : nullptr;
  const LayerNormGradients d =
      layer_norm_backward(dy, {{}, x, mean_, rstd_}, norm_, branch != nullptr ? branch->dropout : Dropout{}, d_residual,
                          trained(gradients), branch != nullptr && branch->column_sums);
  set_gradients(d.d_weight, d.d_bias, gradients);
  if (branch != nullptr) {
    branch->of = d.d_sum;
    branch->dropped = d.dx;
    branch->sums = d.d_branch_bias;
  }
  return d.d_sum;
}

namespace {

struct NormNode {
  Input x;
  NormLayer norm;

  variable_list forward() {
    return {norm.forward(flatten_tokens(x.value), {.plain = true}).plain.view(x.value.sizes())};
  }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const at::Tensor dx = norm.backward(flatten_tokens(d_outputs[0]), flatten_tokens(x.value), {}, gradients);
    gradients.set(x, dx.view(x.value.sizes()));
  }
};

}  // namespace

at::Tensor apply_norm(const at::Tensor& x, const Norm& norm) {
  TRIREME_CHECK(norm.kind != NormKind::kNone, "apply_norm: the norm's kind is kNone");
  InputList inputs;
  const Input input = inputs.add(x.contiguous());
  NormNode node{input, {norm, x, "apply_norm", inputs}};
  return run_node(std::move(node), inputs)[0];
}

}  // namespace trireme
