#pragma once
// Counter-keyed dropout (the hash is specified in include/trireme/ops/dropout.h).
//
//   out[b, e] = (addend ? addend[b, e] : 0) + (kept(b, e) ? x[b, e] * scale : 0)
//
// x, addend, out   [rows, row_size], device, same type; out may be x or addend; any size and alignment, fast with
//          16-byte aligned pointers and a row_size that is a multiple of 16 / sizeof(type)
// ids      [rows] int64, device: global sample ids
// first    index in its sample of the first element of a row
// No allocation, no synchronisation. Deterministic: each element is written by one thread, and its decision depends on
// (key, id, first + e) only.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

struct DropoutArguments {
  const void* x;
  const void* addend;  // null: none
  void* out;
  const int64_t* ids;
  int64_t rows, row_size;
  uint32_t t0, t1, threshold;
  float scale;
  Element element;
  int64_t first = 0;
};

cudaError_t dropout(const DropoutArguments& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
