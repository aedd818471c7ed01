#pragma once
// What a field accepts, in words, for error messages and --help alike.

#include <string>
#include <type_traits>

#include "schema.h"

namespace trireme {

enum class Type { kString, kInteger, kNumber, kBool, kStrings, kNumbers, kIntegers };

template <class Value>
struct OptionalOf : std::false_type {
  using Inner = Value;
};
template <class Value>
struct OptionalOf<std::optional<Value>> : std::true_type {
  using Inner = Value;
};

template <class Value>
constexpr Type type_of() {
  using Inner = typename OptionalOf<Value>::Inner;
  if constexpr (std::is_same_v<Inner, std::string>) return Type::kString;
  if constexpr (std::is_same_v<Inner, int64_t>) return Type::kInteger;
  if constexpr (std::is_same_v<Inner, double>) return Type::kNumber;
  if constexpr (std::is_same_v<Inner, bool>) return Type::kBool;
  if constexpr (std::is_same_v<Inner, std::vector<std::string>>) return Type::kStrings;
  if constexpr (std::is_same_v<Inner, std::vector<double>>) return Type::kNumbers;
  if constexpr (std::is_same_v<Inner, std::vector<int64_t>>) return Type::kIntegers;
}

/// "an integer from 1 to 65536", "adamw or lamb", "a path or null", …
std::string expectation(const Field& field, Type type, bool optional);

}  // namespace trireme
