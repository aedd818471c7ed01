#pragma once
// Keeps a row in registers while the next one is copied to shared memory. Each thread copies the packs that it reads
// itself, so no barrier is needed, and requests a pack of the next row as soon as it has read that of this row.

#include "kernels/device.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

/// A thread's position: blockDim = (threads of a row, rows of a block). kWholePacks > 0: every thread has kWholePacks
/// packs, 32 packs apart, so that one base address with constant offsets serves all of them and no bounds are checked.
/// Otherwise pack p of a thread is pack threadIdx.x + p * blockDim.x.
template <int kWholePacks = 0>
struct RowCursor {
  int64_t rows, row, step;
  int packs;     // of a row
  int first;     // this thread's first pack
  int turn = 0;  // alternates between 0 and 1

  __device__ RowCursor(int64_t num_rows, int packs_of_row)
      : rows(num_rows),
        row(static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y),
        step(static_cast<int64_t>(gridDim.x) * blockDim.y),
        packs(packs_of_row),
        first(static_cast<int>(kWholePacks == 0 ? threadIdx.x
                                                : threadIdx.x / 32 * 32 * kWholePacks + threadIdx.x % 32)) {}
  /// Call before any other use: `parts` adjacent blocks share a row, and this is block `part` of them.
  __device__ void share(int parts, int part) {
    static_assert(kWholePacks != 0);
    row = blockIdx.x / static_cast<unsigned>(parts);
    step = gridDim.x / static_cast<unsigned>(parts);
    first += part * static_cast<int>(blockDim.x) * kWholePacks;
  }
  __device__ int index(int p) const { return first + p * (kWholePacks == 0 ? static_cast<int>(blockDim.x) : 32); }
  __device__ bool holds(int p) const { return kWholePacks != 0 || index(p) < packs; }
  __device__ bool active() const { return row < rows; }
  __device__ void advance() {
    row += step;
    turn ^= 1;
  }
};

/// One input, with packs of 16 bytes, whose row r starts at from + r * row_bytes. kStages (1 or 2) rows are in flight:
/// two where one does not keep the memory busy.
template <int kPacks, int kStages>
class RowPrefetch {
 public:
  /// Takes bytes_of_thread() of shared memory for each thread of the block; nothing if `used` is false.
  __device__ RowPrefetch(char*& shared, const void* from, int64_t row_bytes, bool used = true)
      : from_(static_cast<const char*>(from)), row_bytes_(row_bytes), used_(used) {
    block_threads_ = static_cast<int>(blockDim.x * blockDim.y);
    slot_ = shared + (threadIdx.y * blockDim.x + threadIdx.x) * kBytes;
    if (used) shared += block_threads_ * kStages * kPacks * kBytes;
  }
  static constexpr int bytes_of_thread() { return kStages * kPacks * kBytes; }

  /// Requests the cursor's row (ahead = 0) or the one after it.
  template <class Cursor>
  __device__ void ask(const Cursor& cursor, int ahead) {
    if (!used_) return;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) fetch(slot(ahead, p), p, cursor, cursor.row + ahead * cursor.step);
  }
  /// Returns a pack of this row, after start_row(). Requests the same pack of the row kStages turns ahead; end_row()
  /// commits the requests.
  template <class V, class Cursor>
  __device__ V take(int p, const Cursor& cursor) {
    static_assert(sizeof(V) == kBytes);
    char* from = slot(kStages == 2 ? cursor.turn : 0, p);
    const V value = *reinterpret_cast<const V*>(from);
    fetch(from, p, cursor, cursor.row + kStages * cursor.step);
    return value;
  }

 private:
  static constexpr int kBytes = 16;
  __device__ char* slot(int stage, int p) const { return slot_ + (stage * kPacks + p) * block_threads_ * kBytes; }
  template <class Cursor>
  __device__ void fetch(char* to, int p, const Cursor& cursor, int64_t row) {
    if (row >= cursor.rows || !cursor.holds(p)) return;
    const char* from = from_ + row * row_bytes_ + static_cast<int64_t>(cursor.index(p)) * kBytes;
    copy_async16(to, from);
  }
  const char* from_;
  char* slot_;
  int64_t row_bytes_;
  int block_threads_;
  bool used_;
};

/// Call before the first row: requests the first kStages rows of all inputs.
template <int kStages, class Cursor, class... Input>
__device__ inline void start_inputs(const Cursor& cursor, Input&... inputs) {
#pragma unroll
  for (int ahead = 0; ahead < kStages; ++ahead) {
    (inputs.ask(cursor, ahead), ...);
    copy_async_commit();
  }
}
/// start_row(): call before the first take() of a row. end_row(): call after the last.
template <int kStages>
__device__ inline void start_row() {
  copy_async_wait<kStages - 1>();
}
__device__ inline void end_row() { copy_async_commit(); }

/// A vector [columns] that applies to every row: kept in registers for 16-bit types; otherwise, and if kMayKeep is
/// false, read through L1.
template <class T, int kPacks, bool kMayKeep = true>
class RowVector {
 public:
  static constexpr int kWidth = 16 / sizeof(T);
  static constexpr bool kKept = sizeof(T) == 2 && kMayKeep;
  template <class Cursor>
  __device__ RowVector(const void* from, const Cursor& cursor) : from_(static_cast<const T*>(from)) {
    if constexpr (kKept) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        if (cursor.holds(p)) kept_[p] = packed(load(p, cursor));
    }
  }
  template <class Cursor>
  __device__ Vec<T, kWidth> get(int p, const Cursor& cursor) const {
    if constexpr (kKept)
      return packed(kept_[p]);
    else
      return load(p, cursor);
  }

 private:
  template <class Cursor>
  __device__ Vec<T, kWidth> load(int p, const Cursor& cursor) const {
    return load_shared_read<T, kWidth>(from_ + cursor.index(p) * kWidth);
  }
  const T* from_;
  Vec<T, kWidth> kept_[kKept ? kPacks : 1];
};

/// Stores a row of 16-bit elements from registers.
template <class T, int kPacks, class Cursor>
__device__ inline void store_row(T* to, const Words<4> (&row)[kPacks], const Cursor& cursor, bool once) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (cursor.holds(p)) store_whole(to + cursor.index(p) * (16 / sizeof(T)), row[p], once);
}

struct RowLaunch {
  size_t shared = 0;          // minimum of the kernel's dynamic shared memory in bytes
  int blocks_per_sm = 32;     // upper limit
  int64_t* blocks = nullptr;  // receives the number of blocks
};

/// Launches a kernel over rows with a persistent grid. `bytes_of_thread`: shared memory per thread of the kernel's
/// RowPrefetch members. The kernel calls await_kernel_before().
template <class Kernel, class Arguments>
cudaError_t launch_rows(Kernel kernel, const Arguments& arguments, int64_t rows, const RowGeometry& g,
                        int bytes_of_thread, cudaStream_t stream, RowLaunch extra = {}) {
  const size_t inputs = static_cast<size_t>(bytes_of_thread) * g.threads * g.rows,
               shared = inputs > extra.shared ? inputs : extra.shared;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  const int64_t blocks =
      resident_blocks(kernel, g.threads * g.rows, shared, extra.blocks_per_sm, ceil_div(rows, g.rows));
  if (extra.blocks != nullptr) *extra.blocks = blocks;
  return launch_behind(kernel, dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows)), shared, stream,
                       arguments);
}

}  // namespace trireme::kernels
