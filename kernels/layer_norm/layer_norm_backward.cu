#include "kernels/column_sum/column_sum.h"
#include "kernels/layer_norm/layer_norm.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

constexpr int kScalarThreads = 256, kMaxThreads = 512, kStages = 1;
constexpr int64_t kWidestWithCodes = 2048;
/// Largest number of elements of a row per thread.
template <class T>
constexpr int kElements = sizeof(T) == 2 ? 32 : 16;

bool wants_sums(const LayerNormBackward& a) {
  return a.d_gamma != nullptr || a.d_beta != nullptr || a.d_bias != nullptr;
}
/// Number of vectors that a block writes to the workspace: for gamma, for beta, for bias.
int sums_of(const LayerNormBackward& a) { return a.d_bias != nullptr ? 3 : wants_sums(a) ? 2 : 0; }

/// Backward without sums over rows.
template <class T>
__global__ void __launch_bounds__(kMaxThreads) backward_kernel(const LayerNormBackward a) {
  await_kernel_before();
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[2][2 * 32];
  constexpr int kWidth = 16 / sizeof(T), kPacks = kElements<T> / kWidth;
  using Pack = Vec<T, kWidth>;
  const bool more = a.d_sum != nullptr;
  RowCursor cursor(a.rows, static_cast<int>(a.columns / kWidth));
  const int64_t row_bytes = a.columns * static_cast<int64_t>(sizeof(T));
  char* free = shared;
  RowPrefetch<kPacks, kStages> gradients(free, a.dy, row_bytes), inputs(free, a.sum, row_bytes),
      others(free, a.d_sum, row_bytes, more);
  start_inputs<kStages>(cursor, gradients, inputs, others);
  const RowVector<T, kPacks> gammas(a.gamma, cursor);
  const float share = __fdividef(1.0f, static_cast<float>(a.columns));

  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    const int64_t base = cursor.row * a.columns;
    const float rstd = a.rstd[cursor.row],
                shift = -a.mean[cursor.row] * rstd;  // n = s * rstd + shift
    RowMask mask;
    if (a.dropout.ids != nullptr) mask = RowMask(a.dropout, cursor.row, a.columns);
    Pack dy[kPacks], s[kPacks];
    float dot[2] = {0.0f, 0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float g[kWidth], n[kWidth], w[kWidth];
      dy[p] = packed(gradients.template take<Pack>(p, cursor));
      s[p] = packed(inputs.template take<Pack>(p, cursor));
      to_floats(dy[p], g);
      to_floats(s[p], n);
      to_floats(gammas.get(p, cursor), w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        n[i] = fmaf(n[i], rstd, shift);
        g[i] *= w[i];
        dot[0] += g[i];
        dot[1] = fmaf(g[i], n[i], dot[1]);
      }
    }
    row_sum(dot, blockDim.x, scratch[cursor.turn]);
    // ds = rstd * (g - mean(g) - n * mean(g n)) = rstd * g + slope * s + level
    const float slope = -rstd * rstd * dot[1] * share, level = -rstd * (dot[0] + dot[1] * shift) * share;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      const int64_t at = base + cursor.index(p) * kWidth;
      float g[kWidth], v[kWidth], w[kWidth];
      to_floats(packed(dy[p]), g);
      to_floats(packed(s[p]), v);
      to_floats(gammas.get(p, cursor), w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) g[i] = fmaf(g[i] * w[i], rstd, fmaf(v[i], slope, level));
      if (more) {
        to_floats(others.template take<Pack>(p, cursor), w);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] += w[i];
      }
      Pack out = from_floats<T>(g);
      if (a.ds != nullptr) store(static_cast<T*>(a.ds) + at, out);
      if (a.dropout.ids != nullptr) {
        to_floats(out, g);
        mask.apply(g, cursor.index(p) * kWidth);
        out = from_floats<T>(g);
        if (a.dx != nullptr) store(static_cast<T*>(a.dx) + at, out);
      }
    }
    end_row();
  }
}

/// Any width and alignment. Sums over rows are formed in shared memory, or in the workspace where a block's shared
/// memory is too small; each thread touches its own columns only.
template <class T, bool kShared>
__global__ void __launch_bounds__(kScalarThreads) backward_scalar_kernel(const LayerNormBackward a, int count) {
  extern __shared__ float sums[];
  __shared__ float scratch[2][2 * 32];
  const int columns = static_cast<int>(a.columns);
  float* const gathered = kShared ? sums : a.workspace + static_cast<int64_t>(blockIdx.x) * count * columns;
  const float share = 1.0f / static_cast<float>(columns);
  const T *dy = static_cast<const T*>(a.dy), *s = static_cast<const T*>(a.sum), *gamma = static_cast<const T*>(a.gamma);
  for (int v = 0; v < count; ++v)
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) gathered[v * columns + c] = 0.0f;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    const int64_t base = row * columns;
    const float rstd = a.rstd[row], shift = -a.mean[row] * rstd;
    float dot[2] = {0.0f, 0.0f};
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
      const float g = to_float(dy[base + c]) * to_float(gamma[c]);
      dot[0] += g;
      dot[1] = fmaf(g, fmaf(to_float(s[base + c]), rstd, shift), dot[1]);
    }
    row_sum(dot, kScalarThreads, scratch[turn]);
    const float mean_g = dot[0] * share, mean_gn = dot[1] * share;
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
      const float d = to_float(dy[base + c]), n = fmaf(to_float(s[base + c]), rstd, shift);
      float gradient = rstd * (fmaf(d, to_float(gamma[c]), -mean_g) - n * mean_gn);
      if (a.d_sum != nullptr) gradient += to_float(static_cast<const T*>(a.d_sum)[base + c]);
      T out = from_float<T>(gradient);
      if (a.ds != nullptr) static_cast<T*>(a.ds)[base + c] = out;
      if (a.dropout.ids != nullptr) {
        out = from_float<T>(RowMask(a.dropout, row, columns)(to_float(out), c));
        if (a.dx != nullptr) static_cast<T*>(a.dx)[base + c] = out;
      }
      if (count == 0) continue;
      gathered[c] = fmaf(d, n, gathered[c]);
      gathered[columns + c] += d;
      if (count == 3) gathered[2 * columns + c] += to_float(out);
    }
  }
  if constexpr (kShared)
    for (int v = 0; v < count; ++v)
      for (int c = threadIdx.x; c < columns; c += kScalarThreads)
        a.workspace[(static_cast<int64_t>(blockIdx.x) * count + v) * columns + c] = gathered[v * columns + c];
}

cudaError_t finish(const LayerNormBackward& a, int64_t blocks, cudaStream_t stream) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || !wants_sums(a)) return error;
  return column_sums(a.workspace, blocks, a.columns, {{a.d_gamma, a.d_beta, a.d_bias}, sums_of(a)}, a.element, stream);
}

template <class T>
cudaError_t launch_scalar(const LayerNormBackward& a, cudaStream_t stream) {
  const size_t sums = static_cast<size_t>(sums_of(a) * a.columns) * sizeof(float);
  const bool fits = fits_shared_memory(sums);
  const auto kernel = fits ? backward_scalar_kernel<T, true> : backward_scalar_kernel<T, false>;
  const size_t shared = fits ? sums : 0;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  const int64_t blocks = resident_blocks(kernel, kScalarThreads, shared, kLayerNormBlocksPerSm, a.rows);
  kernel<<<static_cast<unsigned>(blocks), kScalarThreads, shared, stream>>>(a, sums_of(a));
  return finish(a, blocks, stream);
}

/// Whether launch_scalar() serves the arguments, whose elements have so many bytes.
bool runs_scalar(const LayerNormBackward& a, int64_t bytes) {
  const int64_t width = 16 / bytes;
  return a.columns % width != 0 || !aligned16(a.dy, a.sum, a.gamma, a.d_sum, a.ds, a.dx, a.workspace) ||
         (wants_sums(a) && !runs_sm90a() && a.columns / width > kPortablePacks);
}

template <class T>
cudaError_t launch(const LayerNormBackward& a, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T), kPacks = kElements<T> / kWidth;
  if (wants_sums(a)) {
    int64_t partials = 0;
    const cudaError_t error = layer_norm_backward_sums(a, &partials, stream);
    return error != cudaSuccess ? error : finish(a, partials, stream);
  }
  if (a.columns > static_cast<int64_t>(kElements<T>) * kMaxThreads) return launch_scalar<T>(a, stream);
  return launch_rows(backward_kernel<T>, a, a.rows, row_geometry(a.columns / kWidth, kPacks),
                     (a.d_sum != nullptr ? 48 : 32) * kPacks, stream);
}

}  // namespace

bool layer_norm_backward_writes_codes(const LayerNormBackward& a) {
  return a.element != Element::kF32 && a.dropout.ids != nullptr && a.ds != nullptr && a.d_bias != nullptr &&
         a.d_sum == nullptr && a.columns <= kWidestWithCodes && !runs_scalar(a, 2);
}

int64_t layer_norm_backward_workspace(int64_t rows, int64_t columns) {
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * kLayerNormBlocksPerSm;
  return (rows < blocks ? rows : blocks) * kMaxColumnSums * columns;
}

cudaError_t layer_norm_backward(const LayerNormBackward& a, cudaStream_t stream) {
  if (a.columns == 0) return cudaSuccess;
  if (a.columns > kMaxColumns || a.rows > INT32_MAX || !valid(a.dropout, a.columns) ||
      (wants_sums(a) && a.rows > 0 && a.workspace == nullptr) || (a.dx != nullptr && a.dropout.ids == nullptr) ||
      (a.codes != nullptr && !layer_norm_backward_writes_codes(a)))
    return cudaErrorInvalidValue;
  if (a.rows == 0) return finish(a, 0, stream);
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    return runs_scalar(a, sizeof(T)) ? launch_scalar<T>(a, stream) : launch<T>(a, stream);
  });
}

}  // namespace trireme::kernels
