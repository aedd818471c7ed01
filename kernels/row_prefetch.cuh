#pragma once
// A row in registers while the next one travels to shared memory: each thread copies the packs that it will take itself, so no barrier
// is needed, and asks for a pack of the next row as soon as it has taken this row's.

#include "kernels/device.cuh"
#include "kernels/row_geometry.h"

namespace trireme::kernels {

/// Where a thread stands: blockDim = (threads of a row, rows of a block), pack p of a thread is pack threadIdx.x + p * blockDim.x.
struct RowCursor {
  int64_t rows, row, step;
  int packs;  // of a row

  __device__ RowCursor(int64_t num_rows, int packs_of_row)
      : rows(num_rows),
        row(static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y),
        step(static_cast<int64_t>(gridDim.x) * blockDim.y),
        packs(packs_of_row) {}
  __device__ int index(int p) const { return static_cast<int>(threadIdx.x + p * blockDim.x); }
  __device__ bool holds(int p) const { return index(p) < packs; }
  __device__ bool active() const { return row < rows; }
  __device__ void advance() { row += step; }
};

/// One input, of which a pack is kBytes (8 or 16) long and row r starts at from + r * row_bytes.
template <int kPacks, int kBytes>
class RowPrefetch {
 public:
  /// Takes kPacks * kBytes of shared memory for each thread of the block, and asks for the first row. Nothing when not `used`.
  __device__ RowPrefetch(char*& shared, const void* from, int64_t row_bytes, const RowCursor& cursor, bool used = true)
      : from_(static_cast<const char*>(from)), row_bytes_(row_bytes) {
    block_threads_ = static_cast<int>(blockDim.x * blockDim.y);
    slot_ = shared + (threadIdx.y * blockDim.x + threadIdx.x) * kBytes;
    if (!used) return;
    shared += block_threads_ * kPacks * kBytes;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) fetch(p, cursor, cursor.row);
  }
  /// This row's pack; call copy_async_wait<0>() before the first. Starts the copy of the next row's, which copy_async_commit() closes.
  template <class V>
  __device__ V take(int p, const RowCursor& cursor) {
    static_assert(sizeof(V) == kBytes);
    const V value = *reinterpret_cast<const V*>(slot(p));
    fetch(p, cursor, cursor.row + cursor.step);
    return value;
  }

 private:
  __device__ char* slot(int p) const { return slot_ + p * block_threads_ * kBytes; }
  __device__ void fetch(int p, const RowCursor& cursor, int64_t row) {
    if (row >= cursor.rows || !cursor.holds(p)) return;
    const char* from = from_ + row * row_bytes_ + static_cast<int64_t>(cursor.index(p)) * kBytes;
    if constexpr (kBytes == 16)
      copy_async16(slot(p), from);
    else
      copy_async8(slot(p), from);
  }
  const char* from_;
  char* slot_;
  int64_t row_bytes_;
  int block_threads_;
};

/// A vector [columns] that every row meets: in registers for 16-bit types, in L1 where it would take too many of them.
template <class T, int kPacks>
class RowVector {
 public:
  static constexpr int kWidth = 16 / sizeof(T);
  static constexpr bool kKept = sizeof(T) == 2;
  __device__ RowVector(const void* from, const RowCursor& cursor) : from_(static_cast<const T*>(from)) {
    if constexpr (kKept) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        if (cursor.holds(p)) kept_[p] = packed(load(p, cursor));
    }
  }
  __device__ Vec<T, kWidth> get(int p, const RowCursor& cursor) const {
    if constexpr (kKept)
      return packed(kept_[p]);
    else
      return load(p, cursor);
  }

 private:
  __device__ Vec<T, kWidth> load(int p, const RowCursor& cursor) const { return load_shared_read<T, kWidth>(from_ + cursor.index(p) * kWidth); }
  const T* from_;
  Vec<T, kWidth> kept_[kKept ? kPacks : 1];
};

struct RowLaunch {
  size_t shared = 0;          // bytes that the kernel needs at least
  int blocks_per_sm = 32;     // at most
  int64_t* blocks = nullptr;  // receives the number of blocks
};

/// Launches a kernel over rows on a grid that stays. `bytes_of_thread`: what the kernel's RowPrefetches take.
template <class Kernel, class Arguments>
cudaError_t launch_rows(Kernel kernel, const Arguments& arguments, int64_t rows, const RowGeometry& g, int bytes_of_thread, cudaStream_t stream,
                        RowLaunch extra = {}) {
  const size_t inputs = static_cast<size_t>(bytes_of_thread) * g.threads * g.rows, shared = inputs > extra.shared ? inputs : extra.shared;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  const int64_t blocks = resident_blocks(kernel, g.threads * g.rows, shared, extra.blocks_per_sm, ceil_div(rows, g.rows));
  if (extra.blocks != nullptr) *extra.blocks = blocks;
  kernel<<<static_cast<unsigned>(blocks), dim3(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows)), shared, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace trireme::kernels
