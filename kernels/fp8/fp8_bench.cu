#include "kernels/bench/bench.h"
#include "kernels/fp8/fp8.h"

#include <string>
#include <utility>

namespace trireme::kernels {

namespace {

constexpr int kSets = 3;
/// Inputs and output gradients of a 7B and a 13B decoder's layers.
constexpr std::pair<int64_t, int64_t> kLayers[] = {{8192, 3584},  {8192, 4096},  {8192, 22016},
                                                   {8192, 11008}, {8192, 12288}, {16384, 5120}};

void operands(bench::Recorder& recorder, int64_t rows, int64_t columns) {
  bench::Memory memory;
  const Element element = Element::kF16;
  const double count = static_cast<double>(rows * columns);
  const std::string label = bench::shape_text({rows, columns});
  void *x[kSets], *dy[kSets];
  uint8_t *data[kSets], *transposed[kSets];
  void* bias = memory.normal(columns, element);
  void* sums = memory.raw(columns * 4);
  float* scale = memory.uniform(1, 20.0f, 30.0f);
  float* top = memory.uniform(1, 0.0f, 1.0f);
  float* workspace = static_cast<float*>(memory.raw(4 * fp8_operands_workspace(rows, columns)));
  for (int i = 0; i < kSets; ++i) {
    x[i] = memory.normal(rows * columns, element), dy[i] = memory.normal(rows * columns, element);
    data[i] = static_cast<uint8_t*>(memory.raw(rows * columns));
    transposed[i] = static_cast<uint8_t*>(memory.raw(rows * columns));
  }
  const auto run = [&](int i, OperandValues values, GeluKind kind, bool with_sums) {
    Fp8Operands a;
    a.values = values, a.x = x[i], a.gelu = kind, a.data = data[i], a.transposed = transposed[i], a.scale = scale,
    a.amax = top, a.rows = rows, a.columns = columns, a.element = element;
    if (values != OperandValues::kPlain) a.bias = bias;
    if (values == OperandValues::kGeluGradient) a.dy = dy[i], a.format = Fp8Format::kE5M2;
    if (with_sums) a.sums = sums, a.workspace = workspace;
    return fp8_operands(a, nullptr);
  };
  const auto plain = OperandValues::kPlain, gelu = OperandValues::kGelu, gradient = OperandValues::kGeluGradient;
  recorder.time("fp8 operands", label, element, 4 * count, kSets,
                [&](int i) { return run(i, plain, GeluKind::kTanh, false); });
  recorder.time("fp8 operands + column sums", label, element, 4 * count, kSets,
                [&](int i) { return run(i, plain, GeluKind::kTanh, true); });
  for (const GeluKind kind : {GeluKind::kErf, GeluKind::kTanh}) {
    const std::string named = label + (kind == GeluKind::kErf ? " erf" : " tanh");
    recorder.time("fp8 operands of gelu", named, element, 4 * count, kSets,
                  [&](int i) { return run(i, gelu, kind, false); });
    recorder.time("fp8 operands of gelu's gradient + column sums", named, element, 6 * count, kSets,
                  [&](int i) { return run(i, gradient, kind, true); });
  }
}

void rows_and_values(bench::Recorder& recorder, int64_t rows, int64_t columns) {
  bench::Memory memory;
  const Element element = Element::kBF16;
  const double count = static_cast<double>(rows * columns);
  const std::string label = bench::shape_text({rows, columns});
  void* x[kSets];
  float* masters[kSets];
  uint8_t* data[kSets];
  float* inverse = memory.uniform(rows, 1.0f, 2.0f);
  float* scale = memory.uniform(1, 20.0f, 30.0f);
  for (int i = 0; i < kSets; ++i) {
    x[i] = memory.normal(rows * columns, element);
    masters[i] = memory.uniform(rows * columns, -1.0f, 1.0f);
    data[i] = static_cast<uint8_t*>(memory.raw(rows * columns));
  }
  FoundMaxima found;
  const WantedMaxima maxima{nullptr, memory.raw(column_maxima_rows(rows, columns) * columns * 2), &found};
  recorder.time("quantize rows", label, element, 3 * count, kSets,
                [&](int i) { return quantize_rows(x[i], data[i], inverse, rows, columns, element, nullptr); });
  recorder.time("quantize rows + column maxima", label, element, 3 * count, kSets,
                [&](int i) { return quantize_rows(x[i], data[i], inverse, rows, columns, element, nullptr, maxima); });
  recorder.time("quantize values", label, Element::kF32, 5 * count, kSets, [&](int i) {
    return quantize_values(masters[i], data[i], scale, rows * columns, Element::kF32, nullptr);
  });
}

}  // namespace

TRIREME_BENCH(fp8_operands) {
  if (!recorder.wants("fp8 operands") && !recorder.wants("fp8 operands of gelu")) return;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{24576, 4096}, {24576, 3072}, {98304, 1024}})
    operands(recorder, rows, columns);
}

TRIREME_BENCH(quantize) {
  if (recorder.wants("quantize rows") || recorder.wants("quantize values"))
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{131072, 1024}, {8192, 3584}, {16384, 8192}, {8192, 28672}, {4096, 57344}})
      rows_and_values(recorder, rows, columns);
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

TRIREME_BENCH(fp8_columns) {
  if (!recorder.wants("fp8 columns")) return;
  for (const auto& [rows, columns] : kLayers) {
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
    // As many rows of maxima as kernels write.
    const int64_t maxima_rows = column_maxima_rows(rows, columns);
    void* maxima = memory.normal(maxima_rows * columns, Element::kBF16);
    recorder.time("fp8 columns, known maxima", bench::shape_text({rows, columns}), Element::kBF16,
                  3.0 * static_cast<double>(rows * columns), kSets, [&](int i) {
                    Fp8Columns known = a[i];
                    known.maxima = maxima, known.maxima_rows = maxima_rows;
                    return fp8_columns(known, nullptr);
                  });
  }
}

/// The operands of a tensorwise product: the amax, then the codes in both layouts.
TRIREME_BENCH(fp8_current) {
  if (!recorder.wants("fp8 own amax") && !recorder.wants("fp8 current operands")) return;
  for (const auto& [rows, columns] : kLayers) {
    bench::Memory memory;
    const int64_t count = rows * columns;
    Fp8Operands operands[kSets];
    float* amaxes[kSets];
    for (int i = 0; i < kSets; ++i) {
      operands[i].x = memory.normal(count, Element::kBF16);
      operands[i].own_amax = amaxes[i] = static_cast<float*>(memory.raw(4));
      operands[i].inverse = static_cast<float*>(memory.raw(4));
      operands[i].data = static_cast<uint8_t*>(memory.raw(count));
      operands[i].transposed = static_cast<uint8_t*>(memory.raw(count));
      operands[i].rows = rows, operands[i].columns = columns;
    }
    const auto find = [&](int i) {
      const cudaError_t error = cudaMemsetAsync(amaxes[i], 0, sizeof(float), nullptr);
      return error != cudaSuccess ? error : amax(operands[i].x, count, Element::kBF16, amaxes[i], nullptr);
    };
    const std::string shape = bench::shape_text({rows, columns});
    recorder.time("fp8 own amax", shape, Element::kBF16, 2.0 * static_cast<double>(count), kSets, find);
    recorder.time("fp8 current operands", shape, Element::kBF16, 6.0 * static_cast<double>(count), kSets, [&](int i) {
      const cudaError_t error = find(i);
      return error != cudaSuccess ? error : fp8_operands(operands[i], nullptr);
    });
  }
}

}  // namespace trireme::kernels
