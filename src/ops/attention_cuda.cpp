// Launches of our attention kernels (kernels/attention).
#include "attention_node.h"
#include "kernels/attention/attention.h"
#include "launch.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace trireme {

namespace launch {

namespace {

kernels::AttentionTensor view(const at::Tensor& x_TNd) {
  return {const_cast<void*>(x_TNd.const_data_ptr()), {x_TNd.stride(0), x_TNd.stride(1)}};
}

bool fits(const at::Tensor& x) {
  return x.stride(2) == 1 && x.stride(0) > 0 && x.stride(1) > 0 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 &&
         kernels::aligned16(x.const_data_ptr());
}

kernels::AttentionShape shape_of(const Heads& heads, const AttentionOptions& options) {
  return {heads.q.size(0),
          static_cast<int>(heads.q.size(1)),
          static_cast<int>(heads.k.size(1)),
          static_cast<int>(heads.q.size(2)),
          options.causal,
          static_cast<float>(options.scale),
          element(heads.q),
          static_cast<int>(std::min<int64_t>(options.window, heads.q.size(0)))};
}

kernels::AttentionDropout dropout_of(const Sequences& sequences, const AttentionOptions& options) {
  if (!options.dropout.active()) return {};
  const DropoutKey key = dropout_key(options.dropout);
  return {attention_dropout_threshold(options.dropout.p), key.t0, key.t1,
          sequences.keys_device.const_data_ptr<int64_t>(), static_cast<uint32_t>(options.first_head)};
}

void check_launch(cudaError_t status, const char* kernel, const Heads& heads) {
  TRIREME_CHECK(status == cudaSuccess, "kernel ", kernel, " of q ", heads.q.sizes(), ", k ", heads.k.sizes(), ": ",
                cudaGetErrorString(status));
}

const kernels::AttentionTile* tiles(const at::Tensor& bytes) {
  return static_cast<const kernels::AttentionTile*>(bytes.const_data_ptr());
}

bool leaves_rows_out(const Sequences& sequences, const AttentionOptions& options) {
  return options.only_needed && !options.fp8 && !sequences.needed.empty();
}

AttentionWork::Lists& lists_of(const Sequences& sequences, const Heads& heads, const AttentionOptions& options) {
  TRIREME_CHECK(sequences.work != nullptr, "attention on a GPU needs sequences from make_sequences()");
  const at::Tensor& q = heads.q;
  const int64_t d = q.size(2);
  const bool codes = multiplies_codes(heads, sequences, options);
  const auto [found, inserted] =
      sequences.work->lists.try_emplace({d, options.causal, leaves_rows_out(sequences, options), codes});
  AttentionWork::Lists& lists = found->second;
  if (!inserted) return lists;
  const kernels::AttentionPlan plan =
      kernels::plan_attention(sequences.boundaries.data(), sequences.count(), static_cast<int>(d), options.causal,
                              leaves_rows_out(sequences, options) ? sequences.needed.data() : nullptr, codes);
  lists.forward = to_device(plan.forward, q.device());
  lists.backward = to_device(plan.backward, q.device());
  lists.sequences = to_device(plan.sequences, q.device());
  lists.blocks = to_device(plan.blocks, q.device());
  lists.counters = at::zeros({2}, at::TensorOptions(at::kInt).device(q.device()));
  lists.forward_count = static_cast<int64_t>(plan.forward.size());
  lists.backward_count = static_cast<int64_t>(plan.backward.size());
  lists.sequence_count = static_cast<int64_t>(plan.sequences.size());
  lists.block_count = static_cast<int64_t>(plan.blocks.size());
  lists.short_blocks = plan.short_blocks;
  lists.longest = plan.longest;
  return lists;
}

}  // namespace

bool attention_fits(const Heads& heads) {
  const int64_t d = heads.q.size(2);
  return (d == 64 || d == 128) && heads.q.size(0) < INT32_MAX / 2 && fits(heads.q) && fits(heads.k) && fits(heads.v);
}

bool attention_rounds(const at::Tensor& heads) {
  return heads.is_cuda() && kernel_class(heads.device()) == KernelClass::kHopper && heads.element_size() == 2 &&
         heads.size(2) == 128 && fits(heads);
}

at::Tensor attention_round(const at::Tensor& heads, int64_t rows) {
  const c10::cuda::CUDAGuard guard(heads.device());
  const int64_t tokens = heads.size(0), count = heads.size(1);
  const at::Tensor amax = at::empty({std::max<int64_t>(count - rows, 1)}, heads.options().dtype(at::kFloat));
  at::Tensor values = at::empty(heads.sizes(), heads.options());
  const cudaError_t status =
      kernels::attention_round({view(heads), tokens, static_cast<int>(count), static_cast<int>(rows),
                                values.mutable_data_ptr(), amax.mutable_data_ptr<float>(), element(heads)},
                               stream_of(heads));
  TRIREME_CHECK(status == cudaSuccess, "kernel attention_round of ", heads.sizes(), ": ", cudaGetErrorString(status));
  return values;
}

std::pair<at::Tensor, at::Tensor> attention_forward(const Heads& heads, const Sequences& sequences,
                                                    const AttentionOptions& options) {
  const bool codes = multiplies_codes(heads, sequences, options);
  const at::Tensor& q = heads.q;
  const c10::cuda::CUDAGuard guard(q.device());
  AttentionWork::Lists& lists = lists_of(sequences, heads, options);
  at::Tensor o = at::empty(q.sizes(), q.options()),
             lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  kernels::AttentionForward a;
  a.shape = shape_of(heads, options);
  a.q = view(q);
  a.k = view(heads.k);
  a.v = view(heads.v);
  a.o = view(o);
  a.lse = lse.mutable_data_ptr<float>();
  a.dropout = dropout_of(sequences, options);
  a.tiles = tiles(lists.forward);
  a.tile_count = lists.forward_count;
  a.longest = lists.longest;
  a.counters = lists.counters.mutable_data_ptr<int32_t>();
  at::Tensor workspace;
  if (codes) {
    workspace =
        at::empty({kernels::attention_codes_workspace(a.shape, lists.block_count)}, q.options().dtype(at::kByte));
    a.workspace = workspace.mutable_data_ptr();
    a.blocks = static_cast<const kernels::AttentionBlock*>(lists.blocks.const_data_ptr());
    a.block_count = lists.block_count;
  }
  check_launch(kernels::attention_forward(a, stream_of(q)), "attention_forward", heads);
  return {o, lse};
}

namespace {

/// False without a launch if the workspace would take more than `most` bytes.
bool run_backward(const at::Tensor& d_o, const Heads& heads, const at::Tensor& o, const at::Tensor& lse,
                  const Sequences& sequences, const AttentionOptions& options, bool deterministic, const Heads& d,
                  int64_t most) {
  const at::Tensor& q = heads.q;
  const c10::cuda::CUDAGuard guard(q.device());
  AttentionWork::Lists& lists = lists_of(sequences, heads, options);
  kernels::AttentionBackward a;
  a.shape = shape_of(heads, options);
  const at::Tensor gradient = fits(d_o) ? d_o : d_o.contiguous();
  a.q = view(q);
  a.k = view(heads.k);
  a.v = view(heads.v);
  a.o = view(o);
  a.d_o = view(gradient);
  a.d_q = view(d.q);
  a.d_k = view(d.k);
  a.d_v = view(d.v);
  a.lse = lse.const_data_ptr<float>();
  a.dropout = dropout_of(sequences, options);
  a.tiles = tiles(lists.backward);
  a.tile_count = lists.backward_count;
  a.blocks = static_cast<const kernels::AttentionBlock*>(lists.blocks.const_data_ptr());
  a.block_count = lists.block_count;
  a.short_blocks = lists.short_blocks;
  a.sequences = tiles(lists.sequences);
  a.sequence_count = lists.sequence_count;
  const int64_t bytes = kernels::attention_backward_workspace(a);
  if (bytes > most) return false;
  const at::Tensor workspace = at::empty({bytes}, q.options().dtype(at::kByte));
  a.workspace = workspace.mutable_data_ptr();
  a.counters = lists.counters.mutable_data_ptr<int32_t>();
  a.deterministic = deterministic;
  check_launch(kernels::attention_backward(a, stream_of(q)), "attention_backward", heads);
  return true;
}

}  // namespace

void attention_backward(const at::Tensor& d_o, const Heads& heads, const at::Tensor& o, const at::Tensor& lse,
                        const Sequences& sequences, const AttentionOptions& options, bool deterministic,
                        const Heads& d) {
  // Where sums stay on chip the kernel writes no dq of the other rows; elsewhere it writes zeros over these.
  if (leaves_rows_out(sequences, options)) d.q.zero_();
  const int64_t most = attention_sum_rows(heads.q.size(0)) * heads.q.size(1) * heads.q.size(2) * 4;
  if (run_backward(d_o, heads, o, lse, sequences, options, deterministic, d, most)) return;
  for (const auto& [first, part] : backward_ranges(sequences)) {
    const int64_t count = part.tokens();
    run_backward(tokens_of(d_o, first, count), tokens_of(heads, first, count), tokens_of(o, first, count),
                 lse.narrow(1, first, count).contiguous(), part, options, deterministic, tokens_of(d, first, count),
                 std::numeric_limits<int64_t>::max());
  }
}

}  // namespace launch

namespace {

struct KernelAttention : AttentionCall {
  at::Tensor out, lse;

  variable_list forward() {
    if (!take_kept(kept, {&out, &lse})) {
      std::tie(out, lse) = launch::attention_forward(inputs.heads(), sequences, options);
      if (kept != nullptr) *kept = {out, lse};
    }
    return {out.detach()};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("attention");
    const Heads d = inputs.allocate_gradients();
    launch::attention_backward(d_outputs[0], inputs.heads(), out, lse, sequences, options,
                               at::globalContext().deterministicAlgorithms(), d);
    inputs.set(d, gradients);
  }
};

}  // namespace

at::Tensor kernel_attention(AttentionCall call, InputList& inputs) {
  return run_node(KernelAttention{std::move(call), {}, {}}, inputs)[0];
}

}  // namespace trireme
