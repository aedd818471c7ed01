#include "kernels/bench/bench.h"
#include "kernels/swiglu/swiglu.h"

#include <string>
#include <utility>

namespace trireme::kernels {

TRIREME_BENCH(swiglu) {
  if (!recorder.wants("swiglu forward") && !recorder.wants("swiglu backward")) return;
  constexpr int kSets = 3;
  for (const auto& [tokens, f] :
       {std::pair<int64_t, int64_t>{16384, 11008}, {16384, 14336}, {8192, 18944}, {8192, 28672}}) {
    bench::Memory memory;
    const Element element = Element::kBF16;
    const double count = static_cast<double>(tokens * f);
    const std::string label = bench::shape_text({tokens, f});
    void *gate_up[kSets], *y[kSets], *d[kSets];
    uint8_t *codes[kSets], *saved[kSets];
    float* inverse = memory.uniform(tokens, 1.0f, 2.0f);
    float* saved_inverse = memory.uniform(2 * tokens, 0.01f, 0.02f);
    for (int i = 0; i < kSets; ++i) {
      gate_up[i] = memory.normal(tokens * 2 * f, element), y[i] = memory.normal(tokens * f, element),
      d[i] = memory.raw(tokens * f * 4);
      codes[i] = static_cast<uint8_t*>(memory.raw(tokens * 2 * f)),
      saved[i] = static_cast<uint8_t*>(memory.raw(tokens * 2 * f));
    }
    FoundMaxima found;
    const WantedMaxima amax{memory.uniform(1, 0.0f, 1.0f), nullptr, &found},
        columns{nullptr, memory.raw(column_maxima_rows(tokens, f) * 2 * f * 2), &found};
    const auto forward = [&, n = tokens, w = f](int i, bool plain, bool fp8, bool saves, WantedMaxima maxima = {}) {
      SwigluForward a;
      a.gate_up = gate_up[i], a.tokens = n, a.f = w, a.element = element;
      if (plain) a.y = y[i];
      if (fp8) a.fp8.data = codes[i], a.fp8.row_inverse = inverse;
      if (saves) a.saved = {saved[i], saved_inverse, Fp8Format::kE4M3};
      a.maxima = maxima;
      return swiglu_forward(a, nullptr);
    };
    // Backward needs codes of realistic values, so forward runs once even if the filter excludes it.
    for (int i = 0; i < kSets; ++i) bench::check(forward(i, false, true, true), "codes for swiglu backward");
    recorder.time("swiglu forward", label, element, 6 * count, kSets,
                  [&](int i) { return forward(i, true, false, false); });
    recorder.time("swiglu forward, fp8 by row", label, element, 5 * count, kSets,
                  [&](int i) { return forward(i, false, true, false); });
    recorder.time("swiglu forward, fp8 by row + saved", label, element, 7 * count, kSets,
                  [&](int i) { return forward(i, false, true, true); });
    recorder.time("swiglu forward, all outputs", label, element, 9 * count, kSets,
                  [&](int i) { return forward(i, true, true, true); });
    recorder.time("swiglu forward, amax", label, element, 6 * count, kSets,
                  [&](int i) { return forward(i, true, false, false, amax); });
    recorder.time("swiglu forward, plain + fp8", label, element, 7 * count, kSets,
                  [&](int i) { return forward(i, true, true, false); });
    recorder.time("swiglu forward, plain + fp8 + column maxima", label, element, 7 * count, kSets,
                  [&](int i) { return forward(i, true, true, false, columns); });
    const auto backward = [&, n = tokens, w = f](int i, bool from_codes, bool plain, bool fp8,
                                                 WantedMaxima maxima = {}) {
      SwigluBackward a;
      a.dy = y[i], a.tokens = n, a.f = w, a.element = element;
      if (from_codes)
        a.saved = {saved[i], saved_inverse, Fp8Format::kE4M3};
      else
        a.gate_up = gate_up[i];
      if (plain) a.d_gate_up = d[i];
      if (fp8) a.fp8.data = codes[i], a.fp8.row_inverse = inverse;
      a.maxima = maxima;
      return swiglu_backward(a, nullptr);
    };
    recorder.time("swiglu backward, amax", label, element, 10 * count, kSets,
                  [&](int i) { return backward(i, false, true, false, amax); });
    recorder.time("swiglu backward, plain + fp8", label, element, 12 * count, kSets,
                  [&](int i) { return backward(i, false, true, true); });
    recorder.time("swiglu backward, plain + fp8 + column maxima", label, element, 12 * count, kSets,
                  [&](int i) { return backward(i, false, true, true, columns); });
    recorder.time("swiglu backward", label, element, 10 * count, kSets,
                  [&](int i) { return backward(i, false, true, false); });
    recorder.time("swiglu backward, fp8 by row", label, element, 8 * count, kSets,
                  [&](int i) { return backward(i, false, false, true); });
    recorder.time("swiglu backward, saved to fp8 by row", label, element, 6 * count, kSets,
                  [&](int i) { return backward(i, true, false, true); });
    recorder.time("swiglu backward, saved to plain + fp8", label, element, 10 * count, kSets,
                  [&](int i) { return backward(i, true, true, true); });
  }
}

}  // namespace trireme::kernels
