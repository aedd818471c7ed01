#pragma once
// The formulas of lora.h in fp64, for one adapter and a given mask.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

using Values = std::vector<double>;

/// masked [tokens, columns] a [rank, columns]^T: [tokens, rank].
inline Values lora_down(const Values& masked, const Values& a, int64_t tokens, int64_t columns, int64_t rank) {
  Values t(static_cast<size_t>(tokens * rank));
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t r = 0; r < rank; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < columns; ++c)
        sum += masked[static_cast<size_t>(row * columns + c)] * a[static_cast<size_t>(r * columns + c)];
      t[static_cast<size_t>(row * rank + r)] = sum;
    }
  return t;
}

/// d [tokens, rank]^T masked [tokens, columns]: [rank, columns].
inline Values lora_down_dw(const Values& masked, const Values& d, int64_t tokens, int64_t columns, int64_t rank) {
  Values da(static_cast<size_t>(rank * columns));
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t r = 0; r < rank; ++r) {
      const double factor = d[static_cast<size_t>(row * rank + r)];
      for (int64_t c = 0; c < columns; ++c)
        da[static_cast<size_t>(r * columns + c)] += factor * masked[static_cast<size_t>(row * columns + c)];
    }
  return da;
}

/// dx += factor * (d a), element by element; factor [tokens, columns] is 0 or the scale.
inline void lora_down_dx(Values& dx, const Values& factor, const Values& d, const Values& a, int64_t tokens,
                         int64_t columns, int64_t rank) {
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t c = 0; c < columns; ++c) {
      const size_t at = static_cast<size_t>(row * columns + c);
      if (factor[at] == 0) continue;
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r)
        sum += d[static_cast<size_t>(row * rank + r)] * a[static_cast<size_t>(r * columns + c)];
      dx[at] += factor[at] * sum;
    }
}

// t [tokens, rank], b [columns, rank], y and dy [tokens, columns], all contiguous.

/// scale * dy factor [tokens, rank], or scale * dy^T factor [columns, rank].
inline Values lora_up_gradient(const Values& dy, const Values& factor, int64_t tokens, int64_t columns, int64_t rank,
                               double scale, bool of_columns) {
  Values result(static_cast<size_t>((of_columns ? columns : tokens) * rank));
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t c = 0; c < columns; ++c) {
      const double scaled = scale * dy[static_cast<size_t>(row * columns + c)];
      const int64_t to = of_columns ? c : row, from = of_columns ? row : c;
      for (int64_t r = 0; r < rank; ++r)
        result[static_cast<size_t>(to * rank + r)] += scaled * factor[static_cast<size_t>(from * rank + r)];
    }
  return result;
}

/// y += scale * t b^T.
inline void lora_up(Values& y, const Values& t, const Values& b, int64_t tokens, int64_t columns, int64_t rank,
                    double scale) {
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r)
        sum += t[static_cast<size_t>(row * rank + r)] * b[static_cast<size_t>(c * rank + r)];
      y[static_cast<size_t>(row * columns + c)] += scale * sum;
    }
}

/// scale * dy b: [tokens, rank].
inline Values lora_up_d(const Values& dy, const Values& b, int64_t tokens, int64_t columns, int64_t rank,
                        double scale) {
  return lora_up_gradient(dy, b, tokens, columns, rank, scale, /*of_columns=*/false);
}

/// scale * dy^T t: [columns, rank].
inline Values lora_up_db(const Values& dy, const Values& t, int64_t tokens, int64_t columns, int64_t rank,
                         double scale) {
  return lora_up_gradient(dy, t, tokens, columns, rank, scale, /*of_columns=*/true);
}

}  // namespace trireme::kernels::oracle
