#pragma once
// Private to formats/megatron: the types of the type codes.

#include "trireme/formats/megatron/indexed_file.h"

#include <cstdint>
#include <limits>
#include <string_view>

namespace trireme {

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr uint64_t kMegatronVersion = 1;

struct MegatronTypeInfo {
  int64_t size = 0;  // bytes; 0: no such code
  bool is_integer = false;
  int64_t min = 0, max = 0;
  const char* name = "";
};

template <class T>
constexpr MegatronTypeInfo megatron_integer(const char* name) {
  return {sizeof(T), true, static_cast<int64_t>(std::numeric_limits<T>::min()),
          static_cast<int64_t>(std::numeric_limits<T>::max()), name};
}

constexpr MegatronTypeInfo megatron_type_info(MegatronType type) {
  switch (type) {
    case MegatronType::kU8: return megatron_integer<uint8_t>("uint8");
    case MegatronType::kI8: return megatron_integer<int8_t>("int8");
    case MegatronType::kI16: return megatron_integer<int16_t>("int16");
    case MegatronType::kI32: return megatron_integer<int32_t>("int32");
    case MegatronType::kI64: return megatron_integer<int64_t>("int64");
    case MegatronType::kF64: return {8, false, 0, 0, "float64"};
    case MegatronType::kF32: return {4, false, 0, 0, "float32"};
    case MegatronType::kU16: return megatron_integer<uint16_t>("uint16");
  }
  return {};
}

}  // namespace trireme
