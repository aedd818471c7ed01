#include "attention_bridge.h"

#include "bridge_tools.h"
#include "kernel_bridge.h"
#include "kernels/attention/attention.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>

namespace trireme::bridge {

namespace {

/// Zeros that the kernels count on and leave as they were. One pair a device: launches that use it share one stream.
int32_t* counters(const at::Tensor& x) {
  static std::array<at::Tensor, 64> all;
  at::Tensor& mine = all.at(static_cast<size_t>(x.device().index()));
  if (!mine.defined()) mine = at::zeros({2}, x.options().dtype(at::kInt));
  return mine.mutable_data_ptr<int32_t>();
}

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
          q.scalar_type() == at::kHalf ? kernels::Element::kF16 : kernels::Element::kBF16};
}

kernels::AttentionDropout dropout_of(const AttentionProblem& problem) {
  const AttentionDrops& d = problem.drops;
  if (d.threshold == 0) return {};
  return {static_cast<uint32_t>(d.threshold), d.t0, d.t1, d.sample_ids.const_data_ptr<int64_t>()};
}

void launched(cudaError_t status, const char* kernel, const at::Tensor& q, const at::Tensor& k) {
  TRIREME_CHECK(status == cudaSuccess, "kernel ", kernel, " of q ", q.sizes(), ", k ", k.sizes(), ": ", cudaGetErrorString(status));
}

}  // namespace

bool serves_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t d = q.size(2);
  return has_kernels(q) && q.element_size() == 2 && (d == 64 || d == 128) && q.size(0) < INT32_MAX / 2 && suits(q) && suits(k) && suits(v);
}

std::shared_ptr<const AttentionWork::Lists> attention_lists(AttentionWork& work, const std::vector<int32_t>& boundaries, int64_t d,
                                                            bool causal, at::Device device) {
  std::shared_ptr<const AttentionWork::Lists>& known = work.lists[{d, causal}];
  if (!known) {
    const kernels::AttentionPlan plan =
        kernels::plan_attention(boundaries.data(), static_cast<int64_t>(boundaries.size()) - 1, static_cast<int>(d), causal);
    auto lists = std::make_shared<AttentionWork::Lists>();
    lists->forward = to_device(plan.forward, device);
    lists->backward = to_device(plan.backward, device);
    lists->blocks = to_device(plan.blocks, device);
    lists->forward_count = static_cast<int64_t>(plan.forward.size());
    lists->backward_count = static_cast<int64_t>(plan.backward.size());
    lists->block_count = static_cast<int64_t>(plan.blocks.size());
    known = lists;
  }
  return known;
}

std::pair<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const AttentionProblem& problem) {
  const c10::cuda::CUDAGuard guard(q.device());
  at::Tensor o = at::empty(q.sizes(), q.options()), lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  kernels::AttentionForward a;
  a.shape = shape_of(q, k, problem);
  a.q = view(q);
  a.k = view(k);
  a.v = view(v);
  a.o = view(o);
  a.lse = lse.mutable_data_ptr<float>();
  a.dropout = dropout_of(problem);
  a.tiles = static_cast<const kernels::AttentionTile*>(problem.lists->forward.const_data_ptr());
  a.tile_count = problem.lists->forward_count;
  a.counters = counters(q);
  launched(kernels::attention_forward(a, c10::cuda::getCurrentCUDAStream(q.device().index())), "attention_forward", q, k);
  return {o, lse};
}

void attention_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& o,
                        const at::Tensor& lse, const AttentionProblem& problem, bool deterministic,
                        std::array<at::Tensor, 3> gradients) {
  const c10::cuda::CUDAGuard guard(q.device());
  kernels::AttentionBackward a;
  a.shape = shape_of(q, k, problem);
  const at::Tensor workspace = at::empty({kernels::attention_backward_workspace(a.shape, problem.lists->block_count)}, q.options().dtype(at::kByte));
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
  a.tiles = static_cast<const kernels::AttentionTile*>(problem.lists->backward.const_data_ptr());
  a.tile_count = problem.lists->backward_count;
  a.blocks = static_cast<const kernels::AttentionBlock*>(problem.lists->blocks.const_data_ptr());
  a.block_count = problem.lists->block_count;
  a.workspace = workspace.mutable_data_ptr();
  a.counters = counters(q);
  a.deterministic = deterministic;
  launched(kernels::attention_backward(a, c10::cuda::getCurrentCUDAStream(q.device().index())), "attention_backward", q, k);
}

}  // namespace trireme::bridge
