#pragma once
// LibTorch's element types, the element types of files, and their names.

#include "trireme/base/dtype.h"
#include "trireme/base/error.h"

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <utility>

namespace trireme {

inline constexpr std::pair<DType, at::ScalarType> kTensorTypes[] = {
    {DType::kF32, at::kFloat},     {DType::kF64, at::kDouble}, {DType::kF16, at::kHalf},
    {DType::kBF16, at::kBFloat16}, {DType::kI32, at::kInt},    {DType::kI64, at::kLong}};

/// The type in files for tensors of this type; a type without one is an internal error.
inline DType to_file_dtype(at::ScalarType type) {
  for (const auto& [file, tensor] : kTensorTypes)
    if (tensor == type) return file;
  throw InternalError(std::string("no file type for ") + c10::toString(type));
}

/// The type of tensors for weights of this file type; nullopt: weights are not stored in this type.
inline std::optional<at::ScalarType> weight_scalar_type(DType type) {
  for (const auto& [file, tensor] : kTensorTypes)
    if (file == type && dtype_is_float(file)) return tensor;
  return std::nullopt;
}

/// The name in precision.compute, "bf16"; for other types LibTorch's name.
inline std::string type_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return "fp32";
    case at::kHalf: return "fp16";
    case at::kBFloat16: return "bf16";
    case at::kFloat8_e4m3fn: return "E4M3";
    case at::kFloat8_e5m2: return "E5M2";
    default: return c10::toString(type);
  }
}

}  // namespace trireme
