#pragma once
// The rotation of rope.h in fp64 on the host.

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

/// x [tokens, heads, d], cos and sin [tokens, d/2]; the first `rotated` heads of every token are rotated.
inline std::vector<double> rope(const std::vector<double>& x, const std::vector<double>& cos,
                                const std::vector<double>& sin, int64_t tokens, int heads, int rotated, int d,
                                int direction) {
  std::vector<double> out = x;
  const int half = d / 2;
  for (int64_t t = 0; t < tokens; ++t)
    for (int h = 0; h < rotated; ++h)
      for (int i = 0; i < half; ++i) {
        const int64_t first = (t * heads + h) * d + i, second = first + half;
        const double c = cos[t * half + i], s = sin[t * half + i] * direction;
        out[first] = x[first] * c - x[second] * s;
        out[second] = x[second] * c + x[first] * s;
      }
  return out;
}

}  // namespace trireme::kernels::oracle
