#include "trireme/base/dtype.h"

#include "trireme/base/bytes.h"
#include "trireme/base/error.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace trireme {

namespace {

struct TypeFacts {
  DType dtype;
  const char* name;
  size_t size;
  bool is_float;
};
constexpr TypeFacts kTypes[] = {
    {DType::kBool, "BOOL", 1, false},     {DType::kU8, "U8", 1, false},         {DType::kI8, "I8", 1, false},
    {DType::kU16, "U16", 2, false},       {DType::kI16, "I16", 2, false},       {DType::kU32, "U32", 4, false},
    {DType::kI32, "I32", 4, false},       {DType::kU64, "U64", 8, false},       {DType::kI64, "I64", 8, false},
    {DType::kF8E4M3, "F8_E4M3", 1, true}, {DType::kF8E5M2, "F8_E5M2", 1, true}, {DType::kF16, "F16", 2, true},
    {DType::kBF16, "BF16", 2, true},      {DType::kF32, "F32", 4, true},        {DType::kF64, "F64", 8, true}};

const TypeFacts& facts(DType dtype) {
  const auto& found = kTypes[static_cast<size_t>(dtype)];
  TRIREME_CHECK(found.dtype == dtype, "dtype ", static_cast<int>(dtype));
  return found;
}

}  // namespace

size_t dtype_size(DType dtype) { return facts(dtype).size; }
bool dtype_is_float(DType dtype) { return facts(dtype).is_float; }
const char* dtype_name(DType dtype) { return facts(dtype).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const TypeFacts& type : kTypes)
    if (name == type.name) return type.dtype;
  return std::nullopt;
}

const char* torch_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF64: return "float64";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    default: return "float32";
  }
}

std::optional<DType> parse_compute_dtype(std::string_view word) {
  for (const std::string_view name : {"fp32", "f32", "float32", "Float"})
    if (word == name) return DType::kF32;
  for (const std::string_view name : {"bf16", "bfloat16", "BFloat16"})
    if (word == name) return DType::kBF16;
  for (const std::string_view name : {"fp16", "f16", "float16", "Half"})
    if (word == name) return DType::kF16;
  return std::nullopt;
}

int64_t checked_elements(std::span<const int64_t> shape, bool& ok) {
  int64_t product = 1;
  ok = true;
  for (const int64_t extent : shape) {
    TRIREME_CHECK(extent >= 0, "extent ", extent);
    if (__builtin_mul_overflow(product, extent, &product)) {
      ok = false;
      return 0;
    }
  }
  return product;
}

namespace {

float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000U} << 16, exponent = half >> 10 & 0x1F, mantissa = half & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | mantissa << 13);
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7C00);  // 65536 and above
  if (magnitude < 0x38800000) {  // subnormal halves: the float sum rounds to nearest even at the right bit
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3F000000U));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000U;
  return static_cast<uint16_t>(sign | rounded >> 13);
}

float bfloat_to_float(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

uint16_t float_to_bfloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Rounds to odd: a second rounding to half or bfloat16 then gives what one rounding from double would.
float to_float_for_rounding(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  if (std::isinf(nearest)) return nearest;
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if ((bits & 1) != 0) return nearest;
  const bool too_large = std::abs(static_cast<double>(nearest)) > std::abs(value);
  return std::bit_cast<float>(too_large ? bits - 1 : bits + 1);
}

template <DType kDType>
auto load(const std::byte* source, int64_t i) {
  if constexpr (kDType == DType::kF64 || kDType == DType::kF32) {
    using Value = std::conditional_t<kDType == DType::kF64, double, float>;
    return value_at<Value>(source + static_cast<size_t>(i) * sizeof(Value));
  } else {
    const auto bits = value_at<uint16_t>(source + static_cast<size_t>(i) * sizeof(uint16_t));
    return kDType == DType::kF16 ? half_to_float(bits) : bfloat_to_float(bits);
  }
}

template <DType kDType, class Value>
void store(std::byte* target, int64_t i, Value value) {
  if constexpr (kDType == DType::kF64 || kDType == DType::kF32) {
    const auto converted = static_cast<std::conditional_t<kDType == DType::kF64, double, float>>(value);
    std::memcpy(target + static_cast<size_t>(i) * sizeof converted, &converted, sizeof converted);
  } else {
    float single;
    if constexpr (std::is_same_v<Value, double>) {
      single = to_float_for_rounding(value);
    } else {
      single = value;
    }
    const uint16_t bits = kDType == DType::kF16 ? float_to_half(single) : float_to_bfloat(single);
    std::memcpy(target + static_cast<size_t>(i) * sizeof bits, &bits, sizeof bits);
  }
}

template <DType kFrom, DType kTo>
void convert(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store<kTo>(to, i, load<kFrom>(from, i));
}

template <DType kFrom>
void convert_from(const std::byte* from, std::byte* to, DType to_dtype, int64_t count) {
  switch (to_dtype) {
    case DType::kF16: return convert<kFrom, DType::kF16>(from, to, count);
    case DType::kBF16: return convert<kFrom, DType::kBF16>(from, to, count);
    case DType::kF32: return convert<kFrom, DType::kF32>(from, to, count);
    default: return convert<kFrom, DType::kF64>(from, to, count);
  }
}

bool convertible(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

}  // namespace

void convert_floats(const void* source, DType source_dtype, void* target, DType target_dtype, int64_t count) {
  TRIREME_CHECK(convertible(source_dtype) && convertible(target_dtype), "no conversion from ", dtype_name(source_dtype),
                " to ", dtype_name(target_dtype));
  if (count <= 0) return;
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  if (source_dtype == target_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count) * dtype_size(source_dtype));
    return;
  }
  switch (source_dtype) {
    case DType::kF16: return convert_from<DType::kF16>(from, to, target_dtype, count);
    case DType::kBF16: return convert_from<DType::kBF16>(from, to, target_dtype, count);
    case DType::kF32: return convert_from<DType::kF32>(from, to, target_dtype, count);
    default: return convert_from<DType::kF64>(from, to, target_dtype, count);
  }
}

}  // namespace trireme
