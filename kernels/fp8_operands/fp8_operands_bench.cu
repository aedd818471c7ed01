#include "kernels/bench/bench.h"
#include "kernels/fp8_operands/fp8_operands.h"

#include <string>
#include <utility>

namespace trireme::kernels {

namespace {

constexpr int kSets = 3;

void matrix(bench::Recorder& recorder, int64_t rows, int64_t columns) {
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

}  // namespace

TRIREME_BENCH(fp8_operands) {
  if (!recorder.wants("fp8 operands") && !recorder.wants("fp8 operands of gelu")) return;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{24576, 4096}, {24576, 3072}, {98304, 1024}})
    matrix(recorder, rows, columns);
}

}  // namespace trireme::kernels
