#include "kernels/optimizer/shard_update.cuh"

namespace trireme::kernels {

namespace {

constexpr int kSquareThreads = 256;

template <class G, class C>
using Arguments = ShardArguments<G, C, float>;

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
__global__ void __launch_bounds__(kShardThreads) moments_kernel(const Arguments<G, float> a, double* partial) {
  await_kernel_before();
  __shared__ double scratch[kShardThreads / 32][2];
  const bool skip = a.skip != nullptr && *a.skip != 0.0f;
  double squares[2] = {0.0, 0.0};
  if (!skip) {
    const ShardChunk chunk = a.chunks[blockIdx.x];
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
  if (threadIdx.x < 2) partial[2 * static_cast<int64_t>(blockIdx.x) + threadIdx.x] = squares[0];
}

/// One block per tensor.
__global__ void __launch_bounds__(kSquareThreads)
    squares_kernel(const double* partial, const int32_t* tensor_chunks, double share, double* squares, int64_t row) {
  await_kernel_before();
  __shared__ double scratch[kSquareThreads / 32][2];
  const int begin = tensor_chunks[blockIdx.x], end = tensor_chunks[blockIdx.x + 1];
  double sums[2] = {0.0, 0.0};
#pragma unroll 4
  for (int chunk = begin + static_cast<int>(threadIdx.x); chunk < end; chunk += kSquareThreads) {
    const double2 pair = *reinterpret_cast<const double2*>(partial + 2 * static_cast<int64_t>(chunk));
    sums[0] += pair.x;
    sums[1] += pair.y;
  }
  block_sum(sums, scratch);
  if (threadIdx.x < 2) squares[threadIdx.x * row + blockIdx.x] = sums[0] * share;
}

template <class C>
__global__ void __launch_bounds__(kShardThreads, 6)
    apply_kernel(const Arguments<float, C> a, const double* squares, int64_t row) {
  await_kernel_before();
  if (a.skip != nullptr && *a.skip != 0.0f) return;
  const ShardChunk chunk = a.chunks[blockIdx.x];
  const float decay = chunk.tag % 2 != 0 ? a.decay : 0.0f;
  const double weights = squares[chunk.tag / 2], updates = squares[row + chunk.tag / 2];
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

}  // namespace

cudaError_t lamb_moments(const Lamb& a, double* partial, cudaStream_t stream) {
  if (a.num_chunks == 0) return cudaSuccess;
  if (!complete(a) || a.master_element != Element::kF32 || a.gradient == nullptr || partial == nullptr)
    return cudaErrorInvalidValue;
  return dispatch(a.gradient_element, [&](auto zero) {
    using G = decltype(zero);
    return launch_behind(moments_kernel<G>, dim3(static_cast<unsigned>(a.num_chunks)), kShardThreads, 0, stream,
                         shard_arguments<G, float, float>(a, a.weight_decay), partial);
  });
}

cudaError_t lamb_squares(const double* partial, const int32_t* tensor_chunks, int num_tensors, double share,
                         double* squares, int64_t row, cudaStream_t stream) {
  if (num_tensors == 0) return cudaSuccess;
  return launch_behind(squares_kernel, dim3(static_cast<unsigned>(num_tensors)), kSquareThreads, 0, stream, partial,
                       tensor_chunks, share, squares, row);
}

cudaError_t lamb_apply(const Lamb& a, const double* squares, int64_t row, cudaStream_t stream) {
  if (a.num_chunks == 0) return cudaSuccess;
  if (!complete(a) || a.master_element != Element::kF32 || squares == nullptr) return cudaErrorInvalidValue;
  return dispatch(a.compute_element, [&](auto zero) {
    using C = decltype(zero);
    return launch_behind(apply_kernel<C>, dim3(static_cast<unsigned>(a.num_chunks)), kShardThreads, 0, stream,
                         shard_arguments<float, C, float>(a, a.weight_decay), squares, row);
  });
}

}  // namespace trireme::kernels
