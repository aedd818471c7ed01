#include "kernels/adamw/adamw.h"

#include "kernels/adamw/adamw_oracle.h"
#include "testing.h"

namespace trireme::kernels::testing {

namespace {

class AdamWTest : public KernelTest {
 protected:
  struct Case {
    int64_t count, shift;
    std::vector<int64_t> flips;
    bool decay_first;
    Element gradient, compute;
  };

  static void check(const Case& c) {
    SCOPED_TRACE(std::to_string(c.count) + " elements, shift " + std::to_string(c.shift) + ", " + std::to_string(c.flips.size()) + " flips");
    oracle::AdamWState state{normal_values(c.count, Element::kF32, 1), Values(c.count, 0.0), Values(c.count, 0.0)};
    std::vector<bool> decays(c.count);
    bool now = c.decay_first;
    size_t next = 0;
    for (int64_t i = 0; i < c.count; ++i) {
      while (next < c.flips.size() && c.flips[next] <= i) now = !now, ++next;
      decays[i] = now;
    }
    DeviceArray p(state.master, Element::kF32, c.shift), m(state.exp_avg, Element::kF32, c.shift), v(state.exp_avg_sq, Element::kF32, c.shift),
        compute(c.count, c.compute, c.shift);
    for (int step = 1; step <= 10; ++step) {
      const Values g = normal_values(c.count, c.gradient, 10 + step, 0.1);
      DeviceArray gradient(g, c.gradient, c.shift), multiplier(Values{0.25}, Element::kF32), steps(Values{static_cast<double>(step)}, Element::kF32),
          skip(Values{0.0}, Element::kF32);
      AdamW a;
      a.master = p.fp32(), a.exp_avg = m.fp32(), a.exp_avg_sq = v.fp32(), a.gradient = gradient.data(), a.compute = compute.data();
      a.multiplier = multiplier.fp32(), a.skip = skip.fp32(), a.step = steps.fp32(), a.count = c.count;
      a.decay_flips = c.flips.data(), a.num_decay_flips = static_cast<int>(c.flips.size()), a.decay_first = c.decay_first;
      a.lr = 1e-3, a.beta2 = 0.95, a.weight_decay = 0.5, a.gradient_element = c.gradient, a.compute_element = c.compute;
      CUDA_OK(adamw(a, nullptr));
      oracle::adamw(state, g, decays, 0.25, step, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay);
      cudaDeviceSynchronize();
    }
    const Values master = p.values();
    expect_close(master, state.master, Element::kF32, 0, 2e-7, "master");
    expect_close(m.values(), state.exp_avg, Element::kF32, 0, 1e-8, "exp_avg");
    expect_close(v.values(), state.exp_avg_sq, Element::kF32, 0, 1e-9, "exp_avg_sq");
    Values rounded;
    for (const double x : master) rounded.push_back(round_to(x, c.compute));
    EXPECT_EQ(compute.values(), rounded);
  }
};

TEST_F(AdamWTest, MatchesTheOracleOverTenSteps) {
  check({1, 0, {}, true, Element::kF32, Element::kBF16});
  check({4096, 0, {}, true, Element::kF32, Element::kBF16});
  check({5000, 0, {17, 1023, 4000}, false, Element::kF32, Element::kF16});
  check({4099, 0, {4, 8}, true, Element::kBF16, Element::kBF16});
  check({4096, 1, {100}, true, Element::kF16, Element::kF32});
}

TEST_F(AdamWTest, AnyNumberOfDecayRanges) {
  std::vector<int64_t> flips;
  for (int64_t i = 0; i < 1000; ++i) flips.push_back(i * 9 + 3);
  check({10000, 0, flips, true, Element::kF32, Element::kBF16});
}

TEST_F(AdamWTest, SkipLeavesEverythingAlone) {
  const int64_t n = 1000;
  const Values before = normal_values(n, Element::kF32, 1);
  DeviceArray p(before, Element::kF32), m(before, Element::kF32), v(before, Element::kF32), g(Values(n, std::nan("")), Element::kF32), compute(before, Element::kBF16),
      skip(Values{1.0}, Element::kF32), step(Values{1.0}, Element::kF32);
  const Values compute_before = compute.values();
  AdamW a;
  a.master = p.fp32(), a.exp_avg = m.fp32(), a.exp_avg_sq = v.fp32(), a.gradient = g.data(), a.compute = compute.data(), a.skip = skip.fp32(), a.step = step.fp32();
  a.count = n, a.lr = 1;
  CUDA_OK(adamw(a, nullptr));
  EXPECT_EQ(p.values(), before);
  EXPECT_EQ(m.values(), before);
  EXPECT_EQ(v.values(), before);
  EXPECT_EQ(compute.values(), compute_before);
}

}  // namespace

}  // namespace trireme::kernels::testing
