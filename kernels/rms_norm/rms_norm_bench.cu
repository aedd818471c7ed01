#include "kernels/bench/bench.h"
#include "kernels/rms_norm/rms_norm.h"

#include <string>

namespace trireme::kernels {

namespace {

constexpr int kSets = 3;

void shape(bench::Recorder& recorder, int64_t rows, int64_t columns, Element element) {
  bench::Memory memory;
  const int64_t n = rows * columns;
  const double tensor = static_cast<double>(n * bench::size_of(element));
  const std::string label = bench::shape_text({rows, columns});
  void *x[kSets], *r[kSets], *s[kSets], *y[kSets];
  void* w = memory.normal(columns, element);
  float* rstd = memory.uniform(rows, 0.5f, 1.5f);
  float* row_inverse = memory.uniform(rows, 0.5f, 1.5f);
  float* workspace = static_cast<float*>(memory.raw(4 * rms_norm_backward_workspace(rows, columns)));
  void* dw = memory.raw(columns * 4);
  for (int i = 0; i < kSets; ++i)
    x[i] = memory.normal(n, element), r[i] = memory.normal(n, element), s[i] = memory.raw(n * 4),
    y[i] = memory.raw(n * 4);
  const auto forward = [&](int i) {
    RmsNormForward a;
    a.x = x[i], a.weight = w, a.y = y[i], a.rstd = rstd, a.rows = rows, a.columns = columns, a.eps = 1e-5f,
    a.element = element;
    return a;
  };
  recorder.time("rms_norm forward", label, element, 2 * tensor, kSets,
                [&](int i) { return rms_norm_forward(forward(i), nullptr); });
  if (element == Element::kBF16) {
    FoundMaxima found;
    float* amax = memory.uniform(1, 0.5f, 1.5f);
    recorder.time("rms_norm forward, amax", label, element, 2 * tensor, kSets, [&](int i) {
      RmsNormForward a = forward(i);
      a.maxima = {amax, nullptr, &found};
      return rms_norm_forward(a, nullptr);
    });
    recorder.time("rms_norm forward, fp8 out by row", label, element, 1.5 * tensor, kSets, [&](int i) {
      RmsNormForward a = forward(i);
      a.y = nullptr, a.fp8.data = static_cast<uint8_t*>(y[i]), a.fp8.row_inverse = row_inverse;
      return rms_norm_forward(a, nullptr);
    });
  }
  const auto backward = [&](int i) {
    RmsNormBackward a;
    a.dy = r[i], a.x = x[i], a.weight = w, a.rstd = rstd, a.dx = y[i], a.rows = rows, a.columns = columns,
    a.element = element;
    a.workspace = workspace;
    return a;
  };
  recorder.time("rms_norm backward, dx", label, element, 3 * tensor, kSets,
                [&](int i) { return rms_norm_backward(backward(i), nullptr); });
  recorder.time("rms_norm backward, dx + residual", label, element, 4 * tensor, kSets, [&](int i) {
    RmsNormBackward a = backward(i);
    a.d_residual = s[i];
    return rms_norm_backward(a, nullptr);
  });
  recorder.time("rms_norm backward, dx + dw", label, element, 3 * tensor, kSets, [&](int i) {
    RmsNormBackward a = backward(i);
    a.dw = dw;
    return rms_norm_backward(a, nullptr);
  });
  recorder.time("rms_norm backward, dx + residual + dw", label, element, 4 * tensor, kSets, [&](int i) {
    RmsNormBackward a = backward(i);
    a.d_residual = s[i], a.dw = dw;
    return rms_norm_backward(a, nullptr);
  });
}

}  // namespace

TRIREME_BENCH(rms_norm) {
  if (!recorder.wants("rms_norm forward") && !recorder.wants("rms_norm backward")) return;
  shape(recorder, 131072, 1024, Element::kBF16);
  shape(recorder, 8192, 3584, Element::kBF16);
  shape(recorder, 32768, 4096, Element::kBF16);
  shape(recorder, 32768, 5120, Element::kBF16);
  shape(recorder, 16384, 8192, Element::kBF16);
  shape(recorder, 8192, 16384, Element::kBF16);
  shape(recorder, 16384, 4096, Element::kF32);
}

}  // namespace trireme::kernels
