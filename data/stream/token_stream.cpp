#include "data/stream/token_stream.h"

#include "data/stream/permutation.h"
#include "trireme/base/error.h"
#include "trireme/base/rng.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace trireme {

TokenStream::TokenStream(std::vector<StreamPart> parts, StreamOptions options)
    : parts_(std::move(parts)), options_(std::move(options)) {
  TRIREME_CHECK(!parts_.empty() && options_.seq_length >= 2 && options_.vocab_size >= 1 && options_.logical_shards >= 1,
                parts_.size(), " parts, rows of ", options_.seq_length, ", vocabulary of ", options_.vocab_size, ", ",
                options_.logical_shards, " logical shards");
  TRIREME_CHECK(options_.seq_length > options_.bol.has_value() + options_.eol.has_value(), "rows of ",
                options_.seq_length, " have no room beside bol and eol");
  double sum = 0;
  for (const StreamPart& part : parts_) {
    TRIREME_CHECK(part.weight > 0 && std::isfinite(part.weight), part.name, " has weight ", part.weight);
    if (part.documents->size() == 0) throw DataError(part.name + ": holds no documents");
    sum += part.weight;
  }
  for (StreamPart& part : parts_) part.weight /= sum;
}

ShardState TokenStream::start() const {
  return {-1, 0, std::vector<int64_t>(parts_.size(), 0), std::vector<int64_t>(parts_.size(), 0)};
}

int64_t TokenStream::document_at(size_t part, int64_t slot) const {
  const int64_t size = parts_[part].documents->size(), epoch = slot / size;
  if (!options_.shuffle) return slot % size;
  const uint64_t part_seed = derive_seed(options_.seed, "stream_part", part);
  return Permutation(size, derive_seed(part_seed, "stream_epoch", static_cast<uint64_t>(epoch)))(slot % size);
}

bool TokenStream::is_stripped(int64_t token) const {
  for (const auto& delimiter : {options_.bos, options_.eos, options_.bol, options_.eol})
    if (delimiter == token) return true;
  return std::find(options_.strip.begin(), options_.strip.end(), token) != options_.strip.end();
}

std::vector<int64_t> TokenStream::read_document(size_t part, int64_t index) const {
  std::vector<int64_t> tokens;
  parts_[part].documents->read(index, tokens);
  for (size_t t = 0; t < tokens.size(); ++t)
    if (tokens[t] < 0 || tokens[t] >= options_.vocab_size)
      throw DataError(fmt::format(
          "{}, token {}: id {} is outside the model's vocabulary of {} (0 to {}): was the data made "
          "with another tokenizer?",
          parts_[part].documents->place(index), t, tokens[t], options_.vocab_size, options_.vocab_size - 1));
  if (!tokens.empty() && is_stripped(tokens.front())) tokens.erase(tokens.begin());
  if (!tokens.empty() && is_stripped(tokens.back())) tokens.pop_back();
  if (options_.bos) tokens.insert(tokens.begin(), *options_.bos);
  if (options_.eos) tokens.push_back(*options_.eos);
  return tokens;
}

void TokenStream::fail_all_short(size_t part) const {
  throw DataError(fmt::format(
      "{}: none of the documents that were read, of {}, has data.min_length {} tokens: lower data.min_length",
      parts_[part].name, format_count(parts_[part].documents->size()), options_.min_length));
}

int64_t TokenStream::choose_part(int64_t shard, const ShardState& state) const {
  double total = 0;
  for (const int64_t count : state.tokens) total += static_cast<double>(count);
  if (total == 0) {
    // Multiples of the golden section modulo 1 are spread evenly, so every run of shards is mixed by the weights.
    double place = std::fmod(0.6180339887498949 * static_cast<double>(shard + 1), 1.0);
    for (size_t i = 0; i + 1 < parts_.size(); ++i) {
      place -= parts_[i].weight;
      if (place < 0) return static_cast<int64_t>(i);
    }
    return static_cast<int64_t>(parts_.size()) - 1;
  }
  size_t best = 0;
  const auto lack = [&](size_t i) { return parts_[i].weight - static_cast<double>(state.tokens[i]) / total; };
  for (size_t i = 1; i < parts_.size(); ++i)
    if (lack(i) >= lack(best)) best = i;
  return static_cast<int64_t>(best);
}

bool TokenStream::is_short_class(size_t part, int64_t remainder) const {
  const std::lock_guard lock(mutex_);
  return short_classes_.contains({part, remainder});
}

std::vector<int64_t> TokenStream::open_document(int64_t shard, ShardState& state) const {
  const bool chosen = state.part < 0;
  if (chosen) {
    state.part = choose_part(shard, state);
    state.offset = 0;
  }
  const auto part = static_cast<size_t>(state.part);
  const int64_t size = parts_[part].documents->size(), slots = state.slots[part], offset = state.offset;
  // A shard draws documents at random from all of them, so after so many it has seen any that is long enough. In file
  // order it meets every `classes`-th document over and over; where these are all short it takes the ones after them.
  // That they are is remembered: finding it out reads them all.
  const int64_t classes = options_.shuffle ? 1 : std::gcd(size, options_.logical_shards);
  const int64_t patience = options_.shuffle ? 1000 + 20 * size : size / classes;
  for (int64_t shift = 0; shift < classes; ++shift) {
    const int64_t remainder = (shard + shift) % classes;
    if (is_short_class(part, remainder)) continue;
    state.slots[part] = slots;
    state.offset = offset;
    for (int64_t skipped = 0; skipped <= patience; ++skipped) {
      const int64_t slot = shard + state.slots[part] * options_.logical_shards;
      std::vector<int64_t> tokens = read_document(part, document_at(part, slot + shift));
      const auto length = static_cast<int64_t>(tokens.size());
      // A document that is shorter than its part in earlier rows has changed since: its rest is gone.
      if (length >= options_.min_length && state.offset < length && length > 0) return tokens;
      ++state.slots[part];
      state.offset = 0;
    }
    const std::lock_guard lock(mutex_);
    short_classes_.emplace(part, remainder);
  }
  fail_all_short(part);
}

std::vector<int64_t> TokenStream::next_row(int64_t shard, ShardState& state) const {
  TRIREME_CHECK(shard >= 0 && shard < options_.logical_shards && state.slots.size() == parts_.size(), "shard ", shard,
                " of ", options_.logical_shards, ", ", state.slots.size(), " parts");
  const auto length = static_cast<size_t>(options_.seq_length);
  std::vector<int64_t> row;
  row.reserve(length);
  while (row.size() < length) {
    const std::vector<int64_t> document = open_document(shard, state);
    const auto part = static_cast<size_t>(state.part);
    auto from = document.begin() + state.offset;
    if (row.empty() && options_.bol && *from != *options_.bol) row.push_back(*options_.bol);
    auto count = std::min(document.end() - from, static_cast<std::ptrdiff_t>(length - row.size()));
    row.insert(row.end(), from, from + count);
    if (row.size() == length && options_.eol && row.back() != *options_.eol) {
      row.back() = *options_.eol;
      --count;
    }
    state.offset += count;
    state.tokens[part] += count;
    if (state.offset < static_cast<int64_t>(document.size())) break;
    ++state.slots[part];
    state.part = -1;
    state.offset = 0;
  }
  return row;
}

}  // namespace trireme
