// cuDNN's attention through LibTorch (GPUs, bf16 and fp16): causal, sequences of one length, no dropout.
#include "attention_node.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>

#include <tuple>

namespace trireme {

namespace {

struct CudnnAttention : AttentionCall {
  // [T, N, H] and fp32 [sequences, N, S, 1]; seed and offset are those of dropout, which does not run.
  at::Tensor out, log_sum, seed, offset;

  static at::Tensor tokens(const at::Tensor& rows) { return rows.transpose(1, 2).flatten(0, 1); }

  variable_list forward() {
    if (!take_kept(kept, {&out, &log_sum, &seed, &offset})) {
      const Heads rows = rows_of(inputs.heads(), sequences);
      const int64_t length = sequences.longest;
      auto result = at::_cudnn_attention_forward(rows.q, rows.k, rows.v, {}, {}, {}, length, length,
                                                 /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, /*is_causal=*/true,
                                                 /*return_debug_mask=*/false, options.scale);
      out = tokens(std::get<0>(result));
      log_sum = std::get<1>(result);
      seed = std::get<6>(result);
      offset = std::get<7>(result);
      if (kept != nullptr) *kept = {out, log_sum, seed, offset};
    }
    return {out.detach()};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("attention");
    const Heads rows = rows_of(inputs.heads(), sequences);
    const int64_t length = sequences.longest;
    const auto [dq, dk, dv] = at::_cudnn_attention_backward(
        rows_of(d_outputs[0], sequences), rows.q, rows.k, rows.v, rows_of(out, sequences), log_sum, seed, offset, {},
        {}, {}, length, length, /*dropout_p=*/0.0, /*is_causal=*/true, options.scale);
    inputs.give({tokens(dq), tokens(dk), tokens(dv)}, gradients);
  }
};

}  // namespace

at::Tensor cudnn_attention(AttentionCall call, InputList& inputs) {
  return run_node(CudnnAttention{std::move(call), {}, {}, {}, {}}, inputs)[0];
}

}  // namespace trireme
