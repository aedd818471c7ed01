#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/scale/scale.h"
#include "launch.h"
#include "layers/loss_head_chunks.h"
#include "matmul/product.h"
#include "trireme/base/rounding.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace trireme::launch {

void cross_entropy_(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                    const at::Tensor& gradient_weights, at::Tensor& losses, bool want_gradient,
                    const LabelSmoothing& smoothing) {
  const c10::cuda::CUDAGuard guard(logits.device());
  kernels::CrossEntropy a;
  a.logits = logits.const_data_ptr();
  a.d_logits = want_gradient ? logits.mutable_data_ptr() : nullptr;
  a.targets = targets.const_data_ptr<int64_t>();
  a.weights = weights.const_data_ptr<float>();
  a.gradient_weights = gradient_weights.const_data_ptr<float>();
  a.loss = losses.mutable_data_ptr<float>();
  a.tokens = logits.size(0);
  a.vocab = logits.size(1);
  a.stride = logits.stride(0);
  a.element = element(logits);
  a.smoothing = static_cast<float>(smoothing.share);
  a.smoothed_vocab = smoothing.vocabulary;
  launched(kernels::cross_entropy(a, stream_of(logits)), "cross_entropy");
}

at::Tensor sum(const at::Tensor& values) {
  const c10::cuda::CUDAGuard guard(values.device());
  at::Tensor total = at::empty({}, values.options());
  launched(kernels::sum_values(values.const_data_ptr<float>(), values.numel(), total.mutable_data_ptr<float>(),
                               stream_of(values)),
           "sum_values");
  return total;
}

at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(dtype));
  scale_to({out}, x, factor);
  return out;
}

void scale_to(const GradientTarget& target, const at::Tensor& x, const at::Tensor& factor) {
  const c10::cuda::CUDAGuard guard(x.device());
  launched(kernels::scale(x.const_data_ptr(), element(x), factor.const_data_ptr<float>(), target.sum.mutable_data_ptr(),
                          element(target.sum), x.numel(), target.adds, stream_of(x)),
           "scale");
}

at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty(x.sizes(), x.options());
  launched(kernels::scale_rows(x.const_data_ptr(), factors.const_data_ptr<float>(), out.mutable_data_ptr(), x.size(0),
                               x.size(1), element(x), stream_of(x)),
           "scale_rows");
  return out;
}

HeadResult run_chunks(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& targets, const at::Tensor& token_weight, bool need_hidden, bool need_weight,
                      const TrainedRows& rows, const LabelSmoothing& smoothing, int64_t most_logits) {
  const int64_t tokens = hidden.size(0), vocab = weight.size(0);
  const auto options = hidden.options().dtype(at::kFloat);
  HeadResult result;
  const at::Tensor w = token_weight.to(at::kFloat).contiguous(), target = targets.contiguous();
  result.largest = w.abs().max().clamp_min(1e-30);
  const RelativeWeights relative(w * result.largest.reciprocal(), hidden.scalar_type());
  result.row_factor = relative.row_factor;
  if (need_hidden) result.d_hidden = at::empty_like(hidden);
  if (need_weight) result.d_weight = at::empty(rows.defined() ? rows.values.sizes() : weight.sizes(), options);

  // Chunks of equal size, in whole GEMM tiles.
  const int64_t most =
                    loss_head_kernel_chunk(vocab, hidden.element_size(), need_weight && !rows.defined(), most_logits),
                chunks = ceil_div(tokens, most), chunk = std::min(tokens, round_up(ceil_div(tokens, chunks), 128));
  // Rows start at 16-byte boundaries for every vocabulary size.
  const int64_t padded = round_up(vocab, 16);
  const at::Tensor buffer = at::empty({chunk, padded}, hidden.options());
  at::Tensor losses = at::empty({tokens}, options);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const RelativeWeights part = relative.narrow(begin, count);
    at::Tensor h = hidden.narrow(0, begin, count), logits = buffer.narrow(0, 0, count).narrow(1, 0, vocab);
    trireme::product_out(logits, h, weight.t(), bias);
    at::Tensor loss = losses.narrow(0, begin, count);
    launch::cross_entropy_(logits, target.narrow(0, begin, count), w.narrow(0, begin, count), part.in_logits, loss,
                           need_hidden || need_weight, smoothing);
    if (need_hidden) {
      at::Tensor out = result.d_hidden.narrow(0, begin, count);
      trireme::product_out(out, logits, weight);
    }
    if (!need_weight) continue;
    if (rows.defined()) logits = rows.columns_of(logits);
    if (part.row_factor.defined()) h = trireme::scaled_rows(h, part.row_factor);
    if (bias.defined()) {
      // Equal rows: the library's product of one row reads `logits` at half the rate (134 against 77 us, 3,668 x
      // 30,592).
      constexpr int64_t kRows = 8;
      const at::Tensor sums =
          part.row_factor.defined()
              ? at::mm(part.row_factor.to(logits.scalar_type()).repeat({kRows, 1}), logits, at::kFloat)[0].clone()
              : at::sum(logits, {0}, false, at::kFloat);
      result.d_bias = result.d_bias.defined() ? result.d_bias.add_(sums) : sums;
    }
    plain_product_to({result.d_weight, begin > 0}, logits.t(), h);
  }
  result.loss = launch::sum(losses);
  result.losses = losses;
  return result;
}

}  // namespace trireme::launch
