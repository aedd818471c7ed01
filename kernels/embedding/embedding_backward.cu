#include "kernels/device.cuh"
#include "kernels/embedding/embedding.h"
#include "kernels/launch.h"

#include <cub/device/device_radix_sort.cuh>

namespace trireme::kernels {

namespace {

// A group of neighbouring places in the sorted order is summed by one block of threads. A run of equal ids belongs to the group where it
// begins, which follows it up to kAhead places further; a run that goes on even there leaves one fp32 row per group.
constexpr int kGroup = 32, kAhead = 96, kBack = kGroup + kAhead, kTogether = 8, kThreads = 128,
              kPrepareThreads = 256, kChecks = 4, kLanes = 16, kRunColumns = kThreads / kLanes,
              kRunBlocks = 1024;

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

struct Workspace {
  int *keys_in, *keys, *tokens_in, *tokens;  // [tokens]
  float* head;  // [groups, columns]: what a group adds to the run that its predecessor began
  float* tail;  // [groups, columns]: the run that goes on in the next group
  void* sort;
  size_t sort_bytes, total;
};

cudaError_t carve(void* base, int64_t tokens, int64_t columns, Workspace& w) {
  w = {};
  if (const cudaError_t error = cub::DeviceRadixSort::SortPairs(
          nullptr, w.sort_bytes, static_cast<int*>(nullptr), static_cast<int*>(nullptr),
          static_cast<int*>(nullptr), static_cast<int*>(nullptr), static_cast<int>(tokens));
      error != cudaSuccess)
    return error;
  char* at = static_cast<char*>(base);
  const auto take = [&](size_t bytes) {
    char* start = at;
    at += rounded(bytes);
    return start;
  };
  const size_t ints = tokens * sizeof(int),
               rows = ceil_div(tokens, kGroup) * columns * sizeof(float);
  w.keys_in = reinterpret_cast<int*>(take(ints)), w.keys = reinterpret_cast<int*>(take(ints));
  w.tokens_in = reinterpret_cast<int*>(take(ints)), w.tokens = reinterpret_cast<int*>(take(ints));
  w.head = reinterpret_cast<float*>(take(rows)), w.tail = reinterpret_cast<float*>(take(rows));
  w.sort = take(w.sort_bytes);
  w.total = at - static_cast<char*>(base);
  return cudaSuccess;
}

__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const int64_t* ids, int64_t tokens, int64_t vocab, int* keys, int* places) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x;
  if (t >= tokens) return;
  const int64_t id = ids[t];
  keys[t] =
      id >= 0 && id < vocab ? static_cast<int>(id) : static_cast<int>(vocab);  // strays sort last
  places[t] = static_cast<int>(t);
}

/// Sixteen bytes at a time where kWidth > 1.
template <class G, int kWidth>
__device__ inline void write_row(G* to, const float (&sum)[kWidth], bool accumulate) {
  constexpr int kPart = kWidth == 1 ? 1 : 16 / sizeof(G);
#pragma unroll
  for (int first = 0; first < kWidth; first += kPart) {
    float old[kPart] = {};
    if (accumulate) to_floats(*reinterpret_cast<const Vec<G, kPart>*>(to + first), old);
#pragma unroll
    for (int i = 0; i < kPart; ++i) old[i] += sum[first + i];
    store(to + first, from_floats<G>(old));
  }
}

/// Ids of the places around a group, ascending; offset 0 is the group's first place.
struct Window {
  int ids[kBack + kGroup + kAhead + 1];
  __device__ int at(int offset) const { return ids[kBack + offset]; }
  /// Smallest offset in [low, high] whose id is at least `id`; high when there is none before it.
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
    group_kernel(const EmbeddingBackward a, const Workspace w) {
  __shared__ Window window;
  __shared__ int tokens[kGroup + kAhead];
  const int64_t group = blockIdx.y, begin = group * kGroup,
                column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  for (int i = static_cast<int>(threadIdx.x); i <= kBack + kGroup + kAhead; i += kThreads) {
    const int64_t place = begin - kBack + i;
    window.ids[i] = place < 0 ? -1 : place < a.tokens ? w.keys[place] : INT32_MAX;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kGroup + kAhead; i += kThreads)
    if (begin + i < a.tokens) tokens[i] = w.tokens[begin + i];
  __syncthreads();
  if (column >= a.columns) return;

  int first = 0, last = static_cast<int>(a.tokens - begin < kGroup ? a.tokens - begin : kGroup);
  bool from_before = window.at(-1) == window.at(0);
  if (from_before) {
    const int id = window.at(0), start = window.find(-kBack, 0, id);
    // Its own group's end, and as far as that group follows it.
    const int reach = (start >> 5) * kGroup + kGroup + kAhead;
    from_before = start == -kBack || window.at(reach) == id;
    if (!from_before) first = window.find(0, kGroup + kAhead, id + 1);
    if (first >= last) return;
  }
  if (const int id = window.at(last - 1);
      !from_before || window.at(0) != id) {  // the last run begins in this group
    if (window.at(kGroup + kAhead) != id) last = window.find(last, kGroup + kAhead, id + 1);
  }

  const T* dy = static_cast<const T*>(a.dy) + column;
  G* table = static_cast<G*>(a.d_table) + column;
  float sum[kWidth] = {};
#pragma unroll 1
  for (int base = first; base < last; base += kTogether) {
    Vec<T, kWidth> rows[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (base + k < last)
        rows[k] = load_stream<T, kWidth>(dy + static_cast<int64_t>(tokens[base + k]) * a.columns);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int place = base + k;
      if (place >= last) continue;
      const int id = window.at(place);
      float v[kWidth];
      to_floats(rows[k], v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += v[i];
      const bool goes_on = window.at(place + 1) == id;
      if (goes_on && place + 1 < last) continue;
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
    }
  }
}

/// Long runs. Every block looks for all of them and takes its share; it owns kRunColumns * kWidth
/// columns, and its kLanes lanes take the pieces of a run in turn.
template <class G, int kWidth>
__global__ void __launch_bounds__(kThreads, 8)
    run_kernel(const EmbeddingBackward a, const Workspace w) {
  __shared__ int starts[kThreads * kChecks], found;
  __shared__ float sums[kLanes][kRunColumns * kWidth];
  const int64_t groups = (a.tokens + kGroup - 1) / kGroup;
  const int lane = static_cast<int>(threadIdx.x) / kRunColumns,
            own = static_cast<int>(threadIdx.x) % kRunColumns * kWidth;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kRunColumns * kWidth + own;
  for (int64_t base = 0; base < groups; base += kThreads * kChecks) {
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kChecks; ++k) {
      const int64_t group = base + k * kThreads + threadIdx.x, end = (group + 1) * kGroup;
      if (end + kAhead >= a.tokens) continue;
      const int before = group > 0 ? w.keys[group * kGroup - 1] : -1, id = w.keys[end - 1];
      if (w.keys[end + kAhead] != id || before == id || id >= a.vocab) continue;
      // Spread evenly also when runs begin in every eighth group.
      if ((static_cast<unsigned>(group) * 2654435761u >> 16) % gridDim.y == blockIdx.y)
        starts[atomicAdd(&found, 1)] = static_cast<int>(group);
    }
    __syncthreads();
    // In any order: each run's sum is its own.
    for (int i = 0; i < found; ++i) {
      const int64_t group = starts[i];
      const int id = w.keys[(group + 1) * kGroup - 1];
      // The last group that the run reaches into.
      int64_t low = group + 1 + kAhead / kGroup, step = 1;
      while (low + step < groups && w.keys[(low + step) * kGroup] == id) low += step, step *= 2;
      for (; step > 0; step /= 2)
        if (low + step < groups && w.keys[(low + step) * kGroup] == id) low += step;
      float sum[kWidth] = {};
      if (column < a.columns) {
#pragma unroll 4
        for (int64_t g = group + lane; g <= low; g += kLanes) {
          float piece[kWidth];
          const float* from = (g == group ? w.tail : w.head) + g * a.columns + column;
          to_floats(*reinterpret_cast<const Vec<float, kWidth>*>(from), piece);
#pragma unroll
          for (int c = 0; c < kWidth; ++c) sum[c] += piece[c];
        }
      }
#pragma unroll
      for (int c = 0; c < kWidth; ++c) sums[lane][own + c] = sum[c];
      __syncthreads();
      for (int c = static_cast<int>(threadIdx.x); c < kRunColumns * kWidth; c += kThreads) {
        const int64_t place = static_cast<int64_t>(blockIdx.x) * kRunColumns * kWidth + c;
        if (place >= a.columns) continue;
        float total[1] = {};
        for (int l = 0; l < kLanes; ++l) total[0] += sums[l][c];
        write_row(static_cast<G*>(a.d_table) + static_cast<int64_t>(id) * a.columns + place, total,
                  a.accumulate);
      }
      __syncthreads();
    }
    __syncthreads();
  }
}

template <class T, class G>
cudaError_t launch(const EmbeddingBackward& a, const Workspace& w, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t groups = ceil_div(a.tokens, kGroup);
  const auto grid = [&](int width) {
    return dim3(static_cast<unsigned>(ceil_div(a.columns, kThreads * width)),
                static_cast<unsigned>(groups));
  };
  const bool packed = a.columns % kPack == 0 && aligned16(a.dy, a.d_table);
  if (packed)
    group_kernel<T, G, kPack><<<grid(kPack), kThreads, 0, stream>>>(a, w);
  else
    group_kernel<T, G, 1><<<grid(1), kThreads, 0, stream>>>(a, w);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const auto runs = [&](int width) {
    const int64_t across = ceil_div(a.columns, kRunColumns * width),
                  along = across < kRunBlocks ? kRunBlocks / across : 1;
    return dim3(static_cast<unsigned>(across), static_cast<unsigned>(along));
  };
  if (packed)
    run_kernel<G, 4><<<runs(4), kThreads, 0, stream>>>(a, w);
  else
    run_kernel<G, 1><<<runs(1), kThreads, 0, stream>>>(a, w);
  return cudaGetLastError();
}

}  // namespace

size_t embedding_backward_workspace(int64_t tokens, int64_t columns) {
  Workspace w;
  return carve(nullptr, tokens, columns, w) == cudaSuccess ? w.total : 0;
}

cudaError_t embedding_backward(const EmbeddingBackward& a, cudaStream_t stream) {
  if (a.tokens == 0 || a.columns == 0) return cudaSuccess;
  if (a.tokens > int64_t{65535} * kGroup || a.vocab >= INT32_MAX || a.workspace == nullptr)
    return cudaErrorInvalidValue;
  if (a.table_element != a.element && a.table_element != Element::kF32)
    return cudaErrorInvalidValue;
  Workspace w;
  if (const cudaError_t error = carve(a.workspace, a.tokens, a.columns, w); error != cudaSuccess)
    return error;
  prepare_kernel<<<static_cast<unsigned>(ceil_div(a.tokens, kPrepareThreads)), kPrepareThreads, 0,
                   stream>>>(a.ids, a.tokens, a.vocab, w.keys_in, w.tokens_in);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  int bits = 1;
  while ((int64_t{1} << bits) <= a.vocab) ++bits;
  if (const cudaError_t error =
          cub::DeviceRadixSort::SortPairs(w.sort, w.sort_bytes, w.keys_in, w.keys, w.tokens_in,
                                          w.tokens, static_cast<int>(a.tokens), 0, bits, stream);
      error != cudaSuccess)
    return error;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if (a.table_element == a.element) return launch<T, T>(a, w, stream);
    return launch<T, float>(a, w, stream);
  });
}

}  // namespace trireme::kernels
