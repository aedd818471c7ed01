#include "kernels/embedding/embedding.h"

#include "kernels/device.cuh"
#include "kernels/dropout/dropout_hash.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256;

/// One warp per row. The row stays in registers, kPacks packs per lane.
template <class T, int kWidth, int kPacks>
__global__ void __launch_bounds__(kThreads) forward_kernel(const BertEmbedding a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, columns = static_cast<int>(a.columns);
  const int64_t id = a.ids[row], position = a.positions[row], type = a.types[row];
  const bool inside =
      id >= 0 && id < a.vocab && position >= 0 && position < a.max_positions && type >= 0 && type < a.num_types;
  const T* word = static_cast<const T*>(a.word) + (inside ? id : 0) * a.columns;
  const T* place = static_cast<const T*>(a.position) + (inside ? position : 0) * a.columns;
  const T* kind = static_cast<const T*>(a.type) + (inside ? type : 0) * a.columns;

  Vec<T, kWidth> s[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = (p * 32 + lane) * kWidth;
    if (column < columns) s[p] = load_stream<T, kWidth>(word + column);
  }
  float total[1] = {0.0f};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = (p * 32 + lane) * kWidth;
    if (column >= columns) continue;
    float u[kWidth], v[kWidth], w[kWidth];
    to_floats(s[p], u);
    to_floats(load_shared_read<T, kWidth>(place + column), v);
    to_floats(load_shared_read<T, kWidth>(kind + column), w);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) u[i] = inside ? u[i] + v[i] + w[i] : __int_as_float(0x7fffffff);
    s[p] = from_floats<T>(u);
    to_floats(s[p], u);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) total[0] += u[i];
    if (a.sum != nullptr) store(static_cast<T*>(a.sum) + row * a.columns + column, s[p]);
  }
  const float mean = warp_sum(total[0]) / static_cast<float>(columns);
  float squares = 0.0f;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if ((p * 32 + lane) * kWidth >= columns) continue;
    float u[kWidth];
    to_floats(s[p], u);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares += (u[i] - mean) * (u[i] - mean);
  }
  const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(columns) + a.eps);
  if (lane == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    if (a.rstd != nullptr) a.rstd[row] = rstd;
  }

  const bool dropping = a.sample_ids != nullptr;
  const int64_t sample = dropping ? row / a.rows_per_sample : 0;
  const DropoutHash hash = sample_hash(dropping ? static_cast<uint64_t>(a.sample_ids[sample]) : 0, a.t0, a.t1);
  const int64_t first_element = (row - sample * a.rows_per_sample) * a.columns;
  T* y = static_cast<T*>(a.y) + row * a.columns;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = (p * 32 + lane) * kWidth;
    if (column >= columns) continue;
    float u[kWidth], g[kWidth], b[kWidth];
    to_floats(s[p], u);
    to_floats(load_shared_read<T, kWidth>(static_cast<const T*>(a.gamma) + column), g);
    to_floats(load_shared_read<T, kWidth>(static_cast<const T*>(a.beta) + column), b);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) u[i] = (u[i] - mean) * rstd * g[i] + b[i];
    if (dropping) {
      to_floats(from_floats<T>(u), u);  // rounded before dropout, as two separate operations would round
      if constexpr (kWidth > 1) {       // columns are even, and so is the first element
#pragma unroll
        for (int i = 0; i < kWidth; i += 2) {
          const uint32_t draw = dropout_draw(hash, static_cast<uint32_t>((first_element + column + i) >> 1));
          u[i] = (draw & 0xffff) >= a.threshold ? u[i] * a.scale : 0.0f;
          u[i + 1] = (draw >> 16) >= a.threshold ? u[i + 1] * a.scale : 0.0f;
        }
      } else {
        const int64_t element = first_element + column;
        const uint32_t draw = dropout_draw(hash, static_cast<uint32_t>(element >> 1));
        const bool kept = (element % 2 == 0 ? draw & 0xffff : draw >> 16) >= a.threshold;
        u[0] = kept ? u[0] * a.scale : 0.0f;
      }
    }
    store(y + column, from_floats<T>(u));
  }
}

template <class T, int kWidth, int kPacks>
cudaError_t launch(const BertEmbedding& a, cudaStream_t stream) {
  forward_kernel<T, kWidth, kPacks><<<static_cast<unsigned>(ceil_div(a.rows, kThreads / 32)), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

cudaError_t bert_embedding_forward(const BertEmbedding& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.y == nullptr || a.rows > INT32_MAX ||
      (a.sample_ids != nullptr && a.rows_per_sample > kDropoutElements32 / a.columns))
    return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    if (a.columns % kPack == 0 && aligned16(a.word, a.position, a.type, a.gamma, a.beta, a.sum, a.y)) {
      const int64_t packs = ceil_div(a.columns, 32 * kPack);
      if (packs <= 4) return launch<T, kPack, 4>(a, stream);
      if (packs <= 8) return launch<T, kPack, 8>(a, stream);
      if constexpr (sizeof(T) == 4)
        if (packs <= 16) return launch<T, kPack, 16>(a, stream);
      return cudaErrorInvalidValue;
    }
    return a.columns <= 512 ? launch<T, 1, 16>(a, stream) : cudaErrorInvalidValue;
  });
}

}  // namespace trireme::kernels
