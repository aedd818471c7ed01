#include "kernels/bench/bench.h"
#include "kernels/lora/lora_up.h"

#include <string>

namespace trireme::kernels {

namespace {

constexpr const char* kUp = "lora, y += t B^T";
constexpr const char* kAlone = "lora, y = t B^T";
constexpr const char* kGradients = "lora, dy B and dy^T t";

void shape(bench::Recorder& recorder, int64_t tokens, int64_t columns, int rank) {
  constexpr int kSets = 3;
  bench::Memory memory;
  const Element element = Element::kBF16;
  const double tensor = static_cast<double>(tokens * columns * 2);
  const std::string label = bench::shape_text({tokens, columns}) + ", rank " + std::to_string(rank);
  LoraUpProducts p[kSets];
  for (LoraUpProducts& set : p) {
    set.rank = rank, set.tokens = tokens, set.columns = columns, set.stride = columns, set.scale = 2.0f,
    set.element = element;
    set.b = memory.normal(columns * rank, element), set.t = memory.normal(tokens * rank, element);
    set.y = memory.normal(tokens * columns, element), set.dy = memory.normal(tokens * columns, element);
    set.d = memory.raw(tokens * rank * 2), set.db = memory.raw(columns * rank * 2);
    set.workspace = memory.raw(static_cast<int64_t>(lora_up_gradients_workspace(set)));
  }
  // y grows by a bounded step a launch and stays finite over the bench's launches.
  if (recorder.wants(kUp))
    recorder.time(kUp, label, element, 2 * tensor, kSets, [&](int i) { return lora_up(p[i], nullptr); });
  for (LoraUpProducts& set : p) set.adds = false;
  if (recorder.wants(kAlone))
    recorder.time(kAlone, label, element, tensor, kSets, [&](int i) { return lora_up(p[i], nullptr); });
  if (recorder.wants(kGradients))
    recorder.time(kGradients, label, element, tensor, kSets, [&](int i) { return lora_up_gradients(p[i], nullptr); });
}

}  // namespace

TRIREME_BENCH(lora_up) {
  if (!recorder.wants(kUp) && !recorder.wants(kAlone) && !recorder.wants(kGradients)) return;
  for (const int64_t columns : {10240, 8192, 1024}) shape(recorder, 8192, columns, 16);
  shape(recorder, 8192, 8192, 32);
  shape(recorder, 8192, 8192, 64);
}

}  // namespace trireme::kernels
