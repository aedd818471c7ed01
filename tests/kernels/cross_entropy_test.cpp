#include "kernels/cross_entropy/cross_entropy.h"

#include "cross_entropy_oracle.h"
#include "testing.h"

namespace trireme::kernels::testing::cross_entropy_tests {

namespace {

struct Shape {
  int64_t tokens, vocab, stride, shift;
};
constexpr Shape kShapes[] = {
    {1, 1, 1, 0},         {3, 7, 8, 0},         {5, 1000, 1000, 0},     {4, 1001, 1001, 0},     {4, 1001, 1008, 0},
    {3, 16384, 16384, 0}, {3, 16392, 16392, 0}, {2, 30522, 30528, 0},   {2, 30522, 30522, 0},   {6, 32000, 32000, 0},
    {2, 32000, 32000, 1}, {2, 50257, 50304, 0}, {2, 128256, 128256, 0}, {1, 131072, 131072, 0}, {1, 140000, 140000, 0}};

class CrossEntropyTest : public KernelTest {};

TEST_F(CrossEntropyTest, MatchesTheOracle) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      if (too_large(s.tokens * s.stride)) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.tokens) + " x " + std::to_string(s.vocab) +
                   " of " + std::to_string(s.stride));
      Values logits = normal_values(s.tokens * s.stride, element, 1, 4.0);
      std::vector<int64_t> targets;
      Values weights;
      for (int64_t t = 0; t < s.tokens; ++t) {
        targets.push_back(t == 0 ? s.vocab - 1 : (t * 7919) % s.vocab);
        weights.push_back(t == 1 ? 0.0 : round_to(0.25 + 0.1 * static_cast<double>(t), Element::kF32));
      }
      // The content of padding and of ignored tokens must not matter.
      for (int64_t t = 0; t < s.tokens; ++t)
        for (int64_t v = s.vocab; v < s.stride; ++v) logits[t * s.stride + v] = std::nan("");
      if (s.tokens > 1) logits[s.stride] = std::nan(""), targets[1] = -100;
      if (s.vocab > 4) logits[2] = 80, logits[3] = -std::numeric_limits<double>::infinity();
      if (s.tokens > 1) targets[1] = 0;
      const oracle::CrossEntropy expected =
          oracle::cross_entropy(logits, targets, weights, s.tokens, s.vocab, s.stride);
      if (s.tokens > 1) targets[1] = -100;
      DeviceArray in(logits, element, s.shift), out(s.tokens * s.stride, element, s.shift), w(weights, Element::kF32),
          loss(s.tokens, Element::kF32), total(1, Element::kF32);
      DeviceIntegers<int64_t> target(targets);
      CrossEntropy a;
      a.logits = in.data(), a.d_logits = out.data(), a.targets = target.as<int64_t>(), a.weights = w.fp32(),
      a.loss = loss.fp32(), a.tokens = s.tokens, a.vocab = s.vocab, a.stride = s.stride, a.element = element;
      CUDA_OK(cross_entropy(a, nullptr));
      // Cancellation of exp(l - lse) against 1 for a likely target.
      expect_close(out.values(), expected.d_logits, element, 1.05, 2e-5, "d_logits");
      expect_close(loss.values(), expected.loss, Element::kF32, 0, 2e-5, "loss");
      CUDA_OK(sum_values(loss.fp32(), s.tokens, total.fp32(), nullptr));
      double sum = 0;
      for (const double l : loss.values()) sum += l;
      EXPECT_NEAR(total.values()[0], sum, std::abs(sum) * 1e-7);
      const Values apart = out.values();
      a.d_logits = in.data();
      CUDA_OK(cross_entropy(a, nullptr));
      EXPECT_EQ(in.values(), apart);
    }
  }
}

TEST_F(CrossEntropyTest, GradientsMayHaveWeightsOfTheirOwn) {
  const int64_t tokens = 4, vocab = 1000;
  for (const Element element : {Element::kF16, Element::kBF16, Element::kF32}) {
    const Values logits = normal_values(tokens * vocab, element, 1, 2.0), weights{1e-6, 0.5, 0.0, 2.0},
                 gradient_weights{0.75, 1.0, 0.0, 0.625};
    const std::vector<int64_t> targets{3, 999, 0, 500};
    DeviceArray in(logits, element), out(tokens * vocab, element), w(weights, Element::kF32),
        u(gradient_weights, Element::kF32), loss(tokens, Element::kF32);
    DeviceIntegers<int64_t> target(targets);
    CrossEntropy a;
    a.logits = in.data(), a.d_logits = out.data(), a.targets = target.as<int64_t>(), a.weights = w.fp32();
    a.gradient_weights = u.fp32(), a.loss = loss.fp32(), a.tokens = tokens, a.vocab = a.stride = vocab;
    a.element = element;
    CUDA_OK(cross_entropy(a, nullptr));
    const oracle::CrossEntropy of_loss = oracle::cross_entropy(logits, targets, weights, tokens, vocab, vocab),
                               of_gradient =
                                   oracle::cross_entropy(logits, targets, gradient_weights, tokens, vocab, vocab);
    expect_close(loss.values(), of_loss.loss, Element::kF32, 0, 2e-5, "loss");
    expect_close(out.values(), of_gradient.d_logits, element, 1.05, 1e-6, name_of(element));
  }
}

TEST_F(CrossEntropyTest, SmoothedLabelsMatchTheOracle) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      if (too_large(s.tokens * s.stride)) continue;
      // All columns, or the last ones are padding ids that cut a pack of 16 bytes.
      for (const int64_t smoothed : {s.vocab, std::max<int64_t>(1, s.vocab - 13)}) {
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.tokens) + " x " + std::to_string(s.vocab) +
                     " of " + std::to_string(s.stride) + ", " + std::to_string(smoothed) + " smoothed");
        Values logits = normal_values(s.tokens * s.stride, element, 1, 4.0), weights;
        std::vector<int64_t> targets;
        for (int64_t t = 0; t < s.tokens; ++t) {
          targets.push_back(t == 0 ? smoothed - 1 : (t * 7919) % smoothed);
          weights.push_back(t == 1 ? 0.0 : round_to(0.25 + 0.1 * static_cast<double>(t), Element::kF32));
          for (int64_t v = s.vocab; v < s.stride; ++v) logits[t * s.stride + v] = std::nan("");
        }
        for (const float smoothing : {0.1f, 0.75f}) {
          const oracle::CrossEntropy expected =
              oracle::cross_entropy(logits, targets, weights, s.tokens, s.vocab, s.stride, smoothing, smoothed);
          DeviceArray in(logits, element, s.shift), out(s.tokens * s.stride, element, s.shift),
              w(weights, Element::kF32), loss(s.tokens, Element::kF32);
          DeviceIntegers<int64_t> target(targets);
          CrossEntropy a;
          a.logits = in.data(), a.d_logits = out.data(), a.targets = target.as<int64_t>(), a.weights = w.fp32(),
          a.loss = loss.fp32(), a.tokens = s.tokens, a.vocab = s.vocab, a.stride = s.stride, a.element = element;
          a.smoothing = smoothing, a.smoothed_vocab = smoothed;
          CUDA_OK(cross_entropy(a, nullptr));
          expect_close(out.values(), expected.d_logits, element, 1.05, 2e-5, "d_logits");
          expect_close(loss.values(), expected.loss, Element::kF32, 0, 2e-5, "loss");
          const Values apart = out.values();
          a.d_logits = in.data();
          CUDA_OK(cross_entropy(a, nullptr));
          EXPECT_EQ(in.values(), apart);
        }
      }
    }
  }
  CrossEntropy a;
  float loss = 0;
  a.tokens = 1, a.vocab = a.stride = 8, a.loss = &loss, a.smoothing = 0.1f;
  for (const int64_t smoothed : {0, 9}) {
    a.smoothed_vocab = smoothed;
    EXPECT_EQ(cross_entropy(a, nullptr), cudaErrorInvalidValue) << smoothed;
  }
}

TEST_F(CrossEntropyTest, StrayTargetIsSeenAndTouchesNothing) {
  for (const int64_t vocab : {1000, 1001}) {
    const Values logits = normal_values(2 * vocab, Element::kF32, 1);
    DeviceArray in(logits, Element::kF32), out(2 * vocab, Element::kF32), loss(2, Element::kF32);
    DeviceIntegers<int64_t> target({vocab, 1});
    CrossEntropy a;
    a.logits = in.data(), a.d_logits = out.data(), a.targets = target.as<int64_t>(), a.loss = loss.fp32(), a.tokens = 2,
    a.vocab = a.stride = vocab;
    a.element = Element::kF32;
    CUDA_OK(cross_entropy(a, nullptr));
    EXPECT_TRUE(std::isnan(loss.values()[0]));
    EXPECT_FALSE(std::isnan(loss.values()[1]));
  }
}

TEST_F(CrossEntropyTest, SameBitsEveryTime) {
  const int64_t tokens = 40, vocab = 32000;
  DeviceArray in(normal_values(tokens * vocab, Element::kBF16, 1), Element::kBF16), out(tokens * vocab, Element::kBF16),
      loss(tokens, Element::kF32);
  std::vector<int64_t> targets;
  for (int64_t t = 0; t < tokens; ++t) targets.push_back(t * 31);
  DeviceIntegers<int64_t> target(targets);
  CrossEntropy a;
  a.logits = in.data(), a.d_logits = out.data(), a.targets = target.as<int64_t>(), a.loss = loss.fp32(),
  a.tokens = tokens, a.vocab = a.stride = vocab;
  std::vector<std::vector<unsigned char>> first;
  for (int run = 0; run < 100; ++run) {
    out.poison(), loss.poison();
    CUDA_OK(cross_entropy(a, nullptr));
    std::vector<std::vector<unsigned char>> now = {out.read(), loss.read()};
    if (run == 0)
      first = std::move(now);
    else
      ASSERT_TRUE(now == first) << "run " << run;
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::cross_entropy_tests
