#include "kernels/cluster.cuh"
#include "kernels/swiglu/swiglu.cuh"

namespace trireme::kernels {

namespace {

using namespace swiglu_rows;

/// Number of blocks that share a row of `threads` threads, each with whole warps. Several small blocks on a
/// multiprocessor hide each other's wait for a row's amax (GELU backward with 16,384 columns: 5 blocks of 128 threads
/// instead of 1 of 512).
int blocks_of_whole_row(int threads) {
  int parts = 1;
  while (parts < 4 && threads / parts >= 256 && threads / parts % 64 == 0) parts *= 2;
  return parts;
}

/// The largest value of a row that a cluster's blocks share, at most 32 warps in total; v >= 0. It is also a barrier of
/// the block for its shared memory.
__device__ inline float cluster_amax(float v, const TransactionBarrier& barrier, uint32_t parity, float* scratch) {
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32, parts = static_cast<int>(cluster_size());
  v = warp_amax(v);
  __syncwarp();
  if (threadIdx.x == 0)
    barrier.arm(static_cast<uint32_t>(parts * warps) * sizeof(float));
  else if (lane == 0)
    barrier.arrive();
  if (lane < parts)
    barrier.send(&scratch[static_cast<int>(cluster_rank()) * warps + warp], static_cast<uint32_t>(lane), v);
  barrier.wait(parity);
  return warp_amax(lane < parts * warps ? scratch[lane] : 0.0f);
}

/// Thread limits of backward from codes, which needs few registers per pack. A row of more than kOwnThreads threads
/// would occupy a multiprocessor alone, and nothing would hide its wait for the row's data and amax; a cluster shares
/// such a row.
constexpr int kCodesThreads = 1024, kOwnThreads = 512;
static_assert(kFewPacks * kCodesThreads >= kManyPacks * kMaxThreads);

template <class T, int kPacks, bool kMaxima>
__global__ void __launch_bounds__(kMaxima ? kMaximaThreads : kMaxThreads) backward_kernel(const SwigluBackward a) {
  await_kernel_before();
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[2][32];
  using Pack = Vec<T, kWidth>;
  RowCursor cursor(a.tokens, static_cast<int>(a.f / kWidth));
  char* free = shared;
  const T* gate_up = static_cast<const T*>(a.gate_up);
  RowPrefetch<kPacks, kStages> gradients(free, a.dy, 2 * a.f), gates(free, gate_up, 4 * a.f),
      ups(free, gate_up + a.f, 4 * a.f);
  start_inputs<kStages>(cursor, gradients, gates, ups);
  ColumnMaxima<T, kPacks, kMaxima> gate_maxima, up_maxima;
  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    Pack d_gate[kPacks], d_up[kPacks];
    Amax<T> top;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float d[kWidth], g[kWidth], u[kWidth];
      to_floats(gradients.template take<Pack>(p, cursor), d);
      to_floats(gates.template take<Pack>(p, cursor), g);
      to_floats(ups.template take<Pack>(p, cursor), u);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) swiglu_gradient<T>(d[i], g[i], u[i]);
      d_gate[p] = packed(from_floats<T>(g));
      d_up[p] = packed(from_floats<T>(u));
      top.add(d_gate[p]);
      top.add(d_up[p]);
      gate_maxima.add(p, d_gate[p]);
      up_maxima.add(p, d_up[p]);
      if (a.d_gate_up == nullptr) continue;
      T* out = static_cast<T*>(a.d_gate_up) + cursor.row * 2 * a.f + cursor.index(p) * kWidth;
      store(out, d_gate[p]);
      store(out + a.f, d_up[p]);
    }
    end_row();
    if (a.fp8.data == nullptr) continue;
    const float scale = settle_scale(a.fp8, row_amax(top.get(), blockDim.x, scratch[cursor.turn]), cursor.row);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      uint8_t* out = a.fp8.data + cursor.row * 2 * a.f + cursor.index(p) * kWidth;
      float v[kWidth];
      to_floats(packed(d_gate[p]), v);
      store_fp8(out, v, scale);
      to_floats(packed(d_up[p]), v);
      store_fp8(out + a.f, v, scale);
    }
  }
  T* columns = static_cast<T*>(a.maxima.columns) + blockIdx.x * 2 * a.f;
  gate_maxima.write(columns, cursor);
  up_maxima.write(columns + a.f, cursor);
}

/// Backward from the codes that forward saved; one block, or with kCluster one cluster, per row.
template <class T, bool kWhole, bool kCluster>
__global__ void __launch_bounds__(kCodesThreads) backward_codes_kernel(const SwigluBackward a) {
#ifndef TRIREME_SM90A
  if constexpr (kCluster) return;
#endif
  await_kernel_before();
  __shared__ float scratch[32];
  __shared__ uint64_t barrier;
  constexpr int kPacks = kFewPacks;
  RowCursor<kWhole ? kPacks : 0> cursor(a.tokens, static_cast<int>(a.f / kWidth));
  if constexpr (kCluster) cursor.share(static_cast<int>(cluster_size()), static_cast<int>(cluster_rank()));
  if (!cursor.active()) return;  // whole warps exit; no barrier waits for them
  const TransactionBarrier transactions(&barrier);
  if constexpr (kCluster) {
    if (threadIdx.x == 0) transactions.init(static_cast<int>(blockDim.x) / 32);
    __syncthreads();
    cluster_begun_arrive();
  }
  const uint8_t* const codes = a.saved.data + cursor.row * 2 * a.f;
  const bool once = streams(2 * a.tokens * a.f);
  Words<4> dy[kPacks];
  int2 gate_codes[kPacks], up_codes[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!cursor.holds(p)) continue;
    const int column = cursor.index(p) * kWidth;
    dy[p] = load_words(static_cast<const T*>(a.dy) + cursor.row * a.f + column);
    gate_codes[p] = __ldcs(reinterpret_cast<const int2*>(codes + column));
    up_codes[p] = __ldcs(reinterpret_cast<const int2*>(codes + a.f + column));
  }
  const float gate_inverse = a.saved.inverse[2 * cursor.row], up_inverse = a.saved.inverse[2 * cursor.row + 1];
  Words<4> d_gate[kPacks], d_up[kPacks];
  Amax<T> top;
  with_format(a.saved.format, [&](auto format) {
    constexpr auto kFormat = decltype(format)::value;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float d[kWidth], g[kWidth], u[kWidth];
      to_floats(as_pack<T>(dy[p]), d);
      from_fp8<kFormat>(__builtin_bit_cast(Codes, gate_codes[p]), gate_inverse, g);
      from_fp8<kFormat>(__builtin_bit_cast(Codes, up_codes[p]), up_inverse, u);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) swiglu_gradient<T>(d[i], g[i], u[i]);
      const Vec<T, kWidth> gate = from_floats<T>(g), up = from_floats<T>(u);
      d_gate[p] = as_words(gate);
      d_up[p] = as_words(up);
      top.add(gate);
      top.add(up);
    }
  });
  if (a.d_gate_up != nullptr) {
    T* out = static_cast<T*>(a.d_gate_up) + cursor.row * 2 * a.f;
    store_row(out, d_gate, cursor, once);
    store_row(out + a.f, d_up, cursor, once);
  }
  if constexpr (kCluster) cluster_begun_wait();
  if (a.fp8.data == nullptr) return;
  float amax;
  if constexpr (kCluster)
    amax = cluster_amax(top.get(), transactions, 0, scratch);
  else
    amax = row_amax(top.get(), blockDim.x, scratch);
  const float scale = settle_scale(a.fp8, amax, cursor.row, !kCluster || cluster_rank() == 0);
  uint8_t* out = a.fp8.data + cursor.row * 2 * a.f;
  store_row_fp8<T>(out, d_gate, cursor, scale, once);
  store_row_fp8<T>(out + a.f, d_up, cursor, scale, once);
}

template <class T>
__global__ void __launch_bounds__(kScalarThreads) backward_scalar_kernel(const SwigluBackward a) {
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x;
  const auto input = [&](int half, int64_t c) {
    const int64_t at = (2 * row + half) * a.f + c;
    if (a.saved.data != nullptr) return from_fp8(a.saved.data[at], a.saved.format) * a.saved.inverse[2 * row + half];
    return to_float(static_cast<const T*>(a.gate_up)[at]);
  };
  const auto gradient = [&](int64_t c, T& d_gate, T& d_up) {
    float g = input(0, c), u = input(1, c);
    swiglu_gradient<T>(to_float(static_cast<const T*>(a.dy)[row * a.f + c]), g, u);
    d_gate = from_float<T>(g), d_up = from_float<T>(u);
  };
  T* plain = static_cast<T*>(a.d_gate_up);
  float top = 0.0f;
  for (int64_t c = threadIdx.x; c < a.f; c += kScalarThreads) {
    T d_gate, d_up;
    gradient(c, d_gate, d_up);
    top = amax_of(top, amax_of(to_float(d_gate), to_float(d_up)));
    if (plain != nullptr) plain[2 * row * a.f + c] = d_gate, plain[(2 * row + 1) * a.f + c] = d_up;
  }
  if (a.fp8.data == nullptr) return;
  const float scale = settle_scale(a.fp8, row_amax(top, kScalarThreads, scratch), row);
  for (int64_t c = threadIdx.x; c < a.f; c += kScalarThreads) {
    T d_gate, d_up;
    // Reread from the plain gradient if it is written: it may have overwritten gate_up.
    if (plain != nullptr)
      d_gate = plain[2 * row * a.f + c], d_up = plain[(2 * row + 1) * a.f + c];
    else
      gradient(c, d_gate, d_up);
    const float gate_value[1] = {to_float(d_gate)}, up_value[1] = {to_float(d_up)};
    store_fp8(a.fp8.data + 2 * row * a.f + c, gate_value, scale);
    store_fp8(a.fp8.data + (2 * row + 1) * a.f + c, up_value, scale);
  }
}

template <class T>
cudaError_t launch_backward(const SwigluBackward& a, cudaStream_t stream) {
  const int64_t packs = a.f / kWidth;
  if (packs <= kFewPacks * kMaxThreads)
    return launch_rows(backward_kernel<T, kFewPacks, false>, a, a.tokens, row_geometry(packs, kFewPacks),
                       kFewPacks * 48, stream);
  // Rows of kFewPacks packs would lose a block of two to the registers of the maxima.
  if (a.maxima.columns != nullptr && packs <= kManyPacks * kMaximaThreads)
    return launch_maxima(backward_kernel<T, kManyPacks, true>, a, kManyPacks, 48, stream);
  return launch_rows(backward_kernel<T, kManyPacks, false>, a, a.tokens, row_geometry(packs, kManyPacks),
                     kManyPacks * 48, stream);
}

template <class T>
cudaError_t launch_backward_codes(const SwigluBackward& a, cudaStream_t stream) {
  const int64_t packs = a.f / kWidth;
  const RowGeometry g = row_geometry(packs, kFewPacks);
  if (!whole_rows(packs, kFewPacks))
    return launch_each_row(backward_codes_kernel<T, false, false>, a, a.tokens, g, stream);
  if (const int parts = blocks_of_whole_row(g.threads); g.threads > kOwnThreads && parts > 1 && runs_sm90a())
    return launch_clusters(backward_codes_kernel<T, true, true>, a, a.tokens, parts, g.threads / parts, 0, nullptr,
                           stream);
  return launch_each_row(backward_codes_kernel<T, true, false>, a, a.tokens, g, stream);
}

template <class T, GateKind kGate, int kWidth, bool kAmax>
__global__ void __launch_bounds__(kPlainThreads)
    swiglu_kernel(const T* dy, const T* gate_up, T* d_gate_up, int64_t f, float* amax) {
  const int64_t token = blockIdx.y,
                first = (static_cast<int64_t>(blockIdx.x) * kUnroll * kPlainThreads + threadIdx.x) * kWidth;
  const T* row = gate_up + token * 2 * f;
  T* out = d_gate_up + token * 2 * f;
  Vec<T, kWidth> gate[kUnroll], up[kUnroll], grad[kUnroll];
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t column = first + k * kPlainThreads * kWidth;
    if (column >= f) continue;
    gate[k] = load_stream<T, kWidth>(row + column);
    up[k] = load_stream<T, kWidth>(row + f + column);
    grad[k] = load_stream<T, kWidth>(dy + token * f + column);
  }
  BlockAmax<T, kWidth> top;
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t column = first + k * kPlainThreads * kWidth;
    if (column >= f) continue;
    float g[kWidth], u[kWidth], d[kWidth];
    to_floats(gate[k], g);
    to_floats(up[k], u);
    to_floats(grad[k], d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) swiglu_gradient<T, kGate>(d[i], g[i], u[i]);
    const Vec<T, kWidth> d_gate = from_floats<T>(g), d_up = from_floats<T>(u);
    store(out + column, d_gate);
    store(out + f + column, d_up);
    if constexpr (kAmax) top.add(d_gate), top.add(d_up);
  }
  if constexpr (kAmax) top.raise(amax);
}

cudaError_t plain(const SwigluBackward& a, cudaStream_t stream) {
  return launch_plain(a, aligned16(a.dy, a.gate_up, a.d_gate_up), stream,
                      [&](auto zero, auto gate, auto width, auto amax, dim3 grid, int64_t begin) {
                        using T = decltype(zero);
                        swiglu_kernel<T, decltype(gate)::value, decltype(width)::value, decltype(amax)::value>
                            <<<grid, kPlainThreads, 0, stream>>>(static_cast<const T*>(a.dy) + begin * a.f,
                                                                 static_cast<const T*>(a.gate_up) + begin * 2 * a.f,
                                                                 static_cast<T*>(a.d_gate_up) + begin * 2 * a.f, a.f,
                                                                 a.maxima.amax);
                      });
}

}  // namespace

cudaError_t swiglu_backward(const SwigluBackward& a, cudaStream_t stream) {
  if (a.maxima.found != nullptr) *a.maxima.found = {};
  if (a.tokens == 0 || a.f == 0) return cudaSuccess;
  if ((a.gate_up == nullptr) == (a.saved.data == nullptr) || (a.d_gate_up == nullptr && a.fp8.data == nullptr))
    return cudaErrorInvalidValue;
  if (a.gate_up != nullptr && a.fp8.data == nullptr) return plain(a, stream);
  if (a.gate != GateKind::kSilu) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (suits_packs<T>(a.f, a.dy, a.gate_up, a.saved.data, a.d_gate_up, a.fp8.data) &&
          (a.saved.data != nullptr || fits_rows(a.f, 3)))
        return a.saved.data != nullptr ? launch_backward_codes<T>(a, stream) : launch_backward<T>(a, stream);
    }
    backward_scalar_kernel<T><<<static_cast<unsigned>(a.tokens), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
