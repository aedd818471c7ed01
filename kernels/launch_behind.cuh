#pragma once
// Programmatic dependent launch: a kernel may start while the kernel before it in the stream is still finishing.

#include <cuda_runtime_api.h>

#include <cstddef>

namespace trireme::kernels {

/// A kernel launched with launch_behind() starts when every block of the kernel before it has called
/// allow_next_kernel() or ended, on the resources that are free by then. It must call await_kernel_before() before it
/// touches global memory; that waits until all results of the kernel before are visible. Earlier kernels in the stream
/// are complete only if the kernel before called await_kernel_before() itself or was launched the ordinary way. Behind
/// a kernel that never calls allow_next_kernel() the launch is an ordinary one.
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
