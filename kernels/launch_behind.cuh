#pragma once
// Programmatic launch: a kernel takes its place on the device while the one before it in the stream ends.

#include <cuda_runtime_api.h>

#include <cstddef>

namespace trireme::kernels {

/// A kernel launched by launch_behind() starts once every block of the one before it has allowed this or ended, on what
/// those leave free, and awaits all of that one's results before it touches global memory. What ran before the kernel
/// that allows is complete only if that one awaited it first, or was launched the ordinary way. What allows nothing is
/// followed as ever.
__device__ inline void allow_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void await_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
template <class... Parameters, class... Arguments>
cudaError_t launch_behind(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute early[1];
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = early, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace trireme::kernels
