#pragma once
// PTX wrappers for sm_90's asynchronous instructions: mbarriers in shared memory, the copy engine for bulk tensors
// (TMA), and setmaxnreg, which moves registers between warpgroups.

#include "kernels/launch.h"
#include "kernels/wgmma.cuh"

#include <cuda.h>

#include <cstdint>

namespace trireme::kernels::hopper {

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// A barrier is 8 bytes of shared memory, given by its address. A wait for `parity` returns once the phase with that
// parity is complete; a new barrier counts as having completed a phase of parity 1.
__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// The loop is inside the asm statement: the compiler would treat a visible loop as divergent and serialise the wgmma
/// instructions after it.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "AGAIN:\n"
#ifdef TRIREME_SM90A
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%0], %1;\n"
#endif
      "@p bra DONE;\n"
      "bra AGAIN;\n"
      "DONE:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
/// Whether barrier_wait() would return immediately.
__device__ inline bool barrier_done(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
/// A value that is equal in all threads of a warp, made known to the compiler as such.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

template <int kCount>
__device__ inline void registers_give() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Makes earlier ordinary writes to shared memory visible to later reads by the copy engine and the tensor cores.
__device__ inline void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The same for shared and global memory.
__device__ inline void full_proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Loads one box of a tensor [token][head][element] into shared memory; completes on `barrier`.
__device__ inline void load_box(uint32_t to, const CUtensorMap* map, int element, int head, int token,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(element), "r"(head), "r"(token), "r"(barrier)
      : "memory");
}
/// Stores one box from shared memory. The issuing thread calls store_commit() and later bulk_read() or bulk_done().
__device__ inline void store_box(const CUtensorMap* map, int element, int head, int token, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
               "r"(element), "r"(head), "r"(token), "r"(from)
               : "memory");
}
__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Loads kRows rows of a head with kDim elements each as one box per 64 columns.
template <int kDim, int kRows>
__device__ inline void load_rows(uint32_t to, const CUtensorMap* map, int head, int token, uint32_t barrier) {
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) load_box(to + c * (kRows * 128), map, 64 * c, head, token, barrier);
}
/// Loads contiguous bytes, a multiple of 16.
__device__ inline void load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Stores four 8 x 8 matrices of 16-bit elements from the fragment layout as rows of 16 bytes; lane l passes the
/// address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ inline int4 load_shared16(uint32_t address) {
  int4 v;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ inline float2 load_shared_float2(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ inline float4 load_shared_float4(uint32_t address) {
  const int4 v = load_shared16(address);
  return {__int_as_float(v.x), __int_as_float(v.y), __int_as_float(v.z), __int_as_float(v.w)};
}

__device__ inline void store_shared4(uint32_t address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
/// Adds fp32 values in shared memory to values in global memory with the copy engine; bytes is a multiple of 16. The
/// issuing thread later calls bulk_read() or bulk_done().
__device__ inline void add_bytes(float* to, uint32_t from, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(
          to),
      "r"(from), "r"(bytes)
      : "memory");
}
/// The same, but stores instead of adding.
__device__ inline void store_bytes(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
/// Waits until the copy engine has read from shared memory all but this thread's last kPending groups of stores.
template <int kPending>
__device__ inline void bulk_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Waits until all of this thread's stores by the copy engine are complete.
__device__ inline void bulk_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

template <class T>
__device__ inline uint32_t pack2(float low, float high) {
  uint32_t word;
  if constexpr (__is_same(T, __half))
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

/// Transposes 4 x 4 words over lanes 4 n … 4 n + 3. Four lanes hold one row of a fragment as pairs of columns, word w
/// of lane q being pair q of chunk w; the result in lane q is chunk q.
__device__ inline uint4 gather_chunk(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  const uint32_t b0 = __shfl_xor_sync(0xffffffffu, odd ? w0 : w1, 1),
                 b1 = __shfl_xor_sync(0xffffffffu, odd ? w2 : w3, 1);
  if (odd)
    w0 = b0, w2 = b1;
  else
    w1 = b0, w3 = b1;
  const uint32_t c0 = __shfl_xor_sync(0xffffffffu, high ? w0 : w2, 2),
                 c1 = __shfl_xor_sync(0xffffffffu, high ? w1 : w3, 2);
  if (high)
    w0 = c0, w1 = c1;
  else
    w2 = c0, w3 = c1;
  return {w0, w1, w2, w3};
}

/// Inline PTX, because the compiler may split an assignment into four stores.
__device__ inline void store_global16(void* to, int4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

/// Stores rows lane / 4 and lane / 4 + 8 of a warp's 16 rows, times `scale`, to out + row * stride, as runs of 16 bytes
/// of which four are adjacent in a row. Rows from `count` on are not written.
template <class T, int kCount>
__device__ inline void store_fragments(const float (&x)[kCount], float scale, T* out, int64_t stride, int count) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    T* const to = out + row * stride + 8 * (lane % 4);
#pragma unroll
    for (int i = 0; i < kCount / 16; ++i) {
      uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        w[j] = pack2<T>(x[16 * i + 4 * j + 2 * r] * scale, x[16 * i + 4 * j + 2 * r + 1] * scale);
      const uint4 chunk = gather_chunk(w[0], w[1], w[2], w[3]);
      if (row < count)
        store_global16(to + 32 * i, {static_cast<int>(chunk.x), static_cast<int>(chunk.y), static_cast<int>(chunk.z),
                                     static_cast<int>(chunk.w)});
    }
  }
}

}  // namespace trireme::kernels::hopper
