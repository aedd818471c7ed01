#include "kernels/fp8/fp8.cuh"
#include "kernels/layer_norm/layer_norm.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

constexpr int kMaxThreads = 512, kScalarThreads = 256;
/// Largest number of elements of a row per thread.
template <class T>
constexpr int kElements = sizeof(T) == 2 ? 32 : 16;
/// One pass over a row computes mean and mean square; the variance is their difference. Where mean^2 exceeds kSteep
/// times the variance the difference loses more than about four bits, and the variance is computed in a second pass.
constexpr float kSteep = 16.0f;

/// Rows with FP8 output only have their registers limited, so that more rows are in flight. kPacks: packs of a row per
/// thread.
template <class T, int kPacks, bool kFp8, bool kPrologue, bool kWhole>
__global__ void __launch_bounds__(kPacks > 8   ? 192
                                  : kPacks > 4 ? 256
                                               : kMaxThreads,
                                  !kWhole || !__is_same(T, __nv_bfloat16) ? 1
                                  : kFp8 && !kPrologue                    ? 3
                                                       : 2) forward_kernel(const LayerNormForward a) {
  await_kernel_before();
  __shared__ float totals[2 * 32], scratch[2][32];
  constexpr int kWidth = 16 / sizeof(T);
  constexpr bool kNarrow = kWhole && kFp8 && !kPrologue;
  const RowCursor<kWhole ? kPacks : 0> cursor(a.rows, static_cast<int>(a.columns / kWidth));
  if (!cursor.active()) return;  // whole warps exit; no barrier waits for them
  const int64_t base = cursor.row * a.columns;
  const bool residual = kPrologue && a.residual != nullptr,
             once = streams(a.rows * a.columns * static_cast<int64_t>(sizeof(T)));
  const float share = __fdividef(1.0f, static_cast<float>(a.columns));
  Words<4> s[kPacks], r[kPrologue ? kPacks : 1];
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (cursor.holds(p)) s[p] = load_words(static_cast<const T*>(a.x) + base + cursor.index(p) * kWidth);
  if constexpr (kPrologue) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (residual && cursor.holds(p))
        r[p] = load_words(static_cast<const T*>(a.residual) + base + cursor.index(p) * kWidth);
  }
  RowMask mask;
  if (kPrologue && a.dropout.ids != nullptr) mask = RowMask(a.dropout, cursor.row, a.columns);
  float total[2] = {0.0f, 0.0f};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!cursor.holds(p)) continue;
    float v[kWidth];
    if constexpr (kPrologue) {
      const int column = cursor.index(p) * kWidth;
      if (a.bias != nullptr)
        s[p] = as_words(add(as_pack<T>(s[p]), load_shared_read<T, kWidth>(static_cast<const T*>(a.bias) + column)));
      if (a.dropout.ids != nullptr) {
        to_floats(as_pack<T>(s[p]), v);
        mask.apply(v, column);
        s[p] = as_words(from_floats<T>(v));
      }
      if (residual) s[p] = as_words(add(as_pack<T>(s[p]), as_pack<T>(r[p])));
      if (a.sum != nullptr) store_whole(static_cast<T*>(a.sum) + base + column, s[p], once);
    }
    to_floats(as_pack<T>(s[p]), v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      total[0] += v[i];
      total[1] = fmaf(v[i], v[i], total[1]);
    }
  }
  row_sum(total, blockDim.x, totals);
  const float mean = total[0] * share;
  float variance = fmaf(total[1], share, -mean * mean);
  if (!(mean * mean <= kSteep * variance)) {  // uniform over the row
    float square[1] = {0.0f};
#pragma unroll(kNarrow ? 1 : kPacks)
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float v[kWidth];
      // Reread to save registers: s[p] would keep the first pass's conversions alive until here.
      if constexpr (kNarrow)
        to_floats(load_shared_read<T, kWidth>(static_cast<const T*>(a.x) + base + cursor.index(p) * kWidth), v);
      else
        to_floats(as_pack<T>(s[p]), v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) square[0] = fmaf(v[i] - mean, v[i] - mean, square[0]);
    }
    row_sum(square, blockDim.x, scratch[0]);
    variance = square[0] * share;
  }
  const float rstd = rsqrtf(variance + a.eps), shift = -mean * rstd;
  if (threadIdx.x == 0) {
    if (a.mean != nullptr) a.mean[cursor.row] = mean;
    if (a.rstd != nullptr) a.rstd[cursor.row] = rstd;
  }
  Amax<T> amax;
  [[maybe_unused]] const UnpackAgain again(a.rows);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!cursor.holds(p)) continue;
    const int column = cursor.index(p) * kWidth;
    const Words<4> gammas = as_words(load_shared_read<T, kWidth>(static_cast<const T*>(a.gamma) + column)),
                   betas = as_words(load_shared_read<T, kWidth>(static_cast<const T*>(a.beta) + column));
    constexpr int kPart = kNarrow ? kWidth / 2 : kWidth, kWords = kPart * static_cast<int>(sizeof(T)) / 4;
#pragma unroll
    for (int first = 0; first < 4; first += kWords) {
      float v[kPart], gamma[kPart], beta[kPart];
      if constexpr (kNarrow)
        again(part_of<T, kPart>(s[p], first), v);
      else
        to_floats(packed(as_pack<T>(s[p])), v);
      to_floats(part_of<T, kPart>(gammas, first), gamma);
      to_floats(part_of<T, kPart>(betas, first), beta);
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        const float n = sizeof(T) == 2 ? fmaf(v[i], rstd, shift) : (v[i] - mean) * rstd;
        v[i] = fmaf(n, gamma[i], beta[i]);
      }
      const auto out = __builtin_bit_cast(Words<kWords>, from_floats<T>(v));
#pragma unroll
      for (int w = 0; w < kWords; ++w) s[p].word[first + w] = out.word[w];
    }
    if constexpr (!kFp8) store_whole(static_cast<T*>(a.y) + base + column, s[p], once);
    if constexpr (kFp8) amax.add(as_pack<T>(s[p]));
  }
  if constexpr (kFp8) {
    if (kPrologue && a.y != nullptr) store_row(static_cast<T*>(a.y) + base, s, cursor, once);
    const float scale = settle_scale(a.fp8, row_amax(amax.get(), blockDim.x, scratch[1]), cursor.row);
    store_row_fp8<T>(a.fp8.data + base, s, cursor, scale, once);
  }
}

/// Any width and alignment: the row stays in shared memory between the passes; each thread touches its own columns
/// only.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) forward_scalar_kernel(const LayerNormForward a) {
  extern __shared__ float values[];
  __shared__ float scratch[3][32];
  const int64_t row = blockIdx.x, base = row * a.columns;
  const int columns = static_cast<int>(a.columns);
  float total[1] = {0.0f};
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    T s = static_cast<const T*>(a.x)[base + c];
    if (a.bias != nullptr) s = from_float<T>(to_float(s) + to_float(static_cast<const T*>(a.bias)[c]));
    if (a.dropout.ids != nullptr) s = from_float<T>(RowMask(a.dropout, row, columns)(to_float(s), c));
    if (a.residual != nullptr) s = from_float<T>(to_float(s) + to_float(static_cast<const T*>(a.residual)[base + c]));
    if (a.sum != nullptr) static_cast<T*>(a.sum)[base + c] = s;
    values[c] = to_float(s);
    total[0] += values[c];
  }
  row_sum(total, kScalarThreads, scratch[0]);
  const float share = 1.0f / static_cast<float>(columns), mean = total[0] * share;
  float square[1] = {0.0f};
  for (int c = threadIdx.x; c < columns; c += kScalarThreads)
    square[0] = fmaf(values[c] - mean, values[c] - mean, square[0]);
  row_sum(square, kScalarThreads, scratch[1]);
  const float rstd = rsqrtf(square[0] * share + a.eps);
  if (threadIdx.x == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    if (a.rstd != nullptr) a.rstd[row] = rstd;
  }
  float amax = 0.0f;
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    const T y = from_float<T>(fmaf((values[c] - mean) * rstd, to_float(static_cast<const T*>(a.gamma)[c]),
                                   to_float(static_cast<const T*>(a.beta)[c])));
    if (a.y != nullptr) static_cast<T*>(a.y)[base + c] = y;
    values[c] = to_float(y);
    amax = amax_of(amax, values[c]);
  }
  if (a.fp8.data == nullptr) return;
  const float scale = settle_scale(a.fp8, row_amax(amax, kScalarThreads, scratch[2]), row);
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    const float value[1] = {values[c]};
    store_fp8(a.fp8.data + base + c, value, scale);
  }
}

template <class T, int kPacks, bool kFp8, bool kPrologue, bool kWhole>
cudaError_t launch(const LayerNormForward& a, cudaStream_t stream) {
  return launch_each_row(forward_kernel<T, kPacks, kFp8, kPrologue, kWhole>, a, a.rows,
                         row_geometry(a.columns * static_cast<int64_t>(sizeof(T)) / 16, kPacks), stream);
}

template <class T, bool kFp8>
cudaError_t launch(const LayerNormForward& a, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T), kPacks = kElements<T> / kWidth;
  // The kWhole variants gain where arithmetic limits the kernel. With bias, dropout, residual or sum, memory limits it,
  // and many small blocks are faster.
  constexpr bool kMayBeWhole = sizeof(T) == 2, kWholeFp8 = kMayBeWhole && kFp8;
  const int64_t packs = a.columns / kWidth;
  const bool whole = kMayBeWhole && whole_rows(packs, kPacks);
  if (a.bias != nullptr || a.dropout.ids != nullptr || a.residual != nullptr || a.sum != nullptr ||
      (kFp8 && a.y != nullptr))
    return whole && kFp8 ? launch<T, kPacks, kFp8, true, kWholeFp8>(a, stream)
                         : launch<T, kPacks, kFp8, true, false>(a, stream);
  if constexpr (kFp8 && __is_same(T, __nv_bfloat16)) {
    // With four packs a third of a thread's instructions are its once-a-row work.
    if (whole_rows(packs, 8)) return launch<T, 8, kFp8, false, true>(a, stream);
    if (whole_rows(packs, 10)) return launch<T, 10, kFp8, false, true>(a, stream);
  }
  return whole ? launch<T, kPacks, kFp8, false, kMayBeWhole>(a, stream)
               : launch<T, kPacks, kFp8, false, false>(a, stream);
}

template <class T>
cudaError_t launch_scalar(const LayerNormForward& a, cudaStream_t stream) {
  const size_t shared = a.columns * sizeof(float);
  if (const cudaError_t error = allow_shared_memory(forward_scalar_kernel<T>, shared); error != cudaSuccess)
    return error;
  forward_scalar_kernel<T><<<static_cast<unsigned>(a.rows), kScalarThreads, shared, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

cudaError_t layer_norm_forward(const LayerNormForward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.columns > kMaxColumns || a.rows > INT32_MAX || !valid(a.dropout, a.columns) ||
      (a.y == nullptr && a.fp8.data == nullptr))
    return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if (a.columns % (16 / sizeof(T)) != 0 || a.columns > kElements<T> * kMaxThreads ||
        !aligned16(a.x, a.bias, a.residual, a.gamma, a.beta, a.sum, a.y, a.fp8.data))
      return launch_scalar<T>(a, stream);
    return a.fp8.data != nullptr ? launch<T, true>(a, stream) : launch<T, false>(a, stream);
  });
}

}  // namespace trireme::kernels
