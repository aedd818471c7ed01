#include "kernels/bench/bench.h"
#include "kernels/embedding/embedding.h"

#include <array>
#include <cmath>
#include <string>

namespace trireme::kernels {

TRIREME_BENCH(embedding) {
  if (!recorder.wants("embedding")) return;
  constexpr int kSets = 3;
  const Element element = Element::kBF16;
  for (const auto& [tokens, vocab, columns] :
       {std::array<int64_t, 3>{32768, 32000, 4096}, {16384, 32000, 8192}, {131072, 30528, 1024}}) {
    bench::Memory memory;
    const double tensor = static_cast<double>(tokens * columns * 2);
    const std::string label = bench::shape_text({tokens, vocab, columns});
    EmbeddingForward forward[kSets];
    EmbeddingBackward backward[kSets];
    void* workspace = memory.raw(static_cast<int64_t>(embedding_backward_workspace(tokens, columns)));
    for (int i = 0; i < kSets; ++i) {
      EmbeddingForward& f = forward[i];
      f.table = memory.normal(vocab * columns, element), f.ids = memory.integers(tokens, vocab),
      f.y = memory.normal(tokens * columns, element);
      f.tokens = tokens, f.vocab = vocab, f.columns = columns, f.element = element;
      EmbeddingBackward& b = backward[i];
      b.dy = f.y, b.ids = f.ids, b.d_table = memory.raw(vocab * columns * 2), b.workspace = workspace;
      b.tokens = tokens, b.vocab = vocab, b.columns = columns, b.element = b.table_element = element;
    }
    // A table row is counted once per token that reads it.
    recorder.time("embedding forward", label, element, 2 * tensor, kSets,
                  [&](int i) { return embedding_forward(forward[i], nullptr); });
    const double touched = static_cast<double>(vocab) *
                           (1.0 - std::pow(1.0 - 1.0 / static_cast<double>(vocab), static_cast<double>(tokens)));
    recorder.time("embedding backward", label, element, tensor + touched * static_cast<double>(columns * 2), kSets,
                  [&](int i) { return embedding_backward(backward[i], nullptr); });
  }
  // Only two ids, as for token types, so all runs are long.
  constexpr int64_t kTokens = 131072, kColumns = 1024;
  bench::Memory memory;
  EmbeddingBackward types[kSets];
  void* workspace = memory.raw(static_cast<int64_t>(embedding_backward_workspace(kTokens, kColumns)));
  for (EmbeddingBackward& b : types) {
    b.dy = memory.normal(kTokens * kColumns, element), b.ids = memory.integers(kTokens, 2);
    b.d_table = memory.raw(2 * kColumns * 2), b.workspace = workspace;
    b.tokens = kTokens, b.vocab = 2, b.columns = kColumns, b.element = b.table_element = element;
  }
  recorder.time("embedding backward", bench::shape_text({kTokens, 2, kColumns}), element,
                static_cast<double>(kTokens * kColumns * 2), kSets,
                [&](int i) { return embedding_backward(types[i], nullptr); });
}

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
