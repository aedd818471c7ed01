#include "kernels/fp8/fp8.cuh"
#include "kernels/launch.h"
#include "kernels/quantize/quantize.h"

#include <cfloat>

namespace trireme::kernels {

namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) update_kernel(const ScaleUpdate a) {
  const int tensor = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (tensor >= a.tensors) return;
  float* history = a.history + tensor;
  const float newest = history[0];
  float top = newest;
  for (int row = 1; row < a.length; ++row) {
    const float older = history[static_cast<int64_t>(row) * a.tensors];
    if (a.choice == AmaxChoice::kMax) top = amax_of(top, older);
    history[static_cast<int64_t>(row - 1) * a.tensors] = older;
  }
  history[static_cast<int64_t>(a.length - 1) * a.tensors] = newest;
  history[0] = 0.0f;
  float scale = a.scale[tensor];
  if (top > 0.0f && top <= FLT_MAX) {
    scale = ldexpf(fp8_max(a.format) / top, -a.margin);
    if (scale > FLT_MAX) scale = FLT_MAX;
    a.scale[tensor] = scale;
  }
  if (a.inverse != nullptr) a.inverse[tensor] = 1.0f / scale;
}

}  // namespace

cudaError_t update_scales(const ScaleUpdate& a, cudaStream_t stream) {
  if (a.length < 1) return cudaErrorInvalidValue;
  if (a.tensors == 0) return cudaSuccess;
  update_kernel<<<static_cast<unsigned>(ceil_div(a.tensors, kThreads)), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace trireme::kernels
