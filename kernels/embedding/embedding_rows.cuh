#pragma once
// What the two ways to an embedding's gradient share.

#include "kernels/device.cuh"
#include "kernels/embedding/embedding.h"

namespace trireme::kernels {

/// Tokens of a group, each of which has two fp32 rows in the workspace.
constexpr int kEmbeddingGroup = 32;

/// Up to so many ids keep their sums in registers: nothing is sorted.
constexpr int kFewIds = 2;

/// partial: two rows of fp32 for each group of tokens; seen: kFewIds integers.
cudaError_t embedding_backward_few(const EmbeddingBackward& arguments, float* partial, int* seen,
                                   cudaStream_t stream);

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

/// Sixteen bytes at a time where kWidth > 1.
template <class G, int kWidth>
__device__ inline void write_row(G* to, const float (&sum)[kWidth], bool accumulate) {
  constexpr int kPart = kWidth == 1 ? 1 : 16 / sizeof(G);
#pragma unroll
  for (int first = 0; first < kWidth; first += kPart) {
    float old[kPart] = {};
    if (accumulate) to_floats(*reinterpret_cast<const Vec<G, kPart>*>(to + first), old);
#pragma unroll
    for (int i = 0; i < kPart; ++i) old[i] += sum[first + i];
    store(to + first, from_floats<G>(old));
  }
}

}  // namespace trireme::kernels
