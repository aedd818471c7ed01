#include "kernels/bench/bench.h"
#include "kernels/fp8_columns/fp8_columns.h"

#include <utility>

namespace trireme::kernels {

TRIREME_BENCH(fp8_columns) {
  if (!recorder.wants("fp8 columns")) return;
  constexpr int kSets = 3;
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{8192, 4096}, {8192, 22016}, {8192, 11008}, {8192, 12288}, {16384, 5120}}) {
    bench::Memory memory;
    Fp8Columns a[kSets];
    for (Fp8Columns& set : a) {
      set.x = memory.normal(rows * columns, Element::kBF16);
      set.transposed = static_cast<uint8_t*>(memory.raw(rows * columns));
      set.inverse = static_cast<float*>(memory.raw(4 * columns));
      set.workspace = static_cast<float*>(memory.raw(4 * columns));
      set.rows = rows, set.columns = columns;
    }
    // Two reads of 2 bytes and one write.
    recorder.time("fp8 columns", bench::shape_text({rows, columns}), Element::kBF16,
                  5.0 * static_cast<double>(rows * columns), kSets, [&](int i) { return fp8_columns(a[i], nullptr); });
  }
}

}  // namespace trireme::kernels
