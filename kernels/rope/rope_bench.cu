#include "kernels/bench/bench.h"
#include "kernels/rope/rope.h"

#include <string>

namespace trireme::kernels {

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
      const HeadStrides q{s.row_tokens * s.q * d, s.q * d, d}, kv{s.row_tokens * s.kv * d, s.kv * d, d};
      return rope_merge(base, q, dk, kv, dv, kv, cos, sin, out[i], s.rows, s.row_tokens, s.q, s.kv, d, element,
                        nullptr);
    });
  }
}

}  // namespace trireme::kernels
