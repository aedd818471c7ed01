#include "trireme/ops/attention.h"

#include "attention_bridge.h"
#include "attention_choice.h"
#include "capsule.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace trireme {

namespace {

/// [B,S,K,H] -> [B,S,N,H], each key head repeated for its group of queries.
at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  const int64_t group = heads / x.size(2);
  if (group == 1) return x;
  return x.unsqueeze(3)
      .expand({x.size(0), x.size(1), x.size(2), group, x.size(3)})
      .reshape({x.size(0), x.size(1), heads, x.size(3)});
}

/// Rows that are one sequence each, by LibTorch's dispatcher.
at::Tensor whole_rows(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  // The memory-efficient kernel (fp32 on a GPU) knows no grouped queries, and the CPU kernel of fp64 neither.
  const bool grouped = q.is_cuda() && q.element_size() == 2;
  const at::Tensor keys = grouped ? k : repeat_heads(k, q.size(2)), values = grouped ? v : repeat_heads(v, q.size(2));
  return at::scaled_dot_product_attention(q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), {}, 0.0,
                                          true, scale, grouped && q.size(2) != k.size(2))
      .transpose(1, 2);
}

void prefer_cudnn() {
  [[maybe_unused]] static const bool once = [] {
    using B = at::SDPBackend;
    at::globalContext().setSDPPriorityOrder(
        {static_cast<int64_t>(B::cudnn_attention), static_cast<int64_t>(B::flash_attention),
         static_cast<int64_t>(B::efficient_attention), static_cast<int64_t>(B::math)});
    return true;
  }();
}

at::Tensor flat(const at::Tensor& x) { return x.reshape({1, x.size(0) * x.size(1), x.size(2), x.size(3)}); }

/// [B,S,N,H] as [B*S,N,H]: a view where the rows of the batch follow each other. Not as_strided(), whose gradient fills
/// and copies a tensor.
at::Tensor tokens_first(const at::Tensor& x) { return x.flatten(0, 1); }

template <class F>
at::Tensor each_sequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& sequences,
                         const F& f) {
  const at::Tensor q_flat = flat(q), k_flat = flat(k), v_flat = flat(v);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i + 1 < sequences.boundaries.size(); ++i) {
    const int64_t begin = sequences.boundaries[i], length = sequences.boundaries[i + 1] - begin;
    parts.push_back(
        f(q_flat.narrow(1, begin, length), k_flat.narrow(1, begin, length), v_flat.narrow(1, begin, length)));
  }
  return at::cat(parts, 1).view(q.sizes());
}

void check_shapes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& sequences) {
  TRIREME_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                    q.size(1) == k.size(1) && q.size(3) == k.size(3) && q.size(2) % k.size(2) == 0,
                "attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  TRIREME_CHECK(sequences.rows == q.size(0) && sequences.row_length == q.size(1), "attention: sequences of ",
                sequences.rows, " rows of ", sequences.row_length, ", q of ", q.size(0), " rows of ", q.size(1));
}

enum class Kernels { kLibrary, kOurs };

/// What was measured to be fastest in one process (docs/benchmarks.md "Attention"; scripts/bench/attention.sh --torch
/// measures again). Rows of one sequence each: against cuDNN; rows of several: against LibTorch's variable-length flash
/// attention. Shapes that no line covers go to the library.
struct MeasuredShape {
  int64_t head_dim;
  bool one_per_row;
  int64_t least_length;  // mean tokens of a sequence
  Kernels fastest;
};
constexpr MeasuredShape kMeasured[] = {
    {128, true, 2048, Kernels::kOurs},
    {128, false, 200, Kernels::kOurs},
};

Kernels kernels_for(const at::Tensor& q, const SequenceLayout& sequences) {
  switch (attention_choice()) {
    case AttentionChoice::kLibrary: return Kernels::kLibrary;
    case AttentionChoice::kOurs: return Kernels::kOurs;
    case AttentionChoice::kMeasured: break;
  }
  const int64_t length = sequences.boundaries.back() / (static_cast<int64_t>(sequences.boundaries.size()) - 1);
  for (const MeasuredShape& m : kMeasured)
    if (m.head_dim == q.size(2) && m.one_per_row == sequences.one_per_row && length >= m.least_length) return m.fastest;
  return Kernels::kLibrary;
}

/// Our kernels, on heads [T,N,H].
struct FusedAttention : torch::autograd::Function<FusedAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const bridge::AttentionProblem& problem) {
    auto [o, lse] = bridge::attention_forward(q, k, v, problem);
    ctx->save_for_backward({q, k, v, o, lse});
    ctx->saved_data["problem"] = to_capsule(problem);
    return o;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const auto& problem = from_capsule<bridge::AttentionProblem>(ctx->saved_data["problem"]);
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &o = saved[3], &lse = saved[4];
    const std::array<at::Tensor, 3> results{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                                            at::empty(v.sizes(), v.options())};
    bridge::attention_backward(gradients[0], q, k, v, o, lse, problem, at::globalContext().deterministicAlgorithms(),
                               results);
    return {results[0], results[1], results[2], at::Tensor()};
  }
};

}  // namespace

SequenceLayout make_sequence_layout(const std::vector<int32_t>& cu_seqlens, int64_t rows, int64_t row_length,
                                    at::Device device) {
  TRIREME_CHECK(cu_seqlens.size() >= 2 && cu_seqlens.front() == 0 && cu_seqlens.back() == rows * row_length,
                "sequence boundaries must run from 0 to ", rows * row_length, ", last is ",
                cu_seqlens.empty() ? -1 : cu_seqlens.back());
  SequenceLayout layout{cu_seqlens, rows, row_length, 0, false, {}, std::make_shared<AttentionWork>()};
  int64_t row_ends = 0;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    TRIREME_CHECK(cu_seqlens[i] > cu_seqlens[i - 1], "sequence boundary ", cu_seqlens[i], " follows ",
                  cu_seqlens[i - 1]);
    layout.longest = std::max<int64_t>(layout.longest, cu_seqlens[i] - cu_seqlens[i - 1]);
    if (cu_seqlens[i] % row_length == 0) ++row_ends;
  }
  TRIREME_CHECK(row_ends == rows, "a sequence crosses the end of a row: ", row_ends, " of ", rows,
                " row ends are boundaries");
  layout.one_per_row = static_cast<int64_t>(cu_seqlens.size()) == rows + 1;
  if (!layout.one_per_row && device.is_cuda()) {
    const at::Tensor host =
        at::empty({static_cast<int64_t>(cu_seqlens.size())}, at::TensorOptions(at::kInt).pinned_memory(true));
    std::copy(cu_seqlens.begin(), cu_seqlens.end(), host.mutable_data_ptr<int32_t>());
    layout.boundaries_device = host.to(device, /*non_blocking=*/true);
  }
  return layout;
}

at::Tensor attention(const at::Tensor& q_BSNH, const at::Tensor& k_BSKH, const at::Tensor& v_BSKH,
                     const SequenceLayout& sequences, double scale) {
  check_shapes(q_BSNH, k_BSKH, v_BSKH, sequences);
  if (q_BSNH.is_cuda()) {
    const at::Tensor q = tokens_first(q_BSNH), k = tokens_first(k_BSKH), v = tokens_first(v_BSKH);
    if (kernels_for(q, sequences) == Kernels::kOurs && bridge::serves_attention(q, k, v)) {
      const bridge::AttentionProblem problem{
          bridge::attention_lists(*sequences.work, sequences.boundaries, q.size(2), /*causal=*/true, q.device()),
          true,
          scale,
          {}};
      return FusedAttention::apply(q, k, v, problem).view(q_BSNH.sizes());
    }
    prefer_cudnn();
  }
  if (sequences.one_per_row) return whole_rows(q_BSNH, k_BSKH, v_BSKH, scale);
  if (q_BSNH.is_cuda() && q_BSNH.element_size() == 2) {
    const at::Tensor& bounds = sequences.boundaries_device;
    const at::Tensor out = std::get<0>(at::_flash_attention_forward(
        flat(q_BSNH).squeeze(0), flat(k_BSKH).squeeze(0), flat(v_BSKH).squeeze(0), bounds, bounds, sequences.longest,
        sequences.longest, 0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale));
    return out.view(q_BSNH.sizes());
  }
  return each_sequence(
      q_BSNH, k_BSKH, v_BSKH, sequences,
      [scale](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) { return whole_rows(q, k, v, scale); });
}

at::Tensor attention_reference(const at::Tensor& q_BSNH, const at::Tensor& k_BSKH, const at::Tensor& v_BSKH,
                               const SequenceLayout& sequences, double scale) {
  check_shapes(q_BSNH, k_BSKH, v_BSKH, sequences);
  return each_sequence(
      q_BSNH, k_BSKH, v_BSKH, sequences, [scale](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        const int64_t s = q.size(1), n = q.size(2);
        const at::Tensor mask = at::ones({s, s}, q.options().dtype(at::kBool)).tril_();
        const at::Tensor scores = at::matmul(q.transpose(1, 2), repeat_heads(k, n).permute({0, 2, 3, 1})) * scale;
        const at::Tensor p =
            at::softmax(scores.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity()), -1);
        return at::matmul(p, repeat_heads(v, n).transpose(1, 2)).transpose(1, 2);
      });
}

}  // namespace trireme
