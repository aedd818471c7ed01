#include "kernels/bench/bench.h"
#include "kernels/gelu/gelu.h"

#include <string>
#include <utility>

namespace trireme::kernels {

TRIREME_BENCH(gelu) {
  if (!recorder.wants("gelu forward") && !recorder.wants("gelu backward")) return;
  constexpr int kSets = 3;
  const Element element = Element::kBF16;
  for (const GeluKind kind : {GeluKind::kErf, GeluKind::kTanh})
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{49152, 4096}, {16384, 16384}}) {
      bench::Memory memory;
      const double count = static_cast<double>(rows * columns);
      const std::string label = bench::shape_text({rows, columns}) + (kind == GeluKind::kErf ? " erf" : " tanh");
      void *x[kSets], *y[kSets], *d[kSets];
      uint8_t *codes[kSets], *saved[kSets];
      void* bias = memory.normal(columns, element);
      void* d_bias = memory.raw(columns * 4);
      float* inverse = memory.uniform(rows, 1.0f, 2.0f);
      float* saved_inverse = memory.uniform(rows, 0.01f, 0.02f);
      float* workspace = static_cast<float*>(memory.raw(4 * gelu_backward_workspace(rows, columns)));
      for (int i = 0; i < kSets; ++i) {
        x[i] = memory.normal(rows * columns, element), y[i] = memory.normal(rows * columns, element),
        d[i] = memory.raw(rows * columns * 2);
        codes[i] = static_cast<uint8_t*>(memory.raw(rows * columns)),
        saved[i] = static_cast<uint8_t*>(memory.raw(rows * columns));
      }
      const auto forward = [&, r = rows, c = columns](int i, bool plain, bool fp8, bool saves) {
        GeluForward a;
        a.x = x[i], a.bias = bias, a.kind = kind, a.rows = r, a.columns = c, a.element = element;
        if (plain) a.y = d[i];
        if (fp8) a.fp8.data = codes[i], a.fp8.scaling = Fp8Scaling::kRow, a.fp8.row_inverse = inverse;
        if (saves) a.saved = {saved[i], saved_inverse, Fp8Format::kE4M3};
        return gelu_forward(a, nullptr);
      };
      // Backward needs codes of realistic values, so forward runs once even if the filter excludes it.
      for (int i = 0; i < kSets; ++i) bench::check(forward(i, false, true, true), "codes for gelu backward");
      recorder.time("gelu forward", label, element, 4 * count, kSets,
                    [&](int i) { return forward(i, true, false, false); });
      recorder.time("gelu forward, fp8 by row", label, element, 3 * count, kSets,
                    [&](int i) { return forward(i, false, true, false); });
      recorder.time("gelu forward, fp8 by row + saved", label, element, 4 * count, kSets,
                    [&](int i) { return forward(i, false, true, true); });
      const auto backward = [&, r = rows, c = columns](int i, bool from_codes, bool plain, bool fp8, bool sums) {
        GeluBackward a;
        a.dy = y[i], a.kind = kind, a.rows = r, a.columns = c, a.element = element;
        if (from_codes)
          a.saved = {saved[i], saved_inverse, Fp8Format::kE4M3};
        else
          a.x = x[i], a.bias = bias;
        if (plain) a.dx = d[i];
        if (fp8) a.fp8.data = codes[i], a.fp8.scaling = Fp8Scaling::kRow, a.fp8.row_inverse = inverse;
        if (sums) a.d_bias = d_bias, a.workspace = workspace;
        return gelu_backward(a, nullptr);
      };
      recorder.time("gelu backward", label, element, 6 * count, kSets,
                    [&](int i) { return backward(i, false, true, false, false); });
      recorder.time("gelu backward + d_bias", label, element, 6 * count, kSets,
                    [&](int i) { return backward(i, false, true, false, true); });
      recorder.time("gelu backward, saved to fp8 + d_bias", label, element, 4 * count, kSets,
                    [&](int i) { return backward(i, true, false, true, true); });
    }
}

}  // namespace trireme::kernels
