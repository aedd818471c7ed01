#pragma once
// Rows on their way from global to shared memory while earlier ones are worked on. Each thread copies the packs it will read itself, so
// the pipeline needs no barrier. Shared memory: stages * stage_bytes().

#include "kernels/device.cuh"
#include "kernels/row_geometry.h"

namespace trireme::kernels {

template <class T, int kElements, int kStages, int kMaxInputs>
struct RowPipeline {
  static constexpr int kWidth = 16 / sizeof(T), kPacks = kElements / kWidth;

  const T* sources[kMaxInputs];
  char* slots;  // of this thread
  int64_t rows, row, row_step;
  int inputs, columns, first, stride, block_threads, stage = 0;

  /// from[used …] are not read; blockDim = (threads of a row, rows of a block).
  __device__ RowPipeline(char* shared, const T* const (&from)[kMaxInputs], int used, int64_t num_rows, int num_columns)
      : rows(num_rows), inputs(used), columns(num_columns) {
#pragma unroll
    for (int i = 0; i < kMaxInputs; ++i) sources[i] = from[i];
    block_threads = blockDim.x * blockDim.y;
    slots = shared + (threadIdx.y * blockDim.x + threadIdx.x) * 16;
    first = threadIdx.x * kWidth;
    stride = blockDim.x * kWidth;
    row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
#pragma unroll
    for (int s = 0; s + 1 < kStages; ++s) fetch(row + s * row_step, s);
  }

  __device__ int column(int pack) const { return first + pack * stride; }
  __device__ bool holds(int pack) const { return column(pack) < columns; }
  __device__ int64_t offset(int pack) const { return row * columns + column(pack); }

  /// The pack of the row at hand; may be overwritten by its thread.
  __device__ Vec<T, kWidth>& at(int input, int pack) { return *reinterpret_cast<Vec<T, kWidth>*>(slot(stage, input, pack)); }

  /// Before a row is read: starts the copy of the row kStages - 1 turns ahead and waits for this one.
  __device__ void acquire() {
    fetch(row + (kStages - 1) * row_step, stage == 0 ? kStages - 1 : stage - 1);
    copy_async_wait<kStages - 1>();
  }
  __device__ void advance() {
    row += row_step;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

 private:
  __device__ char* slot(int of_stage, int input, int pack) const {
    return slots + static_cast<size_t>((of_stage * inputs + input) * kPacks + pack) * block_threads * 16;
  }
  __device__ void fetch(int64_t of_row, int of_stage) {
    if (of_row < rows) {
#pragma unroll
      for (int input = 0; input < kMaxInputs; ++input) {
        if (input >= inputs) continue;
#pragma unroll
        for (int pack = 0; pack < kPacks; ++pack)
          if (holds(pack)) copy_async16(slot(of_stage, input, pack), sources[input] + of_row * columns + column(pack));
      }
    }
    copy_async_commit();
  }
};

/// Bytes of one stage: what kElements elements of each input take for a block's threads.
template <class T, int kElements>
size_t stage_bytes(const RowGeometry& g, int inputs) {
  return sizeof(T) * kElements * g.threads * g.rows * inputs;
}

}  // namespace trireme::kernels
