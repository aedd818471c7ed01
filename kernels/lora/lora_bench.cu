#include "kernels/bench/bench.h"
#include "kernels/lora/lora.h"

#include <string>

namespace trireme::kernels {

namespace {

void shape(bench::Recorder& recorder, int64_t tokens, int64_t columns, int rank, int count) {
  constexpr int kSets = 3;
  bench::Memory memory;
  const Element element = Element::kBF16;
  const double tensor = static_cast<double>(tokens * columns * 2);
  const std::string label =
      bench::shape_text({tokens, columns}) + ", " + std::to_string(count) + " of rank " + std::to_string(rank);
  LoraProducts p[kSets];
  for (LoraProducts& set : p) {
    set.count = count, set.rank = rank, set.tokens = tokens, set.columns = columns;
    set.x = memory.normal(tokens * columns, element), set.dx = memory.normal(tokens * columns, element);
    set.sample_ids = memory.integers(1, 1000000), set.sample_tokens = tokens;
    set.threshold = 6554, set.scale = 1.1111f, set.element = element;
    for (int i = 0; i < count; ++i) {
      set.a[i] = memory.normal(rank * columns, element), set.d[i] = memory.normal(tokens * rank, element);
      set.t[i] = memory.raw(tokens * rank * 2), set.da[i] = memory.raw(rank * columns * 2);
      set.t0[i] = static_cast<uint32_t>(i), set.t1[i] = 7;
    }
  }
  recorder.time("lora, dropout(x) A^T", label, element, tensor, kSets, [&](int i) { return lora_down(p[i], nullptr); });
  recorder.time("lora, d^T dropout(x)", label, element, tensor, kSets,
                [&](int i) { return lora_down_dw(p[i], nullptr); });
  // dx grows by a bounded step a launch and stays finite over the bench's launches.
  recorder.time("lora, dx += dropout(d A)", label, element, 2 * tensor, kSets,
                [&](int i) { return lora_down_dx(p[i], nullptr); });
  recorder.time("lora, gradients of A and x", label, element, 3 * tensor, kSets,
                [&](int i) { return lora_down_gradients(p[i], nullptr); });
  for (LoraProducts& set : p) set.adds = false;
  recorder.time("lora, gradients of A and x, alone", label, element, 2 * tensor, kSets,
                [&](int i) { return lora_down_gradients(p[i], nullptr); });
}

constexpr const char* kUp = "lora, y += t B^T";
constexpr const char* kAlone = "lora, y = t B^T";
constexpr const char* kGradients = "lora, dy B and dy^T t";

void up_shape(bench::Recorder& recorder, int64_t tokens, int64_t columns, int rank) {
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

TRIREME_BENCH(lora) {
  if (!recorder.wants("lora, dropout(x) A^T") && !recorder.wants("lora, d^T dropout(x)") &&
      !recorder.wants("lora, dx += dropout(d A)") && !recorder.wants("lora, gradients of A and x, alone"))
    return;
  for (const int count : {1, 2, 3}) shape(recorder, 8192, 8192, 16, count);
  shape(recorder, 8192, 8192, 64, 1);
  shape(recorder, 8192, 28672, 16, 1);
  shape(recorder, 4096, 4096, 16, 3);
}

TRIREME_BENCH(lora_up) {
  if (!recorder.wants(kUp) && !recorder.wants(kAlone) && !recorder.wants(kGradients)) return;
  for (const int64_t columns : {10240, 8192, 1024}) up_shape(recorder, 8192, columns, 16);
  up_shape(recorder, 8192, 8192, 32);
  up_shape(recorder, 8192, 8192, 64);
}

}  // namespace trireme::kernels
