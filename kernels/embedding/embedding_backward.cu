#include "kernels/device.cuh"
#include "kernels/embedding/embedding.cuh"
#include "kernels/embedding/embedding.h"
#include "kernels/launch.h"

#include <cub/device/device_radix_sort.cuh>

#include <type_traits>

namespace trireme::kernels {

namespace {

// One block of threads sums a group of kGroup consecutive positions in the sorted order. A run of equal ids belongs to
// the group where it begins, which follows it for up to kAhead positions beyond the group. If the run is longer than
// that, every group that it covers writes one fp32 row of partial sums.
constexpr int kGroup = kEmbeddingGroup, kAhead = 96, kBack = kGroup + kAhead, kStages = 12, kThreads = 128,
              kPrepareThreads = 256, kRunThreads = 512, kLanes = 64, kRunColumns = kRunThreads / kLanes,
              kRunBlocks = 1024;

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

struct Workspace {
  uint32_t *keys_in, *keys;  // [tokens]: the id shifted left by token_bits, or'd with the token number
  int *tokens_in, *tokens;   // [tokens], used if id and token number do not fit into a key
  int id_bits, token_bits;
  float* head;           // [groups, columns]: the group's part of a run that began in an earlier group
  float* tail;           // [groups, columns]: the group's part of a run that continues in the next group
  int *num_runs, *runs;  // groups where a long run begins
  uint32_t* counts;
  void* sort;
  size_t sort_bytes, total;
};

int bits_of(int64_t largest) {
  int bits = 1;
  while (bits < 63 && (largest >> bits) != 0) ++bits;
  return bits;
}

/// CUB's stable sort by id, for more tokens than embedding_sort() takes. With a null w.sort it only computes the
/// workspace size.
cudaError_t sort(Workspace& w, int64_t tokens, cudaStream_t stream) {
  const int count = static_cast<int>(tokens), end = w.token_bits + w.id_bits;
  if (w.token_bits > 0)
    return cub::DeviceRadixSort::SortKeys(w.sort, w.sort_bytes, w.keys_in, w.keys, count, w.token_bits, end, stream);
  return cub::DeviceRadixSort::SortPairs(w.sort, w.sort_bytes, w.keys_in, w.keys, w.tokens_in, w.tokens, count, 0, end,
                                         stream);
}

cudaError_t carve(void* base, int64_t tokens, int64_t columns, Workspace& w) {
  w = {};
  w.id_bits = 32;
  if (const cudaError_t error = sort(w, tokens, nullptr); error != cudaSuccess) return error;
  char* at = static_cast<char*>(base);
  const auto take = [&](auto*& array, size_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
    at += rounded(count * sizeof(*array));
  };
  const size_t groups = ceil_div(tokens, kGroup);
  take(w.keys_in, tokens), take(w.keys, tokens);
  take(w.tokens_in, tokens), take(w.tokens, tokens);
  take(w.head, groups * columns), take(w.tail, groups * columns);
  take(w.num_runs, 1), take(w.runs, groups);
  take(w.counts, embedding_sort_counts(tokens));
  w.sort = at;
  at += rounded(w.sort_bytes);
  w.total = at - static_cast<char*>(base);
  return cudaSuccess;
}

__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const EmbeddingBackward a, const Workspace w) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x;
  if (t == 0) *w.num_runs = 0;
  if (t >= a.tokens) return;
  const int64_t id = a.ids[t];
  const uint32_t known = static_cast<uint32_t>(id >= 0 && id < a.vocab ? id : a.vocab);
  if (w.token_bits > 0) {
    w.keys_in[t] = known << w.token_bits | static_cast<uint32_t>(t);
  } else {
    w.keys_in[t] = known;
    w.tokens_in[t] = static_cast<int>(t);
  }
}
__device__ inline int id_at(const Workspace& w, int64_t place) {
  return static_cast<int>(w.keys[place] >> w.token_bits);
}
__device__ inline int token_at(const Workspace& w, int64_t place) {
  return w.token_bits > 0 ? static_cast<int>(w.keys[place] & ((1u << w.token_bits) - 1)) : w.tokens[place];
}

/// Ids at the positions around a group, ascending; offset 0 is the group's first position.
struct Window {
  int ids[kBack + kGroup + kAhead + 1];
  __device__ int at(int offset) const { return ids[kBack + offset]; }
  /// Smallest offset in [low, high) whose id is at least `id`; high if there is none.
  __device__ int find(int low, int high, int id) const {
    while (low < high) {
      const int middle = (low + high) >> 1;
      if (at(middle) >= id)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
};

template <class T, class G, int kWidth>
__global__ void __launch_bounds__(kThreads)
    group_kernel(const EmbeddingBackward a, const Workspace w, int64_t first_group) {
  __shared__ Window window;
  __shared__ int tokens[kGroup + kAhead];
  allow_next_kernel();
  await_kernel_before();
  const int64_t group = first_group + blockIdx.y, begin = group * kGroup,
                column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  for (int i = static_cast<int>(threadIdx.x); i <= kBack + kGroup + kAhead; i += kThreads) {
    const int64_t place = begin - kBack + i;
    window.ids[i] = place < 0 ? -1 : place < a.tokens ? id_at(w, place) : INT32_MAX;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kGroup + kAhead; i += kThreads)
    if (begin + i < a.tokens) tokens[i] = token_at(w, begin + i);
  __syncthreads();
  if (column >= a.columns) return;

  int first = 0, last = static_cast<int>(a.tokens - begin < kGroup ? a.tokens - begin : kGroup);
  bool from_before = window.at(-1) == window.at(0);
  if (from_before) {
    const int id = window.at(0), start = window.find(-kBack, 0, id);
    // The end of the run's own group plus the positions by which that group follows it.
    const int reach = (start >> 5) * kGroup + kGroup + kAhead;
    from_before = start == -kBack || window.at(reach) == id;
    if (!from_before) first = window.find(0, kGroup + kAhead, id + 1);
    if (first >= last) return;
  }
  if (const int id = window.at(last - 1); !from_before || window.at(0) != id) {  // the last run begins in this group
    if (window.at(kGroup + kAhead) != id)
      last = window.find(last, kGroup + kAhead, id + 1);
    else if (blockIdx.x == 0 && threadIdx.x == 0 && id < a.vocab)
      w.runs[atomicAdd(w.num_runs, 1)] = static_cast<int>(group);
  }

  const T* dy = static_cast<const T*>(a.dy) + column;
  G* table = static_cast<G*>(a.d_table) + column;
  float sum[kWidth] = {};
  int next = window.at(first);
  const auto add = [&](int place, const Vec<T, kWidth>& row) {
    const int id = next;
    next = window.at(place + 1);
    add_to(sum, row);
    const bool goes_on = next == id;
    if (goes_on && place + 1 < last) return;
    if (from_before) {
      write_row(w.head + group * a.columns + column, sum, false);
    } else if (goes_on) {
      write_row(w.tail + group * a.columns + column, sum, false);
    } else if (id < a.vocab) {
      write_row(table + static_cast<int64_t>(id) * a.columns, sum, a.accumulate);
    }
    from_before = false;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] = 0.0f;
  };
  const auto source = [&](int place) { return dy + static_cast<int64_t>(tokens[place]) * a.columns; };
  if constexpr (kWidth > 1) {
    // kStages - 1 rows are always in flight; a thread reads only what it fetched itself.
    __shared__ Vec<T, kWidth> ring[kStages][kThreads];
#pragma unroll
    for (int k = 0; k < kStages - 1; ++k) {
      if (first + k < last) copy_async16(&ring[k][threadIdx.x], source(first + k));
      copy_async_commit();
    }
    int slot = 0;
#pragma unroll 2
    for (int place = first; place < last; ++place) {
      copy_async_wait<kStages - 2>();
      add(place, ring[slot][threadIdx.x]);
      const int free = slot == 0 ? kStages - 1 : slot - 1;
      if (place + kStages - 1 < last) copy_async16(&ring[free][threadIdx.x], source(place + kStages - 1));
      copy_async_commit();
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
  } else {
#pragma unroll 4
    for (int place = first; place < last; ++place) add(place, {{*source(place)}});
  }
}

/// Sums the long runs that the groups have listed. A block owns kRunColumns * kWidth columns, and its kLanes lanes take
/// the partial rows of a run in turn.
template <class G, int kWidth>
__global__ void __launch_bounds__(kRunThreads, 2) run_kernel(const EmbeddingBackward a, const Workspace w) {
  __shared__ float sums[kLanes][kRunColumns * kWidth];
  await_kernel_before();
  const int64_t groups = (a.tokens + kGroup - 1) / kGroup;
  const int lane = static_cast<int>(threadIdx.x) / kRunColumns,
            own = static_cast<int>(threadIdx.x) % kRunColumns * kWidth;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kRunColumns * kWidth + own;
  const int count = *w.num_runs;
  // The list is in no fixed order, which does not affect the result: each run is summed on its own.
  for (int i = static_cast<int>(blockIdx.y); i < count; i += static_cast<int>(gridDim.y)) {
    const int64_t group = w.runs[i];
    const int id = id_at(w, (group + 1) * kGroup - 1);
    // Finds the last group that the run covers.
    int64_t low = group + 1 + kAhead / kGroup, step = 1;
    while (low + step < groups && id_at(w, (low + step) * kGroup) == id) low += step, step *= 2;
    for (; step > 0; step /= 2)
      if (low + step < groups && id_at(w, (low + step) * kGroup) == id) low += step;
    float sum[kWidth] = {};
    if (column < a.columns) {
#pragma unroll 8
      for (int64_t g = group + lane; g <= low; g += kLanes) {
        const float* from = (g == group ? w.tail : w.head) + g * a.columns + column;
        add_to(sum, *reinterpret_cast<const Vec<float, kWidth>*>(from));
      }
    }
#pragma unroll
    for (int c = 0; c < kWidth; ++c) sums[lane][own + c] = sum[c];
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < kRunColumns * kWidth; c += kRunThreads) {
      const int64_t place = static_cast<int64_t>(blockIdx.x) * kRunColumns * kWidth + c;
      if (place >= a.columns) continue;
      float total[1] = {};
      for (int l = 0; l < kLanes; ++l) total[0] += sums[l][c];
      write_row(static_cast<G*>(a.d_table) + static_cast<int64_t>(id) * a.columns + place, total, a.accumulate);
    }
    __syncthreads();
  }
}

template <class T, class G>
cudaError_t launch(const EmbeddingBackward& a, const Workspace& w, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  const bool packed = a.columns % kPack == 0 && aligned16(a.dy, a.d_table);
  const cudaError_t error = launch_pieces(ceil_div(a.tokens, kGroup), [&](int64_t first, unsigned groups) {
    const dim3 grid(static_cast<unsigned>(ceil_div(a.columns, kThreads * (packed ? kPack : 1))), groups);
    return packed ? launch_behind(group_kernel<T, G, kPack>, grid, kThreads, 0, stream, a, w, first)
                  : launch_behind(group_kernel<T, G, 1>, grid, kThreads, 0, stream, a, w, first);
  });
  if (error != cudaSuccess) return error;
  const auto runs = [&](int width) {
    const int64_t across = ceil_div(a.columns, kRunColumns * width),
                  along = across < kRunBlocks ? kRunBlocks / across : 1;
    return dim3(static_cast<unsigned>(across), static_cast<unsigned>(along));
  };
  return packed ? launch_behind(run_kernel<G, 4>, runs(4), kRunThreads, 0, stream, a, w)
                : launch_behind(run_kernel<G, 1>, runs(1), kRunThreads, 0, stream, a, w);
}

}  // namespace

size_t embedding_backward_workspace(int64_t tokens, int64_t columns) {
  Workspace w;
  return carve(nullptr, tokens, columns, w) == cudaSuccess ? w.total : 0;
}

cudaError_t embedding_backward(const EmbeddingBackward& a, cudaStream_t stream) {
  if (a.tokens == 0 || a.columns == 0) return cudaSuccess;
  if (a.tokens > INT32_MAX || a.vocab >= INT32_MAX || a.workspace == nullptr) return cudaErrorInvalidValue;
  if (a.table_element != a.element && a.table_element != Element::kF32) return cudaErrorInvalidValue;
  Workspace w;
  if (const cudaError_t error = carve(a.workspace, a.tokens, a.columns, w); error != cudaSuccess) return error;
  if (a.vocab <= kFewIds) return embedding_backward_few(a, w.head, w.num_runs, stream);
  w.id_bits = bits_of(a.vocab);
  if (w.id_bits + bits_of(a.tokens - 1) <= 32) w.token_bits = bits_of(a.tokens - 1);
  if (w.token_bits > 0 && embedding_sort_fits(a.tokens, w.id_bits, w.token_bits)) {
    const KeySort s{a.ids, a.tokens, a.vocab, w.id_bits, w.token_bits, w.keys, w.keys_in, w.counts, w.num_runs};
    if (const cudaError_t error = embedding_sort(s, stream); error != cudaSuccess) return error;
  } else {
    prepare_kernel<<<static_cast<unsigned>(ceil_div(a.tokens, kPrepareThreads)), kPrepareThreads, 0, stream>>>(a, w);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
    if (const cudaError_t error = sort(w, a.tokens, stream); error != cudaSuccess) return error;
  }
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if (a.table_element == a.element) return launch<T, T>(a, w, stream);
    return launch<T, float>(a, w, stream);
  });
}

}  // namespace trireme::kernels
