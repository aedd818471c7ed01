#include "kernels/lora/lora.h"

#include "kernels/dropout/dropout.h"
#include "lora_oracle.h"
#include "testing.h"

#include <memory>

namespace trireme::kernels::testing::lora_tests {

namespace {

using Arrays = std::vector<std::unique_ptr<DeviceArray>>;

struct Shape {
  int64_t samples, sample_tokens, columns;
  int rank, count;
  uint32_t threshold;
  int64_t first_token = 0, after = 0;  // tokens of the first and of the last sample that are not there
  int64_t tokens() const { return samples * sample_tokens - first_token - after; }
};

/// The arguments and their memory. Outputs are poisoned, dx has values.
struct Case {
  Case(const Shape& s, Element element_)
      : shape(s),
        element(element_),
        x_values(normal_values(s.tokens() * s.columns, element, 1)),
        dx_values(normal_values(s.tokens() * s.columns, element, 2)),
        x(x_values, element),
        dx(dx_values, element),
        ids(sample_ids(s.samples)) {
    p.count = s.count, p.rank = s.rank, p.x = x.data(), p.dx = dx.data();
    p.tokens = s.tokens(), p.columns = s.columns, p.sample_ids = ids.as<int64_t>();
    p.sample_tokens = s.sample_tokens, p.first_token = s.first_token, p.threshold = s.threshold;
    p.scale = 65536.0f / static_cast<float>(65536 - s.threshold), p.element = element;
    for (int i = 0; i < s.count; ++i) {
      const auto seed = static_cast<uint32_t>(10 * i);
      a_values.push_back(normal_values(s.rank * s.columns, element, seed + 3, 0.05));
      d_values.push_back(normal_values(s.tokens() * s.rank, element, seed + 4));
      a.push_back(std::make_unique<DeviceArray>(a_values.back(), element));
      d.push_back(std::make_unique<DeviceArray>(d_values.back(), element));
      t.push_back(std::make_unique<DeviceArray>(s.tokens() * s.rank, element));
      da.push_back(std::make_unique<DeviceArray>(s.rank * s.columns, element));
      p.a[i] = a[i]->data(), p.d[i] = d[i]->data(), p.t[i] = t[i]->data(), p.da[i] = da[i]->data();
      p.t0[i] = 11 + seed, p.t1[i] = 22 + 7 * seed;
    }
  }
  static std::vector<int64_t> sample_ids(int64_t samples) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < samples; ++i) ids.push_back(i * 0x1234567890ll + 5);
    return ids;
  }
  /// What kernels/dropout returns for `values` with adapter i's key.
  Values dropped(const Values& values, int i) const {
    Values whole(static_cast<size_t>(shape.first_token * p.columns), 0.0);
    whole.insert(whole.end(), values.begin(), values.end());
    whole.resize(static_cast<size_t>(shape.samples * shape.sample_tokens * p.columns), 0.0);
    DeviceArray in(whole, element), out(static_cast<int64_t>(whole.size()), element);
    EXPECT_EQ(dropout({in.data(), nullptr, out.data(), p.sample_ids, shape.samples, shape.sample_tokens * p.columns,
                       p.t0[i], p.t1[i], p.threshold, p.scale, element},
                      nullptr),
              cudaSuccess);
    const Values all = out.values();
    const auto begin = all.begin() + shape.first_token * p.columns;
    return {begin, begin + p.tokens * p.columns};
  }
  Values factors(int i) const {
    Values kept = dropped(Values(static_cast<size_t>(p.tokens * p.columns), 1.0), i);
    for (double& value : kept) value = value == 0 ? 0 : p.scale;
    return kept;
  }

  Shape shape;
  Element element;
  Values x_values, dx_values;
  std::vector<Values> a_values, d_values;
  DeviceArray x, dx;
  DeviceIntegers<int64_t> ids;
  Arrays a, d, t, da;
  LoraProducts p;
};

class LoraTest : public KernelTest {};

TEST_F(LoraTest, ProductsFollowTheFormulas) {
  for (const Element element : {Element::kBF16, Element::kF16})
    for (const Shape& s : {Shape{1, 32, 64, 16, 1, 6554},
                           {3, 32, 192, 16, 3, 6554},
                           {2, 96, 320, 16, 2, 32768},
                           {5, 64, 64, 32, 1, 1},
                           {1, 160, 704, 64, 1, 6554},
                           {2, 512, 1088, 16, 3, 6554},
                           // A slice of the samples' tokens.
                           {1, 160, 192, 16, 2, 6554, 96, 32},
                           {3, 96, 192, 16, 1, 6554, 32, 64},
                           {3, 2144, 320, 16, 3, 6554, 1056, 992},
                           // Enough tokens for the large blocks; the last block is half full.
                           {3, 2144, 320, 16, 1, 6554},
                           {3, 2144, 128, 16, 2, 6554},
                           {3, 2144, 128, 16, 3, 6554}}) {
      if (too_large(s.tokens() * s.columns)) continue;
      for (const bool together : {false, true}) {
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.samples) + " x " +
                     std::to_string(s.sample_tokens) + " x " + std::to_string(s.columns) + ", rank " +
                     std::to_string(s.rank) + ", adapters " + std::to_string(s.count) + (together ? ", one pass" : ""));
        Case c(s, element);
        ASSERT_TRUE(lora_fits(c.p));
        CUDA_OK(lora_down(c.p, nullptr));
        if (together) {
          CUDA_OK(lora_down_gradients(c.p, nullptr));
        } else {
          CUDA_OK(lora_down_dw(c.p, nullptr));
          CUDA_OK(lora_down_dx(c.p, nullptr));
        }
        Values dx = c.dx_values;
        for (int i = 0; i < s.count; ++i) {
          const Values factor = c.factors(i);
          Values masked = c.x_values;  // kept values times the scale, not rounded
          for (size_t e = 0; e < masked.size(); ++e) masked[e] *= factor[e];
          // fp32 sums of n products of standard normal values have errors of 2^-24 * sqrt(n) * size.
          const double absolute = 1e-6 * std::sqrt(static_cast<double>(s.columns + s.tokens()));
          expect_close(c.t[i]->values(), oracle::lora_down(masked, c.a_values[i], c.p.tokens, s.columns, s.rank),
                       element, 1, absolute, "t");
          expect_close(c.da[i]->values(), oracle::lora_down_dw(masked, c.d_values[i], c.p.tokens, s.columns, s.rank),
                       element, 1, 4 * absolute, "dA");
          oracle::lora_down_dx(dx, factor, c.d_values[i], c.a_values[i], c.p.tokens, s.columns, s.rank);
        }
        expect_close(c.dx.values(), dx, element, 1, 1e-5, "dx");

        // The same without adding to dx.
        c.dx.poison(), c.p.adds = false;
        CUDA_OK(together ? lora_down_gradients(c.p, nullptr) : lora_down_dx(c.p, nullptr));
        for (size_t e = 0; e < dx.size(); ++e) dx[e] -= c.dx_values[e];
        expect_close(c.dx.values(), dx, element, 1, 1e-5, "dx, written");
      }
    }
}

// With A and d that select single columns and tokens, the results are the masked elements themselves.
TEST_F(LoraTest, MasksAreThoseOfDropout) {
  const Shape s{3, 64, 256, 16, 3, 6554};
  const Element element = Element::kBF16;
  Case c(s, element);
  for (int i = 0; i < s.count; ++i) {
    Values a(static_cast<size_t>(s.rank * s.columns)), d(static_cast<size_t>(s.tokens() * s.rank));
    for (int64_t r = 0; r < s.rank; ++r) {
      a[static_cast<size_t>(r * s.columns + (r * 37 + i) % s.columns)] = 1;
      d[static_cast<size_t>((r * 53 + i) % s.tokens() * s.rank + r)] = 1;
    }
    c.a[i] = std::make_unique<DeviceArray>(a, element);
    c.d[i] = std::make_unique<DeviceArray>(d, element);
    c.p.a[i] = c.a[i]->data(), c.p.d[i] = c.d[i]->data();
  }
  CUDA_OK(lora_down(c.p, nullptr));
  CUDA_OK(lora_down_dw(c.p, nullptr));
  for (int i = 0; i < s.count; ++i) {
    const Values masked = c.dropped(c.x_values, i), t = c.t[i]->values(), da = c.da[i]->values();
    for (int64_t r = 0; r < s.rank; ++r) {
      for (int64_t row = 0; row < s.tokens(); ++row)
        ASSERT_EQ(t[static_cast<size_t>(row * s.rank + r)],
                  masked[static_cast<size_t>(row * s.columns + (r * 37 + i) % s.columns)])
            << "adapter " << i << ", token " << row;
      for (int64_t column = 0; column < s.columns; ++column)
        ASSERT_EQ(da[static_cast<size_t>(r * s.columns + column)],
                  masked[static_cast<size_t>((r * 53 + i) % s.tokens() * s.columns + column)])
            << "adapter " << i << ", column " << column;
    }
  }
}

TEST_F(LoraTest, SameBitsEveryTime) {
  for (const int count : {3, 1}) {
    Case c({2, 256, 576, 16, count, 6554}, Element::kBF16);
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < 100; ++run) {
      for (int i = 0; i < c.p.count; ++i) c.t[i]->poison(), c.da[i]->poison();
      DeviceArray dx(c.dx_values, c.element);
      c.p.dx = dx.data();
      CUDA_OK(lora_down(c.p, nullptr));
      if (count == 1) {
        CUDA_OK(lora_down_gradients(c.p, nullptr));
      } else {
        CUDA_OK(lora_down_dw(c.p, nullptr));
        CUDA_OK(lora_down_dx(c.p, nullptr));
      }
      std::vector<std::vector<unsigned char>> now = {dx.read()};
      for (int i = 0; i < c.p.count; ++i) now.push_back(c.t[i]->read()), now.push_back(c.da[i]->read());
      if (run == 0)
        first = std::move(now);
      else
        ASSERT_TRUE(now == first) << "run " << run;
    }
  }
}

TEST_F(LoraTest, RefusesWhatItCannotDo) {
  Case c({2, 64, 128, 16, 1, 6554}, Element::kBF16);
  const auto refused = [&](const auto& change) {
    LoraProducts p = c.p;
    change(p);
    return !lora_fits(p) && lora_down(p, nullptr) == cudaErrorInvalidValue &&
           lora_down_dw(p, nullptr) == cudaErrorInvalidValue && lora_down_dx(p, nullptr) == cudaErrorInvalidValue &&
           lora_down_gradients(p, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_FALSE(refused([](LoraProducts&) {}));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.rank = 8; }));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.rank = 32, p.count = 2; }));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.count = 4; }));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.columns = 96; }));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.sample_tokens = 16; }));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.tokens = 80; }));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.first_token = 16; }));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.threshold = 40000; }));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.element = Element::kF32; }));
  EXPECT_TRUE(refused([](LoraProducts& p) { p.a[0] = static_cast<const char*>(p.a[0]) + 2; }));
}

}  // namespace

}  // namespace trireme::kernels::testing::lora_tests
