#include "kernels/optimizer/shard_update.cuh"

namespace trireme::kernels {

namespace {

/// `decay` is 1 - lr * weight_decay.
template <class G, class C, class M, class P>
struct Arguments : ShardArguments<G, C, M, P> {
  uint64_t first_element;
  uint32_t master_key;
  uint32_t* amax;
};

/// 32 random bits for the rounding of one element in one step. Of moments, with key 0: the lower 16 for exp_avg, the
/// upper 16 for exp_avg_sq; of masters the lower 16. The finaliser of a 32-bit mixing hash over the element's and the
/// step's numbers.
__device__ inline uint32_t rounding_bits(uint64_t element, uint32_t step, uint32_t key) {
  uint32_t h = static_cast<uint32_t>(element) * 0x9E3779B1u ^ static_cast<uint32_t>(element >> 32) * 0x85EBCA77u ^
               step * 0xC2B2AE3Du ^ key;
  h ^= h >> 16;
  h *= 0x7FEB352Du;
  h ^= h >> 15;
  h *= 0x846CA68Bu;
  return h ^ h >> 16;
}

/// bf16 of x: the neighbour below or above in magnitude, the latter with probability equal to the part of the distance.
/// NaN and infinities stay what they are.
__device__ inline __nv_bfloat16 round_by(float x, uint32_t bits16) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7F800000u) == 0x7F800000u) return __float2bfloat16(x);
  return __ushort_as_bfloat16(static_cast<unsigned short>((bits + bits16) >> 16));
}

template <class M, int kWidth>
__device__ inline void store_moments(M* exp_avg, M* exp_avg_sq, const float (&m)[kWidth], const float (&v)[kWidth],
                                     uint64_t element, uint32_t step) {
  if constexpr (__is_same(M, float)) {
    store(exp_avg, from_floats<float>(m));
    store(exp_avg_sq, from_floats<float>(v));
  } else {
    Vec<M, kWidth> rounded_m, rounded_v;
    auto* lanes_m = reinterpret_cast<M*>(&rounded_m);
    auto* lanes_v = reinterpret_cast<M*>(&rounded_v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const uint32_t bits = rounding_bits(element + static_cast<uint64_t>(i), step, 0);
      lanes_m[i] = round_by(m[i], bits & 0xFFFFu);
      lanes_v[i] = round_by(v[i], bits >> 16);
    }
    store(exp_avg, rounded_m);
    store(exp_avg_sq, rounded_v);
  }
}

/// Magnitudes are compared as bit patterns: without the sign bit the patterns are ordered like the floats, and NaN
/// comes after infinity.
__device__ inline uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

/// Rounds and stores master weights in bf16; returns the largest magnitude of what it stores.
template <class P, int kWidth>
__device__ inline uint32_t store_masters(P* master, const float (&p)[kWidth], uint64_t element, uint32_t step,
                                         uint32_t key) {
  Vec<P, kWidth> rounded;
  auto* lanes = reinterpret_cast<P*>(&rounded);
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    lanes[i] = round_by(p[i], rounding_bits(element + static_cast<uint64_t>(i), step, key) & 0xFFFFu);
    top = max(top, magnitude(to_float(lanes[i])));
  }
  store(master, rounded);
  return top;
}

/// Raises *amax to the block's largest magnitude.
__device__ inline void raise_amax(uint32_t* amax, uint32_t top) {
  top = __reduce_max_sync(0xFFFFFFFFu, top);
  if (threadIdx.x % 32 == 0 && top > 0) atomicMax(amax, top);
}

template <class G, class C, class M, class P>
__global__ void __launch_bounds__(kShardThreads) adamw_kernel(const Arguments<G, C, M, P> a) {
  await_kernel_before();
  const ShardChunk chunk = a.chunks[blockIdx.x];
  uint32_t top = 0;
  if (a.skip != nullptr && *a.skip != 0.0f) {
    if (a.amax == nullptr) return;
    for_chunk(chunk, a.aligned, [&](int64_t element, auto width) {
      float p[decltype(width)::value];
      load_group(a.master + element, p);
      for (const float value : p) top = max(top, magnitude(value));
    });
    raise_amax(a.amax + chunk.tag / 2, top);
    return;
  }
  const float multiplier = a.multiplier != nullptr ? *a.multiplier : 1.0f, step = *a.step;
  const float size = a.lr / -expm1f(step * a.log_beta1), root = rsqrtf(-expm1f(step * a.log_beta2)),
              keep = chunk.tag % 2 != 0 ? a.decay : 1.0f;
  for_chunk(chunk, a.aligned, [&](int64_t element, auto width) {
    constexpr int kWidth = decltype(width)::value;
    float p[kWidth], m[kWidth], v[kWidth], g[kWidth];
    load_group(a.gradient + element, g);
    load_group(a.master + element, p);
    load_group(a.exp_avg + element, m);
    load_group(a.exp_avg_sq + element, v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      g[i] *= multiplier;
      p[i] *= keep;
      m[i] += a.rate1 * (g[i] - m[i]);
      v[i] = a.beta2 * v[i] + a.rate2 * g[i] * g[i];
      p[i] -= size * m[i] / (sqrtf(v[i]) * root + a.eps);
      if constexpr (__is_same(P, float)) top = max(top, magnitude(p[i]));
    }
    if constexpr (__is_same(P, float)) store(a.master + element, from_floats<float>(p));
    store_moments(a.exp_avg + element, a.exp_avg_sq + element, m, v, a.first_element + static_cast<uint64_t>(element),
                  static_cast<uint32_t>(step));
    if constexpr (__is_same(P, float)) {
      if (a.compute != nullptr) store(a.compute + element, from_floats<C>(p));
    } else {
      // After the moments, whose registers are free then.
      const uint32_t largest = store_masters(a.master + element, p, a.first_element + static_cast<uint64_t>(element),
                                             static_cast<uint32_t>(step), a.master_key);
      if (a.amax != nullptr) top = max(top, largest);
    }
  });
  if (a.amax != nullptr) raise_amax(a.amax + chunk.tag / 2, top);
}

template <class G, class C, class M, class P>
cudaError_t launch(const AdamW& a, cudaStream_t stream) {
  const Arguments<G, C, M, P> arguments{shard_arguments<G, C, M, P>(a, 1.0 - a.lr * a.weight_decay), a.first_element,
                                        a.master_key, reinterpret_cast<uint32_t*>(a.amax)};
  return launch_behind(adamw_kernel<G, C, M, P>, dim3(static_cast<unsigned>(a.num_chunks)), kShardThreads, 0, stream,
                       arguments);
}

}  // namespace

cudaError_t adamw(const AdamW& a, cudaStream_t stream) {
  if (a.num_chunks == 0) return cudaSuccess;
  if (!complete(a) || a.moment_element == Element::kF16 || a.master_element == Element::kF16)
    return cudaErrorInvalidValue;
  const bool bf16 = a.master_element == Element::kBF16;
  if (bf16 && a.compute != nullptr) return cudaErrorInvalidValue;
  return dispatch(a.gradient_element, [&](auto gradient_zero) {
    using G = decltype(gradient_zero);
    const auto with_moments = [&](auto compute_zero, auto master_zero) {
      using C = decltype(compute_zero);
      using P = decltype(master_zero);
      return a.moment_element == Element::kBF16 ? launch<G, C, __nv_bfloat16, P>(a, stream)
                                                : launch<G, C, float, P>(a, stream);
    };
    if (bf16) return with_moments(__nv_bfloat16(), __nv_bfloat16());
    return dispatch(a.compute_element, [&](auto compute_zero) { return with_moments(compute_zero, 0.0f); });
  });
}

}  // namespace trireme::kernels
