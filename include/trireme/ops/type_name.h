#pragma once
// Names of number formats in logs and metrics.

#include <c10/core/ScalarType.h>

#include <string>

namespace trireme {

/// As precision.compute names it, "bf16"; other types as LibTorch names them.
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
