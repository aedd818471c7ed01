// NF4 against its definition, in fp64. tests/parity/nf4_parity.py compares it with bitsandbytes.
#include "trireme/ops/matmul/nf4.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace trireme {
namespace {

at::Tensor normal(int64_t count, double deviation, at::ScalarType dtype = at::kFloat) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(static_cast<uint64_t>(count));
  return at::empty({count}).normal_(0.0, deviation, generator).to(dtype);
}

struct Quantized {
  at::Tensor codes, absmax;
  Nf4Scales scales;
};

Quantized quantize(const at::Tensor& values) {
  const int64_t count = values.numel();
  const auto bytes = at::TensorOptions(at::kByte), fp32 = at::TensorOptions(at::kFloat);
  Quantized result{
      at::full({nf4_code_bytes(count)}, 0xEE, bytes),
      {},
      {at::empty({nf4_blocks(count)}, bytes), at::empty({nf4_nested_blocks(count)}, fp32), at::empty({}, fp32)}};
  result.absmax = nf4_quantize_(result.codes, values);
  nf4_quantize_scales_(result.scales, result.absmax);
  return result;
}

int code_at(const at::Tensor& codes, int64_t i) {
  const int byte = codes[i / 2].item<uint8_t>();
  return i % 2 == 0 ? byte >> 4 : byte & 15;
}

/// |value - codes[code]| exceeds the distance to the nearest code by at most the rounding of `value`.
void expect_nearest(double value, int code, const at::Tensor& table, int64_t i) {
  const auto distances = (table.to(at::kDouble) - value).abs();
  const double best = distances.min().item<double>(), got = distances[code].item<double>();
  EXPECT_LE(got - best, 2.5e-7 * std::abs(value)) << "value " << i << ", " << value << " has code " << code;
}

TEST(Nf4, CodesAreTheNearestOnes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t count : {1, 2, 63, 64, 65, 127, 5000}) {
      const at::Tensor values = normal(count, 0.03, dtype);
      const Quantized q = quantize(values);
      for (int64_t block = 0; block < nf4_blocks(count); ++block) {
        const int64_t begin = block * kNf4Block, size = std::min(kNf4Block, count - begin);
        const auto part = values.narrow(0, begin, size).to(at::kDouble);
        const double largest = part.abs().max().item<double>();
        EXPECT_EQ(q.absmax[block].item<float>(), largest);
        for (int64_t i = 0; i < size; ++i)
          expect_nearest(part[i].item<double>() / largest, code_at(q.codes, begin + i), nf4_book(at::kCPU), begin + i);
      }
      const double offset = q.scales.offset.item<float>();
      EXPECT_NEAR(offset, q.absmax.to(at::kDouble).mean().item<double>(), 1e-6 * offset);
      for (int64_t b = 0; b < nf4_blocks(count); ++b) {
        const double nested = q.scales.nested[b / kNf4NestedBlock].item<float>();
        if (nested == 0) continue;
        expect_nearest((q.absmax[b] - q.scales.offset).item<float>() / nested, q.scales.absmax[b].item<uint8_t>(),
                       nf4_map(at::kCPU), b);
      }
    }
  }
}

TEST(Nf4, ValuesComeBackAsTheFormulaSays) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t count : {1, 65, 20000}) {
      const Quantized q = quantize(normal(count, 0.03));
      at::Tensor values = at::full({count}, std::nan(""), at::TensorOptions(dtype));
      const auto version = values._version();
      nf4_dequantize_(values, q.codes, q.scales);
      EXPECT_EQ(values._version(), version) << "saved values of autograd would be refused";
      at::Tensor expected = at::empty({count});
      for (int64_t i = 0; i < count; ++i) {
        const int64_t b = i / kNf4Block;
        const float product = nf4_map(at::kCPU)[q.scales.absmax[b].item<uint8_t>()].item<float>() *
                              q.scales.nested[b / kNf4NestedBlock].item<float>();
        const float scale = product + q.scales.offset.item<float>();
        expected[i] = nf4_book(at::kCPU)[code_at(q.codes, i)].item<float>() * scale;
      }
      EXPECT_TRUE(at::equal(values, expected.to(dtype))) << count;
    }
  }
}

TEST(Nf4, ChunksDoNotShow) {
  // More than a chunk of 2^24 values.
  const at::Tensor values = normal((int64_t{1} << 24) + 64 * 300 + 10, 1, at::kBFloat16);
  const Quantized all = quantize(values);
  const int64_t from = (int64_t{1} << 24) - 64, count = values.numel() - from;
  at::Tensor codes = at::empty({nf4_code_bytes(count)}, at::TensorOptions(at::kByte));
  const at::Tensor absmax = nf4_quantize_(codes, values.narrow(0, from, count));
  EXPECT_TRUE(at::equal(codes, all.codes.narrow(0, from / 2, codes.numel())));
  EXPECT_TRUE(at::equal(absmax, all.absmax.narrow(0, from / 64, absmax.numel())));
  at::Tensor back = at::empty_like(values);
  nf4_dequantize_(back, all.codes, all.scales);
  EXPECT_LT((back.narrow(0, from, count).to(at::kFloat) - values.narrow(0, from, count)).abs().max().item<float>(),
            0.7);
}

TEST(Nf4, ZerosTiniesAndHugeNumbersStay) {
  at::Tensor values = at::zeros({64 * 4});
  values.narrow(0, 64, 64).fill_(-1e-40f);  // denormal
  values.narrow(0, 128, 64).fill_(3e38f);
  const Quantized q = quantize(values);
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(code_at(q.codes, i), 7) << "zero is code 7";
  EXPECT_EQ(code_at(q.codes, 130), 15);
  EXPECT_EQ(q.absmax[1].item<float>(), 1e-40f);
  at::Tensor back = at::empty_like(values);
  nf4_dequantize_(back, q.codes, q.scales);
  EXPECT_TRUE(back.narrow(0, 0, 64).eq(0).all().item<bool>());
  EXPECT_TRUE(back.narrow(0, 192, 64).eq(0).all().item<bool>());
  // The mean overflows: whoever loads such weights sees an infinite scale.
  const Quantized huge = quantize(at::full({64 * 4}, 3e38f));
  EXPECT_FALSE(std::isfinite(huge.scales.offset.item<float>()));
}

}  // namespace
}  // namespace trireme
