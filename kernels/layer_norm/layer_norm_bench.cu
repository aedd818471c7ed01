#include "kernels/bench/bench.h"
#include "kernels/layer_norm/layer_norm.h"

#include <string>
#include <utility>

namespace trireme::kernels {

TRIREME_BENCH(layer_norm) {
  if (!recorder.wants("layer_norm forward") && !recorder.wants("layer_norm backward")) return;
  constexpr int kSets = 3;
  const Element element = Element::kBF16;
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{131072, 1024}, {32768, 4096}, {32768, 5120}, {16384, 8192}, {8192, 16384}}) {
    bench::Memory memory;
    const int64_t n = rows * columns;
    const double tensor = static_cast<double>(n * 2);
    const std::string label = bench::shape_text({rows, columns});
    void *x[kSets], *r[kSets], *s[kSets], *y[kSets];
    void* gamma = memory.normal(columns, element);
    void* beta = memory.normal(columns, element);
    void* bias = memory.normal(columns, element);
    float* mean = memory.uniform(rows, -0.1f, 0.1f);
    float* rstd = memory.uniform(rows, 0.5f, 1.5f);
    float* row_inverse = memory.uniform(rows, 0.5f, 1.5f);
    int64_t* ids = memory.integers(rows / 512, 1000000);
    float* workspace = static_cast<float*>(memory.raw(4 * layer_norm_backward_workspace(rows, columns)));
    void* sums = memory.raw(columns * 12);
    for (int i = 0; i < kSets; ++i)
      x[i] = memory.normal(n, element), r[i] = memory.normal(n, element), s[i] = memory.raw(n * 2),
      y[i] = memory.raw(n * 2);
    const RowDropout dropout{ids, 512, 1, 2, 6554, 1.1111f};
    const auto forward = [&, rows_ = rows, columns_ = columns](int i) {
      LayerNormForward a;
      a.x = x[i], a.gamma = gamma, a.beta = beta, a.y = y[i], a.mean = mean, a.rstd = rstd, a.rows = rows_,
      a.columns = columns_, a.eps = 1e-5f;
      return a;
    };
    recorder.time("layer_norm forward", label, element, 2 * tensor, kSets,
                  [&](int i) { return layer_norm_forward(forward(i), nullptr); });
    recorder.time("layer_norm forward, bias + dropout + residual", label, element, 4 * tensor, kSets, [&](int i) {
      LayerNormForward a = forward(i);
      a.bias = bias, a.dropout = dropout, a.residual = r[i], a.sum = s[i];
      return layer_norm_forward(a, nullptr);
    });
    recorder.time("layer_norm forward, fp8 out by row", label, element, 1.5 * tensor, kSets, [&](int i) {
      LayerNormForward a = forward(i);
      a.y = nullptr, a.fp8.data = static_cast<uint8_t*>(y[i]), a.fp8.row_inverse = row_inverse;
      return layer_norm_forward(a, nullptr);
    });
    const auto backward = [&, rows_ = rows, columns_ = columns](int i) {
      LayerNormBackward a;
      a.dy = r[i], a.sum = x[i], a.mean = mean, a.rstd = rstd, a.gamma = gamma, a.ds = y[i], a.workspace = workspace,
      a.rows = rows_, a.columns = columns_;
      return a;
    };
    recorder.time("layer_norm backward, dx", label, element, 3 * tensor, kSets,
                  [&](int i) { return layer_norm_backward(backward(i), nullptr); });
    recorder.time("layer_norm backward, dx + d_gamma + d_beta", label, element, 3 * tensor, kSets,
                  [&, c = columns](int i) {
                    LayerNormBackward a = backward(i);
                    a.d_gamma = sums, a.d_beta = static_cast<char*>(sums) + 4 * c;
                    return layer_norm_backward(a, nullptr);
                  });
    recorder.time("layer_norm backward, dropout, all sums", label, element, 4 * tensor, kSets, [&, c = columns](int i) {
      LayerNormBackward a = backward(i);
      a.d_gamma = sums, a.d_beta = static_cast<char*>(sums) + 4 * c, a.d_bias = static_cast<char*>(sums) + 8 * c;
      a.dropout = dropout, a.dx = s[i];
      return layer_norm_backward(a, nullptr);
    });
  }
}

}  // namespace trireme::kernels
