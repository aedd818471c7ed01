#include "kernels/adamw/adamw.h"
#include "kernels/bench/bench.h"

namespace trireme::kernels {

TRIREME_BENCH(adamw) {
  if (!recorder.wants("adamw")) return;
  constexpr int kSets = 2;
  const int64_t n = int64_t{1} << 27;
  bench::Memory memory;
  float* step = memory.uniform(1, 10.0f, 11.0f);
  float* multiplier = memory.uniform(1, 0.5f, 0.6f);
  AdamW a[kSets];
  const ShardTable table = make_shard_table({{0, n / 3, 0, true}, {n / 3, n / 2, 1, false}, {n / 2, n, 2, true}}, 3);
  const size_t table_bytes = table.chunks.size() * sizeof(ShardChunk);
  void* chunks = memory.raw(static_cast<int64_t>(table_bytes));
  bench::check(cudaMemcpy(chunks, table.chunks.data(), table_bytes, cudaMemcpyHostToDevice), "chunk table");
  for (int i = 0; i < kSets; ++i) {
    a[i].master = static_cast<float*>(memory.normal(n, Element::kF32));
    a[i].exp_avg = static_cast<float*>(memory.normal(n, Element::kF32));
    a[i].exp_avg_sq = memory.uniform(n, 0.0f, 1.0f);
    a[i].gradient = memory.normal(n, Element::kF32);
    a[i].compute = memory.raw(n * 2);
    a[i].step = step, a[i].multiplier = multiplier, a[i].lr = 1e-4, a[i].weight_decay = 0.1;
    a[i].chunks = static_cast<const ShardChunk*>(chunks), a[i].num_chunks = static_cast<int64_t>(table.chunks.size());
  }
  const double elements = static_cast<double>(n);
  recorder.time("adamw, fp32 gradient, bf16 copy", "134217728", Element::kF32, 30 * elements, kSets,
                [&](int i) { return adamw(a[i], nullptr); });
  for (AdamW& set : a) set.gradient_element = Element::kBF16;
  recorder.time("adamw, bf16 gradient, bf16 copy", "134217728", Element::kBF16, 28 * elements, kSets,
                [&](int i) { return adamw(a[i], nullptr); });
}

}  // namespace trireme::kernels
