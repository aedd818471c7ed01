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
      void *x[kSets], *dy[kSets], *out[kSets];
      void* bias = memory.normal(columns, element);
      void* d_bias = memory.raw(columns * 2);
      float* workspace = static_cast<float*>(memory.raw(4 * gelu_backward_workspace(rows, columns)));
      for (int i = 0; i < kSets; ++i)
        x[i] = memory.normal(rows * columns, element), dy[i] = memory.normal(rows * columns, element),
        out[i] = memory.raw(rows * columns * 2);
      recorder.time("gelu forward", label, element, 4 * count, kSets, [&, r = rows, c = columns](int i) {
        return gelu_forward(
            {.x = x[i], .bias = bias, .y = out[i], .kind = kind, .rows = r, .columns = c, .element = element}, nullptr);
      });
      recorder.time("gelu backward + d_bias", label, element, 6 * count, kSets, [&, r = rows, c = columns](int i) {
        return gelu_backward({.dy = dy[i],
                              .x = x[i],
                              .bias = bias,
                              .dx = out[i],
                              .d_bias = d_bias,
                              .workspace = workspace,
                              .kind = kind,
                              .rows = r,
                              .columns = c,
                              .element = element},
                             nullptr);
      });
    }
}

}  // namespace trireme::kernels
