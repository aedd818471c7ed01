#include "kernels/bench/bench.h"
#include "kernels/global_norm/global_norm.h"

namespace trireme::kernels {

TRIREME_BENCH(global_norm) {
  if (!recorder.wants("global_square")) return;
  constexpr int kSets = 3;
  const int64_t n = int64_t{1} << 28;
  bench::Memory memory;
  double* workspace = static_cast<double*>(memory.raw(8 * global_norm_workspace()));
  double* square = static_cast<double*>(memory.raw(8));
  void* g[kSets];
  for (void*& buffer : g) buffer = memory.normal(n, Element::kF32);
  const auto run = [&](int i, Element element) {
    const char* base = static_cast<const char*>(g[i]);
    GradientBuffer buffers[16];
    for (int b = 0; b < 16; ++b) buffers[b] = {base + b * (n / 16) * bench::size_of(element), n / 16};
    return global_square(buffers, 16, element, square, false, workspace, nullptr);
  };
  recorder.time("global_square, 16 buffers", "268435456", Element::kF32, 4.0 * static_cast<double>(n), kSets,
                [&](int i) { return run(i, Element::kF32); });
  recorder.time("global_square, 16 buffers", "268435456", Element::kBF16, 2.0 * static_cast<double>(n), kSets,
                [&](int i) { return run(i, Element::kBF16); });
}

}  // namespace trireme::kernels
