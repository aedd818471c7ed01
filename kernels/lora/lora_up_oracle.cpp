#include "kernels/lora/lora_up_oracle.h"

#include <cstddef>

namespace trireme::kernels::oracle {

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
  Values d(static_cast<size_t>(tokens * rank));
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t c = 0; c < columns; ++c) {
      const double factor = scale * dy[static_cast<size_t>(row * columns + c)];
      for (int64_t r = 0; r < rank; ++r)
        d[static_cast<size_t>(row * rank + r)] += factor * b[static_cast<size_t>(c * rank + r)];
    }
  return d;
}

Values lora_up_db(const Values& dy, const Values& t, int64_t tokens, int64_t columns, int64_t rank, double scale) {
  Values db(static_cast<size_t>(columns * rank));
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t c = 0; c < columns; ++c) {
      const double factor = scale * dy[static_cast<size_t>(row * columns + c)];
      for (int64_t r = 0; r < rank; ++r)
        db[static_cast<size_t>(c * rank + r)] += factor * t[static_cast<size_t>(row * rank + r)];
    }
  return db;
}

}  // namespace trireme::kernels::oracle
