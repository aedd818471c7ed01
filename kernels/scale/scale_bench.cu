#include "kernels/bench/bench.h"
#include "kernels/scale/scale.h"

namespace trireme::kernels {

TRIREME_BENCH(scale) {
  if (!recorder.wants("scale")) return;
  constexpr int kSets = 3;
  const int64_t n = int64_t{1} << 27;
  bench::Memory memory;
  const int64_t rows = 32768;  // of 4,096 columns
  float *factor = memory.uniform(1, 0.5f, 0.6f), *factors = memory.uniform(rows, 0.5f, 0.6f);
  void *x[kSets], *out[kSets];
  for (int i = 0; i < kSets; ++i) x[i] = memory.normal(n, Element::kF32), out[i] = memory.raw(n * 4);
  recorder.time("scale", "134217728", Element::kBF16, 4.0 * static_cast<double>(n), kSets,
                [&](int i) { return scale(x[i], Element::kBF16, factor, out[i], Element::kBF16, n, nullptr); });
  recorder.time("scale, bf16 out", "134217728", Element::kF32, 6.0 * static_cast<double>(n), kSets,
                [&](int i) { return scale(x[i], Element::kF32, factor, out[i], Element::kBF16, n, nullptr); });
  recorder.time("scale rows", "32768 x 4096", Element::kF16, 4.0 * static_cast<double>(n), kSets,
                [&](int i) { return scale_rows(x[i], factors, out[i], rows, n / rows, Element::kF16, nullptr); });
}

}  // namespace trireme::kernels
