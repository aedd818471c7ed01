#include "kernels/bench/bench.h"
#include "kernels/optimizer/optimizer.h"

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
  for (AdamW& set : a) set.moment_element = Element::kBF16;
  recorder.time("adamw, bf16 gradient, bf16 moments, bf16 copy", "134217728", Element::kBF16, 20 * elements, kSets,
                [&](int i) { return adamw(a[i], nullptr); });
  for (AdamW& set : a) set.master_element = Element::kBF16, set.compute = nullptr;
  recorder.time("adamw, bf16 gradient, bf16 moments, bf16 masters", "134217728", Element::kBF16, 14 * elements, kSets,
                [&](int i) { return adamw(a[i], nullptr); });
}

TRIREME_BENCH(lamb) {
  if (!recorder.wants("lamb")) return;
  constexpr int kSets = 2;
  const int64_t n = int64_t{1} << 27;
  bench::Memory memory;
  const ShardTable table = make_shard_table({{0, n / 3, 0, true}, {n / 3, n / 2, 1, false}, {n / 2, n, 2, true}}, 3);
  const size_t chunk_bytes = table.chunks.size() * sizeof(ShardChunk), tensor_bytes = table.tensor_chunks.size() * 4;
  void *chunks = memory.raw(static_cast<int64_t>(chunk_bytes)),
       *tensors = memory.raw(static_cast<int64_t>(tensor_bytes));
  bench::check(cudaMemcpy(chunks, table.chunks.data(), chunk_bytes, cudaMemcpyHostToDevice), "chunk table");
  bench::check(cudaMemcpy(tensors, table.tensor_chunks.data(), tensor_bytes, cudaMemcpyHostToDevice), "tensor table");
  double* partial = static_cast<double*>(memory.raw(static_cast<int64_t>(table.chunks.size() * 16)));
  double* squares = static_cast<double*>(memory.raw(6 * 8));
  float *step = memory.uniform(1, 10.0f, 11.0f), *multiplier = memory.uniform(1, 0.5f, 0.6f);
  Lamb a[kSets];
  for (Lamb& set : a) {
    set.master = static_cast<float*>(memory.normal(n, Element::kF32)),
    set.exp_avg = static_cast<float*>(memory.normal(n, Element::kF32));
    set.exp_avg_sq = memory.uniform(n, 0.0f, 1.0f), set.gradient = memory.normal(n, Element::kF32),
    set.compute = memory.raw(n * 2);
    set.step = step, set.multiplier = multiplier, set.lr = 1e-4, set.weight_decay = 0.1;
    set.chunks = static_cast<const ShardChunk*>(chunks), set.num_chunks = static_cast<int64_t>(table.chunks.size());
    set.tensor_chunks = static_cast<const int32_t*>(tensors), set.num_tensors = 3;
  }
  const double elements = static_cast<double>(n);
  recorder.time("lamb moments and norms", "134217728", Element::kF32, 24 * elements, kSets,
                [&](int i) { return lamb_moments(&a[i], 1, partial, squares, 3, nullptr); });
  recorder.time("lamb apply, bf16 copy", "134217728", Element::kF32, 18 * elements, kSets,
                [&](int i) { return lamb_apply(&a[i], 1, squares, 3, nullptr); });
}

TRIREME_BENCH(global_norm) {
  if (!recorder.wants("global_square")) return;
  constexpr int kSets = 3;
  const int64_t n = int64_t{1} << 28;
  bench::Memory memory;
  double* workspace = static_cast<double*>(memory.raw(8 * global_norm_workspace()));
  double* square = static_cast<double*>(memory.raw(8));
  void* g[kSets];
  for (void*& buffer : g) buffer = memory.normal(n, Element::kF32);
  const auto run = [&](int i, Element element) {
    const char* base = static_cast<const char*>(g[i]);
    GradientBuffer buffers[16];
    for (int b = 0; b < 16; ++b) buffers[b] = {base + b * (n / 16) * bench::size_of(element), n / 16};
    return global_square(buffers, 16, element, square, workspace, nullptr);
  };
  recorder.time("global_square, 16 buffers", "268435456", Element::kF32, 4.0 * static_cast<double>(n), kSets,
                [&](int i) { return run(i, Element::kF32); });
  recorder.time("global_square, 16 buffers", "268435456", Element::kBF16, 2.0 * static_cast<double>(n), kSets,
                [&](int i) { return run(i, Element::kBF16); });
}

}  // namespace trireme::kernels
