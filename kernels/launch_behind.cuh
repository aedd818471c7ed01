#pragma once
// Two kernels of one operation, the second launched while the first ends.

#include <cuda_runtime_api.h>

namespace trireme::kernels {

/// A kernel launched by launch_behind() takes its place on the device while the one before it ends:
/// that one allows it early, and it awaits all of that one's results. Saves the time between them.
__device__ inline void allow_next_kernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void await_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
template <class... Parameters, class... Arguments>
cudaError_t launch_behind(void (*kernel)(Parameters...), dim3 grid, int threads,
                          cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute early[1];
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = early, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace trireme::kernels
