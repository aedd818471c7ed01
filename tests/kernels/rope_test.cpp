#include "kernels/rope/rope.h"

#include "rope_oracle.h"
#include "testing.h"

namespace trireme::kernels::testing::rope_tests {

namespace {

struct Shape {
  int64_t tokens;
  int q, kv, d;
};
constexpr Shape kShapes[] = {{1, 1, 1, 16},  {6, 4, 2, 64},    {74, 8, 1, 128}, {5, 64, 8, 128},
                             {33, 5, 5, 96}, {7, 40, 40, 128}, {6, 6, 3, 256},  {4200, 5, 1, 64}};

struct Tables {
  Values cos, sin;
};
Tables tables(int64_t tokens, int d, Element element) {
  Tables t;
  for (int64_t p = 0; p < tokens; ++p)
    for (int i = 0; i < d / 2; ++i) {
      const double angle = static_cast<double>(p * 97) * std::pow(10000.0, -2.0 * i / d);
      t.cos.push_back(round_to(std::cos(angle), element));
      t.sin.push_back(round_to(std::sin(angle), element));
    }
  return t;
}

class RopeTest : public KernelTest {};

TEST_F(RopeTest, RotatesInPlaceAndBack) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(std::string(name_of(element)) + " heads " + std::to_string(s.q) + " d " + std::to_string(s.d));
      const int64_t tokens = s.tokens;
      const int heads = s.q + 2 * s.kv, rotated = s.q + s.kv;
      const Values x = normal_values(tokens * heads * s.d, element, 1);
      const Tables t = tables(tokens, s.d, element);
      for (const int direction : {1, -1}) {
        DeviceArray dx(x, element), cos(t.cos, element), sin(t.sin, element);
        CUDA_OK(
            rope_rotate(dx.data(), cos.data(), sin.data(), tokens, heads, rotated, s.d, direction, element, nullptr));
        expect_close(dx.values(), oracle::rope(x, t.cos, t.sin, tokens, heads, rotated, s.d, direction), element, 1.05,
                     1e-6, "rotated");
      }
    }
  }
}

TEST_F(RopeTest, MergeTakesAnyStrides) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      for (const bool heads_outside : {false, true}) {  // [T, N, d] or [N, T, d] memory
        SCOPED_TRACE(std::string(name_of(element)) + " heads " + std::to_string(s.q) + " d " + std::to_string(s.d));
        const int64_t tokens = s.tokens;
        const int heads = s.q + 2 * s.kv;
        const Tables table = tables(tokens, s.d, element);
        const Values packed = normal_values(tokens * heads * s.d, element, 1);
        const auto strides = [&](int n) {
          return heads_outside ? HeadStrides{s.d, tokens * s.d} : HeadStrides{int64_t{n} * s.d, s.d};
        };
        const auto part = [&](int begin, int n) {
          Values values(static_cast<size_t>(tokens * n * s.d));
          const HeadStrides st = strides(n);
          for (int64_t t = 0; t < tokens; ++t)
            for (int h = 0; h < n; ++h)
              for (int i = 0; i < s.d; ++i)
                values[t * st.token + h * st.head + i] = packed[(t * heads + begin + h) * s.d + i];
          return values;
        };
        DeviceArray dq(part(0, s.q), element), dk(part(s.q, s.kv), element), dv(part(s.q + s.kv, s.kv), element),
            cos(table.cos, element), sin(table.sin, element), out(tokens * heads * s.d, element);
        CUDA_OK(rope_merge(dq.data(), strides(s.q), dk.data(), strides(s.kv), dv.data(), strides(s.kv), cos.data(),
                           sin.data(), out.data(), tokens, s.q, s.kv, s.d, element, nullptr));
        expect_close(out.values(), oracle::rope(packed, table.cos, table.sin, tokens, heads, s.q + s.kv, s.d, -1),
                     element, 1.05, 1e-6, "d_qkv");
      }
    }
  }
}

TEST_F(RopeTest, SameBitsEveryTime) {
  // Many tokens per block, so that both buffers of the pipeline are reused.
  const int64_t tokens = 6000;
  const int q = 6, kv = 2, d = 128, heads = q + 2 * kv;
  const Element element = Element::kBF16;
  const Tables t = tables(tokens, d, element);
  DeviceArray dq(normal_values(tokens * q * d, element, 1), element),
      dk(normal_values(tokens * kv * d, element, 2), element), dv(normal_values(tokens * kv * d, element, 3), element),
      cos(t.cos, element), sin(t.sin, element), out(tokens * heads * d, element);
  std::vector<unsigned char> first;
  for (int run = 0; run < 100; ++run) {
    out.poison();
    CUDA_OK(rope_merge(dq.data(), {q * d, d}, dk.data(), {kv * d, d}, dv.data(), {kv * d, d}, cos.data(), sin.data(),
                       out.data(), tokens, q, kv, d, element, nullptr));
    std::vector<unsigned char> now = out.read();
    if (run == 0)
      first = std::move(now);
    else
      ASSERT_TRUE(now == first) << "run " << run;
  }
}

TEST_F(RopeTest, RefusesUnalignedRows) {
  DeviceArray x(64, Element::kBF16, 1), table(64, Element::kBF16);
  EXPECT_EQ(rope_rotate(x.data(), table.data(), table.data(), 1, 1, 1, 32, 1, Element::kBF16, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace

}  // namespace trireme::kernels::testing::rope_tests
