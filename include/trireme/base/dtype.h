#pragma once
// Element types of file formats, independent of LibTorch.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace trireme {

enum class DType { kBool, kU8, kI8, kU16, kI16, kU32, kI32, kU64, kI64, kF8E4M3, kF8E5M2, kF16, kBF16, kF32, kF64 };

size_t dtype_size(DType dtype);
bool dtype_is_float(DType dtype);
const char* dtype_name(DType dtype);  // safetensors' spelling: "BF16", "F32", …
std::optional<DType> parse_dtype(std::string_view name);
/// As a model's config.json names a type of weights: "bfloat16", "float32", …
const char* torch_dtype_name(DType dtype);
/// fp32, bf16 or fp16 from any of its names: "fp32", "f32", "float32", "Float"; nullopt for other words.
std::optional<DType> parse_compute_dtype(std::string_view word);

/// Product of extents that are known to fit.
inline int64_t element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}
/// Product of extents; InternalError on negative extents, false in `ok` on overflow of int64.
int64_t checked_elements(std::span<const int64_t> shape, bool& ok);

/// Converts `count` floating elements between F16, BF16, F32, F64 (round to nearest even).
void convert_floats(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count);

}  // namespace trireme
