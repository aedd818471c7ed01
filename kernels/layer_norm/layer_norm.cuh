#pragma once
// What the layer norm's kernels share: dropout of a row, and the part of the backward pass with sums over rows.

#include "kernels/device.cuh"
#include "kernels/dropout/dropout_hash.cuh"
#include "kernels/layer_norm/layer_norm.h"

namespace trireme::kernels {

inline bool valid(const RowDropout& dropout, int64_t columns) {
  return dropout.rows_per_sample >= 1 && dropout.threshold <= 0xffffu &&
         (dropout.ids == nullptr || dropout.rows_per_sample <= kDropoutElements32 / columns);
}

/// Applies dropout to kWidth values (a power of two). The first is the even element of pair `pair` of the sample, and
/// pair is a multiple of kWidth / 2; threshold < 65536.
template <int kWidth>
__device__ inline void apply_dropout(float (&values)[kWidth], DropoutHash key, uint32_t pair, uint32_t threshold,
                                     float scale) {
  const uint32_t upper = threshold << 16;  // for comparing an upper half without shifting it down
  const DropoutDraws draws(key, pair);
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    const uint32_t h = draws(static_cast<uint32_t>(i / 2));
    values[i] = (h & 0xffffu) >= threshold ? values[i] * scale : 0.0f;
    values[i + 1] = h >= upper ? values[i + 1] * scale : 0.0f;
  }
}

struct RowMask {
  DropoutHash key;
  uint64_t first;  // index of the row's first element in the sample
  uint32_t threshold;
  float scale;

  RowMask() = default;
  /// Rows and rows_per_sample are below 2^31.
  __device__ RowMask(const RowDropout& dropout, int64_t row, int64_t columns)
      : threshold(dropout.threshold), scale(dropout.scale) {
    const uint32_t sample = static_cast<uint32_t>(row) / static_cast<uint32_t>(dropout.rows_per_sample);
    key = sample_hash(static_cast<uint64_t>(dropout.ids[sample]), dropout.t0, dropout.t1);
    first =
        (static_cast<uint64_t>(row) - static_cast<uint64_t>(sample) * static_cast<uint64_t>(dropout.rows_per_sample)) *
        static_cast<uint64_t>(columns);
  }
  __device__ float operator()(float value, int64_t column) const {
    const uint64_t element = first + static_cast<uint64_t>(column);
    const uint32_t h = dropout_draw(key, static_cast<uint32_t>(element >> 1));
    return (element % 2 == 0 ? h & 0xffffu : h >> 16) >= threshold ? value * scale : 0.0f;
  }
  /// Applies dropout to kWidth values from `column` on; column and row length are multiples of kWidth.
  template <int kWidth>
  __device__ void apply(float (&values)[kWidth], int column) const {
    apply_dropout(values, key, static_cast<uint32_t>((first + static_cast<uint64_t>(column)) >> 1), threshold, scale);
  }
};

/// Upper limit per multiprocessor of the partial rows that backward kernels write to the workspace.
constexpr int kLayerNormBlocksPerSm = 8;

constexpr int64_t kPortablePacks = 640;
/// The part of layer_norm_backward() with sums over rows, for 16-byte aligned rows of whole 16-byte packs with at most
/// kMaxColumns columns, or kPortablePacks packs if runs_sm90a() is false. Writes *partials rows of [2 or, with d_bias,
/// 3][columns] to the workspace, for column_sums().
cudaError_t layer_norm_backward_sums(const LayerNormBackward& arguments, int64_t* partials, cudaStream_t stream);

}  // namespace trireme::kernels
