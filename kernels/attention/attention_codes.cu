// Codes of queries, keys and values in the padded layout, for the forward kernel. The values are transposed, and each
// 32 of their keys are in the order in which the threads hold probabilities: key 8 (2 h + b) + 2 q + e is at 16 h + 4 q
// + 2 b + e, with h, b, e in 0 … 1 and q in 0 … 3.

#include "kernels/attention/attention_codes.cuh"
#include "kernels/attention/attention_launch.h"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kDim = 128, kThreads = 256, kRows = 64, kChunks = kDim / 8, kGroups = kThreads / kChunks;

struct Source {
  AttentionTensor q, k, v;
  const AttentionBlock* blocks;
  int64_t tokens, rows;  // rows of the padded layout
  int q_heads, kv_heads;
};

/// The eight values of a thread's chunk of a token.
template <class T>
__device__ inline Vec<T, 8> chunk_of(const AttentionTensor x, int64_t token, int head) {
  return as_pack<T>(load_words(static_cast<const T*>(x.data) + token * x.strides.token + head * x.strides.head +
                               threadIdx.x % kChunks * 8));
}

/// amax [2, kv_heads], zeros before. A block takes kThreads tokens of a head of keys or values.
template <class T>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(const AttentionTensor k, const AttentionTensor v, int kv_heads, int64_t tokens, float* amax) {
  await_kernel_before();
  const int which = static_cast<int>(blockIdx.y), head = which % kv_heads;
  const AttentionTensor x = which < kv_heads ? k : v;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x / kChunks;
  Amax<T> top;
#pragma unroll
  for (int i = 0; i < kThreads / kGroups; ++i)
    if (first + i * kGroups < tokens) top.add(chunk_of<T>(x, first + i * kGroups, head));
  raise_amax_by_warp(amax + which, top.get());
}

template <class T>
cudaError_t find_amax(const AttentionTensor& k, const AttentionTensor& v, int kv_heads, int heads, int64_t tokens,
                      float* amax, cudaStream_t stream) {
  if (heads == 0) return cudaSuccess;
  if (const cudaError_t status = cudaMemsetAsync(amax, 0, static_cast<size_t>(heads) * sizeof(float), stream);
      status != cudaSuccess)
    return status;
  return launch_behind(amax_kernel<T>,
                       dim3(static_cast<unsigned>(ceil_div(tokens, kThreads)), static_cast<unsigned>(heads)), kThreads,
                       0, stream, k, v, kv_heads, tokens, amax);
}

/// The scale of a row of queries, whose chunks a half warp has.
template <class T>
__device__ inline float row_inverse(const Vec<T, 8>& chunk) {
  Amax<T> top;
  top.add(chunk);
  float most = top.get();
#pragma unroll
  for (int lanes = 1; lanes < kChunks; lanes *= 2) most = amax_of(most, __shfl_xor_sync(0xffffffffu, most, lanes));
  return code_inverse(most);
}

template <class T>
__device__ inline Words<2> codes_of(const Vec<T, 8>& chunk, float inverse) {
  float values[8];
  to_floats(chunk, values);
  return to_fp8<__NV_E4M3>(values, 1.0f / inverse);
}

/// A block takes kRows rows of the padded layout of a head; rows beyond the sequence become zeros.
template <class T>
__global__ void __launch_bounds__(kThreads) codes_kernel(const Source a, const AttentionCodes to) {
  await_kernel_before();
  __shared__ uint32_t tile[kDim][kRows / 4 + 1];
  const AttentionBlock block = a.blocks[blockIdx.x];
  const int chunk = threadIdx.x % kChunks, group = threadIdx.x / kChunks, which = static_cast<int>(blockIdx.y);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  if (which < a.q_heads + a.kv_heads) {
    const bool keys = which >= a.q_heads;
    const int head = keys ? which - a.q_heads : which, heads = keys ? a.kv_heads : a.q_heads;
#pragma unroll
    for (int i = 0; i < kRows / kGroups; ++i) {
      const int row = group + i * kGroups;
      Vec<T, 8> values{};
      if (row < block.count) values = chunk_of<T>(keys ? a.k : a.q, block.first + row, head);
      float inverse;
      if (keys) {
        inverse = code_inverse(to.amax[head]);
      } else {
        inverse = row_inverse<T>(values);
        if (chunk == 0) to.q_scales[(first + row) * heads + head] = inverse;
      }
      store_whole((keys ? to.k : to.q) + ((first + row) * heads + head) * kDim + chunk * 8,
                  codes_of<T>(values, inverse), false);
    }
    return;
  }
  const int head = which - a.q_heads - a.kv_heads;
  const float inverse = code_inverse(to.amax[a.kv_heads + head]);
  Words<2> codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = group / 4 * 16 + group % 4 * 2 + i / 2 * 8 + i % 2;
    Vec<T, 8> values{};
    if (row < block.count) values = chunk_of<T>(a.v, block.first + row, head);
    codes[i] = codes_of<T>(values, inverse);
  }
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const uint32_t low = __byte_perm(codes[0].word[w], codes[1].word[w], 0x5140),
                   low2 = __byte_perm(codes[2].word[w], codes[3].word[w], 0x5140),
                   high = __byte_perm(codes[0].word[w], codes[1].word[w], 0x7362),
                   high2 = __byte_perm(codes[2].word[w], codes[3].word[w], 0x7362);
    const int d = chunk * 8 + w * 4;
    tile[d][group] = __byte_perm(low, low2, 0x5410);
    tile[d + 1][group] = __byte_perm(low, low2, 0x7632);
    tile[d + 2][group] = __byte_perm(high, high2, 0x5410);
    tile[d + 3][group] = __byte_perm(high, high2, 0x7632);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kDim / kGroups; ++i) {
    const int d = group + i * kGroups;
    reinterpret_cast<uint32_t*>(to.v + (static_cast<int64_t>(head) * kDim + d) * a.rows + first)[chunk] =
        tile[d][chunk];
  }
}

template <class T>
cudaError_t run(const Source& a, const AttentionCodes& to, cudaStream_t stream) {
  const int kv = 2 * a.kv_heads;
  if (const cudaError_t status = find_amax<T>(a.k, a.v, a.kv_heads, kv, a.tokens, to.amax, stream);
      status != cudaSuccess)
    return status;
  return launch_behind(codes_kernel<T>,
                       dim3(static_cast<unsigned>(a.rows / kRows), static_cast<unsigned>(a.q_heads + kv)), kThreads, 0,
                       stream, a, to);
}

template <class T>
__global__ void __launch_bounds__(kThreads) round_kernel(const AttentionRound a) {
  await_kernel_before();
  const int chunk = threadIdx.x % kChunks, head = static_cast<int>(blockIdx.y);
#pragma unroll
  for (int i = 0; i < kRows / kGroups; ++i) {
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kChunks + i * kGroups;
    Vec<T, 8> values{};
    if (token < a.tokens) values = chunk_of<T>(a.x, token, head);
    const float inverse = head < a.rows ? row_inverse<T>(values) : code_inverse(a.amax[head - a.rows]);
    float rounded[8];
    from_fp8<__NV_E4M3, 8>(__builtin_bit_cast(Vec<uint16_t, 4>, codes_of<T>(values, inverse)), inverse, rounded);
    if (token < a.tokens)
      store_whole(static_cast<T*>(a.values) + (token * a.heads + head) * kDim + chunk * 8, from_floats<T>(rounded));
  }
}

template <class T>
cudaError_t round(const AttentionRound& a, cudaStream_t stream) {
  AttentionTensor others = a.x;
  others.data = static_cast<T*>(a.x.data) + a.rows * a.x.strides.head;
  if (const cudaError_t status =
          find_amax<T>(others, others, a.heads - a.rows, a.heads - a.rows, a.tokens, a.amax, stream);
      status != cudaSuccess)
    return status;
  return launch_behind(round_kernel<T>,
                       dim3(static_cast<unsigned>(ceil_div(a.tokens, kRows)), static_cast<unsigned>(a.heads)), kThreads,
                       0, stream, a);
}

}  // namespace

int64_t attention_codes_workspace(const AttentionShape& shape, int64_t block_count) {
  return block_count * kRows * (int64_t{shape.q_heads} * (kDim + 4) + int64_t{shape.kv_heads} * 2 * kDim) +
         shape.kv_heads * 2 * int64_t{sizeof(float)};
}

AttentionCodes attention_codes(const AttentionForward& a) {
  const int64_t rows = a.block_count * kRows;
  AttentionCodes codes;
  codes.q = static_cast<uint8_t*>(a.workspace);
  codes.k = codes.q + rows * a.shape.q_heads * kDim;
  codes.v = codes.k + rows * a.shape.kv_heads * kDim;
  codes.q_scales = reinterpret_cast<float*>(codes.v + rows * a.shape.kv_heads * kDim);
  codes.amax = codes.q_scales + rows * a.shape.q_heads;
  return codes;
}

cudaError_t make_attention_codes(const AttentionForward& a, cudaStream_t stream) {
  const AttentionShape& s = a.shape;
  const Source source{a.q, a.k, a.v, a.blocks, s.tokens, a.block_count * kRows, s.q_heads, s.kv_heads};
  const AttentionCodes codes = attention_codes(a);
  return s.element == Element::kF16 ? run<__half>(source, codes, stream) : run<__nv_bfloat16>(source, codes, stream);
}

cudaError_t attention_round(const AttentionRound& a, cudaStream_t stream) {
  if (const cudaError_t status = check_attention({a.tokens, a.heads, a.heads, kDim, false, 1, a.element});
      status != cudaSuccess)
    return status;
  if (!valid_tensor(a.x) || a.rows < 0 || a.rows > a.heads || a.values == nullptr || !aligned16(a.values) ||
      a.amax == nullptr)
    return cudaErrorInvalidValue;
  return a.element == Element::kF16 ? round<__half>(a, stream) : round<__nv_bfloat16>(a, stream);
}

}  // namespace trireme::kernels
