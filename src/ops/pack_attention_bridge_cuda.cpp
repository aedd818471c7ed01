#include "pack_attention_bridge.h"

#include "bridge_tools.h"
#include "kernels/attention/attention.h"
#include "trireme/base/error.h"
#include "trireme/ops/kernels.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>

namespace trireme {

/// The kernels' plan of a layout on its device: made by the first layer, used by all.
struct PackPlan {
  at::Tensor forward_tiles, backward_tiles, blocks;  // bytes
  at::Tensor counters;                               // int32 [2]
  int64_t forward_count = 0, backward_count = 0, block_count = 0;
  int head_dim = 0;
};

namespace bridge {

namespace {

const PackPlan& plan_of(const PackLayout& layout, const at::Tensor& qkv) {
  TRIREME_CHECK(layout.plan != nullptr, "the layout of a pack was not made by make_pack_layout()");
  const auto d = static_cast<int>(qkv.size(3));
  if (!*layout.plan) {
    const kernels::AttentionPlan made =
        kernels::plan_attention(layout.boundaries.data(), static_cast<int64_t>(layout.boundaries.size()) - 1, d, /*causal=*/false);
    auto plan = std::make_shared<PackPlan>();
    plan->forward_tiles = to_device(made.forward, qkv.device());
    plan->backward_tiles = to_device(made.backward, qkv.device());
    plan->blocks = to_device(made.blocks, qkv.device());
    plan->counters = at::zeros({2}, qkv.options().dtype(at::kInt));
    plan->forward_count = static_cast<int64_t>(made.forward.size());
    plan->backward_count = static_cast<int64_t>(made.backward.size());
    plan->block_count = static_cast<int64_t>(made.blocks.size());
    plan->head_dim = d;
    *layout.plan = std::move(plan);
  }
  TRIREME_CHECK((*layout.plan)->head_dim == d, "a pack's plan is for heads of ", (*layout.plan)->head_dim, ", these are of ", d);
  return **layout.plan;
}

kernels::AttentionShape shape_of(const at::Tensor& qkv, double scale) {
  kernels::AttentionShape shape;
  shape.tokens = qkv.size(0);
  shape.q_heads = shape.kv_heads = static_cast<int>(qkv.size(2));
  shape.d = static_cast<int>(qkv.size(3));
  shape.scale = static_cast<float>(scale);
  shape.element = element(qkv);
  return shape;
}

/// Heads `part` (0 query, 1 key, 2 value) of [T, 3, N, H].
kernels::AttentionTensor part_of(const at::Tensor& qkv, int64_t part) {
  const at::Tensor heads = qkv.select(1, part);
  return {heads.mutable_data_ptr(), {heads.stride(0), heads.stride(1)}};
}
kernels::AttentionTensor whole(const at::Tensor& x_TNH) { return {x_TNH.mutable_data_ptr(), {x_TNH.stride(0), x_TNH.stride(1)}}; }

kernels::AttentionDropout dropout_of(const Dropout& dropout, uint64_t stream, const PackLayout& layout) {
  if (dropout.p <= 0) return {};
  const DropoutKey key = dropout_key(dropout, stream);
  return {attention_dropout_threshold(dropout.p), key.t0, key.t1, layout.sequence_keys_device.const_data_ptr<int64_t>()};
}

}  // namespace

bool serves_pack_attention(const at::Tensor& qkv, const Dropout& dropout) {
  const int64_t d = qkv.size(3);
  return has_kernels(qkv) && qkv.element_size() == 2 && (d == 64 || (d == 128 && dropout.p <= 0));
}

std::array<at::Tensor, 2> pack_attention(const at::Tensor& qkv, const PackLayout& layout, double scale, const Dropout& dropout,
                                         uint64_t stream) {
  const c10::cuda::CUDAGuard guard(qkv.device());
  const PackPlan& plan = plan_of(layout, qkv);
  const at::Tensor out = at::empty({qkv.size(0), qkv.size(2), qkv.size(3)}, qkv.options());
  const at::Tensor lse = at::empty({qkv.size(2), qkv.size(0)}, qkv.options().dtype(at::kFloat));
  kernels::AttentionForward a;
  a.shape = shape_of(qkv, scale);
  a.q = part_of(qkv, 0);
  a.k = part_of(qkv, 1);
  a.v = part_of(qkv, 2);
  a.o = whole(out);
  a.lse = lse.mutable_data_ptr<float>();
  a.dropout = dropout_of(dropout, stream, layout);
  a.tiles = static_cast<const kernels::AttentionTile*>(plan.forward_tiles.const_data_ptr());
  a.tile_count = plan.forward_count;
  a.counters = plan.counters.mutable_data_ptr<int32_t>();
  launched(kernels::attention_forward(a, stream_of(qkv)), "attention_forward");
  return {out, lse};
}

at::Tensor pack_attention_backward(const at::Tensor& dy, const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
                                   const PackLayout& layout, double scale, const Dropout& dropout, uint64_t stream) {
  const c10::cuda::CUDAGuard guard(qkv.device());
  const PackPlan& plan = plan_of(layout, qkv);
  const at::Tensor d_qkv = at::empty_like(qkv);
  kernels::AttentionBackward a;
  a.shape = shape_of(qkv, scale);
  a.q = part_of(qkv, 0);
  a.k = part_of(qkv, 1);
  a.v = part_of(qkv, 2);
  a.o = whole(out);
  a.d_o = whole(dy);
  a.d_q = part_of(d_qkv, 0);
  a.d_k = part_of(d_qkv, 1);
  a.d_v = part_of(d_qkv, 2);
  a.lse = lse.const_data_ptr<float>();
  a.dropout = dropout_of(dropout, stream, layout);
  a.tiles = static_cast<const kernels::AttentionTile*>(plan.backward_tiles.const_data_ptr());
  a.tile_count = plan.backward_count;
  a.blocks = static_cast<const kernels::AttentionBlock*>(plan.blocks.const_data_ptr());
  a.block_count = plan.block_count;
  const at::Tensor workspace = at::empty({kernels::attention_backward_workspace(a.shape, a.block_count)}, qkv.options().dtype(at::kByte));
  a.workspace = workspace.mutable_data_ptr();
  a.counters = plan.counters.mutable_data_ptr<int32_t>();
  a.deterministic = at::globalContext().deterministicAlgorithms();
  launched(kernels::attention_backward(a, stream_of(qkv)), "attention_backward");
  return d_qkv;
}

}  // namespace bridge
}  // namespace trireme
