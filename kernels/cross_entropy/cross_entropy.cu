#include "kernels/cross_entropy/cross_entropy.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

// Three blocks of a multiprocessor share its shared memory, or two whose rows need more (50,304 columns of GPT-3).
constexpr int kThreads = 512, kStages = 4, kSumThreads = 1024;
constexpr size_t kStagedBytes = 72 * 1024;
constexpr float kLog2E = 1.4426950408889634f;

/// Largest value and sum of exp(value - largest) of a set of logits.
struct Partition {
  float top, sum;
};

__device__ inline Partition merge(Partition a, Partition b) {
  const float top = fmaxf(a.top, b.top);
  // A set of only -inf has sum 0; skipped, because -inf - -inf is NaN.
  const float left = a.sum == 0.0f ? 0.0f : a.sum * exp2f((a.top - top) * kLog2E),
              right = b.sum == 0.0f ? 0.0f : b.sum * exp2f((b.top - top) * kLog2E);
  return {top, left + right};
}

__device__ inline Partition warp_merge(Partition v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Partition other{__shfl_xor_sync(0xffffffffu, v.top, offset), __shfl_xor_sync(0xffffffffu, v.sum, offset)};
    // The lower lane's operand comes first in both lanes, so that all lanes get the same bits.
    v = (threadIdx.x & offset) == 0 ? merge(v, other) : merge(other, v);
  }
  return v;
}

/// All threads get the same bits; `scratch` holds 32 partitions.
__device__ inline Partition block_merge(Partition v, Partition* scratch) {
  v = warp_merge(v);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : Partition{-INFINITY, 0.0f};
  return warp_merge(v);
}

/// Adds kCount logits to a thread's running partition.
template <int kCount>
__device__ inline void extend(Partition& v, const float (&logits)[kCount]) {
  float top = v.top;
#pragma unroll
  for (int i = 0; i < kCount; ++i) top = fmaxf(top, logits[i]);
  if (top > v.top) {
    v.sum *= fast_exp2((v.top - top) * kLog2E);  // 0 at the first call, where v.top is -inf
    v.top = top;
  }
  const float offset = top == -INFINITY ? 0.0f : top * kLog2E;
#pragma unroll
  for (int i = 0; i < kCount; ++i) v.sum += fast_exp2(logits[i] * kLog2E - offset);
}

struct Token {
  float weight;
  int64_t target;
  float target_logit;
};

template <class T>
__device__ inline Token read_token(const CrossEntropy& a, int64_t token) {
  Token t{a.weights != nullptr ? a.weights[token] : 1.0f, a.targets[token], 0.0f};
  if (t.weight != 0.0f) {
    const bool inside = t.target >= 0 && t.target < a.vocab;
    t.target_logit =
        inside ? to_float(static_cast<const T*>(a.logits)[token * a.stride + t.target]) : __int_as_float(0x7fffffff);
  }
  return t;
}

__device__ inline void write_token(const CrossEntropy& a, int64_t token, const Token& t, float lse) {
  a.loss[token] = t.weight == 0.0f ? 0.0f : t.weight * (lse - t.target_logit);
}

/// The same with label smoothing. `sum`: of the logits of smoothed_vocab columns.
__device__ inline void write_smoothed(const CrossEntropy& a, int64_t token, const Token& t, float lse, float sum) {
  const float mean = sum / static_cast<float>(a.smoothed_vocab);
  a.loss[token] = t.weight * (lse - t.target_logit + a.smoothing * (t.target_logit - mean));
}

/// One block per token: softmax statistics in a first pass over the row, the gradient in a second. With kStaged the row
/// stays in shared memory between the passes; without it the second pass reads the row from L2, as long as the rows in
/// flight fit there.
template <class T, int kWidth, bool kStaged, bool kSmooth>
__global__ void __launch_bounds__(kThreads, 3) row_kernel(const CrossEntropy a) {
  constexpr int kUnroll = kWidth == 1 ? 8 : 4, kStep = kThreads * kWidth;
  __shared__ Partition scratch[32];
  extern __shared__ int4 staged[];
  const int64_t token = blockIdx.x;
  const T* row = static_cast<const T*>(a.logits) + token * a.stride;
  T* out = static_cast<T*>(a.d_logits) + token * a.stride;
  const int vocab = static_cast<int>(a.vocab), stride = static_cast<int>(a.stride),
            first = static_cast<int>(threadIdx.x) * kWidth;

  const float weight = a.weights != nullptr ? a.weights[token] : 1.0f;
  if (weight == 0.0f) {
    if (a.d_logits != nullptr) {
      const float zeros[kWidth] = {};
      for (int column = first; column < stride; column += kStep) store(out + column, from_floats<T>(zeros));
    }
    if (threadIdx.x == 0) write_token(a, token, {0.0f, 0, 0.0f}, 0.0f);
    return;
  }
  T* kept = reinterpret_cast<T*>(staged);
  if constexpr (kStaged) {
    // The whole row is requested at once; the first pass processes it in kStages parts as they arrive.
    const int part = ((vocab + kStep - 1) / kStep + kStages - 1) / kStages * kStep;
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      for (int column = stage * part + first; column < min((stage + 1) * part, vocab); column += kStep)
        copy_async16(kept + column, row + column);
      copy_async_commit();
    }
  }
  // Read before the barrier after which d_logits may overwrite logits.
  Token t{};
  if (threadIdx.x == 0) t = read_token<T>(a, token);

  const auto load = [&](int column) {
    if constexpr (kStaged)
      return *reinterpret_cast<const Vec<T, kWidth>*>(kept + column);
    else
      return *reinterpret_cast<const Vec<T, kWidth>*>(row + column);
  };
  const auto take = [&](Vec<T, kWidth> vec, int column, float (&values)[kWidth]) {
    to_floats(vec, values);
    if (column + kWidth > vocab) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        if (column + i >= vocab) values[i] = -INFINITY;
    }
  };

  Partition v{-INFINITY, 0.0f};
  [[maybe_unused]] float logit_sum[1] = {};
  [[maybe_unused]] const int smoothed = static_cast<int>(a.smoothed_vocab);
  const auto gather = [&](int begin, int end) {
    for (int base = begin + first; base < end; base += kStep * kUnroll) {
      Vec<T, kWidth> loaded[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k)
        if (base + k * kStep < end) loaded[k] = load(base + k * kStep);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (base + k * kStep >= end) continue;
        float values[kWidth];
        take(loaded[k], base + k * kStep, values);
        extend(v, values);
        if constexpr (kSmooth) {
#pragma unroll
          for (int i = 0; i < kWidth; ++i)
            if (base + k * kStep + i < smoothed) logit_sum[0] += values[i];
        }
      }
    }
  };
  if constexpr (kStaged) {
    const int part = ((vocab + kStep - 1) / kStep + kStages - 1) / kStages * kStep;
    // A thread reads only what it copied itself, so no barrier is needed.
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      if (stage == 0) copy_async_wait<3>();
      if (stage == 1) copy_async_wait<2>();
      if (stage == 2) copy_async_wait<1>();
      if (stage == 3) copy_async_wait<0>();
      gather(stage * part, min((stage + 1) * part, vocab));
    }
  } else {
    gather(0, vocab);
  }
  v = block_merge(v, scratch);
  if constexpr (kSmooth) {
    __shared__ float sums[32];
    row_sum(logit_sum, kThreads, sums);
    if (threadIdx.x == 0) write_smoothed(a, token, t, v.top + logf(v.sum), logit_sum[0]);
  } else {
    if (threadIdx.x == 0) write_token(a, token, t, v.top + logf(v.sum));
  }
  if (a.d_logits == nullptr) return;

  const float factor = a.gradient_weights != nullptr ? a.gradient_weights[token] : weight, share = factor / v.sum,
              offset = v.top * kLog2E;
  const int target = static_cast<int>(a.targets[token]);
  [[maybe_unused]] float off_target = 0.0f, on_target = factor;
  if constexpr (kSmooth) {
    off_target = factor * a.smoothing / static_cast<float>(a.smoothed_vocab);
    on_target = factor * (1.0f - a.smoothing);
  }
  // In descending order: what was read last is most likely still in L2.
  const int passes = (stride + kStep * kUnroll - 1) / (kStep * kUnroll);
  for (int pass = passes - 1; pass >= 0; --pass) {
    const int base = pass * kStep * kUnroll + first;
    Vec<T, kWidth> loaded[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (base + k * kStep < vocab) loaded[k] = load(base + k * kStep);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int column = base + k * kStep;
      if (column >= stride) continue;
      float values[kWidth];
      take(loaded[k], column, values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] = share * fast_exp2(values[i] * kLog2E - offset);
      if constexpr (kSmooth) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
          if (column + i < smoothed) values[i] -= off_target;
      }
      // The inner loop is skipped unless the target is in this thread's pack, which is rare.
      if (const int place = target - column; place >= 0 && place < kWidth) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
          if (i == place) values[i] -= on_target;
      }
      store(out + column, from_floats<T>(values));
    }
  }
}

template <class T, int kWidth, bool kStaged, bool kSmooth>
cudaError_t launch_rows(const CrossEntropy& a, size_t shared, cudaStream_t stream) {
  const auto kernel = row_kernel<T, kWidth, kStaged, kSmooth>;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(a.tokens), kThreads, shared, stream>>>(a);
  return cudaGetLastError();
}

template <class T, bool kSmooth>
cudaError_t launch(const CrossEntropy& a, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  if (a.stride % kPack != 0 || !aligned16(a.logits, a.d_logits)) return launch_rows<T, 1, false, kSmooth>(a, 0, stream);
  const size_t row = static_cast<size_t>(a.stride) * sizeof(T);
  const bool staged = row <= kStagedBytes || fits_shared_memory(2 * (row + 1024));
  return staged ? launch_rows<T, kPack, true, kSmooth>(a, row, stream)
                : launch_rows<T, kPack, false, kSmooth>(a, 0, stream);
}

__global__ void __launch_bounds__(kSumThreads) sum_kernel(const float* values, int64_t count, float* total) {
  __shared__ double scratch[kSumThreads / 32];
  double sum = 0.0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) sum += static_cast<double>(values[i]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double all = 0.0;
  for (int w = 0; w < kSumThreads / 32; ++w) all += scratch[w];
  *total = static_cast<float>(all);
}

}  // namespace

cudaError_t cross_entropy(const CrossEntropy& a, cudaStream_t stream) {
  if (a.tokens == 0) return cudaSuccess;
  if (a.vocab <= 0 || a.stride < a.vocab || a.tokens > INT32_MAX || a.stride > INT32_MAX / 2 || a.loss == nullptr)
    return cudaErrorInvalidValue;
  if (a.smoothing != 0.0f && (a.smoothed_vocab <= 0 || a.smoothed_vocab > a.vocab)) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    return a.smoothing == 0.0f ? launch<T, false>(a, stream) : launch<T, true>(a, stream);
  });
}

cudaError_t sum_values(const float* values, int64_t count, float* total, cudaStream_t stream) {
  sum_kernel<<<1, kSumThreads, 0, stream>>>(values, count, total);
  return cudaGetLastError();
}

}  // namespace trireme::kernels
