#include "kernels/layer_norm/layer_norm_backward_sums.h"

#include "kernels/layer_norm/layer_norm_backward_sums.cuh"

namespace trireme::kernels {

namespace {

/// As measured on an H200: rows in registers between the two passes where the sums leave room
/// for them, else in shared memory; two blocks on a multiprocessor where one would be half empty.
template <class T, int kSums, bool kDropout>
cudaError_t launch(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  using layer_norm_sums::launch, layer_norm_sums::kThreads;
  const int64_t packs = a.columns / (16 / static_cast<int>(sizeof(T)));
  if constexpr (sizeof(T) == 2) {
    if (packs <= (kSums == 2 ? kThreads / 2 : kThreads) && a.d_sum == nullptr)
      return launch<T, kSums, kDropout, 1, 4, true, 1, false>(a, partials, stream);
    if constexpr (kSums == 2 && !kDropout) {
      if (packs > kThreads && packs <= kThreads * 3 / 2)
        return launch<T, kSums, kDropout, 1, 2, false, 2, true>(a, partials, stream);
    }
  }
  if (packs <= 2 * kThreads)
    return launch<T, kSums, kDropout, 2, 2, false, 1, false>(a, partials, stream);
  return launch<T, kSums, kDropout, 2, 2, false, 1, true>(a, partials, stream);
}

}  // namespace

cudaError_t layer_norm_backward_sums(const LayerNormBackward& a, int64_t* partials,
                                     cudaStream_t stream) {
  // Rows that the kernel asks for ahead are counted in 32 bits.
  if (a.rows > INT32_MAX - (1 << 20)) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    const bool dropout = a.dropout.ids != nullptr;
    if (a.d_bias != nullptr)
      return dropout ? launch<T, 3, true>(a, partials, stream)
                     : launch<T, 3, false>(a, partials, stream);
    return dropout ? launch<T, 2, true>(a, partials, stream)
                   : launch<T, 2, false>(a, partials, stream);
  });
}

}  // namespace trireme::kernels
