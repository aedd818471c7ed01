#pragma once
// How optimizer kernels divide a flat shard: chunks of at most kChunkElements adjacent elements of one checkpoint
// tensor, one block of threads per chunk. The table is built once and kept in device memory.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::kernels {

constexpr int kChunkElements = 4096;

/// A run of elements of the shard that belongs to one tensor.
struct ShardPiece {
  int64_t begin, end;
  int tensor;
  bool decays;
};

struct ShardChunk {
  int64_t begin;
  int32_t count;
  int32_t tag;  // 2 * tensor + decays
};

struct ShardTable {
  std::vector<ShardChunk> chunks;      // sorted by tensor, then by position
  std::vector<int32_t> tensor_chunks;  // [num_tensors + 1]: first chunk of each tensor
};

/// Chunks end at multiples of kChunkElements, so every chunk but the first of a piece starts aligned. Pieces must not
/// overlap and may be in any order; a tensor without a piece has no chunk.
inline ShardTable make_shard_table(const std::vector<ShardPiece>& pieces, int num_tensors) {
  std::vector<std::vector<ShardChunk>> of_tensor(static_cast<size_t>(num_tensors));
  for (const ShardPiece& piece : pieces) {
    for (int64_t begin = piece.begin; begin < piece.end;) {
      const int64_t boundary = (begin / kChunkElements + 1) * kChunkElements,
                    end = boundary < piece.end ? boundary : piece.end;
      of_tensor.at(static_cast<size_t>(piece.tensor))
          .push_back({begin, static_cast<int32_t>(end - begin), 2 * piece.tensor + (piece.decays ? 1 : 0)});
      begin = end;
    }
  }
  ShardTable table;
  for (const std::vector<ShardChunk>& chunks : of_tensor) {
    table.tensor_chunks.push_back(static_cast<int32_t>(table.chunks.size()));
    table.chunks.insert(table.chunks.end(), chunks.begin(), chunks.end());
  }
  table.tensor_chunks.push_back(static_cast<int32_t>(table.chunks.size()));
  return table;
}

}  // namespace trireme::kernels
