#include "kernels/bench/bench.h"
#include "kernels/nf4/nf4.h"

#include <utility>

namespace trireme::kernels {

/// Matrices of an 8B and a 70B decoder's blocks.
TRIREME_BENCH(nf4) {
  if (!recorder.wants("nf4 dequantize")) return;
  constexpr int kSets = 3;
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1024, 4096}, {4096, 4096}, {14336, 4096}, {8192, 8192}, {28672, 8192}}) {
    bench::Memory memory;
    const int64_t count = rows * columns, blocks = count / 64;
    void *codes[kSets], *out[kSets];
    for (int i = 0; i < kSets; ++i) codes[i] = memory.raw(count / 2), out[i] = memory.raw(2 * count);
    Nf4Dequantize a;
    a.absmax = static_cast<uint8_t*>(memory.raw(blocks));
    a.nested = memory.uniform((blocks + 255) / 256, 0.01f, 0.02f);
    a.offset = memory.uniform(1, 0.05f, 0.06f);
    a.book = memory.uniform(16, -1.0f, 1.0f);
    a.map = memory.uniform(256, -1.0f, 1.0f);
    a.count = count;
    const double bytes = static_cast<double>(count) * 2.5 + static_cast<double>(blocks);
    recorder.time("nf4 dequantize", bench::shape_text({rows, columns}), Element::kBF16, bytes, kSets, [&](int i) {
      a.codes = static_cast<uint8_t*>(codes[i]), a.out = out[i];
      return nf4_dequantize(a, nullptr);
    });
  }
}

}  // namespace trireme::kernels
