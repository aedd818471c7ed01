#include "attention_bridge.h"

#include "bridge_tools.h"
#include "kernel_bridge.h"
#include "kernels/attention/attention.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::bridge {

namespace {

kernels::AttentionTensor view(const at::Tensor& x_TNd) {
  return {const_cast<void*>(x_TNd.const_data_ptr()), {x_TNd.stride(0), x_TNd.stride(1)}};
}

bool suits(const at::Tensor& x) {
  return x.stride(2) == 1 && x.stride(0) > 0 && x.stride(1) > 0 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 &&
         kernels::aligned16(x.const_data_ptr());
}

kernels::AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k, const AttentionProblem& problem) {
  return {q.size(0),
          static_cast<int>(q.size(1)),
          static_cast<int>(k.size(1)),
          static_cast<int>(q.size(2)),
          problem.causal,
          static_cast<float>(problem.scale),
          element(q)};
}

kernels::AttentionDropout dropout_of(const AttentionProblem& problem) {
  const AttentionDrops& d = problem.drops;
  if (d.threshold == 0) return {};
  return {static_cast<uint32_t>(d.threshold), d.t0, d.t1, d.sample_ids.const_data_ptr<int64_t>()};
}

void check_launch(cudaError_t status, const char* kernel, const at::Tensor& q, const at::Tensor& k) {
  TRIREME_CHECK(status == cudaSuccess, "kernel ", kernel, " of q ", q.sizes(), ", k ", k.sizes(), ": ",
                cudaGetErrorString(status));
}

const kernels::AttentionTile* tiles(const at::Tensor& bytes) {
  return static_cast<const kernels::AttentionTile*>(bytes.const_data_ptr());
}

}  // namespace

bool serves_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t d = q.size(2);
  return has_kernels(q) && q.element_size() == 2 && (d == 64 || d == 128) && q.size(0) < INT32_MAX / 2 && suits(q) &&
         suits(k) && suits(v);
}

std::shared_ptr<const AttentionWork::Lists> attention_lists(AttentionWork& work, const std::vector<int32_t>& boundaries,
                                                            int64_t d, bool causal, at::Device device) {
  std::shared_ptr<const AttentionWork::Lists>& known = work.lists[{d, causal}];
  if (!known) {
    const kernels::AttentionPlan plan = kernels::plan_attention(
        boundaries.data(), static_cast<int64_t>(boundaries.size()) - 1, static_cast<int>(d), causal);
    auto lists = std::make_shared<AttentionWork::Lists>();
    lists->forward = to_device(plan.forward, device);
    lists->backward = to_device(plan.backward, device);
    lists->sequences = to_device(plan.sequences, device);
    lists->blocks = to_device(plan.blocks, device);
    lists->counters = at::zeros({2}, at::TensorOptions(at::kInt).device(device));
    lists->forward_count = static_cast<int64_t>(plan.forward.size());
    lists->backward_count = static_cast<int64_t>(plan.backward.size());
    lists->sequence_count = static_cast<int64_t>(plan.sequences.size());
    lists->block_count = static_cast<int64_t>(plan.blocks.size());
    lists->short_blocks = plan.short_blocks;
    lists->longest = plan.longest;
    known = lists;
  }
  return known;
}

std::pair<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const AttentionProblem& problem) {
  const c10::cuda::CUDAGuard guard(q.device());
  at::Tensor o = at::empty(q.sizes(), q.options()),
             lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  kernels::AttentionForward a;
  a.shape = shape_of(q, k, problem);
  a.q = view(q);
  a.k = view(k);
  a.v = view(v);
  a.o = view(o);
  a.lse = lse.mutable_data_ptr<float>();
  a.dropout = dropout_of(problem);
  a.tiles = tiles(problem.lists->forward);
  a.tile_count = problem.lists->forward_count;
  a.longest = problem.lists->longest;
  a.counters = problem.lists->counters.mutable_data_ptr<int32_t>();
  check_launch(kernels::attention_forward(a, stream_of(q)), "attention_forward", q, k);
  return {o, lse};
}

void attention_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& o, const at::Tensor& lse, const AttentionProblem& problem, bool deterministic,
                        std::array<at::Tensor, 3> gradients) {
  const c10::cuda::CUDAGuard guard(q.device());
  kernels::AttentionBackward a;
  a.shape = shape_of(q, k, problem);
  const at::Tensor gradient = suits(d_o) ? d_o : d_o.contiguous();
  a.q = view(q);
  a.k = view(k);
  a.v = view(v);
  a.o = view(o);
  a.d_o = view(gradient);
  a.d_q = view(gradients[0]);
  a.d_k = view(gradients[1]);
  a.d_v = view(gradients[2]);
  a.lse = lse.const_data_ptr<float>();
  a.dropout = dropout_of(problem);
  a.tiles = tiles(problem.lists->backward);
  a.tile_count = problem.lists->backward_count;
  a.blocks = static_cast<const kernels::AttentionBlock*>(problem.lists->blocks.const_data_ptr());
  a.block_count = problem.lists->block_count;
  a.short_blocks = problem.lists->short_blocks;
  a.sequences = tiles(problem.lists->sequences);
  a.sequence_count = problem.lists->sequence_count;
  const at::Tensor workspace = at::empty({kernels::attention_backward_workspace(a)}, q.options().dtype(at::kByte));
  a.workspace = workspace.mutable_data_ptr();
  a.counters = problem.lists->counters.mutable_data_ptr<int32_t>();
  a.deterministic = deterministic;
  check_launch(kernels::attention_backward(a, stream_of(q)), "attention_backward", q, k);
}

}  // namespace trireme::bridge
