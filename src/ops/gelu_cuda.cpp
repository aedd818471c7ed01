#include "gelu.h"

#include "kernels/gelu/gelu.h"
#include "launch.h"
#include "row_output.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

namespace {

kernels::GeluKind kind(Activation form) {
  return form == Activation::kGeluTanh ? kernels::GeluKind::kTanh : kernels::GeluKind::kErf;
}

}  // namespace

at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Activation form) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  kernels::GeluForward a;
  a.x = x.const_data_ptr();
  a.bias = data_or_null(bias);
  a.y = y.mutable_data_ptr();
  a.kind = kind(form);
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.element = element(x);
  launched(kernels::gelu_forward(a, stream_of(x)), "gelu_forward");
  return y;
}

GeluGradients gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor gradient = dy.contiguous();
  at::Tensor dx = at::empty_like(x), d_bias = at::empty_like(bias);
  const at::Tensor workspace =
      at::empty({kernels::gelu_backward_workspace(x.size(0), x.size(1))}, x.options().dtype(at::kFloat));
  kernels::GeluBackward a;
  a.dy = gradient.const_data_ptr();
  a.x = x.const_data_ptr();
  a.bias = data_or_null(bias);
  a.dx = dx.mutable_data_ptr();
  a.d_bias = d_bias.mutable_data_ptr();
  a.workspace = workspace.mutable_data_ptr<float>();
  a.kind = kind(form);
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.element = element(x);
  launched(kernels::gelu_backward(a, stream_of(x)), "gelu_backward");
  return {dx, d_bias};
}

}  // namespace trireme::launch
