#include "kernels/bench/bench.h"
#include "kernels/lamb/lamb.h"

namespace trireme::kernels {

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
  }
  const double elements = static_cast<double>(n);
  recorder.time("lamb moments and norms", "134217728", Element::kF32, 24 * elements, kSets,
                [&](int i) { return lamb_moments(a[i], partial, nullptr); });
  recorder.time(
      "lamb squares", "134217728", Element::kF32, 16.0 * static_cast<double>(table.chunks.size()), kSets,
      [&](int) { return lamb_squares(partial, static_cast<const int32_t*>(tensors), 3, 1.0, squares, 3, nullptr); });
  recorder.time("lamb apply, bf16 copy", "134217728", Element::kF32, 18 * elements, kSets,
                [&](int i) { return lamb_apply(a[i], squares, 3, nullptr); });
}

}  // namespace trireme::kernels
