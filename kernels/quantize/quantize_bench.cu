#include "kernels/bench/bench.h"
#include "kernels/quantize/quantize.h"

#include <string>
#include <utility>

namespace trireme::kernels {

namespace {

constexpr int kSets = 3;

void matrix(bench::Recorder& recorder, int64_t rows, int64_t columns) {
  bench::Memory memory;
  const Element element = Element::kBF16;
  const double count = static_cast<double>(rows * columns);
  const std::string label = bench::shape_text({rows, columns});
  void* x[kSets];
  uint8_t* data[kSets];
  float* inverse = memory.uniform(rows, 1.0f, 2.0f);
  float* scale = memory.uniform(1, 20.0f, 30.0f);
  for (int i = 0; i < kSets; ++i) {
    x[i] = memory.normal(rows * columns, element);
    data[i] = static_cast<uint8_t*>(memory.raw(rows * columns));
  }
  recorder.time("quantize rows", label, element, 3 * count, kSets,
                [&](int i) { return quantize_rows(x[i], data[i], inverse, rows, columns, element, nullptr); });
  recorder.time("quantize values", label, element, 3 * count, kSets,
                [&](int i) { return quantize_values(x[i], data[i], scale, rows * columns, element, nullptr); });
}

}  // namespace

TRIREME_BENCH(quantize) {
  if (recorder.wants("quantize rows") || recorder.wants("quantize values"))
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{131072, 1024}, {16384, 8192}, {8192, 28672}, {4096, 57344}})
      matrix(recorder, rows, columns);
  if (!recorder.wants("transpose bytes")) return;
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{57344, 8192}, {8192, 28672}, {10240, 8192}, {8192, 8192}}) {
    // Small weights use more sets of buffers, so that none stays in L2.
    constexpr int kMany = 6;
    bench::Memory memory;
    uint8_t *from[kMany], *to[kMany];
    for (int i = 0; i < kMany; ++i) {
      from[i] = static_cast<uint8_t*>(memory.normal(rows * columns / 2, Element::kBF16));
      to[i] = static_cast<uint8_t*>(memory.raw(rows * columns));
    }
    recorder.time("transpose bytes", bench::shape_text({rows, columns}), Element::kBF16,
                  2.0 * static_cast<double>(rows * columns), kMany,
                  [&, r = rows, c = columns](int i) { return transpose_bytes(from[i], to[i], r, c, nullptr); });
  }
}

}  // namespace trireme::kernels
