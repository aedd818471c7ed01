// LibTorch's variable-length flash attention (GPUs, bf16 and fp16).
#include "attention_node.h"
#include "trireme/base/profile_range.h"
#include "trireme/base/rng.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <mutex>
#include <optional>
#include <tuple>

namespace trireme {

namespace {

struct FlashAttention : AttentionCall {
  at::Tensor out, log_sum, rng_state, unused;

  double p() const { return options.dropout.active() ? options.dropout.p : 0.0; }
  /// Tokens that a row sees before and after itself; the library's values for no window.
  std::optional<int64_t> before() const {
    return options.window > 0 ? std::optional(options.window - 1) : std::nullopt;
  }
  std::optional<int64_t> after() const { return options.window > 0 ? std::optional<int64_t>(0) : std::nullopt; }

  variable_list forward() {
    if (take_kept(kept, {&out, &log_sum, &rng_state, &unused})) return {out.detach()};
    const Heads heads = inputs.heads();
    if (p() > 0) {
      at::Generator generator = at::globalContext().defaultGenerator(heads.q.device());
      const std::scoped_lock lock(generator.mutex());
      generator.set_current_seed(
          derive_seed(options.dropout.seed ^ static_cast<uint64_t>(sequences.keys[0]), "attention dropout",
                      options.dropout.stream + (static_cast<uint64_t>(options.first_head) << 32)));
    }
    const at::Tensor& bounds = sequences.boundaries_device;
    at::Tensor mask;
    std::tie(out, log_sum, rng_state, unused, mask) = at::_flash_attention_forward(
        heads.q, heads.k, heads.v, bounds, bounds, sequences.longest, sequences.longest, p(), options.causal,
        /*return_debug_mask=*/false, options.scale, before(), after());
    if (kept != nullptr) *kept = {out, log_sum, rng_state, unused};
    return {out.detach()};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("attention");
    const Heads heads = inputs.heads();
    const at::Tensor d_o = d_outputs[0].contiguous();
    const auto gradients_of = [&](int64_t first, const Sequences& part) {
      const int64_t count = part.tokens();
      const Heads x = tokens_of(heads, first, count);
      const at::Tensor& bounds = part.boundaries_device;
      const auto [dq, dk, dv] = at::_flash_attention_backward(
          tokens_of(d_o, first, count), x.q, x.k, x.v, tokens_of(out, first, count),
          log_sum.narrow(1, first, count).contiguous(), bounds, bounds, part.longest, part.longest, p(), options.causal,
          rng_state, unused, options.scale, before(), after());
      return Heads{dq, dk, dv};
    };
    // A range of sequences by themselves would draw another dropout mask.
    if (p() > 0 || backward_ranges(sequences).size() == 1) return inputs.give(gradients_of(0, sequences), gradients);
    const Heads d = inputs.allocate_gradients();
    for (const auto& [first, part] : backward_ranges(sequences)) {
      const Heads whole = tokens_of(d, first, part.tokens()), of_part = gradients_of(first, part);
      whole.q.copy_(of_part.q);
      whole.k.copy_(of_part.k);
      whole.v.copy_(of_part.v);
    }
    inputs.set(d, gradients);
  }
};

}  // namespace

at::Tensor flash_attention(AttentionCall call, InputList& inputs) {
  return run_node(FlashAttention{std::move(call), {}, {}, {}, {}}, inputs)[0];
}

}  // namespace trireme
