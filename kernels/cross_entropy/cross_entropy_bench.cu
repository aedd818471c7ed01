#include "kernels/bench/bench.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace trireme::kernels {

TRIREME_BENCH(cross_entropy) {
  if (!recorder.wants("cross_entropy")) return;
  constexpr int kSets = 3;
  for (const auto& [tokens, vocab] : {std::pair<int64_t, int64_t>{8192, 32000}, {8192, 30528}, {2048, 128256}}) {
    for (const Element element : {Element::kBF16, Element::kF32}) {
      bench::Memory memory;
      CrossEntropy a[kSets];
      for (CrossEntropy& set : a) {
        set.logits = set.d_logits = memory.normal(tokens * vocab, element);
        set.targets = memory.integers(tokens, vocab), set.weights = memory.uniform(tokens, 0.5f, 1.0f);
        set.loss = memory.uniform(tokens, 0.0f, 1.0f);
        set.tokens = tokens, set.vocab = set.stride = vocab, set.element = set.gradient_element = element;
      }
      recorder.time("cross_entropy, gradient in place", bench::shape_text({tokens, vocab}), element,
                    2.0 * static_cast<double>(tokens * vocab * bench::size_of(element)), kSets,
                    [&](int i) { return cross_entropy(a[i], nullptr); });
    }
  }
}

}  // namespace trireme::kernels
