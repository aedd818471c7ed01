#pragma once
// NF4 with double quantisation, the format of bitsandbytes: blocks of 64 values with their largest magnitude (absmax),
// 16 code points (the quantiles of a normal distribution), two codes a byte, the first in the high half. The absmax of
// a tensor minus their mean are quantised again: blocks of 256, 256 code points (its dynamic map), one byte each.
//
//   absmax[b] = fp32(map[code8[b]] * nested[b / 256]) + offset
//   value[i]  = round(fp32(book[code4[i]] * absmax[i / 64]))
//
// Source of the rules: the CUDA kernels of bitsandbytes 0.50. The offset is LibTorch's mean, whose last bit depends on
// the device. The CPU library of that release finds 8-bit codes through a table, and takes the neighbour of about one
// code in a thousand. A block of zeros has the code of 0, where the CUDA kernel divides 0 by 0 and has that of -1.

#include "trireme/base/rounding.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

constexpr int64_t kNf4Block = 64, kNf4NestedBlock = 256;
/// Values that compositions quantise or expand at a time: the temporaries of more would take too much memory.
constexpr int64_t kNf4Chunk = int64_t{1} << 24;
constexpr int64_t nf4_code_bytes(int64_t values) { return (values + 1) / 2; }
constexpr int64_t nf4_blocks(int64_t values) { return ceil_div(values, kNf4Block); }
constexpr int64_t nf4_nested_blocks(int64_t values) { return ceil_div(nf4_blocks(values), kNf4NestedBlock); }

/// fp32 [16] and [256], ascending, on this device.
const at::Tensor& nf4_book(at::Device device);
const at::Tensor& nf4_map(at::Device device);

/// codes [nf4_code_bytes(n)], bytes, of values [n], contiguous, of any float type and finite. Returns the absmax of the
/// blocks, fp32 [nf4_blocks(n)]. A block of zeros has the code of 0.
at::Tensor nf4_quantize_(const at::Tensor& codes, const at::Tensor& values);

/// The quantised absmax of one tensor of n values.
struct Nf4Scales {
  at::Tensor absmax;  // bytes [nf4_blocks(n)]
  at::Tensor nested;  // fp32 [nf4_nested_blocks(n)]
  at::Tensor offset;  // fp32 scalar
};
/// Writes `scales` from absmax [nf4_blocks(n)]. The offset, or a nested scale, of huge values may be infinite.
void nf4_quantize_scales_(const Nf4Scales& scales, const at::Tensor& absmax);

/// target [n], contiguous, fp32, fp16 or bf16, written without a change of its autograd version.
void nf4_dequantize_(const at::Tensor& target, const at::Tensor& codes, const Nf4Scales& scales);

}  // namespace trireme
