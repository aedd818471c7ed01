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
  const int64_t width = x.size(-1);
  const auto rows_of = [&](const at::Tensor& t, const DropoutPart& part) {
    return t.view({-1, width}).narrow(0, part.begin, part.samples * part.rows);
  };
  for (const DropoutPart& part : dropout_parts(x, dropout)) {
    const kernels::DropoutArguments arguments{rows_of(x, part).const_data_ptr(),
                                              addend.defined() ? rows_of(addend, part).const_data_ptr() : nullptr,
                                              rows_of(out, part).mutable_data_ptr(),
                                              ids.const_data_ptr<int64_t>() + part.first_sample,
                                              part.samples,
                                              part.rows * width,
                                              key.t0,
                                              key.t1,
                                              key.threshold,
                                              static_cast<float>(key.scale),
                                              element(x),
                                              part.first_row * width};
    launched(kernels::dropout(arguments, stream_of(x)), "dropout");
  }
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
