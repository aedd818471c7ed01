#include "attention_node.h"

#include "kernels/rope/rope.h"
#include "launch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

namespace {

kernels::HeadStrides strides(const at::Tensor& x_TnH) { return {x_TnH.stride(0), x_TnH.stride(1)}; }

}  // namespace

void rope_rotate(const at::Tensor& heads, const RopeTable& table, int64_t rotated) {
  const c10::cuda::CUDAGuard guard(heads.device());
  launched(kernels::rope_rotate(heads.mutable_data_ptr(), table.cos.const_data_ptr(), table.sin.const_data_ptr(),
                                heads.size(0), static_cast<int>(heads.size(1)), static_cast<int>(rotated),
                                static_cast<int>(heads.size(2)), 1, element(heads), stream_of(heads)),
           "rope_rotate");
}

at::Tensor rope_merge(const Heads& d, const RopeTable& table) {
  const at::Tensor& dq = d.q;
  const c10::cuda::CUDAGuard guard(dq.device());
  at::Tensor d_qkv = at::empty({dq.size(0), dq.size(1) + 2 * d.k.size(1), dq.size(2)}, dq.options());
  launched(
      kernels::rope_merge(dq.const_data_ptr(), strides(dq), d.k.const_data_ptr(), strides(d.k), d.v.const_data_ptr(),
                          strides(d.v), table.cos.const_data_ptr(), table.sin.const_data_ptr(),
                          d_qkv.mutable_data_ptr(), dq.size(0), static_cast<int>(dq.size(1)),
                          static_cast<int>(d.k.size(1)), static_cast<int>(dq.size(2)), element(dq), stream_of(dq)),
      "rope_merge");
  return d_qkv;
}

}  // namespace trireme::launch
