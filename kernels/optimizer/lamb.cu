#include "kernels/optimizer/shard_update.cuh"

#include <utility>

namespace trireme::kernels {

namespace {

constexpr int kSquareThreads = 256;

template <class G, class C>
using Arguments = ShardArguments<G, C, float>;

/// One shard of a launch.
struct Part {
  void *master, *exp_avg, *exp_avg_sq, *compute;
  const void* gradient;
  const ShardChunk* chunks;
  const int32_t* tensor_chunks;
  double share;
  int first_chunk, first_tensor;  // numbers of its chunk 0 and its tensor 0 among those of the launch
  int column;                     // of its tensor 0 in `squares`
  bool aligned;
};

/// A launch ends with idle multiprocessors. Shards share launches, so that this happens once: BERT-large has 26 shards.
constexpr int kMostParts = 32;
struct Parts {
  Part part[kMostParts];
  int count;
};
static_assert(sizeof(Parts) + sizeof(Arguments<float, float>) + 32 <= 4096, "kernels take 4 KB of parameters");

/// The part with work item `item`; `first` is its member with the number of its first one.
__device__ inline const Part& part_of(const Parts& parts, int item, int Part::* first) {
  int i = 0;
#pragma unroll
  for (int step = kMostParts / 2; step > 0; step /= 2)
    if (i + step < parts.count && parts.part[i + step].*first <= item) i += step;
  return parts.part[i];
}

/// `common` with the part's arrays.
template <class G, class C>
__device__ inline Arguments<G, C> of_part(const Arguments<G, C>& common, const Part& part) {
  Arguments<G, C> a = common;
  a.master = static_cast<float*>(part.master);
  a.exp_avg = static_cast<float*>(part.exp_avg);
  a.exp_avg_sq = static_cast<float*>(part.exp_avg_sq);
  a.gradient = static_cast<const G*>(part.gradient);
  a.compute = static_cast<C*>(part.compute);
  a.chunks = part.chunks;
  a.aligned = part.aligned;
  return a;
}

struct Corrections {
  float first, root;  // 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
};

template <class A>
__device__ inline Corrections corrections(const A& a) {
  const float step = *a.step;
  return {1.0f / -expm1f(step * a.log_beta1), rsqrtf(-expm1f(step * a.log_beta2))};
}

__device__ inline float direction(float p, float m, float v, Corrections c, float eps, float decay) {
  return m * c.first / (sqrtf(v) * c.root + eps) + decay * p;
}

/// Sums values[i] over the block; afterwards values[0] of thread i < 2 holds the sum of values[i].
template <int kWarps>
__device__ inline void block_sum(double (&values)[2], double (&scratch)[kWarps][2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    values[i] = warp_sum(values[i]);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32][i] = values[i];
  }
  __syncthreads();
  if (threadIdx.x >= 2) return;
  values[0] = 0.0;
  for (int w = 0; w < kWarps; ++w) values[0] += scratch[w][threadIdx.x];
}

template <class G>
__global__ void __launch_bounds__(kShardThreads)
    moments_kernel(const Arguments<G, float> common, const __grid_constant__ Parts parts, double* partial) {
  await_kernel_before();
  __shared__ double scratch[kShardThreads / 32][2];
  const int block = static_cast<int>(blockIdx.x);
  const Part& part = part_of(parts, block, &Part::first_chunk);
  const Arguments<G, float> a = of_part(common, part);
  const bool skip = a.skip != nullptr && *a.skip != 0.0f;
  double squares[2] = {0.0, 0.0};
  if (!skip) {
    const ShardChunk chunk = a.chunks[block - part.first_chunk];
    const float multiplier = a.multiplier != nullptr ? *a.multiplier : 1.0f,
                decay = chunk.tag % 2 != 0 ? a.decay : 0.0f;
    const Corrections c = corrections(a);
    for_chunk(chunk, a.aligned, [&](int64_t element, auto width) {
      constexpr int kWidth = decltype(width)::value;
      float p[kWidth], m[kWidth], v[kWidth], g[kWidth];
      load_group(a.gradient + element, g);
      load_group(a.master + element, p);
      load_group(a.exp_avg + element, m);
      load_group(a.exp_avg_sq + element, v);
      float weights = 0.0f, updates = 0.0f;  // sums of four elements in fp32, added to fp64
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        g[i] *= multiplier;
        m[i] += a.rate1 * (g[i] - m[i]);
        v[i] = a.beta2 * v[i] + a.rate2 * g[i] * g[i];
        const float u = direction(p[i], m[i], v[i], c, a.eps, decay);
        weights += p[i] * p[i];
        updates += u * u;
      }
      squares[0] += static_cast<double>(weights);
      squares[1] += static_cast<double>(updates);
      store(a.exp_avg + element, from_floats<float>(m));
      store(a.exp_avg_sq + element, from_floats<float>(v));
    });
  }
  block_sum(squares, scratch);
  if (threadIdx.x < 2) partial[2 * int64_t{block} + threadIdx.x] = squares[0];
}

/// One block per tensor.
__global__ void __launch_bounds__(kSquareThreads)
    squares_kernel(const double* partial, const __grid_constant__ Parts parts, double* squares, int64_t row) {
  await_kernel_before();
  __shared__ double scratch[kSquareThreads / 32][2];
  const int block = static_cast<int>(blockIdx.x);
  const Part& part = part_of(parts, block, &Part::first_tensor);
  const int tensor = block - part.first_tensor, begin = part.first_chunk + part.tensor_chunks[tensor],
            end = part.first_chunk + part.tensor_chunks[tensor + 1];
  double sums[2] = {0.0, 0.0};
#pragma unroll 4
  for (int chunk = begin + static_cast<int>(threadIdx.x); chunk < end; chunk += kSquareThreads) {
    const double2 pair = *reinterpret_cast<const double2*>(partial + 2 * int64_t{chunk});
    sums[0] += pair.x;
    sums[1] += pair.y;
  }
  block_sum(sums, scratch);
  if (threadIdx.x < 2) squares[threadIdx.x * row + part.column + tensor] = sums[0] * part.share;
}

template <class C>
__global__ void __launch_bounds__(kShardThreads, 6)
    apply_kernel(const Arguments<float, C> common, const __grid_constant__ Parts parts, const double* squares,
                 int64_t row) {
  await_kernel_before();
  if (common.skip != nullptr && *common.skip != 0.0f) return;
  const int block = static_cast<int>(blockIdx.x);
  const Part& part = part_of(parts, block, &Part::first_chunk);
  const Arguments<float, C> a = of_part(common, part);
  const ShardChunk chunk = a.chunks[block - part.first_chunk];
  const float decay = chunk.tag % 2 != 0 ? a.decay : 0.0f;
  const int tensor = part.column + chunk.tag / 2;
  const double weights = squares[tensor], updates = squares[row + tensor];
  const float ratio = weights > 0.0 && updates > 0.0 ? sqrtf(static_cast<float>(weights / updates)) : 1.0f,
              size = a.lr * ratio;
  const Corrections c = corrections(a);
  for_chunk(chunk, a.aligned, [&](int64_t element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    float p[kWidth], m[kWidth], v[kWidth];
    load_group(a.master + element, p);
    load_group(a.exp_avg + element, m);
    load_group(a.exp_avg_sq + element, v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) p[i] -= size * direction(p[i], m[i], v[i], c, a.eps, decay);
    store(a.master + element, from_floats<float>(p));
    if (a.compute != nullptr) store(a.compute + element, from_floats<C>(p));
  });
}

/// Calls one(first, parts, chunks, tensors) for runs of shards that can share a launch.
template <class F>
cudaError_t in_runs(const Lamb* shards, int count, Element ShardUpdate::* element, const F& one) {
  for (int first = 0, next = 0; first < count; first = next) {
    Parts parts{};
    int64_t chunks = 0, tensors = 0;
    for (; next < count && parts.count < kMostParts && shards[next].*element == shards[first].*element; ++next) {
      const Lamb& a = shards[next];
      // A rank may have no element of a unit, and then no array.
      const bool there = a.chunks != nullptr && a.master != nullptr && a.exp_avg != nullptr && a.exp_avg_sq != nullptr;
      if (a.step == nullptr || a.master_element != Element::kF32 || (a.num_chunks > 0 && !there) ||
          (a.num_tensors > 0 && a.tensor_chunks == nullptr) || chunks + a.num_chunks > INT32_MAX)
        return cudaErrorInvalidValue;
      parts.part[parts.count++] = {a.master,
                                   a.exp_avg,
                                   a.exp_avg_sq,
                                   a.compute,
                                   a.gradient,
                                   a.chunks,
                                   a.tensor_chunks,
                                   a.share,
                                   static_cast<int>(chunks),
                                   static_cast<int>(tensors),
                                   a.first_tensor,
                                   aligned16(a.master, a.exp_avg, a.exp_avg_sq, a.gradient, a.compute)};
      chunks += a.num_chunks;
      tensors += a.num_tensors;
    }
    if (const cudaError_t error = one(shards[first], parts, chunks, tensors); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t lamb_moments(const Lamb* shards, int count, double* partial, double* squares, int64_t row,
                         cudaStream_t stream) {
  if (squares == nullptr) return cudaErrorInvalidValue;
  for (int i = 0; i < count; ++i)
    if (shards[i].num_chunks > 0 && (partial == nullptr || shards[i].gradient == nullptr)) return cudaErrorInvalidValue;
  return in_runs(shards, count, &Lamb::gradient_element,
                 [&](const Lamb& a, const Parts& parts, int64_t chunks, int64_t tensors) {
                   const cudaError_t error = chunks == 0 ? cudaSuccess : dispatch(a.gradient_element, [&](auto zero) {
                     using G = decltype(zero);
                     return launch_behind(moments_kernel<G>, dim3(static_cast<unsigned>(chunks)), kShardThreads, 0,
                                          stream, shard_arguments<G, float, float>(a, a.weight_decay), parts, partial);
                   });
                   if (error != cudaSuccess || tensors == 0) return error;
                   double* const sums = std::exchange(partial, partial + 2 * chunks);
                   return launch_behind(squares_kernel, dim3(static_cast<unsigned>(tensors)), kSquareThreads, 0, stream,
                                        sums, parts, squares, row);
                 });
}

cudaError_t lamb_apply(const Lamb* shards, int count, const double* squares, int64_t row, cudaStream_t stream) {
  if (squares == nullptr) return cudaErrorInvalidValue;
  return in_runs(
      shards, count, &Lamb::compute_element, [&](const Lamb& a, const Parts& parts, int64_t chunks, int64_t) {
        return chunks == 0 ? cudaSuccess : dispatch(a.compute_element, [&](auto zero) {
          using C = decltype(zero);
          return launch_behind(apply_kernel<C>, dim3(static_cast<unsigned>(chunks)), kShardThreads, 0, stream,
                               shard_arguments<float, C, float>(a, a.weight_decay), parts, squares, row);
        });
      });
}

}  // namespace trireme::kernels
