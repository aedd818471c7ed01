#pragma once
// Shared by SwiGLU's forward and backward with FP8.

#include "kernels/fp8/fp8.cuh"
#include "kernels/row_prefetch.cuh"
#include "kernels/swiglu/swiglu.cuh"
#include "kernels/swiglu/swiglu.h"

namespace trireme::kernels::swiglu_fp8 {

// Packs of each half of a row per thread: few for short rows, so that several blocks share a multiprocessor.
constexpr int kFewPacks = 4, kManyPacks = 7, kMaxThreads = 512, kScalarThreads = 256, kWidth = 8, kStages = 1;

using Codes = Vec<uint16_t, kWidth / 2>;

template <class T, class... P>
bool suits_packs(int64_t f, P... pointers) {
  return sizeof(T) == 2 && f % kWidth == 0 && f / kWidth <= kManyPacks * kMaxThreads && aligned16(pointers...);
}

}  // namespace trireme::kernels::swiglu_fp8
