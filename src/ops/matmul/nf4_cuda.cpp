#include "matmul/nf4_launch.h"

#include "kernels/nf4/nf4.h"
#include "launch.h"

#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

void nf4_dequantize_(const at::Tensor& target, const at::Tensor& codes, const Nf4Scales& scales) {
  const c10::cuda::CUDAGuard guard(target.device());
  kernels::Nf4Dequantize a;
  a.codes = codes.const_data_ptr<uint8_t>();
  a.absmax = scales.absmax.const_data_ptr<uint8_t>();
  a.nested = scales.nested.const_data_ptr<float>();
  a.offset = scales.offset.const_data_ptr<float>();
  a.book = nf4_book(target.device()).const_data_ptr<float>();
  a.map = nf4_map(target.device()).const_data_ptr<float>();
  a.out = target.mutable_data_ptr();
  a.count = target.numel();
  a.element = element(target);
  launched(kernels::nf4_dequantize(a, stream_of(target)), "nf4_dequantize");
}

}  // namespace trireme::launch
