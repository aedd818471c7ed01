// LibTorch's variable-length flash attention (GPUs, bf16 and fp16).
#include "attention_node.h"
#include "trireme/base/profile_range.h"
#include "trireme/base/rng.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <mutex>
#include <tuple>

namespace trireme {

namespace {

struct FlashAttention {
  HeadInputs inputs;
  Sequences sequences;
  AttentionOptions options;
  at::Tensor out, log_sum, rng_state, unused;

  double p() const { return options.dropout.active() ? options.dropout.p : 0.0; }

  variable_list forward() {
    const Heads heads = inputs.heads();
    if (p() > 0) {
      at::Generator generator = at::globalContext().defaultGenerator(heads.q.device());
      const std::scoped_lock lock(generator.mutex());
      generator.set_current_seed(derive_seed(options.dropout.seed ^ static_cast<uint64_t>(sequences.keys[0]),
                                             "attention dropout", options.dropout.stream));
    }
    const at::Tensor& bounds = sequences.boundaries_device;
    at::Tensor result, mask;
    std::tie(result, log_sum, rng_state, unused, mask) = at::_flash_attention_forward(
        heads.q, heads.k, heads.v, bounds, bounds, sequences.longest, sequences.longest, p(), options.causal,
        /*return_debug_mask=*/false, options.scale);
    out = result.detach();
    return {result};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("attention");
    const Heads heads = inputs.heads(), d = inputs.allocate_gradients();
    const at::Tensor& bounds = sequences.boundaries_device;
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        d_outputs[0].contiguous(), heads.q, heads.k, heads.v, out, log_sum, bounds, bounds, sequences.longest,
        sequences.longest, p(), options.causal, rng_state, unused, options.scale);
    d.q.copy_(dq);
    d.k.copy_(dk);
    d.v.copy_(dv);
    inputs.set(d, gradients);
  }
};

}  // namespace

at::Tensor flash_attention(const HeadInputs& heads, InputList& inputs, const Sequences& sequences,
                           const AttentionOptions& options) {
  return run_node(FlashAttention{heads, sequences, options, {}, {}, {}, {}}, inputs)[0];
}

}  // namespace trireme
