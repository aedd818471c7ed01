#include "kernels/lora/lora_up_oracle.h"

#include <cstddef>

namespace trireme::kernels::oracle {

namespace {

/// scale * dy factor [tokens, rank], or scale * dy^T factor [columns, rank].
Values gradient(const Values& dy, const Values& factor, int64_t tokens, int64_t columns, int64_t rank, double scale,
                bool of_columns) {
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

}  // namespace

void lora_up(Values& y, const Values& t, const Values& b, int64_t tokens, int64_t columns, int64_t rank, double scale) {
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r)
        sum += t[static_cast<size_t>(row * rank + r)] * b[static_cast<size_t>(c * rank + r)];
      y[static_cast<size_t>(row * columns + c)] += scale * sum;
    }
}

Values lora_up_d(const Values& dy, const Values& b, int64_t tokens, int64_t columns, int64_t rank, double scale) {
  return gradient(dy, b, tokens, columns, rank, scale, /*of_columns=*/false);
}

Values lora_up_db(const Values& dy, const Values& t, int64_t tokens, int64_t columns, int64_t rank, double scale) {
  return gradient(dy, t, tokens, columns, rank, scale, /*of_columns=*/true);
}

}  // namespace trireme::kernels::oracle
