#include "kernels/fp8_current/fp8_current.h"

#include "kernels/fp8/fp8.cuh"
#include "kernels/quantize/quantize.h"

namespace trireme::kernels {

namespace {

__global__ void scale_kernel(const float* amax, float* scale, float* inverse, Fp8Format format) {
  const float value = row_inverse_scale(*amax, format);
  *inverse = value;
  *scale = 1.0f / value;
}

}  // namespace

cudaError_t current_scale(const CurrentScale& a, cudaStream_t stream) {
  if (a.amax == nullptr || a.scale == nullptr || a.inverse == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = cudaMemsetAsync(a.amax, 0, sizeof(float), stream); error != cudaSuccess) return error;
  if (const cudaError_t error = amax(a.x, a.count, a.element, a.amax, stream); error != cudaSuccess) return error;
  scale_kernel<<<1, 1, 0, stream>>>(a.amax, a.scale, a.inverse, a.format);
  return cudaGetLastError();
}

}  // namespace trireme::kernels
