#include "data/tokenizer/bpe_encoder.h"

#include "data/tokenizer/characters.h"
#include "trireme/base/bytes.h"
#include "trireme/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace trireme {
namespace {

constexpr uint32_t kNoRank = ~uint32_t{0};
constexpr size_t kShortWord = 48;  // bytes; longer words use a heap
constexpr size_t kCachedBytes = 32, kCachedIds = 7;
constexpr size_t kCacheSlots = 1 << 15;

uint64_t mix(uint64_t a) {
  a *= 0x9E3779B97F4A7C15u;
  return a ^ (a >> 29);
}

template <class T>
uint64_t load(const char* from) {
  return value_at<T>(from);
}

/// The bytes of a word of 1 to 32 bytes: with its length they identify it. Longer words overlap in the middle.
std::array<uint64_t, 4> word_key(const char* at, size_t size) {
  if (size > 16)
    return {load<uint64_t>(at), load<uint64_t>(at + 8), load<uint64_t>(at + size - 16), load<uint64_t>(at + size - 8)};
  if (size >= 8) return {load<uint64_t>(at), load<uint64_t>(at + size - 8), 0, 0};
  if (size >= 4) return {load<uint32_t>(at) | load<uint32_t>(at + size - 4) << 32, 0, 0, 0};
  return {load<uint8_t>(at) | load<uint8_t>(at + size / 2) << 8 | load<uint8_t>(at + size - 1) << 16, 0, 0, 0};
}

}  // namespace

/// The ids of short words by their place in a table, one word a place: what comes later takes the place.
class BpeEncoder::Cache {
 public:
  struct alignas(64) Slot {
    std::array<uint64_t, 4> key{};
    uint8_t size = 0, count = 0;  // size 0: empty
    std::array<int32_t, kCachedIds> ids{};
  };
  std::vector<Slot> slots = std::vector<Slot>(kCacheSlots);
  std::vector<int32_t> symbols;  // scratch
  std::vector<uint32_t> ranks;

  Slot& slot(const std::array<uint64_t, 4>& key, size_t size) {
    const uint64_t hash = mix(key[0] ^ size) ^ mix(key[1] + std::rotl(key[2], 21)) ^ std::rotl(mix(key[3] + 1), 17);
    return slots[mix(hash) >> 32 & (kCacheSlots - 1)];
  }
};

BpeEncoder::BpeEncoder(const ByteLevelModel& model)
    : byte_ids_(256, -1),
      by_character_(model.characters),
      unknown_id_(model.unknown_id),
      fuse_unknown_(model.fuse_unknown) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < model.tokens.size(); ++id)
    if (!model.tokens[id].empty()) ids.emplace(model.tokens[id], static_cast<int32_t>(id));
  for (size_t b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(static_cast<unsigned char>(b));
    if (by_character_ && !model.byte_fallback) break;
    const std::string name = by_character_ ? fmt::format("<0x{:02X}>", b) : byte_level_token({&byte, 1});
    if (const auto found = ids.find(name); found != ids.end()) byte_ids_[b] = found->second;
  }
  if (by_character_)
    for (const auto& [token, id] : ids)
      if (character_at(token, 0).bytes == token.size()) characters_.emplace(token, id);
  if (model.ignore_merges) {
    for (const auto& [token, id] : ids) {
      std::string text = by_character_ ? std::string(token) : byte_level_bytes(token);
      if (by_character_ || byte_level_token(text) == token) words_.emplace(std::move(text), id);
    }
  }
  rules_.resize(std::bit_ceil(std::max<size_t>(16, model.merges.size() * 2 + 2)));
  mask_ = rules_.size() - 1;
  for (size_t i = 0; i < model.merges.size(); ++i) {
    const ByteLevelMerge& merge = model.merges[i];
    const uint64_t pair = static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right);
    size_t at = mix(pair) >> 20 & mask_;
    while (rules_[at].pair != pair && rules_[at].pair != ~uint64_t{0}) at = (at + 1) & mask_;
    rules_[at] = {pair, static_cast<uint32_t>(i), merge.result};  // of a pair twice, the last rank counts
  }
}

BpeEncoder::~BpeEncoder() = default;

std::shared_ptr<BpeEncoder::Cache> BpeEncoder::make_cache() const { return std::make_shared<Cache>(); }

const BpeEncoder::Rule* BpeEncoder::find(int32_t left, int32_t right) const {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  for (size_t at = mix(pair) >> 20 & mask_;; at = (at + 1) & mask_) {
    if (rules_[at].pair == pair) return &rules_[at];
    if (rules_[at].pair == ~uint64_t{0}) return nullptr;
  }
}

uint32_t BpeEncoder::rank(int32_t left, int32_t right) const {
  const Rule* rule = find(left, right);
  return rule == nullptr ? kNoRank : rule->rank;
}

void BpeEncoder::merge_short(std::vector<int32_t>& symbols, std::vector<uint32_t>& ranks) const {
  size_t count = symbols.size();
  ranks.resize(count);
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNoRank) break;
    symbols[best] = find(symbols[best], symbols[best + 1])->result;
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(count),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    if (best + 2 < count)
      std::copy(ranks.begin() + static_cast<std::ptrdiff_t>(best) + 2,
                ranks.begin() + static_cast<std::ptrdiff_t>(count) - 1,
                ranks.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --count;
    if (best > 0) ranks[best - 1] = rank(symbols[best - 1], symbols[best]);
    ranks[best] = best + 1 < count ? rank(symbols[best], symbols[best + 1]) : kNoRank;
  }
  symbols.resize(count);
}

void BpeEncoder::merge_long(std::vector<int32_t>& symbols) const {
  // A heap of (rank, place of the left symbol). Entries of pairs that are gone stay in it, and are dropped when they
  // come up: their rank differs from that of the pair that stands there now.
  const size_t count = symbols.size();
  std::vector<uint32_t> before(count), after(count);
  std::vector<uint64_t> heap;
  const auto push = [&](size_t left, size_t right) {
    const uint32_t rank_of = rank(symbols[left], symbols[right]);
    if (rank_of == kNoRank) return false;
    heap.push_back(static_cast<uint64_t>(rank_of) << 32 | left);
    return true;
  };
  for (size_t i = 0; i < count; ++i) {
    before[i] = static_cast<uint32_t>(i - 1);
    after[i] = static_cast<uint32_t>(i + 1);
    if (i + 1 < count) push(i, i + 1);
  }
  const std::greater<> later;
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto left = static_cast<uint32_t>(top);
    if (symbols[left] < 0 || after[left] >= count) continue;
    const uint32_t right = after[left];
    const Rule* rule = find(symbols[left], symbols[right]);
    if (rule == nullptr || rule->rank != top >> 32) continue;
    symbols[left] = rule->result;
    symbols[right] = -1;
    after[left] = after[right];
    if (after[left] < count) before[after[left]] = left;
    if (left != 0 && push(before[left], left)) std::push_heap(heap.begin(), heap.end(), later);
    if (after[left] < count && push(left, after[left])) std::push_heap(heap.begin(), heap.end(), later);
  }
  std::erase(symbols, -1);
}

void BpeEncoder::merge(std::string_view word, Cache& cache) const {
  std::vector<int32_t>& symbols = cache.symbols;
  symbols.clear();
  bool after_unknown = false;
  for (size_t at = 0, size = 1; at < word.size(); at += size) {
    const auto byte = static_cast<unsigned char>(word[at]);
    int32_t id = byte_ids_[byte];
    if (by_character_) {
      size = character_at(word, at).bytes;
      const auto found = characters_.find(std::string(word.substr(at, size)));
      if (found == characters_.end() && id >= 0) {
        for (const char part : word.substr(at, size)) symbols.push_back(byte_ids_[static_cast<unsigned char>(part)]);
        continue;
      }
      id = found == characters_.end() ? -1 : found->second;
    }
    if (id >= 0) {
      symbols.push_back(id);
    } else if (!unknown_id_) {
      throw DataError(fmt::format("the tokenizer has neither a token for the {} 0x{:02X} nor an unk_token",
                                  by_character_ ? "character" : "byte",
                                  by_character_ ? static_cast<uint32_t>(character_at(word, at).code) : byte));
    } else if (!(fuse_unknown_ && after_unknown)) {
      symbols.push_back(*unknown_id_);
    }
    after_unknown = id < 0;
  }
  if (symbols.size() <= kShortWord)
    merge_short(symbols, cache.ranks);
  else
    merge_long(symbols);
}

void BpeEncoder::encode(std::string_view word, Cache& cache, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  const bool cached = word.size() <= kCachedBytes;
  Cache::Slot* slot = nullptr;
  std::array<uint64_t, 4> key{};
  if (cached) {
    key = word_key(word.data(), word.size());
    slot = &cache.slot(key, word.size());
    if (slot->size == word.size() && slot->key == key) {
      ids.insert(ids.end(), slot->ids.begin(), slot->ids.begin() + slot->count);
      return;
    }
  }
  if (!words_.empty()) {
    if (const auto found = words_.find(std::string(word)); found != words_.end()) {
      cache.symbols.assign(1, found->second);
    } else {
      merge(word, cache);
    }
  } else {
    merge(word, cache);
  }
  ids.insert(ids.end(), cache.symbols.begin(), cache.symbols.end());
  if (!cached || cache.symbols.size() > kCachedIds) return;
  slot->key = key;
  slot->size = static_cast<uint8_t>(word.size());
  slot->count = static_cast<uint8_t>(cache.symbols.size());
  std::copy(cache.symbols.begin(), cache.symbols.end(), slot->ids.begin());
}

}  // namespace trireme
