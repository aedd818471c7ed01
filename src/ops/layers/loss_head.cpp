#include "trireme/ops/layers/loss_head.h"

#include "cross_entropy.h"
#include "layers/loss_head_chunks.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace trireme {

namespace {

/// x * factor in `dtype`, a few rows at a time. A plain GPU multiplication would round the zero-dimensional fp32 factor
/// to bf16 first.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype) {
  TRIREME_LAUNCH(Dispatch("scale", x).needs(x.is_contiguous(), "the matrix is not contiguous").choice(),
                 scaled(x, factor.contiguous(), dtype));
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(dtype));
  constexpr int64_t kRows = 4096;
  for (int64_t begin = 0; begin < x.size(0); begin += kRows) {
    const int64_t count = std::min(kRows, x.size(0) - begin);
    out.narrow(0, begin, count).copy_(x.narrow(0, begin, count).to(factor.scalar_type()).mul(factor));
  }
  return out;
}

struct LossHead {
  Input hidden, weight, bias, trained;  // `trained`: some rows of a frozen weight
  WeightRows rows;
  at::Tensor targets, token_weight;
  bool need_hidden, need_weight;
  at::ScalarType dtype;
  at::Tensor d_hidden, row_factor, d_weight, d_bias, largest;

  HeadResult run() const {
    const at::Tensor &h = hidden.value, &w = weight.value;
    const Choice choice =
        Dispatch("loss_head", h)
            .needs(h.is_contiguous() && w.is_contiguous(), "hidden states or weight are not contiguous")
            .needs(h.size(0) > 0, "there are no tokens")
            .choice();
    if constexpr (kCudaBuild)
      if (choice.kernel())
        return launch::run_chunks(h, w, bias.value, targets, token_weight, need_hidden, need_weight, rows);
    at::Tensor counted;  // indices of the tokens with weight > 0, if some have weight 0
    if (h.is_cpu()) {
      counted = token_weight.nonzero().squeeze(1);
      if (counted.size(0) == h.size(0)) counted = at::Tensor();
    }
    if (!counted.defined()) return run_chunks(h, w, bias.value, targets, token_weight, need_hidden, need_weight, rows);
    HeadResult result;
    if (counted.size(0) > 0) {
      result = run_chunks(h.index_select(0, counted), w, bias.value, targets.index_select(0, counted),
                          token_weight.index_select(0, counted), need_hidden, need_weight, rows);
      if (need_hidden) {
        result.d_hidden = at::zeros_like(h).index_copy_(0, counted, result.d_hidden);
        if (result.row_factor.defined())
          result.row_factor =
              at::zeros({h.size(0)}, result.row_factor.options()).index_copy_(0, counted, result.row_factor);
      }
      return result;
    }
    result.loss = at::zeros({}, h.options().dtype(loss_type(h)));
    result.largest = at::ones({}, result.loss.options());
    if (need_hidden) result.d_hidden = at::zeros_like(h);
    if (need_weight) result.d_weight = at::zeros(rows.shape(w), result.loss.options());
    if (need_weight && bias.given()) result.d_bias = at::zeros(bias.value.sizes(), result.loss.options());
    return result;
  }

  variable_list forward() {
    const ProfileRange range("loss_head");
    HeadResult result = run();
    d_hidden = result.d_hidden;
    row_factor = result.row_factor;
    d_weight = result.d_weight;
    d_bias = result.d_bias;
    largest = result.largest;
    hidden.value = weight.value = bias.value = trained.value = targets = token_weight = at::Tensor();
    return {result.loss};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("loss_head");
    const at::Tensor factor = d_outputs[0] * largest;
    const auto set = [&](const Input& input, at::Tensor& value) {
      if (gradients.wanted(input)) gradients.set(input, scaled(value, factor, dtype));
      value = at::Tensor();
    };
    if (row_factor.defined()) {
      if (gradients.wanted(hidden)) gradients.set(hidden, scaled_rows(d_hidden, row_factor * factor));
      d_hidden = row_factor = at::Tensor();
    } else {
      set(hidden, d_hidden);
    }
    set(trained.given() ? trained : weight, d_weight);
    set(bias, d_bias);
  }
};

}  // namespace

int64_t loss_head_chunk(int64_t vocab_size, bool on_gpu) {
  const int64_t elements = (on_gpu ? int64_t{512} << 20 : int64_t{64} << 20) / 4;
  return std::max<int64_t>(on_gpu ? 256 : 16, elements / vocab_size);
}

namespace {

void check_arguments(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const at::Tensor& token_weight, const at::Tensor& bias) {
  TRIREME_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1), "loss head: hidden ",
                hidden.sizes(), ", weight ", weight.sizes());
  TRIREME_CHECK(targets.dim() == 1 && token_weight.dim() == 1 && targets.size(0) == hidden.size(0) &&
                    token_weight.size(0) == hidden.size(0),
                "loss head: ", hidden.size(0), " tokens, ", targets.numel(), " targets, ", token_weight.numel(),
                " weights");
  TRIREME_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "loss head: weight ",
                weight.sizes(), ", bias ", bias.sizes());
}

}  // namespace

at::Tensor loss_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const at::Tensor& token_weight, const at::Tensor& bias, const at::Tensor& rows,
                     int64_t rows_begin) {
  check_arguments(hidden, weight, targets, token_weight, bias);
  TRIREME_CHECK(!rows.defined() || (!bias.defined() && !weight.requires_grad() && rows_begin >= 0 &&
                                    rows_begin + rows.size(0) <= weight.size(0)),
                "loss head: trained rows ", rows_begin, " and ", rows.defined() ? rows.size(0) : 0, " more of ",
                weight.sizes());
  const bool gradients = at::GradMode::is_enabled();
  InputList inputs;
  const Input h = inputs.add(hidden), w = inputs.add(weight), b = inputs.add(bias), r = inputs.add(rows);
  LossHead node{h,
                w,
                b,
                r,
                rows.defined() ? WeightRows{rows_begin, rows.size(0)} : WeightRows{},
                targets,
                token_weight,
                gradients && hidden.requires_grad(),
                gradients && (weight.requires_grad() || (rows.defined() && rows.requires_grad())),
                weight.scalar_type(),
                {},
                {},
                {},
                {},
                {}};
  return run_node(std::move(node), inputs)[0];
}

HeadScore score_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const at::Tensor& token_weight, const at::Tensor& bias) {
  check_arguments(hidden, weight, targets, token_weight, bias);
  at::NoGradGuard no_grad;
  const auto wide = hidden.options().dtype(at::kDouble);
  HeadScore score{at::zeros({}, wide), at::zeros({}, wide)};
  const int64_t chunk = loss_head_chunk(weight.size(0), hidden.is_cuda());
  for (int64_t begin = 0; begin < hidden.size(0); begin += chunk) {
    const int64_t count = std::min(chunk, hidden.size(0) - begin);
    const at::Tensor logits = logits_of(hidden.narrow(0, begin, count), weight, bias);
    const at::Tensor target = targets.narrow(0, begin, count), w = token_weight.narrow(0, begin, count);
    // Compares ids, not values: among equal logits the one with the lowest id counts as the prediction.
    score.hits.add_(logits.argmax(-1).eq(target).logical_and(w.ne(0)).sum());
    const at::Tensor wider = logits.to(loss_type(hidden));
    const at::Tensor loss = wider.logsumexp(-1) - wider.gather(1, target.unsqueeze(1)).squeeze(1);
    score.loss.add_(loss.to(at::kDouble).mul(w).sum());
  }
  return score;
}

}  // namespace trireme
