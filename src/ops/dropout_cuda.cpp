#include "dropout_parts.h"

#include "kernels/dropout/dropout.h"
#include "launch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

namespace {

/// `addend`: undefined: none; may be `out`.
void run(const at::Tensor& x, const at::Tensor& addend, const at::Tensor& out, const Dropout& dropout) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor ids = dropout.sample_ids_B.contiguous();
  const DropoutKey key = dropout_key(dropout);
  const kernels::DropoutArguments arguments{x.const_data_ptr(),
                                            data_or_null(addend),
                                            out.mutable_data_ptr(),
                                            ids.const_data_ptr<int64_t>(),
                                            ids.numel(),
                                            x.numel() / ids.numel(),
                                            key.t0,
                                            key.t1,
                                            key.threshold,
                                            static_cast<float>(key.scale),
                                            element(x),
                                            dropout.first_token * x.size(-1)};
  launched(kernels::dropout(arguments, stream_of(x)), "dropout");
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, const Dropout& dropout) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  run(x, {}, out, dropout);
  return out;
}

at::Tensor add_dropout(const at::Tensor& addend, const at::Tensor& x, const Dropout& dropout) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  run(x, addend, out, dropout);
  return out;
}

void add_dropout_(const at::Tensor& sum, const at::Tensor& x, const Dropout& dropout) { run(x, sum, sum, dropout); }

}  // namespace trireme::launch
