#include "kernels/embedding/embedding.cuh"

#include "kernels/launch.h"

#include <utility>

namespace trireme::kernels {

namespace {

constexpr int kThreads = 1024, kItems = 2, kWarps = kThreads / 32, kBlockKeys = kThreads * kItems, kDigitBits = 8,
              kDigits = 1 << kDigitBits, kShares = kThreads / kDigits, kMostPasses = 4,
              kMostBlocks = 256;  // upper limit, because each block reads the counts of all blocks

struct Digit {
  int shift = 0, bits = 0;
  __device__ uint32_t of(uint32_t key) const { return key >> shift & ((1u << bits) - 1); }
};

struct Pass {
  const uint32_t* from = nullptr;  // null: the first pass reads the ids
  uint32_t* to = nullptr;
  // [blocks, kDigits]: how often each value of this pass's digit occurs in each block's keys
  const uint32_t* counts = nullptr;
  uint32_t* next_counts = nullptr;  // the same for the next digit in the order that this pass produces; may be null
  Digit digit, next;
};

int64_t blocks_of(int64_t tokens) { return ceil_div(tokens, kBlockKeys); }

__device__ inline uint32_t key_of(const KeySort& s, int64_t token) {
  const int64_t id = s.ids[token];
  return static_cast<uint32_t>(id >= 0 && id < s.vocab ? id : s.vocab) << s.token_bits | static_cast<uint32_t>(token);
}

/// Counts the first digit per block and zeroes the counters of the later passes.
__global__ void __launch_bounds__(kThreads) count_kernel(const KeySort s, const Digit digit, const int passes) {
  __shared__ uint32_t count[kDigits];
  allow_next_kernel();
  if (threadIdx.x < kDigits) count[threadIdx.x] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *s.zeroed = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kBlockKeys + i * kThreads + threadIdx.x;
    if (token < s.tokens) atomicAdd(&count[digit.of(key_of(s, token))], 1);
  }
  __syncthreads();
  if (threadIdx.x >= kDigits) return;
  uint32_t* to = s.counts + blockIdx.x * kDigits + threadIdx.x;
  *to = count[threadIdx.x];
  for (int pass = 1; pass < passes; ++pass) to[static_cast<int64_t>(pass) * gridDim.x * kDigits] = 0;
}

/// Moves a block's keys to their place in the order of the digit. A warp has 32 kItems consecutive keys.
__global__ void __launch_bounds__(kThreads) pass_kernel(const KeySort s, const Pass pass) {
  __shared__ uint16_t place[kWarps][kDigits];  // number of keys with the digit in the block's earlier warps
  __shared__ uint32_t all[kDigits], before[kDigits],
      of_warp[kDigits / 32];  // per warp: in all blocks, and in the earlier blocks
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            digit_here = static_cast<int>(threadIdx.x) % kDigits, share = static_cast<int>(threadIdx.x) / kDigits;
  allow_next_kernel();
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * kDigits; i += kThreads) place[i / kDigits][i % kDigits] = 0;
  if (share == 0) all[digit_here] = before[digit_here] = 0;
  await_kernel_before();

  uint32_t key[kItems], rank[kItems];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kBlockKeys + warp * 32 * kItems + lane;
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    if (begin + 32 * i < s.tokens)
      key[i] = pass.from == nullptr ? key_of(s, begin + 32 * i) : __ldcg(pass.from + begin + 32 * i);
  uint32_t share_all = 0, share_before = 0;
#pragma unroll 16
  for (unsigned block = static_cast<unsigned>(share); block < gridDim.x; block += kShares) {
    const uint32_t count = __ldcg(pass.counts + block * kDigits + digit_here);
    share_all += count;
    if (block < blockIdx.x) share_before += count;
  }
  __syncthreads();
  atomicAdd(&all[digit_here], share_all);
  atomicAdd(&before[digit_here], share_before);

#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool here = begin + 32 * i < s.tokens;
    const uint32_t digit = here ? pass.digit.of(key[i]) : 0;
    uint32_t alike = __ballot_sync(0xffffffffu, here);  // lanes with the same digit
#pragma unroll
    for (int bit = 0; bit < kDigitBits; ++bit) {
      const bool set = digit >> bit & 1;
      const uint32_t others = __ballot_sync(0xffffffffu, set);
      alike &= set ? others : ~others;
    }
    const uint32_t below = alike & ((1u << lane) - 1), earlier = place[warp][digit];
    rank[i] = earlier + static_cast<uint32_t>(__popc(below));
    __syncwarp();
    if (here && below == 0) place[warp][digit] = static_cast<uint16_t>(earlier + static_cast<uint32_t>(__popc(alike)));
    __syncwarp();
  }
  __syncthreads();

  // Where the digit begins: number of keys with smaller digits, plus keys with this digit in earlier blocks.
  const uint32_t total = all[digit_here];
  uint32_t up_to = total;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, up_to, distance);
    if (lane >= distance) up_to += other;
  }
  if (share == 0 && lane == 31) of_warp[warp] = up_to;
  if (share == 1) {
    uint32_t in_block = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const uint32_t count = place[w][digit_here];
      place[w][digit_here] = static_cast<uint16_t>(in_block);
      in_block += count;
    }
  }
  __syncthreads();
  if (share == 0) {
    uint32_t start = up_to - total + before[digit_here];
    for (int w = 0; w < warp; ++w) start += of_warp[w];
    before[digit_here] = start;
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (begin + 32 * i >= s.tokens) continue;
    const uint32_t digit = pass.digit.of(key[i]), to = before[digit] + place[warp][digit] + rank[i];
    pass.to[to] = key[i];
    if (pass.next_counts != nullptr) atomicAdd(pass.next_counts + to / kBlockKeys * kDigits + pass.next.of(key[i]), 1);
  }
}

}  // namespace

bool embedding_sort_fits(int64_t tokens, int id_bits, int token_bits) {
  return blocks_of(tokens) <= kMostBlocks && id_bits + token_bits <= 32;
}

int64_t embedding_sort_counts(int64_t tokens) {
  const int64_t blocks = blocks_of(tokens);
  return kMostPasses * kDigits * (blocks < kMostBlocks ? blocks : kMostBlocks);
}

cudaError_t embedding_sort(const KeySort& s, cudaStream_t stream) {
  const int passes = static_cast<int>(ceil_div(s.id_bits, kDigitBits));
  const int64_t blocks = blocks_of(s.tokens);
  if (s.tokens == 0 || !embedding_sort_fits(s.tokens, s.id_bits, s.token_bits)) return cudaErrorInvalidValue;
  const auto digit = [&](int pass) {
    const int left = s.id_bits - pass * kDigitBits;
    return Digit{s.token_bits + pass * kDigitBits, left < kDigitBits ? left : kDigitBits};
  };
  const dim3 grid(static_cast<unsigned>(blocks));
  count_kernel<<<grid, kThreads, 0, stream>>>(s, digit(0), passes);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  uint32_t *to = passes % 2 == 1 ? s.keys : s.spare, *other = passes % 2 == 1 ? s.spare : s.keys;
  Pass p;
  for (int pass = 0; pass < passes; ++pass) {
    p.to = to, p.counts = s.counts + pass * blocks * kDigits, p.digit = digit(pass);
    const bool last = pass + 1 == passes;
    p.next_counts = last ? nullptr : s.counts + (pass + 1) * blocks * kDigits;
    if (!last) p.next = digit(pass + 1);
    if (const cudaError_t error = launch_behind(pass_kernel, grid, dim3(kThreads), 0, stream, s, p);
        error != cudaSuccess)
      return error;
    p.from = to;
    std::swap(to, other);
  }
  return cudaSuccess;
}

}  // namespace trireme::kernels
