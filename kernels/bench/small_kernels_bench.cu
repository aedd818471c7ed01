#include "kernels/bench/bench.h"
#include "kernels/column_sum/column_sum.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/rope/rope.h"
#include "kernels/scale/scale.h"

#include <string>
#include <utility>

namespace trireme::kernels {

TRIREME_BENCH(dropout) {
  if (!recorder.wants("dropout")) return;
  constexpr int kSets = 3;
  const int64_t rows = 8, row_size = int64_t{4096} * 4096;
  const Element element = Element::kBF16;
  const double tensor = static_cast<double>(rows * row_size * 2);
  bench::Memory memory;
  DropoutArguments a[kSets];
  int64_t* ids = memory.integers(rows, 1000000);
  for (DropoutArguments& set : a)
    set = {memory.normal(rows * row_size, element),
           nullptr,
           memory.normal(rows * row_size, element),
           ids,
           rows,
           row_size,
           1,
           2,
           6554,
           1.1111f,
           element};
  recorder.time("dropout", "8 x 4096 x 4096", element, 2 * tensor, kSets,
                [&](int i) { return dropout(a[i], nullptr); });
  for (DropoutArguments& set : a) set.addend = set.out;
  recorder.time("dropout, accumulated", "8 x 4096 x 4096", element, 3 * tensor, kSets,
                [&](int i) { return dropout(a[i], nullptr); });
}

TRIREME_BENCH(scale) {
  if (!recorder.wants("scale")) return;
  constexpr int kSets = 3;
  const int64_t n = int64_t{1} << 27;
  bench::Memory memory;
  const int64_t rows = 32768;  // of 4,096 columns
  float *factor = memory.uniform(1, 0.5f, 0.6f), *factors = memory.uniform(rows, 0.5f, 0.6f);
  void *x[kSets], *out[kSets];
  for (int i = 0; i < kSets; ++i) x[i] = memory.normal(n, Element::kF32), out[i] = memory.raw(n * 4);
  recorder.time("scale", "134217728", Element::kBF16, 4.0 * static_cast<double>(n), kSets,
                [&](int i) { return scale(x[i], Element::kBF16, factor, out[i], Element::kBF16, n, false, nullptr); });
  recorder.time("scale, bf16 out", "134217728", Element::kF32, 6.0 * static_cast<double>(n), kSets,
                [&](int i) { return scale(x[i], Element::kF32, factor, out[i], Element::kBF16, n, false, nullptr); });
  recorder.time("scale rows", "32768 x 4096", Element::kF16, 4.0 * static_cast<double>(n), kSets,
                [&](int i) { return scale_rows(x[i], factors, out[i], rows, n / rows, Element::kF16, nullptr); });
}

TRIREME_BENCH(matrix_column_sum) {
  if (!recorder.wants("matrix_column_sum")) return;
  constexpr int kSets = 3;
  const Element element = Element::kBF16;
  struct Shape {
    const char* name;
    int64_t rows, columns;
  };
  for (const Shape& s :
       {Shape{"65536 x 768", 65536, 768}, {"65536 x 2304", 65536, 2304}, {"8192 x 4096", 8192, 4096}}) {
    bench::Memory memory;
    MatrixColumnSum a[kSets];
    int64_t* ids = memory.integers(s.rows / 2048, 1000000);
    void* outs[kSets];
    for (int i = 0; i < kSets; ++i) {
      a[i].x = memory.normal(s.rows * s.columns, element);
      outs[i] = memory.normal(s.rows * s.columns, element);
      a[i].sums = memory.normal(s.columns, element);
      a[i].workspace =
          static_cast<float*>(memory.normal(matrix_column_sum_workspace(s.rows, s.columns), Element::kF32));
      a[i].rows = s.rows, a[i].columns = s.columns, a[i].element = element;
    }
    const double tensor = static_cast<double>(s.rows * s.columns * 2);
    recorder.time("matrix_column_sum", s.name, element, tensor, kSets,
                  [&](int i) { return matrix_column_sum(a[i], nullptr); });
    for (int i = 0; i < kSets; ++i) {
      a[i].dropped = outs[i], a[i].ids = ids, a[i].rows_of_sample = 2048;
      a[i].t0 = 1, a[i].t1 = 2, a[i].threshold = 6554, a[i].scale = 1.1111f;
    }
    recorder.time("matrix_column_sum, dropout", s.name, element, 2 * tensor, kSets,
                  [&](int i) { return matrix_column_sum(a[i], nullptr); });
  }
}

TRIREME_BENCH(rope) {
  if (!recorder.wants("rope rotate") && !recorder.wants("rope merge")) return;
  constexpr int kSets = 3;
  struct Shape {
    int64_t rows, row_tokens;
    int q, kv;
  };
  const Element element = Element::kBF16;
  constexpr int d = 128;
  for (const Shape& s : {Shape{4, 8192, 64, 8}, Shape{4, 4096, 32, 32}}) {
    bench::Memory memory;
    const int64_t tokens = s.rows * s.row_tokens;
    const int heads = s.q + 2 * s.kv;
    const double head = static_cast<double>(tokens * d * 2), table = static_cast<double>(tokens * d * 2);
    const std::string label = bench::shape_text({tokens, s.q, s.kv, d});
    void *qkv[kSets], *out[kSets], *cos = memory.normal(tokens * d / 2, element),
                                   *sin = memory.normal(tokens * d / 2, element);
    for (int i = 0; i < kSets; ++i)
      qkv[i] = memory.normal(tokens * heads * d, element), out[i] = memory.raw(tokens * heads * d * 2);
    recorder.time("rope rotate in place", label, element, 2 * head * (s.q + s.kv) + table, kSets, [&, s](int i) {
      return rope_rotate(qkv[i], cos, sin, tokens, heads, s.q + s.kv, d, 1, element, nullptr);
    });
    // dq, dk, dv in the layout that attention writes: contiguous [B, S, heads, d] each.
    recorder.time("rope merge (dq, dk, dv to d_qkv)", label, element, 2 * head * heads + table, kSets, [&, s](int i) {
      const char* base = static_cast<const char*>(qkv[i]);
      const void *dk = base + tokens * s.q * d * 2, *dv = base + tokens * (s.q + s.kv) * d * 2;
      const HeadStrides q{s.q * d, d}, kv{s.kv * d, d};
      return rope_merge(base, q, dk, kv, dv, kv, cos, sin, out[i], tokens, s.q, s.kv, d, element, nullptr);
    });
  }
}

TRIREME_BENCH(cross_entropy) {
  if (!recorder.wants("cross_entropy")) return;
  constexpr int kSets = 3;
  for (const auto& [tokens, vocab] :
       {std::pair<int64_t, int64_t>{8192, 32000}, {8192, 30528}, {8192, 50304}, {2048, 128256}}) {
    for (const Element element : {Element::kBF16, Element::kF32}) {
      bench::Memory memory;
      CrossEntropy a[kSets];
      for (CrossEntropy& set : a) {
        set.logits = set.d_logits = memory.normal(tokens * vocab, element);
        set.targets = memory.integers(tokens, vocab), set.weights = memory.uniform(tokens, 0.5f, 1.0f);
        set.loss = memory.uniform(tokens, 0.0f, 1.0f);
        set.tokens = tokens, set.vocab = set.stride = vocab, set.element = element;
      }
      recorder.time("cross_entropy, gradient in place", bench::shape_text({tokens, vocab}), element,
                    2.0 * static_cast<double>(tokens * vocab * bench::size_of(element)), kSets,
                    [&](int i) { return cross_entropy(a[i], nullptr); });
    }
  }
}

}  // namespace trireme::kernels
