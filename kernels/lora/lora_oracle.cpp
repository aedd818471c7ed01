#include "kernels/lora/lora_oracle.h"

#include <cstddef>

namespace trireme::kernels::oracle {

Values lora_down(const Values& masked, const Values& a, int64_t tokens, int64_t columns, int64_t rank) {
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

Values lora_down_dw(const Values& masked, const Values& d, int64_t tokens, int64_t columns, int64_t rank) {
  Values da(static_cast<size_t>(rank * columns));
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t r = 0; r < rank; ++r) {
      const double factor = d[static_cast<size_t>(row * rank + r)];
      for (int64_t c = 0; c < columns; ++c)
        da[static_cast<size_t>(r * columns + c)] += factor * masked[static_cast<size_t>(row * columns + c)];
    }
  return da;
}

void lora_down_dx(Values& dx, const Values& factor, const Values& d, const Values& a, int64_t tokens, int64_t columns,
                  int64_t rank) {
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

}  // namespace trireme::kernels::oracle
