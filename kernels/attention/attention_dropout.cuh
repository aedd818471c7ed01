#pragma once
// Dropout decisions for attention probabilities, in a form that suits the fragments of the scores and of the transposed
// scores.
//
// One 32-bit draw serves the four elements {r, r + 8} x {c, c + 8} (bit 3 of r and c clear) that one thread holds in
// both layouts. Byte (bit 3 of row) + 2 (bit 3 of column) of the draw decides: the element is kept if the byte's low
// seven bits are at least the threshold (of 128). The draw applies one keyed round pair of kernels/dropout's mix to
// word = row * 65536 + column:
//   x = word ^ k0;  x ^= x >> 16;  x *= 0x21f0aaad;  x ^= x >> 15 ^ k1;  x *= 0x735a2d97;  x ^= x >> 15
// with (k0, k1) = the hash of (sample, t0, t1), where k0 is then mixed with the head.

#include "kernels/dropout/dropout_hash.cuh"

#include <cstdint>

namespace trireme::kernels {

/// The decisions of one row; columns are below 65,536.
struct AttentionRowDraws {
  uint32_t k0 = 0, k1 = 0;

  __device__ static uint32_t decide(uint32_t x, uint32_t k1, uint32_t bias) {
    x *= 0x21f0aaadu;
    x ^= (x >> 15) ^ k1;
    x *= 0x735a2d97u;
    x ^= x >> 15;
    return (x & 0x7f7f7f7fu) + bias;
  }
  /// Bit 7 of each byte: kept. `bias` is (128 - threshold) in every byte.
  __device__ uint32_t kept(uint32_t column, uint32_t bias) const { return decide(column ^ k0, k1, bias); }
};

struct AttentionDraws {
  uint32_t k0 = 0, k1 = 0;

  /// What head 0 of the launch adds to the hash.
  static uint32_t head_word(uint32_t first_head) { return first_head * 0x9e3779b9u + 1u; }
  __device__ static AttentionDraws of(int64_t sample, uint32_t t0, uint32_t t1, int head, uint32_t head_word) {
    const DropoutHash key = sample_hash(static_cast<uint64_t>(sample), t0, t1);
    const uint32_t k0 = dropout_mix(key.k0 ^ (static_cast<uint32_t>(head) * 0x9e3779b9u + head_word));
    return {k0, dropout_mix(k0 ^ key.k1)};
  }

  /// The first shift contributes no bits of the column, so it is done once a row.
  __device__ AttentionRowDraws of_row(uint32_t row) const { return {k0 ^ row << 16 ^ row ^ k0 >> 16, k1}; }
  /// The bits of a row in the word of a draw after the first shift. For rows without common bits these words combine by
  /// xor.
  __device__ static constexpr uint32_t row_bits(uint32_t row) { return row << 16 ^ row; }
  __device__ uint32_t word(uint32_t row, uint32_t column) const { return k0 ^ k0 >> 16 ^ column ^ row_bits(row); }
  __device__ uint32_t kept(uint32_t word, uint32_t bias) const { return AttentionRowDraws::decide(word, k1, bias); }
};

/// Bytes of the pair (low, high), chosen by a selector; a selector digit with bit 3 set replicates the byte's sign bit
/// eight times (__byte_perm ignores that bit).
template <uint32_t kSelect>
__device__ inline uint32_t permute(uint32_t low, uint32_t high) {
  uint32_t word;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "n"(kSelect));
  return word;
}
/// All ones in each half whose decision byte says kept: the low half decided by byte kByte of `low`, the high half by
/// that of `high`.
template <int kByte>
__device__ inline uint32_t half_masks(uint32_t low, uint32_t high) {
  return permute<(8 | kByte) * 0x11 + (12 | kByte) * 0x1100>(low, high);
}
template <int kByte>
__device__ inline uint32_t word_mask(uint32_t kept) {
  return permute<(8 | kByte) * 0x1111>(kept, kept);
}

}  // namespace trireme::kernels
