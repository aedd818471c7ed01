#include "kernels/bench/bench.h"
#include "kernels/fp8_current/fp8_current.h"
#include "kernels/fp8_operands/fp8_operands.h"

#include <utility>

namespace trireme::kernels {

/// The operands of a tensorwise product: the scale, then the codes in both layouts.
TRIREME_BENCH(fp8_current) {
  if (!recorder.wants("fp8 current scale") && !recorder.wants("fp8 current operands")) return;
  constexpr int kSets = 3;
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{8192, 4096}, {8192, 22016}, {8192, 11008}, {8192, 12288}, {16384, 5120}}) {
    bench::Memory memory;
    const double count = static_cast<double>(rows * columns);
    CurrentScale scales[kSets];
    Fp8Operands operands[kSets];
    for (int i = 0; i < kSets; ++i) {
      scales[i].x = operands[i].x = memory.normal(rows * columns, Element::kBF16);
      scales[i].count = rows * columns;
      scales[i].amax = static_cast<float*>(memory.raw(4));
      scales[i].inverse = static_cast<float*>(memory.raw(4));
      scales[i].scale = static_cast<float*>(memory.raw(4));
      operands[i].scale = scales[i].scale;
      operands[i].data = static_cast<uint8_t*>(memory.raw(rows * columns));
      operands[i].transposed = static_cast<uint8_t*>(memory.raw(rows * columns));
      operands[i].rows = rows, operands[i].columns = columns;
    }
    recorder.time("fp8 current scale", bench::shape_text({rows, columns}), Element::kBF16, 2 * count, kSets,
                  [&](int i) { return current_scale(scales[i], nullptr); });
    recorder.time("fp8 current operands", bench::shape_text({rows, columns}), Element::kBF16, 6 * count, kSets,
                  [&](int i) {
                    const cudaError_t error = current_scale(scales[i], nullptr);
                    return error != cudaSuccess ? error : fp8_operands(operands[i], nullptr);
                  });
  }
}

}  // namespace trireme::kernels
