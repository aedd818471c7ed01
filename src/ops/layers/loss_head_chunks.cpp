#include "layers/loss_head_chunks.h"

#include "cross_entropy.h"
#include "trireme/ops/dispatch.h"
#include "trireme/ops/layers/loss_head.h"

#include <algorithm>

namespace trireme {

RelativeWeights::RelativeWeights(const at::Tensor& relative, at::ScalarType type) : in_logits(relative) {
  if (type != at::kHalf) return;
  const at::Tensor mantissa = std::get<0>(at::frexp(relative));  // [1/2, 1), and 0 for weight 0
  in_logits = mantissa.masked_fill(mantissa.eq(0.5), 1);
  row_factor = relative / in_logits.masked_fill(in_logits.eq(0), 1);
}

RelativeWeights RelativeWeights::narrow(int64_t begin, int64_t count) const {
  RelativeWeights part = *this;
  part.in_logits = in_logits.narrow(0, begin, count);
  if (row_factor.defined()) part.row_factor = row_factor.narrow(0, begin, count);
  return part;
}

at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias, hidden, weight.t()) : at::mm(hidden, weight.t());
}

at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors) {
  TRIREME_LAUNCH(Dispatch("scale_rows", x).needs(x.is_contiguous(), "the matrix is not contiguous").choice(),
                 scaled_rows(x, factors.contiguous()));
  at::Tensor out = at::empty(x.sizes(), x.options());
  constexpr int64_t kRows = 4096;
  for (int64_t begin = 0; begin < x.size(0); begin += kRows) {
    const int64_t count = std::min(kRows, x.size(0) - begin);
    out.narrow(0, begin, count)
        .copy_(x.narrow(0, begin, count).to(factors.scalar_type()).mul_(factors.narrow(0, begin, count).unsqueeze(1)));
  }
  return out;
}

namespace {

/// Adds a chunk's d_weight and d_bias in fp32; used by the composition for fp16. `weighted`: the hidden states times
/// `row_factor`.
void add_weighted_sums(HeadResult& result, const at::Tensor& d_logits, const at::Tensor& weighted,
                       const at::Tensor& row_factor) {
  // LibTorch on a CPU has no product of fp16 matrices with an fp32 result.
  const auto product = [](const at::Tensor& a, const at::Tensor& b) {
    return a.is_cuda() ? at::mm(a, b, at::kFloat) : at::mm(a.to(at::kFloat), b.to(at::kFloat));
  };
  result.d_weight.add_(product(d_logits.t(), weighted));
  if (result.d_bias.defined())
    result.d_bias.add_(product(row_factor.to(d_logits.scalar_type()).unsqueeze(0), d_logits)[0]);
}

}  // namespace

HeadResult run_chunks(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& targets, const at::Tensor& token_weight, bool need_hidden, bool need_weight,
                      const WeightRows& rows) {
  const at::ScalarType type = loss_type(hidden), narrow_type = hidden.scalar_type();
  const auto options = hidden.options().dtype(type);
  HeadResult result;
  result.loss = at::zeros({}, options);
  if (need_hidden) result.d_hidden = at::empty_like(hidden);
  if (need_weight) result.d_weight = at::zeros(rows.shape(weight), options);
  if (need_weight && bias.defined()) result.d_bias = at::zeros(bias.sizes(), options);
  const at::Tensor all_weights = token_weight.to(type);
  // Avoids a division by zero in a batch without targets.
  result.largest = all_weights.max().clamp_min(1e-30);
  const RelativeWeights relative(all_weights / result.largest, narrow_type);
  result.row_factor = relative.row_factor;

  const int64_t tokens = hidden.size(0), chunk = loss_head_chunk(weight.size(0), hidden.is_cuda());
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const at::Tensor h = hidden.narrow(0, begin, count);
    const at::Tensor target = targets.narrow(0, begin, count).unsqueeze(1);
    at::Tensor logits = logits_of(h, weight, bias).to(type);
    const at::Tensor log_sum = logits.logsumexp(-1, true);
    result.loss.add_((log_sum - logits.gather(1, target)).squeeze(1).mul_(all_weights.narrow(0, begin, count)).sum());
    if (!need_hidden && !need_weight) continue;
    const RelativeWeights w = relative.narrow(begin, count);
    const at::Tensor in_logits = w.in_logits.unsqueeze(1);
    at::Tensor d_logits = logits.sub_(log_sum).exp_().mul_(in_logits);
    d_logits.scatter_add_(1, target, -in_logits);
    d_logits = d_logits.to(narrow_type);
    if (need_hidden) {
      at::Tensor out = result.d_hidden.narrow(0, begin, count);
      at::mm_out(out, d_logits, weight);
    }
    if (!need_weight) continue;
    d_logits = rows.of(d_logits);
    if (w.row_factor.defined()) {
      add_weighted_sums(result, d_logits, scaled_rows(h, w.row_factor), w.row_factor);
      continue;
    }
    if (result.d_bias.defined()) result.d_bias.add_(at::sum(d_logits, {0}, false, type));
    if (type == narrow_type)
      result.d_weight.addmm_(d_logits.t(), h);
    else
      result.d_weight.add_(at::mm(d_logits.t(), h));
  }
  return result;
}

}  // namespace trireme
