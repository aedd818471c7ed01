#include "kernels/bench/bench.h"
#include "kernels/bert_embedding/bert_embedding.h"

namespace trireme::kernels {

TRIREME_BENCH(bert_embedding) {
  if (!recorder.wants("bert_embedding")) return;
  constexpr int kSets = 3;
  constexpr int64_t kRows = 131072, kVocab = 30528, kPositions = 512, kColumns = 1024;
  const Element element = Element::kBF16;
  bench::Memory memory;
  BertEmbedding sets[kSets];
  void *position = memory.normal(kPositions * kColumns, element), *type = memory.normal(2 * kColumns, element),
       *gamma = memory.normal(kColumns, element), *beta = memory.normal(kColumns, element);
  for (BertEmbedding& a : sets) {
    a.word = memory.normal(kVocab * kColumns, element), a.position = position, a.type = type;
    a.ids = memory.integers(kRows, kVocab), a.positions = memory.integers(kRows, kPositions);
    a.types = memory.integers(kRows, 2), a.gamma = gamma, a.beta = beta;
    a.sum = memory.raw(kRows * kColumns * 2), a.y = memory.raw(kRows * kColumns * 2);
    a.mean = memory.uniform(kRows, 0, 1), a.rstd = memory.uniform(kRows, 0, 1);
    a.sample_ids = memory.integers(kRows / 512, 1000000), a.rows_per_sample = 512;
    a.t0 = 1, a.t1 = 2, a.threshold = 6554, a.scale = 1.1111f, a.eps = 1e-12f;
    a.rows = kRows, a.columns = kColumns, a.vocab = kVocab, a.max_positions = kPositions;
    a.num_types = 2, a.element = element;
  }
  // A row of the word table is counted once per token that reads it; s and y are written.
  recorder.time("bert_embedding forward", bench::shape_text({kRows, kVocab, kColumns}), element,
                3.0 * static_cast<double>(kRows * kColumns * 2), kSets,
                [&](int i) { return bert_embedding_forward(sets[i], nullptr); });
}

}  // namespace trireme::kernels
