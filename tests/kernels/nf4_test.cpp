#include "kernels/nf4/nf4.h"

#include "testing.h"

#include <algorithm>
#include <vector>

namespace trireme::kernels::testing::nf4_tests {

namespace {

/// The formula of nf4.h in fp64, and the roundings to fp32 that it names.
Values dequantized(const std::vector<uint8_t>& codes, const std::vector<uint8_t>& absmax, const Values& nested,
                   double offset, const Values& book, const Values& map, int64_t count, Element element) {
  Values values;
  for (int64_t i = 0; i < count; ++i) {
    const auto block = static_cast<size_t>(i / 64), pair = static_cast<size_t>(i / 2);
    const double product = static_cast<float>(map[absmax[block]] * nested[block / 256]);
    const double scale = static_cast<float>(product + offset);
    const int code = i % 2 == 0 ? codes[pair] >> 4 : codes[pair] & 15;
    values.push_back(round_to(static_cast<float>(book[static_cast<size_t>(code)] * scale), element));
  }
  return values;
}

std::vector<uint8_t> random_bytes(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
  return bytes;
}

class Nf4Test : public KernelTest {};

TEST_F(Nf4Test, MatchesTheOracleToTheBit) {
  const Values book = normal_values(16, Element::kF32, 1), map = normal_values(256, Element::kF32, 2);
  DeviceArray device_book(book, Element::kF32), device_map(map, Element::kF32);
  for (const Element element : kElements) {
    for (const int64_t count : {8, 64, 72, 4096, 8192 + 40, 64 * 256 + 64, 3000008}) {
      if (too_large(count)) continue;
      {
        SCOPED_TRACE(std::string(name_of(element)) + ", " + std::to_string(count) + " values");
        const int64_t blocks = (count + 63) / 64;
        const auto codes = random_bytes((count + 1) / 2, 3), absmax = random_bytes(blocks, 4);
        const Values nested = normal_values((blocks + 255) / 256, Element::kF32, 5);
        const double offset = round_to(0.37, Element::kF32);
        DeviceIntegers<uint8_t> device_codes(codes), device_absmax(absmax);
        DeviceArray device_nested(nested, Element::kF32), device_offset(Values{offset}, Element::kF32);
        DeviceArray out(count, element);
        CUDA_OK(nf4_dequantize({.codes = device_codes.as<uint8_t>(),
                                .absmax = device_absmax.as<uint8_t>(),
                                .nested = device_nested.fp32(),
                                .offset = device_offset.fp32(),
                                .book = device_book.fp32(),
                                .map = device_map.fp32(),
                                .out = out.data(),
                                .count = count,
                                .element = element},
                               nullptr));
        EXPECT_EQ(out.values(), dequantized(codes, absmax, nested, offset, book, map, count, element));
      }
    }
  }
}

/// More than 2^32 values: offsets of 64 bits, and a grid of more than 2^21 blocks.
TEST_F(Nf4Test, CountsInSixtyFourBits) {
  constexpr int64_t kCount = (int64_t{1} << 32) + 64 * 256 * 3 + 8;
  if (too_large(kCount)) GTEST_SKIP() << "TRIREME_KERNEL_TEST_MAX";
  constexpr int64_t kBlocks = (kCount + 63) / 64, kNested = (kBlocks + 255) / 256;
  const Values book = normal_values(16, Element::kF32, 1), map = normal_values(256, Element::kF32, 2);
  DeviceArray device_book(book, Element::kF32), device_map(map, Element::kF32), offset(Values{0.5}, Element::kF32);
  DeviceArray nested(normal_values(kNested, Element::kF32, 3), Element::kF32);
  DeviceBytes codes(kCount / 2), absmax(kBlocks), out(2 * kCount);
  cudaMemset(codes.data(), 0x3C, static_cast<size_t>(kCount / 2));
  cudaMemset(absmax.data(), 0x51, static_cast<size_t>(kBlocks));
  CUDA_OK(nf4_dequantize({.codes = codes.as<uint8_t>(),
                          .absmax = absmax.as<uint8_t>(),
                          .nested = nested.fp32(),
                          .offset = offset.fp32(),
                          .book = device_book.fp32(),
                          .map = device_map.fp32(),
                          .out = out.data(),
                          .count = kCount},
                         nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  const Values scales = nested.values();
  for (const int64_t begin : {int64_t{0}, (int64_t{1} << 31) - 64, (int64_t{1} << 32) - 64, kCount - 128}) {
    std::vector<uint16_t> bits(128);
    CUDA_OK(cudaMemcpy(bits.data(), out.as<uint16_t>() + begin, 256, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < 128; ++i) {
      const double scale = static_cast<float>(
          static_cast<double>(static_cast<float>(map[0x51] * scales[static_cast<size_t>((begin + i) / (64 * 256))])) +
          0.5);
      const double expected =
          round_to(static_cast<float>(book[static_cast<size_t>(i % 2 == 0 ? 3 : 12)] * scale), Element::kBF16);
      ASSERT_EQ(decode(&bits[static_cast<size_t>(i)], Element::kBF16), expected) << begin + i;
    }
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::nf4_tests
