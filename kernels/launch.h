#pragma once
// Properties of the current device, and helpers for kernel launches. No allocation, no synchronisation.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace trireme::kernels {

/// Number of multiprocessors of the current device; 0 without a device.
inline int multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 0;
  return count;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// grid.y is at most 65,535, so longer dimensions are launched in pieces. Calls launch(first, count), which returns
/// cudaError_t, for each piece until one fails.
template <class F>
cudaError_t launch_pieces(int64_t total, const F& launch) {
  constexpr int64_t kMost = 65535;
  for (int64_t first = 0; first < total; first += kMost) {
    const cudaError_t error = launch(first, static_cast<unsigned>(total - first < kMost ? total - first : kMost));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

/// Most shared memory that launches may ask for, in bytes. Tests set it to that of other GPUs.
inline size_t most_shared_memory = SIZE_MAX;

/// Whether a block of the current device may have so much dynamic shared memory beside 1 KiB of static: with compute
/// capability 8.6, 8.9 and 12.0 a block has 99 KiB in all, with 8.0 163 KiB, with 9.0 and 10.0 227 KiB.
inline bool fits_shared_memory(size_t bytes) {
  constexpr size_t kStatic = 1024;
  int device = 0, most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
         bytes + kStatic <= static_cast<size_t>(most) && bytes + kStatic <= most_shared_memory;
}

/// Raises a kernel's limit of dynamic shared memory, which is needed if static and dynamic shared memory together
/// exceed 48 KiB. The attribute belongs to the current device, so it is set before every launch and not once a process.
/// No kernel here has more than 24 KiB of static shared memory.
template <class Kernel>
cudaError_t allow_shared_memory(Kernel kernel, size_t bytes) {
  if (bytes <= 24 * 1024) return cudaSuccess;
  if (most_shared_memory != SIZE_MAX) {
    cudaFuncAttributes of{};
    if (const cudaError_t error = cudaFuncGetAttributes(&of, kernel); error != cudaSuccess) return error;
    if (of.sharedSizeBytes + bytes > most_shared_memory) return cudaErrorInvalidValue;
  }
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

/// Largest number of columns of the row kernels.
constexpr int kMaxColumns = 16384;

/// How kernels that reduce along rows divide a row among threads: a few packs per thread, and several rows per block if
/// a row needs only one warp, so that rows do not wait for each other.
struct RowGeometry {
  int threads;  // per row, a multiple of 32
  int rows;     // per block: several if a row has one warp, otherwise one
};

/// Geometry for rows of `packs` packs with at most packs_of_thread packs per thread.
inline RowGeometry row_geometry(int64_t packs, int packs_of_thread) {
  const int threads = static_cast<int>(ceil_div(ceil_div(packs, packs_of_thread), 32) * 32);
  return {threads, threads == 32 ? 8 : 1};
}

/// Whether all threads of such a row have the same number of packs, packs_of_thread.
inline bool whole_rows(int64_t packs, int packs_of_thread) { return packs % (32 * packs_of_thread) == 0; }

#ifdef __CUDACC__
// Two kinds of device code come from one source. The image for sm_90a uses clusters, st.async, griddepcontrol and
// bulk copies, under #ifdef TRIREME_SM90A. All other images use what compute capability 8.0 has, and newer conversions
// and arithmetic where the image's capability has them. Host code that launches the former asks runs_sm90a().
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TRIREME_SM90A
#endif

/// Whether the current device runs the image for sm_90a: this build has it (TRIREME_BUILDS_SM90A), and the device has
/// compute capability 9.0. The driver prefers it to PTX of a lower capability. Of attention all builds have it, so the
/// answer is that of the file.
[[maybe_unused]] static bool runs_sm90a() {
#ifdef TRIREME_BUILDS_SM90A
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
#else
  return false;
#endif
}

/// Number of blocks of a persistent grid: as many as are resident at once, at most `per_sm` per multiprocessor, not
/// more than there is work for.
template <class Kernel>
int64_t resident_blocks(Kernel kernel, int block_threads, size_t shared, int per_sm, int64_t work) {
  int fit = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, block_threads, shared) != cudaSuccess || fit < 1)
    fit = 1;
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * (fit < per_sm ? fit : per_sm);
  return work < blocks ? work : blocks;
}

// Programmatic dependent launch: a kernel may start while the kernel before it in the stream is still finishing.

/// A kernel launched with launch_behind() starts when every block of the kernel before it has called
/// allow_next_kernel() or ended, on the resources that are free by then. It must call await_kernel_before() before it
/// touches global memory; that waits until all results of the kernel before are visible. Earlier kernels in the stream
/// are complete only if the kernel before called await_kernel_before() itself or was launched the ordinary way. Behind
/// a kernel that never calls allow_next_kernel() it still starts 1.3 to 1.7 us earlier than by an ordinary launch
/// (H200, also behind products of cuBLASLt): its launch is ready when the other kernel ends.
__device__ inline void allow_next_kernel() {
#ifdef TRIREME_SM90A
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void await_kernel_before() {
#ifdef TRIREME_SM90A
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
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
  config.attrs = early, config.numAttrs = runs_sm90a() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

/// Launches a kernel with one block per row, or per several short rows: while some blocks of a multiprocessor wait for
/// their row, others write. On an H200 this is closer to the memory bandwidth than any persistent grid (RMS norm of
/// 32768 x 4096: 4.05 TB/s against 3.5 with rows prefetched by cp.async and 3.7 by bulk copies), but it does not allow
/// sums over rows. The kernel calls await_kernel_before().
template <class Kernel, class Arguments>
cudaError_t launch_each_row(Kernel kernel, const Arguments& arguments, int64_t rows, const RowGeometry& g,
                            cudaStream_t stream) {
  return launch_behind(kernel, dim3(static_cast<unsigned>(ceil_div(rows, g.rows))),
                       dim3(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows)), 0, stream, arguments);
}
#endif

}  // namespace trireme::kernels
