#pragma once
// The merges of BPE: words of bytes, or of characters, to token ids.

#include "trireme/formats/huggingface/byte_level_model.h"

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme {

/// Encodes words with one model. Const members are thread-safe with a cache for each thread.
class BpeEncoder {
 public:
  class Cache;

  explicit BpeEncoder(const ByteLevelModel& model);
  ~BpeEncoder();

  std::shared_ptr<Cache> make_cache() const;
  /// Appends the ids of a word: its bytes (or characters; the bytes of one without a token where the model has
  /// byte_fallback), merged pair by pair, the pair of highest priority first, among equal pairs the leftmost. A word of
  /// n bytes takes O(n log n). DataError for a byte or character without a token if the model has no unknown token.
  void encode(std::string_view word, Cache& cache, std::vector<int32_t>& ids) const;

 private:
  struct Rule {
    uint64_t pair = ~uint64_t{0};  // left << 32 | right
    uint32_t rank = 0;
    int32_t result = 0;
  };
  const Rule* find(int32_t left, int32_t right) const;
  uint32_t rank(int32_t left, int32_t right) const;
  void merge(std::string_view word, Cache& cache) const;
  void merge_short(std::vector<int32_t>& symbols, std::vector<uint32_t>& ranks) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  std::vector<int32_t> byte_ids_;  // by byte; -1: none
  bool by_character_;
  std::unordered_map<std::string, int32_t> characters_;
  std::vector<Rule> rules_;  // open addressing; the size is a power of two
  size_t mask_ = 0;
  std::optional<int32_t> unknown_id_;
  bool fuse_unknown_;
  std::unordered_map<std::string, int32_t> words_;  // of a model that ignores merges: its tokens, by their bytes
};

}  // namespace trireme
