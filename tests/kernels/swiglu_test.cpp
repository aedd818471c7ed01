#include "kernels/swiglu/swiglu.h"

#include "fp8_testing.h"
#include "swiglu_oracle.h"

#include <algorithm>

namespace trireme::kernels::testing::swiglu_tests {

namespace {

struct Shape {
  int64_t tokens, f, shift;
};
constexpr Shape kShapes[] = {{1, 1, 0},    {3, 7, 0},    {5, 8, 0},     {4, 1000, 0},  {4, 1001, 0},
                             {3, 1024, 1}, {7, 4096, 0}, {2, 11008, 0}, {2, 28672, 0}, {66000, 8, 0}};

class SwigluTest : public KernelTest {};

TEST_F(SwigluTest, MatchesTheOracle) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      if (too_large(s.tokens * s.f)) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.tokens) + " x " + std::to_string(s.f));
      Values gate_up = normal_values(s.tokens * 2 * s.f, element, 1, 2.0);
      if (s.f > 6) gate_up[0] = 90, gate_up[1] = -90, gate_up[2] = 0, gate_up[3] = -200, gate_up[4] = 200;
      const Values dy = normal_values(s.tokens * s.f, element, 2);
      DeviceArray in(gate_up, element, s.shift), gradient(dy, element, s.shift), y(s.tokens * s.f, element, s.shift),
          out(s.tokens * 2 * s.f, element, s.shift);
      for (const GateKind gate : {GateKind::kSilu, GateKind::kGeluTanh}) {
        SCOPED_TRACE(gate == GateKind::kSilu ? "silu" : "gelu");
        y.poison(), out.poison();
        CUDA_OK(swiglu_forward(
            {.gate_up = in.data(), .y = y.data(), .gate = gate, .tokens = s.tokens, .f = s.f, .element = element},
            nullptr));
        CUDA_OK(swiglu_backward({.dy = gradient.data(),
                                 .gate_up = in.data(),
                                 .d_gate_up = out.data(),
                                 .gate = gate,
                                 .tokens = s.tokens,
                                 .f = s.f,
                                 .element = element},
                                nullptr));
        // The smallest fp16 numbers have fewer significant bits; the derivative of silu changes sign near -1.28, that
        // of gelu near -0.75.
        const double tiny = element == Element::kF16 ? std::ldexp(1.0, -25) : gate == GateKind::kSilu ? 1e-36 : 1e-9;
        expect_close(y.values(), oracle::swiglu(gate_up, s.tokens, s.f, gate), element, 1.05, tiny, "y");
        expect_close(out.values(), oracle::swiglu_backward(dy, gate_up, s.tokens, s.f, gate), element, 1.05, 4e-6,
                     "d_gate_up");
      }
    }
  }
}

TEST_F(SwigluTest, GradientMayReplaceItsInput) {
  const int64_t tokens = 9, f = 4096;
  const Values gate_up = normal_values(tokens * 2 * f, Element::kBF16, 1),
               dy = normal_values(tokens * f, Element::kBF16, 2);
  DeviceArray in(gate_up, Element::kBF16), gradient(dy, Element::kBF16), out(tokens * 2 * f, Element::kBF16);
  CUDA_OK(swiglu_backward({.dy = gradient.data(),
                           .gate_up = in.data(),
                           .d_gate_up = out.data(),
                           .tokens = tokens,
                           .f = f,
                           .element = Element::kBF16},
                          nullptr));
  CUDA_OK(swiglu_backward({.dy = gradient.data(),
                           .gate_up = in.data(),
                           .d_gate_up = in.data(),
                           .tokens = tokens,
                           .f = f,
                           .element = Element::kBF16},
                          nullptr));
  EXPECT_EQ(in.values(), out.values());
}

// Every combination of outputs: the plain output is compared with the oracle, the codes with those of the plain output.
TEST_F(SwigluTest, Fp8OutputsMatchTheOracle) {
  constexpr Shape kFp8Shapes[] = {{3, 7, 0},     {9, 8, 0},     {40, 128, 0},  {4, 1001, 0},
                                  {3, 1024, 1},  {7, 4096, 0},  {3, 11008, 0}, {3, 16384, 0},
                                  {3, 16392, 0}, {3, 28672, 0}, {2, 28680, 0}};
  for (const Element element : kElements)
    for (const Shape& s : kFp8Shapes) {
      if (too_large(s.tokens * s.f)) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.tokens) + " x " + std::to_string(s.f));
      const int64_t n = s.tokens * s.f;
      const Values gate_up = normal_values(2 * n, element, 1, 2.0);
      const double tiny = element == Element::kF16 ? std::ldexp(1.0, -25) : 1e-36;
      DeviceArray in(gate_up, element, s.shift), y(n, element, s.shift), inverse(s.tokens, Element::kF32),
          saved_inverse(2 * s.tokens, Element::kF32);
      DeviceBytes codes(n), saved(2 * n);
      SwigluForward a;
      a.gate_up = in.data(), a.y = y.data(), a.tokens = s.tokens, a.f = s.f, a.element = element;
      a.fp8.data = codes.as<uint8_t>(), a.fp8.row_inverse = inverse.fp32();
      a.saved.data = saved.as<uint8_t>(), a.saved.inverse = saved_inverse.fp32();
      CUDA_OK(swiglu_forward(a, nullptr));
      const Values plain = y.values();
      expect_close(plain, oracle::swiglu(gate_up, s.tokens, s.f), element, 1.05, tiny, "y");
      expect_quantized_rows(plain, codes.read(), inverse.values(), s.tokens, s.f, Fp8Format::kE4M3, "y in FP8");
      expect_quantized_rows(gate_up, saved.read(), saved_inverse.values(), 2 * s.tokens, s.f, Fp8Format::kE4M3,
                            "gate_up in FP8");

      a.y = nullptr, a.saved.data = nullptr;
      codes.poison(), inverse.poison();
      CUDA_OK(swiglu_forward(a, nullptr));
      expect_quantized_rows(plain, codes.read(), inverse.values(), s.tokens, s.f, Fp8Format::kE4M3, "FP8 alone");

      a.fp8.data = nullptr, a.y = y.data(), a.saved.data = saved.as<uint8_t>();
      saved.poison(), saved_inverse.poison(), y.poison();
      CUDA_OK(swiglu_forward(a, nullptr));
      EXPECT_EQ(y.values(), plain);
      expect_quantized_rows(gate_up, saved.read(), saved_inverse.values(), 2 * s.tokens, s.f, Fp8Format::kE4M3,
                            "gate_up written together with y");

      // Backward from plain values and from codes.
      const Values dy = normal_values(n, element, 2);
      Values dequantized = gate_up;
      const Values inverses = saved_inverse.values();
      const std::vector<unsigned char> kept = saved.read();
      for (int64_t i = 0; i < 2 * n; ++i)
        dequantized[static_cast<size_t>(i)] =
            static_cast<float>(oracle::fp8_value(kept[static_cast<size_t>(i)], Fp8Format::kE4M3)) *
            static_cast<float>(inverses[static_cast<size_t>(i / s.f)]);
      for (const bool from_codes : {false, true}) {
        SCOPED_TRACE(from_codes ? "from codes" : "from values");
        DeviceArray gradient(dy, element, s.shift), out(2 * n, element, s.shift), out_inverse(s.tokens, Element::kF32);
        DeviceBytes out_codes(2 * n);
        SwigluBackward b;
        b.dy = gradient.data(), b.d_gate_up = out.data(), b.tokens = s.tokens, b.f = s.f, b.element = element;
        if (from_codes)
          b.saved = a.saved;
        else
          b.gate_up = in.data();
        b.fp8.data = out_codes.as<uint8_t>(), b.fp8.row_inverse = out_inverse.fp32();
        CUDA_OK(swiglu_backward(b, nullptr));
        const Values d_gate_up = out.values();
        expect_close(d_gate_up, oracle::swiglu_backward(dy, from_codes ? dequantized : gate_up, s.tokens, s.f), element,
                     1.05, 4e-6, "d_gate_up");
        expect_quantized_rows(d_gate_up, out_codes.read(), out_inverse.values(), s.tokens, 2 * s.f, Fp8Format::kE4M3,
                              "d_gate_up in FP8");
        b.d_gate_up = nullptr;
        out_codes.poison(), out_inverse.poison();
        CUDA_OK(swiglu_backward(b, nullptr));
        expect_quantized_rows(d_gate_up, out_codes.read(), out_inverse.values(), s.tokens, 2 * s.f, Fp8Format::kE4M3,
                              "only the FP8 gradient");
        b.d_gate_up = out.data(), b.fp8.data = nullptr;
        out.poison();
        CUDA_OK(swiglu_backward(b, nullptr));
        expect_close(out.values(), d_gate_up, element, 1.0, 1e-6, "only the plain gradient");
      }
    }
}

TEST_F(SwigluTest, GradientInFp8MayReplaceItsInputToo) {
  for (const int64_t f : {1001, 4096}) {
    const int64_t tokens = 9;
    const Values gate_up = normal_values(tokens * 2 * f, Element::kBF16, 1),
                 dy = normal_values(tokens * f, Element::kBF16, 2);
    DeviceArray in(gate_up, Element::kBF16), gradient(dy, Element::kBF16), inverse(tokens, Element::kF32);
    DeviceBytes codes(tokens * 2 * f);
    SwigluBackward b;
    b.dy = gradient.data(), b.gate_up = b.d_gate_up = in.data(), b.tokens = tokens, b.f = f;
    b.fp8.data = codes.as<uint8_t>(), b.fp8.row_inverse = inverse.fp32();
    CUDA_OK(swiglu_backward(b, nullptr));
    const Values plain = in.values();
    expect_close(plain, oracle::swiglu_backward(dy, gate_up, tokens, f), Element::kBF16, 1.05, 4e-6, "d_gate_up");
    expect_quantized_rows(plain, codes.read(), inverse.values(), tokens, 2 * f, Fp8Format::kE4M3, "codes");
  }
}

/// Zeros, infinities, NaN and the largest magnitude at an end, each in columns of its own where there are enough.
void make_hostile(Values& gate_up, Values& dy, int64_t tokens, int64_t f) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (int64_t t = 0; t < tokens; ++t) gate_up[static_cast<size_t>(2 * t * f)] = 0;
  gate_up[static_cast<size_t>(f / 2)] = std::nan("");
  gate_up[static_cast<size_t>((2 * tokens - 1) * f + f / 4)] = -infinity;
  dy[static_cast<size_t>((tokens - 1) * f + f / 3)] = infinity;
  gate_up.back() = -3000, dy.back() = -8;
}

// Few and many rows for each block, widths around the limits of each kernel, blocks without a whole pack for each
// thread. The other outputs are those of kernels without maxima.
TEST_F(SwigluTest, ColumnMaximaAreThoseOfTheResult) {
  constexpr Shape kMaximaShapes[] = {{16, 128, 0},  {5, 8192, 0},  {1, 8200, 0},  {300, 8200, 0}, {2, 11008, 0},
                                     {9, 16384, 0}, {3, 16392, 0}, {1, 18944, 0}, {7, 18944, 0},  {300, 18944, 0},
                                     {4, 21504, 0}, {4, 21512, 0}, {3, 18944, 1}, {5, 28672, 0},  {4, 1001, 0}};
  for (const Element element : {Element::kBF16, Element::kF16})
    for (const Shape& s : kMaximaShapes) {
      if (too_large(s.tokens * s.f)) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.tokens) + " x " + std::to_string(s.f));
      const int64_t n = s.tokens * s.f, rows = column_maxima_rows(s.tokens, s.f);
      ASSERT_TRUE(rows >= 1 && rows <= s.tokens);
      Values gate_up = normal_values(2 * n, element, 1, 2.0), dy = normal_values(n, element, 2);
      make_hostile(gate_up, dy, s.tokens, s.f);
      DeviceArray in(gate_up, element, s.shift), gradient(dy, element, s.shift), inverse(s.tokens, Element::kF32);
      const auto check = [&](int64_t columns, auto arguments, const auto& launch, int64_t least_f) {
        DeviceArray out(s.tokens * columns, element, s.shift), maxima(rows * columns, element);
        DeviceBytes codes(s.tokens * columns);
        arguments.tokens = s.tokens, arguments.f = s.f, arguments.element = element;
        arguments.fp8.data = codes.template as<uint8_t>(), arguments.fp8.row_inverse = inverse.fp32();
        launch(arguments, out.data());
        const auto expected = out.read(), expected_codes = codes.read(), expected_inverse = inverse.read();
        FoundMaxima found{true, 99};
        arguments.maxima.columns = maxima.data(), arguments.maxima.found = &found;
        out.poison(), codes.poison(), inverse.poison();
        launch(arguments, out.data());
        EXPECT_TRUE(out.read() == expected && codes.read() == expected_codes && inverse.read() == expected_inverse);
        EXPECT_FALSE(found.amax);
        ASSERT_TRUE(found.column_rows >= 0 && found.column_rows <= rows) << found.column_rows;
        if (s.f <= least_f || s.f > 21504 || s.shift != 0) {
          EXPECT_EQ(found.column_rows, 0);
        } else if (s.f <= 16384 && fits_shared_memory(size_t{64} << 10)) {
          EXPECT_GT(found.column_rows, 0);
        }
        expect_column_maxima(maxima.read(), found, expected, s.tokens, columns);
      };
      SwigluForward forward;
      forward.gate_up = in.data();
      check(
          s.f, forward,
          [](SwigluForward& a, void* to) {
            a.y = to;
            CUDA_OK(swiglu_forward(a, nullptr));
          },
          8192);
      SwigluBackward backward;
      backward.dy = gradient.data(), backward.gate_up = in.data();
      check(
          2 * s.f, backward,
          [](SwigluBackward& a, void* to) {
            a.d_gate_up = to;
            CUDA_OK(swiglu_backward(a, nullptr));
          },
          16384);
    }
}

TEST_F(SwigluTest, AmaxIsThatOfTheResult) {
  constexpr Shape kAmaxShapes[] = {{1, 1, 0},    {3, 7, 0},    {5, 8, 0},      {4, 1001, 0}, {3, 1024, 1},
                                   {7, 4096, 0}, {2, 4104, 0}, {33, 18944, 0}, {66000, 8, 0}};
  for (const Element element : kElements)
    for (const Shape& s : kAmaxShapes)
      for (const bool hostile : {false, true}) {
        if (too_large(s.tokens * s.f)) continue;
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.tokens) + " x " + std::to_string(s.f));
        const int64_t n = s.tokens * s.f;
        Values gate_up = normal_values(2 * n, element, 1, 2.0), dy = normal_values(n, element, 2);
        if (hostile)
          make_hostile(gate_up, dy, s.tokens, s.f);
        else
          gate_up.back() = -300, dy.back() = -8;
        DeviceArray in(gate_up, element, s.shift), gradient(dy, element, s.shift), y(n, element, s.shift),
            out(2 * n, element, s.shift);
        for (const GateKind gate : {GateKind::kSilu, GateKind::kGeluTanh})
          for (const bool forward : {true, false}) {
            const auto run = [&](const WantedMaxima& maxima) {
              return forward ? swiglu_forward({.gate_up = in.data(),
                                               .y = y.data(),
                                               .maxima = maxima,
                                               .gate = gate,
                                               .tokens = s.tokens,
                                               .f = s.f,
                                               .element = element},
                                              nullptr)
                             : swiglu_backward({.dy = gradient.data(),
                                                .gate_up = in.data(),
                                                .d_gate_up = out.data(),
                                                .maxima = maxima,
                                                .gate = gate,
                                                .tokens = s.tokens,
                                                .f = s.f,
                                                .element = element},
                                               nullptr);
            };
            DeviceArray& result = forward ? y : out;
            DeviceArray amax(1, Element::kF32);
            FoundMaxima found;
            CUDA_OK(run({}));
            const std::vector<unsigned char> expected = result.read();
            result.poison();
            CUDA_OK(run({.amax = amax.fp32(), .found = &found}));
            EXPECT_TRUE(result.read() == expected);
            EXPECT_TRUE(found.amax && found.column_rows == 0);
            expect_amax(amax, result, forward ? n : 2 * n, element);
          }
      }
}

// Kernels that read or write codes do not find amax, and say so.
TEST_F(SwigluTest, AmaxBesideCodesIsNotFound) {
  const int64_t tokens = 4, f = 128;
  DeviceArray in(normal_values(tokens * 2 * f, Element::kBF16, 1), Element::kBF16), y(tokens * f, Element::kBF16),
      inverse(2 * tokens, Element::kF32), amax(1, Element::kF32);
  DeviceBytes saved(tokens * 2 * f);
  FoundMaxima found{true, 1};
  SwigluForward a;
  a.gate_up = in.data(), a.y = y.data(), a.tokens = tokens, a.f = f;
  a.saved.data = saved.as<uint8_t>(), a.saved.inverse = inverse.fp32();
  a.maxima = {amax.fp32(), nullptr, &found};
  CUDA_OK(swiglu_forward(a, nullptr));
  EXPECT_FALSE(found.amax || found.column_rows != 0);
}

TEST_F(SwigluTest, SameBitsEveryTime) {
  for (const int64_t f : {1001, 1024, 18432}) {
    const int64_t tokens = 200;
    DeviceArray in(normal_values(tokens * 2 * f, Element::kBF16, 1), Element::kBF16),
        gradient(normal_values(tokens * f, Element::kBF16, 2), Element::kBF16), inverse(tokens, Element::kF32),
        saved_inverse(2 * tokens, Element::kF32), d_inverse(tokens, Element::kF32);
    DeviceBytes codes(tokens * f), saved(tokens * 2 * f), d_codes(tokens * 2 * f);
    SwigluForward a;
    a.gate_up = in.data(), a.tokens = tokens, a.f = f;
    a.fp8.data = codes.as<uint8_t>(), a.fp8.row_inverse = inverse.fp32();
    a.saved.data = saved.as<uint8_t>(), a.saved.inverse = saved_inverse.fp32();
    SwigluBackward b;
    b.dy = gradient.data(), b.saved = a.saved, b.tokens = tokens, b.f = f;
    b.fp8.data = d_codes.as<uint8_t>(), b.fp8.row_inverse = d_inverse.fp32();
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < 100; ++run) {
      codes.poison(), saved.poison(), d_codes.poison();
      CUDA_OK(swiglu_forward(a, nullptr));
      CUDA_OK(swiglu_backward(b, nullptr));
      std::vector<std::vector<unsigned char>> now = {codes.read(),   saved.read(),         d_codes.read(),
                                                     inverse.read(), saved_inverse.read(), d_inverse.read()};
      if (run == 0)
        first = std::move(now);
      else
        ASSERT_TRUE(now == first) << "run " << run;
    }
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::swiglu_tests
