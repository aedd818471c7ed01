#include "trireme/ops/loss_head.h"

#include "kernel_bridge.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType loss_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// Tokens whose logits fill 256 MiB.
int64_t kernel_chunk(int64_t vocab_size, int64_t element_size) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  return std::max<int64_t>(256, kBytes / (vocab_size * element_size) / 128 * 128);
}

/// Weights of the tokens relative to the largest [T], as two factors: d_logits hold the first, rows of d_hidden and of
/// the hidden states that d_weight is made of are multiplied with the second, where nothing underflows.
///
/// bf16 and fp32 reach far enough down for the whole weight: the second is undefined. fp16 ends at 6e-8: of a token
/// with 1/2000 of the largest weight all but the target's logit would have no gradient. There the first factor is in
/// (1/2, 1], so that d_logits lose nothing to a small weight, and the second a power of two, which rounds nothing.
struct RelativeWeights {
  at::Tensor in_logits, behind;

  RelativeWeights(const at::Tensor& relative, at::ScalarType type) : in_logits(relative) {
    if (type != at::kHalf) return;
    const at::Tensor mantissa = std::get<0>(at::frexp(relative));  // [1/2, 1), and 0 of 0
    in_logits = mantissa.masked_fill(mantissa.eq(0.5), 1);
    behind = relative / in_logits.masked_fill(in_logits.eq(0), 1);
  }
  /// Of some tokens.
  RelativeWeights narrow(int64_t begin, int64_t count) const {
    RelativeWeights part = *this;
    part.in_logits = in_logits.narrow(0, begin, count);
    if (behind.defined()) part.behind = behind.narrow(0, begin, count);
    return part;
  }
};

/// Gradients are those of loss / largest.
struct HeadResult {
  at::Tensor loss;      // scalar
  at::Tensor d_hidden;  // rows still to be multiplied with `behind` where that is defined
  at::Tensor behind;    // RelativeWeights' [T]
  at::Tensor d_weight;  // accumulation type
  at::Tensor d_bias;    // as d_weight
  at::Tensor largest;   // scalar, the largest token weight
};

at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
  return bias.defined() ? at::addmm(bias, hidden, weight.t()) : at::mm(hidden, weight.t());
}

/// x [T, D] with row t times factors[t], the product in fp32, a few rows at a time.
at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors) {
  if (bridge::has_kernels(x) && x.is_contiguous()) return bridge::scaled_rows(x, factors.contiguous());
  at::Tensor out = at::empty(x.sizes(), x.options());
  constexpr int64_t kRows = 4096;
  for (int64_t begin = 0; begin < x.size(0); begin += kRows) {
    const int64_t count = std::min(kRows, x.size(0) - begin);
    out.narrow(0, begin, count)
        .copy_(x.narrow(0, begin, count).to(factors.scalar_type()).mul_(factors.narrow(0, begin, count).unsqueeze(1)));
  }
  return out;
}

/// fp16, in the composition: d_weight and d_bias of a chunk, summed in fp32. `weighted`: the hidden states times
/// `behind`.
void add_weighted_sums(HeadResult& result, const at::Tensor& d_logits, const at::Tensor& weighted,
                       const at::Tensor& behind) {
  // A CPU has no product of fp16 matrices with a wider result.
  const auto product = [](const at::Tensor& a, const at::Tensor& b) {
    return a.is_cuda() ? at::mm(a, b, at::kFloat) : at::mm(a.to(at::kFloat), b.to(at::kFloat));
  };
  result.d_weight.add_(product(d_logits.t(), weighted));
  if (result.d_bias.defined()) result.d_bias.add_(product(behind.to(d_logits.scalar_type()).unsqueeze(0), d_logits)[0]);
}

HeadResult run_chunks(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& targets, const at::Tensor& token_weight, bool need_hidden, bool need_weight) {
  const at::ScalarType type = loss_type(hidden), narrow_type = hidden.scalar_type();
  const auto options = hidden.options().dtype(type);
  HeadResult result;
  result.loss = at::zeros({}, options);
  if (need_hidden) result.d_hidden = at::empty_like(hidden);
  if (need_weight) result.d_weight = at::zeros(weight.sizes(), options);
  if (need_weight && bias.defined()) result.d_bias = at::zeros(bias.sizes(), options);
  const at::Tensor all_weights = token_weight.to(type);
  // A batch without targets divides nothing by zero.
  result.largest = all_weights.max().clamp_min(1e-30);
  const RelativeWeights relative(all_weights / result.largest, narrow_type);
  result.behind = relative.behind;

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
    if (w.behind.defined()) {
      add_weighted_sums(result, d_logits, scaled_rows(h, w.behind), w.behind);
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

/// The same where our kernels serve: the logits of a chunk become their gradient in place, so one
/// buffer of a chunk is all the memory that comes on top of the results, and the host waits for nothing.
HeadResult run_chunks_with_kernels(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                                   const at::Tensor& targets, const at::Tensor& token_weight, bool need_hidden,
                                   bool need_weight) {
  const int64_t tokens = hidden.size(0), vocab = weight.size(0);
  const auto options = hidden.options().dtype(at::kFloat);
  HeadResult result;
  const at::Tensor w = token_weight.to(at::kFloat).contiguous(), target = targets.contiguous();
  result.largest = w.max().clamp_min(1e-30);
  const RelativeWeights relative(w * result.largest.reciprocal(), hidden.scalar_type());
  result.behind = relative.behind;
  if (need_hidden) result.d_hidden = at::empty_like(hidden);
  if (need_weight) result.d_weight = at::empty(weight.sizes(), options);

  // Equal chunks of whole GEMM tiles.
  const int64_t most = kernel_chunk(vocab, hidden.element_size()), chunks = (tokens + most - 1) / most,
                chunk = std::min(tokens, ((tokens + chunks - 1) / chunks + 127) / 128 * 128);
  // Rows start on 16-byte boundaries whatever the vocabulary is.
  const int64_t padded = (vocab + 15) / 16 * 16;
  const at::Tensor buffer = at::empty({chunk, padded}, hidden.options());
  at::Tensor losses = at::empty({tokens}, options);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const RelativeWeights part = relative.narrow(begin, count);
    at::Tensor h = hidden.narrow(0, begin, count), logits = buffer.narrow(0, 0, count).narrow(1, 0, vocab);
    if (bias.defined())
      at::addmm_out(logits, bias, h, weight.t());
    else
      at::mm_out(logits, h, weight.t());
    at::Tensor loss = losses.narrow(0, begin, count);
    bridge::cross_entropy_(logits, target.narrow(0, begin, count), w.narrow(0, begin, count), part.in_logits, loss,
                           need_hidden || need_weight);
    if (need_hidden) {
      at::Tensor out = result.d_hidden.narrow(0, begin, count);
      at::mm_out(out, logits, weight);
    }
    if (!need_weight) continue;
    if (part.behind.defined()) h = scaled_rows(h, part.behind);
    if (bias.defined()) {
      const at::Tensor sums = part.behind.defined()
                                  ? at::mm(part.behind.to(logits.scalar_type()).unsqueeze(0), logits, at::kFloat)[0]
                                  : at::sum(logits, {0}, false, at::kFloat);
      result.d_bias = result.d_bias.defined() ? result.d_bias.add_(sums) : sums;
    }
    const bool wide = hidden.scalar_type() == at::kFloat;
    if (begin == 0) {
      if (wide)
        at::mm_out(result.d_weight, logits.t(), h);
      else
        at::mm_out(result.d_weight, logits.t(), h, at::kFloat);
    } else if (wide) {
      result.d_weight.addmm_(logits.t(), h);
    } else {
      at::addmm_out(result.d_weight, result.d_weight, logits.t(), h, at::kFloat);
    }
  }
  result.loss = bridge::sum(losses);
  return result;
}

/// x * factor in `dtype`, a few rows at a time: a GPU would round a zero-dimensional fp32 factor to
/// bf16 before multiplying.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype) {
  if (bridge::has_kernels(x) && x.is_contiguous()) return bridge::scaled(x, factor.contiguous(), dtype);
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(dtype));
  constexpr int64_t kRows = 4096;
  for (int64_t begin = 0; begin < x.size(0); begin += kRows) {
    const int64_t count = std::min(kRows, x.size(0) - begin);
    out.narrow(0, begin, count).copy_(x.narrow(0, begin, count).to(factor.scalar_type()).mul(factor));
  }
  return out;
}

struct LossHead : torch::autograd::Function<LossHead> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight,
                            at::TensorList biases, const at::Tensor& targets, const at::Tensor& token_weight,
                            bool grad_enabled) {
    const at::Tensor bias = biases.empty() ? at::Tensor() : biases[0];
    const bool need_hidden = grad_enabled && hidden.requires_grad(),
               need_weight = grad_enabled && weight.requires_grad();
    at::Tensor kept;  // indices of the counted tokens
    if (hidden.is_cpu()) {
      kept = token_weight.nonzero().squeeze(1);
      if (kept.size(0) == hidden.size(0)) kept = at::Tensor();
    }
    HeadResult result;
    if (bridge::has_kernels(hidden) && hidden.is_contiguous() && weight.is_contiguous() && hidden.size(0) > 0) {
      result = run_chunks_with_kernels(hidden, weight, bias, targets, token_weight, need_hidden, need_weight);
    } else if (kept.defined() && kept.size(0) == 0) {
      result.loss = at::zeros({}, hidden.options().dtype(loss_type(hidden)));
      result.largest = at::ones({}, result.loss.options());
      if (need_hidden) result.d_hidden = at::zeros_like(hidden);
      if (need_weight) result.d_weight = at::zeros(weight.sizes(), result.loss.options());
      if (need_weight && bias.defined()) result.d_bias = at::zeros(bias.sizes(), result.loss.options());
    } else if (kept.defined()) {
      result = run_chunks(hidden.index_select(0, kept), weight, bias, targets.index_select(0, kept),
                          token_weight.index_select(0, kept), need_hidden, need_weight);
      if (need_hidden) {
        result.d_hidden = at::zeros_like(hidden).index_copy_(0, kept, result.d_hidden);
        if (result.behind.defined())
          result.behind = at::zeros({hidden.size(0)}, result.behind.options()).index_copy_(0, kept, result.behind);
      }
    } else {
      result = run_chunks(hidden, weight, bias, targets, token_weight, need_hidden, need_weight);
    }
    ctx->save_for_backward({result.d_hidden, result.d_weight, result.largest, result.d_bias, result.behind});
    ctx->saved_data["dtype"] = static_cast<int64_t>(weight.scalar_type());
    ctx->saved_data["biases"] = static_cast<int64_t>(biases.size());
    return result.loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor factor = gradients[0] * saved[2];
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const auto biases = static_cast<size_t>(ctx->saved_data["biases"].toInt());
    variable_list result(5 + biases);
    const at::Tensor& behind = saved[4];
    if (ctx->needs_input_grad(0))
      result[0] = behind.defined() ? scaled_rows(saved[0], behind * factor) : scaled(saved[0], factor, dtype);
    if (ctx->needs_input_grad(1)) result[1] = scaled(saved[1], factor, dtype);
    if (biases > 0 && ctx->needs_input_grad(2)) result[2] = scaled(saved[3], factor, dtype);
    return result;
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
                     const at::Tensor& token_weight, const at::Tensor& bias) {
  check_arguments(hidden, weight, targets, token_weight, bias);
  std::vector<at::Tensor> biases;
  if (bias.defined()) biases.push_back(bias);
  return LossHead::apply(hidden, weight, at::TensorList(biases), targets, token_weight, at::GradMode::is_enabled());
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
    // The ids are compared, not the values: of equal logits the library's first one is the answer.
    score.hits.add_(logits.argmax(-1).eq(target).logical_and(w.ne(0)).sum());
    const at::Tensor wider = logits.to(loss_type(hidden));
    const at::Tensor loss = wider.logsumexp(-1) - wider.gather(1, target.unsqueeze(1)).squeeze(1);
    score.loss.add_(loss.to(at::kDouble).mul(w).sum());
  }
  return score;
}

}  // namespace trireme
