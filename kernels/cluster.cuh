#pragma once
// Rows shared by a thread block cluster: the blocks exchange a few numbers of each row without a barrier over the whole
// cluster.

#include "kernels/hopper.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

__device__ inline uint32_t cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Cluster barrier in two halves. After the wait all blocks of the cluster run and their transaction barriers exist.
__device__ inline void cluster_begun_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_begun_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// An mbarrier in shared memory. A phase ends when `count` threads of the block have called arrive() (one of them arm()
/// instead) and the bytes announced by arm() have arrived from the cluster, in any order. It orders nothing else; the
/// cluster's own barrier would wait for every earlier store of the block to be visible at gpu scope.
class TransactionBarrier {
 public:
  __device__ explicit TransactionBarrier(uint64_t* barrier) : at_(hopper::shared_address(barrier)) {}
  __device__ void init(int count) const {
    hopper::barrier_init(at_, static_cast<uint32_t>(count));
#ifdef TRIREME_SM90A
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __device__ void arrive() const { hopper::barrier_arrive(at_); }
  __device__ void arm(uint32_t bytes) const { hopper::barrier_expect(at_, bytes); }
  /// Writes a value to `place`, an address of this block's shared memory, in block `rank` of the cluster, and signals
  /// that block's barrier.
  __device__ void send(const float* place, uint32_t rank, float value) const {
    asm volatile(
        "{.reg .u32 there, box; mapa.shared::cluster.u32 there, %0, %2; "
        "mapa.shared::cluster.u32 box, %1, %2; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %3, [box];}" ::"r"(
            hopper::shared_address(place)),
        "r"(at_), "r"(rank), "r"(__float_as_uint(value))
        : "memory");
  }
  __device__ void wait(uint32_t parity) const {
#ifndef TRIREME_SM90A
    hopper::barrier_wait(at_, parity);
#else
    asm volatile(
        "{.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(at_),
        "r"(parity)
        : "memory");
#endif
  }

 private:
  uint32_t at_;
};

/// Launches a kernel over rows, each row shared by a cluster of `parts` blocks: one cluster per row if `clusters` is
/// null; otherwise a persistent grid, whose number of clusters is returned there.
template <class Kernel, class Arguments>
cudaError_t launch_clusters(Kernel kernel, const Arguments& arguments, int64_t rows, int parts, int threads,
                            size_t shared, int64_t* clusters, cudaStream_t stream) {
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  cudaLaunchAttribute cluster[1];
  cluster[0].id = cudaLaunchAttributeClusterDimension;
  cluster[0].val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
  cudaLaunchConfig_t config = {};
  config.attrs = cluster, config.numAttrs = 1;
  config.gridDim = dim3(static_cast<unsigned>(parts));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  if (clusters != nullptr) {
    int resident = 0;
    if (const cudaError_t error = cudaOccupancyMaxActiveClusters(&resident, kernel, &config); error != cudaSuccess)
      return error;
    *clusters = resident < 1 ? 1 : resident < rows ? resident : rows;
  }
  config.gridDim = dim3(static_cast<unsigned>((clusters != nullptr ? *clusters : rows) * parts));
  return cudaLaunchKernelEx(&config, kernel, arguments);
}

}  // namespace trireme::kernels
