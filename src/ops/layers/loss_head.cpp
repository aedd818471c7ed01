#include "trireme/ops/layers/loss_head.h"

#include "layers/loss_head_chunks.h"
#include "matmul/product.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

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
  TRIREME_RETURN_LAUNCH(Dispatch("scale_rows", x).needs(x.is_contiguous(), "the matrix is not contiguous").choice(),
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
                      const TrainedRows& rows, const LabelSmoothing& smoothing) {
  const at::ScalarType type = accumulate_type(hidden), narrow_type = hidden.scalar_type();
  const auto options = hidden.options().dtype(type);
  HeadResult result;
  result.loss = at::zeros({}, options);
  result.losses = at::empty({hidden.size(0)}, options);
  if (need_hidden) result.d_hidden = at::empty_like(hidden);
  if (need_weight) result.d_weight = at::zeros(rows.defined() ? rows.values.sizes() : weight.sizes(), options);
  if (need_weight && bias.defined()) result.d_bias = at::zeros(bias.sizes(), options);
  const at::Tensor all_weights = token_weight.to(type);
  // Avoids a division by zero in a batch without targets.
  result.largest = all_weights.abs().max().clamp_min(1e-30);
  const RelativeWeights relative(all_weights / result.largest, narrow_type);
  result.row_factor = relative.row_factor;
  // A token that is not counted may have any target.
  const at::Tensor known = targets.masked_fill(all_weights == 0, 0);

  const int64_t tokens = hidden.size(0), chunk = loss_head_chunk(weight.size(0), hidden.is_cuda());
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const at::Tensor h = hidden.narrow(0, begin, count);
    const at::Tensor target = known.narrow(0, begin, count).unsqueeze(1);
    at::Tensor logits = logits_of(h, weight, bias).to(type);
    const at::Tensor log_sum = logits.logsumexp(-1, true);
    at::Tensor of_target = logits.gather(1, target);
    if (smoothing.share > 0)
      of_target.lerp_(logits.narrow(1, 0, smoothing.vocabulary).mean(1, /*keepdim=*/true), smoothing.share);
    const at::Tensor losses = (log_sum - of_target).squeeze(1).mul_(all_weights.narrow(0, begin, count));
    result.losses.narrow(0, begin, count).copy_(losses);
    result.loss.add_(losses.sum());
    if (!need_hidden && !need_weight) continue;
    const RelativeWeights w = relative.narrow(begin, count);
    const at::Tensor in_logits = w.in_logits.unsqueeze(1);
    at::Tensor d_logits = logits.sub_(log_sum).exp_().mul_(in_logits);
    if (smoothing.share > 0)
      d_logits.narrow(1, 0, smoothing.vocabulary)
          .sub_(in_logits * (smoothing.share / static_cast<double>(smoothing.vocabulary)));
    d_logits.scatter_add_(1, target, smoothing.share > 0 ? in_logits * (smoothing.share - 1) : -in_logits);
    d_logits = d_logits.to(narrow_type);
    if (need_hidden) {
      at::Tensor out = result.d_hidden.narrow(0, begin, count);
      at::mm_out(out, d_logits, weight);
    }
    if (!need_weight) continue;
    if (rows.defined()) d_logits = rows.columns_of(d_logits);
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

namespace {

/// x * factor in `dtype`, a few rows at a time. A plain GPU multiplication would round the zero-dimensional fp32 factor
/// to bf16 first.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype) {
  TRIREME_RETURN_LAUNCH(Dispatch("scale", x).needs(x.is_contiguous(), "the matrix is not contiguous").choice(),
                        scaled(x, factor.contiguous(), dtype));
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(dtype));
  constexpr int64_t kRows = 4096;
  for (int64_t begin = 0; begin < x.size(0); begin += kRows) {
    const int64_t count = std::min(kRows, x.size(0) - begin);
    out.narrow(0, begin, count).copy_(x.narrow(0, begin, count).to(factor.scalar_type()).mul(factor));
  }
  return out;
}

/// x * factor for the sink, in its dtype; the composition rounds to `dtype` first.
void give_scaled(GradientSink& sink, const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype) {
  const GradientTarget target = sink.target();
  const Choice choice = Dispatch("scale", x)
                            .needs(x.is_contiguous() && target.sum.is_contiguous(), "a matrix is not contiguous")
                            .choice();
  if constexpr (kCudaBuild) {
    if (choice.kernel()) {
      launch::scale_to(target, x, factor.contiguous());
      return sink.written();
    }
  }
  write_gradient(target, scaled(x, factor, dtype));
  sink.written();
}

/// The arguments of both nodes, and what their gradients have in common.
struct Head {
  Input hidden, weight, bias, trained;  // `trained`: some rows of a frozen weight
  TrainedRows rows;
  at::Tensor targets;
  bool need_hidden, need_weight;
  at::ScalarType dtype;
  GradientSink* sink;  // of the weight
  int64_t most_logits;
  LabelSmoothing smoothing{};

  HeadResult run(const at::Tensor& token_weight, bool d_hidden, bool d_weight) const {
    const at::Tensor &h = hidden.value, &w = weight.value;
    const Choice choice =
        Dispatch("loss_head", h)
            .needs(h.is_contiguous() && w.is_contiguous(), "hidden states or weight are not contiguous")
            .needs(h.size(0) > 0, "there are no tokens")
            .choice();
    if constexpr (kCudaBuild)
      if (choice.kernel())
        return launch::run_chunks(h, w, bias.value, targets, token_weight, d_hidden, d_weight, rows, smoothing,
                                  most_logits);
    at::Tensor counted;  // indices of the tokens with a weight, if some have weight 0
    if (h.is_cpu()) {
      counted = token_weight.nonzero().squeeze(1);
      if (counted.size(0) == h.size(0)) counted = at::Tensor();
    }
    if (!counted.defined())
      return run_chunks(h, w, bias.value, targets, token_weight, d_hidden, d_weight, rows, smoothing);
    HeadResult result;
    if (counted.size(0) > 0) {
      result = run_chunks(h.index_select(0, counted), w, bias.value, targets.index_select(0, counted),
                          token_weight.index_select(0, counted), d_hidden, d_weight, rows, smoothing);
      const auto spread = [&](at::Tensor& values) {
        if (values.defined()) values = at::zeros({h.size(0)}, values.options()).index_copy_(0, counted, values);
      };
      spread(result.losses);
      if (d_hidden) {
        result.d_hidden = at::zeros_like(h).index_copy_(0, counted, result.d_hidden);
        spread(result.row_factor);
      }
      return result;
    }
    result.loss = at::zeros({}, h.options().dtype(accumulate_type(h)));
    result.losses = at::zeros({h.size(0)}, result.loss.options());
    result.largest = at::ones({}, result.loss.options());
    if (d_hidden) result.d_hidden = at::zeros_like(h);
    if (d_weight) result.d_weight = at::zeros(rows.defined() ? rows.values.sizes() : w.sizes(), result.loss.options());
    if (d_weight && bias.given()) result.d_bias = at::zeros(bias.value.sizes(), result.loss.options());
    return result;
  }

  /// Gives the gradients of `result`, times `factor` (of each row of d_hidden, or of all), and frees them.
  void give(HeadResult& result, const at::Tensor& factor, const at::Tensor& row_factor, Gradients& gradients) const {
    const auto set = [&](const Input& input, at::Tensor& value) {
      if (gradients.wanted(input)) gradients.set(input, scaled(value, factor, dtype));
      value = at::Tensor();
    };
    if (row_factor.defined()) {
      if (gradients.wanted(hidden)) gradients.set(hidden, scaled_rows(result.d_hidden, row_factor));
      result.d_hidden = at::Tensor();
    } else {
      set(hidden, result.d_hidden);
    }
    if (sink != nullptr) {
      give_scaled(*sink, result.d_weight, factor, dtype);
      result.d_weight = at::Tensor();
    } else {
      set(trained.given() ? trained : weight, result.d_weight);
    }
    set(bias, result.d_bias);
  }

  void forget() { hidden.value = weight.value = bias.value = trained.value = rows.values = targets = at::Tensor(); }
};

struct LossHead {
  Head head;
  at::Tensor token_weight;
  HeadResult result;

  variable_list forward() {
    const ProfileRange range("loss_head");
    result = head.run(token_weight, head.need_hidden, head.need_weight);
    head.forget();
    token_weight = result.losses = at::Tensor();
    return {std::exchange(result.loss, at::Tensor())};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("loss_head");
    const at::Tensor factor = d_outputs[0] * result.largest;
    head.give(result, factor, result.row_factor.defined() ? result.row_factor * factor : at::Tensor(), gradients);
  }
};

/// The gradient of hidden of each token is a factor times a row that forward knows. The gradient of the weight is a sum
/// over tokens with their factors, which only backward knows: it computes the logits again.
struct LogProbHead {
  Head head;
  at::Tensor counted;
  HeadResult result;

  variable_list forward() {
    const ProfileRange range("log_prob_head");
    result = head.run(counted, head.need_hidden && !head.need_weight, /*d_weight=*/false);
    if (!head.need_weight) head.forget();
    const at::Tensor log_probs = result.losses.neg();
    result.losses = result.loss = at::Tensor();
    return {log_probs};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("log_prob_head");
    const at::Tensor d_losses = (d_outputs[0] * counted).neg();
    if (!head.need_weight) {
      const at::Tensor factor = d_losses * result.largest;
      head.give(result, {}, result.row_factor.defined() ? result.row_factor * factor : factor, gradients);
    } else {
      // Since forward the weight may have been gathered anew, without the trained rows.
      head.rows.put_into(head.weight.value);
      HeadResult again = head.run(d_losses, head.need_hidden, /*d_weight=*/true);
      head.give(again, again.largest, again.row_factor.defined() ? again.row_factor * again.largest : at::Tensor(),
                gradients);
    }
  }
};

}  // namespace

int64_t loss_head_chunk(int64_t vocab_size, bool on_gpu) {
  const int64_t elements = (on_gpu ? int64_t{512} << 20 : int64_t{64} << 20) / 4;
  return std::max<int64_t>(on_gpu ? 256 : 16, elements / vocab_size);
}

int64_t loss_head_logits(int64_t device_memory) {
  constexpr int64_t kLeast = int64_t{256} << 20, kMost = int64_t{1280} << 20;
  return device_memory == 0 ? kMost : std::clamp(device_memory / 64, kLeast, kMost);
}

int64_t loss_head_kernel_chunk(int64_t vocab_size, int64_t element_size, bool weight_gradient, int64_t most_logits) {
  const auto of_bytes = [&](int64_t bytes) { return bytes / (vocab_size * element_size) / 128 * 128; };
  const int64_t least = std::max<int64_t>(256, of_bytes(int64_t{256} << 20));
  if (!weight_gradient) return least;
  return std::max(least, std::min<int64_t>(8192, of_bytes(most_logits > 0 ? most_logits : loss_head_logits(0))));
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

Head make_head(InputList& inputs, const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
               const at::Tensor& token_weight, const at::Tensor& bias, const TrainedRows& rows, GradientSink* sink,
               int64_t most_logits) {
  check_arguments(hidden, weight, targets, token_weight, bias);
  const bool trained = sink != nullptr || weight.requires_grad();
  TRIREME_CHECK(!rows.defined() || (!bias.defined() && !trained && rows.count() <= weight.size(0)),
                "loss head: ", rows.defined() ? rows.count() : 0, " trained rows of ", weight.sizes());
  const bool gradients = at::GradMode::is_enabled();
  // Autograd records a node if an input requires grad.
  TRIREME_CHECK(sink == nullptr || !gradients || hidden.requires_grad(),
                "loss head: a weight with a sink below hidden states that need no gradient");
  const Input h = inputs.add(hidden), w = inputs.add(weight), b = inputs.add(bias), r = inputs.add(rows.values);
  return {h,
          w,
          b,
          r,
          rows,
          targets,
          gradients && hidden.requires_grad(),
          gradients && (trained || (rows.defined() && rows.values.requires_grad())),
          weight.scalar_type(),
          sink,
          most_logits};
}

}  // namespace

at::Tensor loss_head(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const at::Tensor& token_weight, const at::Tensor& bias, const TrainedRows& rows,
                     const LabelSmoothing& smoothing, GradientSink* sink, int64_t most_logits) {
  TRIREME_CHECK(smoothing.share == 0 || (smoothing.share > 0 && smoothing.share < 1 && smoothing.vocabulary > 0 &&
                                         smoothing.vocabulary <= weight.size(0)),
                "loss head: label smoothing ", smoothing.share, " over ", smoothing.vocabulary, " ids of ",
                weight.sizes());
  InputList inputs;
  Head head = make_head(inputs, hidden, weight, targets, token_weight, bias, rows, sink, most_logits);
  head.smoothing = smoothing;
  return run_node(LossHead{std::move(head), token_weight, {}}, inputs)[0];
}

at::Tensor token_log_probs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                           const at::Tensor& counted, const at::Tensor& bias, const TrainedRows& rows,
                           GradientSink* sink, int64_t most_logits) {
  InputList inputs;
  Head head = make_head(inputs, hidden, weight, targets, counted, bias, rows, sink, most_logits);
  return run_node(LogProbHead{std::move(head), counted, {}}, inputs)[0];
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
    const at::Tensor wider = logits.to(accumulate_type(hidden));
    const at::Tensor loss = wider.logsumexp(-1) - wider.gather(1, target.unsqueeze(1)).squeeze(1);
    score.loss.add_(loss.to(at::kDouble).mul(w).sum());
  }
  return score;
}

}  // namespace trireme
