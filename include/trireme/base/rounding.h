#pragma once
// Division and rounding of whole numbers upwards. Values are not negative.

#include <type_traits>

namespace trireme {

template <class Int>
constexpr Int ceil_div(Int value, std::type_identity_t<Int> by) {
  return (value + by - 1) / by;
}

/// The least multiple that is not less than `value`.
template <class Int>
constexpr Int round_up(Int value, std::type_identity_t<Int> multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace trireme
