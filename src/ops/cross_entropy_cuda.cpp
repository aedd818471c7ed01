#include "cross_entropy.h"

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/scale/scale.h"
#include "launch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

void cross_entropy_(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                    const at::Tensor& gradient_weights, at::Tensor& losses, bool want_gradient) {
  const c10::cuda::CUDAGuard guard(logits.device());
  kernels::CrossEntropy a;
  a.logits = logits.const_data_ptr();
  a.d_logits = want_gradient ? logits.mutable_data_ptr() : nullptr;
  a.targets = targets.const_data_ptr<int64_t>();
  a.weights = weights.const_data_ptr<float>();
  a.gradient_weights = gradient_weights.const_data_ptr<float>();
  a.loss = losses.mutable_data_ptr<float>();
  a.tokens = logits.size(0);
  a.vocab = logits.size(1);
  a.stride = logits.stride(0);
  a.element = element(logits);
  launched(kernels::cross_entropy(a, stream_of(logits)), "cross_entropy");
}

at::Tensor sum(const at::Tensor& values) {
  const c10::cuda::CUDAGuard guard(values.device());
  at::Tensor total = at::empty({}, values.options());
  launched(kernels::sum_values(values.const_data_ptr<float>(), values.numel(), total.mutable_data_ptr<float>(),
                               stream_of(values)),
           "sum_values");
  return total;
}

at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(dtype));
  launched(kernels::scale(x.const_data_ptr(), element(x), factor.const_data_ptr<float>(), out.mutable_data_ptr(),
                          element(out), x.numel(), stream_of(x)),
           "scale");
  return out;
}

at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty(x.sizes(), x.options());
  launched(kernels::scale_rows(x.const_data_ptr(), factors.const_data_ptr<float>(), out.mutable_data_ptr(), x.size(0),
                               x.size(1), element(x), stream_of(x)),
           "scale_rows");
  return out;
}

}  // namespace trireme::launch
