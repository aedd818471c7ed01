// The kernels before and after the backward kernel: row sums (delta) and zeroing of the dQ sums; dQ from its sums.

#include "kernels/attention/attention_launch.h"
#include "kernels/device.cuh"
#include "kernels/hopper.cuh"
#include "kernels/launch.h"

namespace trireme::kernels::backward {

namespace {

constexpr int kThreads = 256;

/// One 64-row block of one head: writes delta, and lse in units of log2.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) prepare_kernel(const SideArguments a) {
  constexpr int kLanes = kDim / 8, kRowsAtOnce = kThreads / kLanes;
  await_kernel_before();
  allow_next_kernel();
  const int head = static_cast<int>(blockIdx.x) % a.q_heads, block_index = static_cast<int>(blockIdx.x) / a.q_heads;
  const AttentionBlock block = a.blocks[block_index];
  const int lane = threadIdx.x % kLanes;
  const int64_t stat = head * a.padded_rows + int64_t{block_index} * 64;
  const T* o = static_cast<const T*>(a.o) + head * a.o_strides.head + lane * 8;
  const T* d_o = static_cast<const T*>(a.d_o) + head * a.do_strides.head + lane * 8;
#pragma unroll
  for (int i = 0; i < 64 / kRowsAtOnce; ++i) {
    const int row = i * kRowsAtOnce + threadIdx.x / kLanes;
    float sum = 0.0f;
    if (row < block.count) {
      const int64_t token = block.first + row;
      float x[8], y[8];
      to_floats(load_stream<T, 8>(o + token * a.o_strides.token), x);
      to_floats(load_stream<T, 8>(d_o + token * a.do_strides.token), y);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum = fmaf(x[e], y[e], sum);
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) {
      a.delta[stat + row] = sum * a.delta_scale;
      a.lse2[stat + row] = row < block.count ? a.lse[head * a.tokens + block.first + row] * kLog2E : INFINITY;
    }
  }
  if (a.turns != nullptr && threadIdx.x == 0) a.turns[head * a.block_count + block_index] = 0;
  if (!a.zero) return;
  float4* const sums = reinterpret_cast<float4*>(a.dq_sums + stat * kDim);
#pragma unroll
  for (int i = 0; i < 64 * kDim / 4 / kThreads; ++i) sums[i * kThreads + threadIdx.x] = float4{};
}

/// One 64 x d / 2 part of the sums. A thread of the consumer warpgroup held column pairs 8 i + 2 (lane % 4) of rows
/// lane / 4 and lane / 4 + 8 of its warp's 16.
template <class T, int kDim>
__global__ void __launch_bounds__(128) convert_kernel(const SideArguments a) {
  await_kernel_before();
  constexpr int kColumns = kDim / 2, kLoads = kColumns / 8;
  const int part = blockIdx.x % 2, rest = static_cast<int>(blockIdx.x) / 2, head = rest % a.q_heads,
            block_index = rest / a.q_heads;
  const AttentionBlock block = a.blocks[block_index];
  if (block.count == 0 || (a.finished && block.is_short)) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float4* from = reinterpret_cast<const float4*>(
      a.dq_sums + ((head * a.padded_rows + int64_t{block_index} * 64) * kDim + part * (64 * kColumns)));
  float4 x[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) x[i] = __ldcs(from + (warp * kLoads + i) * 32 + lane);
  float sums[4 * kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    sums[4 * i] = x[i].x;
    sums[4 * i + 1] = x[i].y;
    sums[4 * i + 2] = x[i].z;
    sums[4 * i + 3] = x[i].w;
  }
  const int64_t token = block.first + 16 * warp;
  T* const out = static_cast<T*>(a.dq) + head * a.dq_strides.head + part * kColumns + token * a.dq_strides.token;
  hopper::store_fragments(sums, a.scale, out, a.dq_strides.token, block.count - 16 * warp);
}

template <class T, int kDim>
cudaError_t launch(const SideArguments& a, bool before, cudaStream_t stream) {
  // Heads of the same rows are adjacent in memory, so they are adjacent in the grid too.
  const auto count = static_cast<unsigned>(a.block_count * a.q_heads);
  return before ? launch_behind(prepare_kernel<T, kDim>, count, kThreads, 0, stream, a)
                : launch_behind(convert_kernel<T, kDim>, count * 2, 128, 0, stream, a);
}

cudaError_t pick(const SideArguments& a, int d, Element element, bool before, cudaStream_t stream) {
  if (element == Element::kF16)
    return d == 128 ? launch<__half, 128>(a, before, stream) : launch<__half, 64>(a, before, stream);
  return d == 128 ? launch<__nv_bfloat16, 128>(a, before, stream) : launch<__nv_bfloat16, 64>(a, before, stream);
}

}  // namespace

cudaError_t prepare(const SideArguments& a, int d, Element element, cudaStream_t stream) {
  return pick(a, d, element, true, stream);
}
cudaError_t convert(const SideArguments& a, int d, Element element, cudaStream_t stream) {
  return pick(a, d, element, false, stream);
}

}  // namespace trireme::kernels::backward
