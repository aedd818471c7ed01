#include "kernels/dropout/dropout.h"

#include "testing.h"

namespace trireme::kernels::testing::dropout_tests {

namespace {

// An independent implementation of the hash in include/trireme/ops/dropout.h.
uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  x ^= x >> 15;
  return x;
}

bool kept(uint64_t sample, int64_t e, uint32_t t0, uint32_t t1, uint32_t threshold) {
  const uint32_t k0 = mix(mix(static_cast<uint32_t>(sample) ^ t0) ^ static_cast<uint32_t>(sample >> 32) ^ t1),
                 k1 = mix(k0 + 0x9e3779b9u);
  const uint32_t h = mix(mix(static_cast<uint32_t>(e >> 1) ^ k0) ^ k1);
  return (e % 2 == 0 ? h & 0xffff : h >> 16) >= threshold;
}

class DropoutTest : public KernelTest {};

TEST_F(DropoutTest, FollowsTheCounterHash) {
  struct Shape {
    int64_t rows, row_size, shift, first = 0;
  };
  for (const Element element : kElements) {
    for (const Shape& s : {Shape{1, 1, 0},
                           {3, 7, 0},
                           {2, 64, 0},
                           {5, 4096, 0},
                           {3, 4099, 0},
                           {2, 4096, 1},
                           {2, 100000, 0},
                           {2, 4096, 0, 8192},
                           {2, 4096, 0, 8194},
                           {1, 777, 0, 5}}) {
      enum Addend { kNone, kOut, kOther };
      for (const Addend addend : {kNone, kOut, kOther}) {
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.row_size));
        const Values x = normal_values(s.rows * s.row_size, element, 1),
                     before = normal_values(s.rows * s.row_size, element, 2);
        std::vector<int64_t> ids;
        for (int64_t r = 0; r < s.rows; ++r) ids.push_back(r * 0x1234567890ll + 5);
        const uint32_t threshold = 6554;
        const float scale = 65536.0f / (65536 - threshold);
        Values expected;
        for (int64_t i = 0; i < s.rows * s.row_size; ++i) {
          const double dropped =
              kept(static_cast<uint64_t>(ids[i / s.row_size]), s.first + i % s.row_size, 11, 22, threshold)
                  ? round_to(static_cast<float>(x[i]) * scale, element)
                  : 0.0;
          expected.push_back(addend == kNone ? dropped : round_to(before[i] + dropped, element));
        }
        DeviceArray in(x, element, s.shift), other(before, element, s.shift), out(before, element, s.shift);
        if (addend == kOther) out.poison();
        DeviceIntegers<int64_t> device_ids(ids);
        const void* addends[] = {nullptr, out.data(), other.data()};
        CUDA_OK(dropout({in.data(), addends[addend], out.data(), device_ids.as<int64_t>(), s.rows, s.row_size, 11, 22,
                         threshold, scale, element, s.first},
                        nullptr));
        EXPECT_EQ(out.values(), expected);
      }
    }
  }
}

TEST_F(DropoutTest, PartsOfASampleAreThoseOfTheWhole) {
  const int64_t row_size = 4096;
  for (const Element element : kElements) {
    // A first element that leaves packs whole, one that does not, and one that divides the pair of a draw.
    for (const int64_t first : {int64_t{1024}, int64_t{1030}, int64_t{1031}}) {
      const int64_t count = row_size - first;
      const Values x = normal_values(row_size, element, 1);
      DeviceArray whole(x, element), part(Values(x.begin() + first, x.end()), element), out(row_size, element),
          out_part(count, element);
      DeviceIntegers<int64_t> ids({int64_t{7} << 34});
      CUDA_OK(dropout({whole.data(), nullptr, out.data(), ids.as<int64_t>(), 1, row_size, 11, 22, 6554, 1.1f, element},
                      nullptr));
      CUDA_OK(dropout(
          {part.data(), nullptr, out_part.data(), ids.as<int64_t>(), 1, count, 11, 22, 6554, 1.1f, element, first},
          nullptr));
      const Values all = out.values();
      EXPECT_EQ(out_part.values(), Values(all.begin() + first, all.end())) << first;
    }
  }
}

TEST_F(DropoutTest, SameBitsEveryTime) {
  const int64_t rows = 3, row_size = 40000;
  DeviceArray in(normal_values(rows * row_size, Element::kBF16, 1), Element::kBF16),
      out(rows * row_size, Element::kBF16);
  DeviceIntegers<int64_t> ids({5, 1, 9});
  std::vector<unsigned char> first;
  for (int run = 0; run < 100; ++run) {
    out.poison();
    CUDA_OK(
        dropout({in.data(), nullptr, out.data(), ids.as<int64_t>(), rows, row_size, 11, 22, 6554, 1.1f, Element::kBF16},
                nullptr));
    std::vector<unsigned char> now = out.read();
    if (run == 0)
      first = std::move(now);
    else
      ASSERT_TRUE(now == first) << "run " << run;
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::dropout_tests
