#include "kernels/attention/attention_launch.h"
#include "kernels/launch.h"

#include <algorithm>

namespace trireme::kernels {

namespace {

/// In key tiles. kShort: longest sequence that counts as short. kShared: longest sequence that shares a list with
/// others. kListed: longest list of several sequences. kOneSection: longest list whose heads are processed in one
/// section at the usual number of blocks. kLast: number of tiles of short sequences that are kept for the end.
constexpr int kShort = 8, kShared = 24, kListed = 72, kOneSection = 20, kLast = 20;
/// Length in tokens up to which a sequence's forward tiles stay together.
constexpr int kTogether = 512;

int32_t tiles_of(const AttentionTile& sequence) {
  return static_cast<int32_t>(ceil_div(sequence.end - sequence.begin, kAttentionBackwardKeys));
}

/// `sequences`: longest first. Sequences of similar length that are not short share a list, most work first. A few
/// heads of all of them then occupy all blocks, which finish a section at the same time, and the data that they read
/// and add to stays in the L2 cache. If few tiles would remain they join the list, because the blocks would otherwise
/// be idle at the end. Each short sequence is a list of its own, for the same locality. Some of their last tiles, those
/// with the least work, come at the very end, so that all blocks finish at the same time: no other tile waits for
/// these.
std::vector<AttentionTile> backward_tiles(const std::vector<AttentionTile>& sequences, bool causal) {
  std::vector<AttentionTile> tiles, last;
  int32_t list = 0;
  const auto close = [&](size_t begin, bool shorts) {
    const auto count = static_cast<int32_t>(tiles.size() - begin);
    for (size_t t = begin; t < tiles.size(); ++t) {
      tiles[t].list_begin = static_cast<int32_t>(begin);
      tiles[t].list_count = count;
      tiles[t].list = shorts ? AttentionTile::kShortSequences : list;
    }
    list += count > kOneSection ? 2 : 1;
  };
  const auto most_work = [&](const AttentionTile& a, const AttentionTile& b) {
    return a.end - (causal ? a.first : a.begin) > b.end - (causal ? b.first : b.begin);
  };
  int32_t left = 0;  // tiles not yet in a list
  for (const AttentionTile& s : sequences) left += tiles_of(s);
  size_t next = 0;
  while (next < sequences.size() && tiles_of(sequences[next]) > kShort) {
    const size_t begin = tiles.size(), from = next;
    const int32_t longest = tiles_of(sequences[next]);
    int32_t count = 0;
    const auto joins = [&](int32_t more) {
      const bool rest = next > from + 1 && left <= kShort && count + left <= kListed;
      return rest || (5 * more >= 3 * longest && count + more <= kListed);
    };
    do {
      count += tiles_of(sequences[next]);
      left -= tiles_of(sequences[next]);
      for (AttentionTile tile = sequences[next]; tile.first < tile.end; tile.first += kAttentionBackwardKeys)
        tiles.push_back(tile);
      ++next;
    } while (causal && longest <= kShared && next < sequences.size() && joins(tiles_of(sequences[next])));
    std::stable_sort(tiles.begin() + static_cast<int64_t>(begin), tiles.end(), most_work);
    close(begin, false);
  }
  // Taken from the shortest sequences first, which are the last work anyway. Not from sequences of two tiles: reading
  // their rows again costs more than it gains.
  std::vector<int32_t> held(sequences.size());
  for (int32_t pass = 0, more = causal ? kLast : 0; pass < 2; ++pass)
    for (size_t i = sequences.size(); i-- > next && more > 0;)
      if (tiles_of(sequences[i]) > 2) ++held[i], --more;
  for (; next < sequences.size(); ++next) {
    const size_t begin = tiles.size();
    int32_t here = tiles_of(sequences[next]) - held[next];
    for (AttentionTile tile = sequences[next]; tile.first < tile.end; tile.first += kAttentionBackwardKeys)
      (here-- > 0 ? tiles : last).push_back(tile);
    close(begin, true);
  }
  std::stable_sort(last.begin(), last.end(), most_work);
  tiles.insert(tiles.end(), last.begin(), last.end());
  close(tiles.size() - last.size(), true);
  return tiles;
}

bool valid(const AttentionShape& s, const AttentionDropout& d, const AttentionTile* tiles, int64_t count,
           const int32_t* counters) {
  if (d.threshold >= 128 || (d.threshold > 0 && ((s.d != 64 && !s.causal) || s.window > 0 || d.sample_ids == nullptr)))
    return false;
  return tiles != nullptr && counters != nullptr && count > 0 && count * s.q_heads < INT32_MAX / 2;
}

}  // namespace

AttentionPlan plan_attention(const int32_t* cu_seqlens, int64_t count, int d, bool causal, const int32_t* needed,
                             bool codes) {
  AttentionPlan plan;
  const int rows = attention_forward_rows(d, causal, codes);
  std::vector<AttentionTile> whole;  // one tile for each sequence
  const auto rows_of = [&](int64_t i) { return needed != nullptr ? needed[i] : cu_seqlens[i + 1] - cu_seqlens[i]; };
  int32_t padded = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t begin = cu_seqlens[i], end = cu_seqlens[i + 1], here = rows_of(i);
    plan.longest = std::max<int64_t>(plan.longest, end - begin);
    for (int32_t first = begin; first < begin + here; first += rows)
      plan.forward.push_back({first, begin, end, padded, static_cast<int32_t>(i), 0, 0, 0, here});
    // A block that takes whole sequences would wait forever for the steps of an empty one.
    if (end > begin) whole.push_back({begin, begin, end, padded, static_cast<int32_t>(i), 0, 0, 0, here});
    padded += static_cast<int32_t>(ceil_div(end - begin, 128) * 128);
  }
  // Keys that a forward tile attends to. All tiles of a short sequence count as equal and so stay together: short
  // sequences, which are bound by bandwidth, then run beside long ones, which are bound by arithmetic, and the keys are
  // still in the cache when they are read again.
  const auto work = [&](const AttentionTile& t) {
    return (causal && t.end - t.begin > kTogether ? std::min(t.end, t.first + rows) : t.end) - t.begin;
  };
  std::stable_sort(plan.forward.begin(), plan.forward.end(),
                   [&](const auto& a, const auto& b) { return work(a) > work(b); });
  std::stable_sort(whole.begin(), whole.end(),
                   [](const auto& a, const auto& b) { return a.end - a.begin > b.end - b.begin; });
  plan.backward = backward_tiles(whole, causal);
  std::vector<bool> is_short(static_cast<size_t>(count));
  for (const AttentionTile& t : plan.backward)
    is_short[static_cast<size_t>(t.sequence)] = t.list == AttentionTile::kShortSequences;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t begin = cu_seqlens[i], end = cu_seqlens[i + 1],
                  blocks = static_cast<int32_t>(ceil_div(end - begin, 128) * 2);
    const bool counts = is_short[static_cast<size_t>(i)];
    for (int32_t b = 0; b < blocks; ++b)
      plan.blocks.push_back({begin + 64 * b, std::clamp(rows_of(i) - 64 * b, 0, 64), counts});
    plan.short_blocks += counts ? blocks : 0;
  }
  if (d == 64 && !whole.empty() && whole[0].end - whole[0].begin <= kAttentionWholeSequence) {
    for (size_t i = 0; i < whole.size(); ++i) {
      whole[i].list_begin = whole[i].list = static_cast<int32_t>(i);
      whole[i].list_count = 1;
    }
    plan.sequences = std::move(whole);
  }
  return plan;
}

namespace {

cudaError_t encode_map(CUtensorMap& map, void* data, CUtensorMapDataType type, const cuuint64_t (&extents)[3],
                       const cuuint64_t (&strides)[2], const cuuint32_t (&box)[3]) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found) !=
        cudaSuccess)
      entry = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint32_t steps[] = {1, 1, 1};
  const auto fill = [&] {
    return encode(&map, type, 3, data, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = fill();
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    // A thread that has made no runtime call that needs the device, as autograd's before its first kernel, has no
    // current context yet, and the driver's functions make none.
    if (const cudaError_t status = cudaFree(nullptr); status != cudaSuccess) return status;
    result = fill();
  }
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t tensor_map(CUtensorMap& map, const AttentionTensor& tensor, int64_t tokens, int heads, int d, int rows,
                       Element element, int box_heads) {
  return encode_map(
      map, tensor.data, element == Element::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      {static_cast<cuuint64_t>(d), static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(tokens)},
      {static_cast<cuuint64_t>(tensor.strides.head) * 2, static_cast<cuuint64_t>(tensor.strides.token) * 2},
      {64, static_cast<cuuint32_t>(box_heads), static_cast<cuuint32_t>(rows)});
}

cudaError_t tensor_map(CUtensorMap& map, uint8_t* codes, const std::array<int64_t, 3>& extents,
                       const std::array<int, 3>& box) {
  const auto first = static_cast<cuuint64_t>(extents[0]), second = static_cast<cuuint64_t>(extents[1]);
  return encode_map(
      map, codes, CU_TENSOR_MAP_DATA_TYPE_UINT8, {first, second, static_cast<cuuint64_t>(extents[2])},
      {first, first * second},
      {static_cast<cuuint32_t>(box[0]), static_cast<cuuint32_t>(box[1]), static_cast<cuuint32_t>(box[2])});
}

cudaError_t check_attention(const AttentionShape& s) {
  if ((s.d != 64 && s.d != 128) || s.tokens <= 0 || s.q_heads <= 0 || s.kv_heads <= 0 || s.q_heads % s.kv_heads != 0 ||
      s.tokens > INT32_MAX / 2 || (s.element != Element::kBF16 && s.element != Element::kF16) || s.window < 0 ||
      s.window > INT32_MAX / 4 || (s.window > 0 && !s.causal))
    return cudaErrorInvalidValue;
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major != 9)
    return cudaErrorNotSupported;
  return cudaSuccess;
}

bool valid_tensor(const AttentionTensor& t) {
  return t.data != nullptr && aligned16(t.data) && t.strides.token > 0 && t.strides.head > 0 &&
         t.strides.token % 8 == 0 && t.strides.head % 8 == 0;
}

int section_heads(const AttentionShape& s, int64_t tokens) {
  constexpr int64_t kCacheBytes = 34'000'000;
  const int64_t head_bytes = tokens * s.d * 4;
  const int kv_heads = static_cast<int>(std::clamp<int64_t>(kCacheBytes / head_bytes, 1, s.kv_heads));
  return kv_heads * (s.q_heads / s.kv_heads);
}

cudaError_t attention_forward(const AttentionForward& a, cudaStream_t stream) {
  if (const cudaError_t status = check_attention(a.shape); status != cudaSuccess) return status;
  for (const AttentionTensor& t : {a.q, a.k, a.v, a.o})
    if (!valid_tensor(t)) return cudaErrorInvalidValue;
  if (a.lse == nullptr || !valid(a.shape, a.dropout, a.tiles, a.tile_count, a.counters)) return cudaErrorInvalidValue;
  if (a.dropout.threshold > 0 && (a.longest > 0 ? a.longest : a.shape.tokens) > 65536) return cudaErrorInvalidValue;
  if (a.workspace != nullptr && (a.shape.d != 128 || a.dropout.threshold > 0 || a.shape.window > 0 ||
                                 a.blocks == nullptr || a.block_count <= 0 || !aligned16(a.workspace)))
    return cudaErrorInvalidValue;
  return a.shape.d == 128 ? attention_forward_d128(a, stream) : attention_forward_d64(a, stream);
}

int64_t attention_backward_workspace(const AttentionBackward& a) {
  // Per padded row: log-sum-exp, delta and the fp32 sums of dQ. Per block of rows: a turn counter.
  const int64_t row = keeps_sums_on_chip(a) ? 2 : 2 + a.shape.d;
  return a.shape.q_heads * a.block_count * (64 * row + 1) * 4;
}

cudaError_t attention_backward(const AttentionBackward& a, cudaStream_t stream) {
  if (const cudaError_t status = check_attention(a.shape); status != cudaSuccess) return status;
  for (const AttentionTensor& t : {a.q, a.k, a.v, a.o, a.d_o, a.d_q, a.d_k, a.d_v})
    if (!valid_tensor(t)) return cudaErrorInvalidValue;
  if (a.lse == nullptr || a.blocks == nullptr || a.workspace == nullptr || a.block_count <= 0 ||
      a.shape.q_heads > INT16_MAX || a.block_count * a.shape.q_heads > INT32_MAX / 2 ||
      !valid(a.shape, a.dropout, a.tiles, a.tile_count, a.counters))
    return cudaErrorInvalidValue;
  return a.shape.d == 128 ? attention_backward_d128(a, stream) : attention_backward_d64(a, stream);
}

}  // namespace trireme::kernels
