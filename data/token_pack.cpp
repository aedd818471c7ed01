#include "data/token_pack.h"

#include "trireme/base/error.h"
#include "trireme/base/hash.h"

#include <algorithm>
#include <cstddef>

namespace trireme {

namespace {

/// Equal for equal rows, wherever they come from.
uint64_t row_key(const Sample& sample) {
  const auto hash = [](const auto& values, uint64_t seed) {
    return xxh3_64(values.data(), values.size() * sizeof(values[0]), seed);
  };
  return hash(sample.loss_mask, hash(sample.sequence_starts, hash(sample.input_ids, 0)));
}

/// `first`: of the row's sequences among those of the pack.
void append_pairs(TokenPack& pack, const Sample& sample, int64_t first) {
  if (sample.pairs == 0) return;
  pack.row_keys.push_back(row_key(sample));
  pack.row_pairs.push_back(sample.pairs);
  pack.desirable.insert(pack.desirable.end(), sample.desirable.begin(), sample.desirable.end());
  for (int64_t s = 0; s < 2 * sample.pairs; ++s) {
    const auto at = [&](int64_t sequence) {
      const auto index = static_cast<size_t>(sequence);
      return sample.loss_mask.begin() +
             (index < sample.sequence_starts.size() ? sample.sequence_starts[index] : pack.length);
    };
    (s % 2 == 0 ? pack.chosen : pack.rejected).push_back(first + s);
    (s % 2 == 0 ? pack.chosen_targets : pack.rejected_targets)
        .push_back(static_cast<double>(std::count(at(s), at(s + 1), uint8_t{1})));
  }
}

void append_sample(TokenPack& pack, const Sample& sample, int64_t position, bool per_token) {
  const int64_t length = pack.length;
  TRIREME_CHECK(static_cast<int64_t>(sample.input_ids.size()) == length, "a row of ", sample.input_ids.size(),
                " tokens among rows of ", length);
  pack.tokens.insert(pack.tokens.end(), sample.input_ids.begin(), sample.input_ids.end());
  pack.sample_ids.push_back(position);
  TRIREME_CHECK(sample.labels.empty() == pack.labels.empty() || pack.rows == 0, "rows with and without labels");
  pack.labels.insert(pack.labels.end(), sample.labels.begin(), sample.labels.end());
  pack.positions.insert(pack.positions.end(), sample.positions.begin(), sample.positions.end());
  append_pairs(pack, sample, static_cast<int64_t>(pack.sequence_keys.size()));
  for (size_t s = 0; s < sample.sequence_starts.size(); ++s) {
    const int64_t begin = sample.sequence_starts[s];
    const int64_t end = s + 1 < sample.sequence_starts.size() ? sample.sequence_starts[s + 1] : length;
    for (int64_t t = begin; t < end && sample.positions.empty(); ++t) pack.positions.push_back(t - begin);
    pack.boundaries.push_back(static_cast<int32_t>(pack.rows * length + end));
    pack.sequence_keys.push_back(position * length + begin);
  }
  ++pack.rows;
  const int64_t targets = sample.num_targets();
  const float weight = targets == 0 ? 0.0f : per_token ? 1.0f : static_cast<float>(1.0 / static_cast<double>(targets));
  if (targets > 0) pack.denominator += per_token ? static_cast<double>(targets) : 1.0;
  for (int64_t t = 0; t < length; ++t) {
    const int64_t target = t + (sample.labels.empty() ? 1 : 0);  // its place in loss_mask
    pack.loss_weights.push_back(target < length && sample.loss_mask[static_cast<size_t>(target)] != 0 ? weight : 0.0f);
  }
}

}  // namespace

TokenPack make_token_pack(const std::vector<Sample>& rows, const std::vector<int64_t>& positions, bool per_token) {
  TRIREME_CHECK(rows.size() == positions.size() && !rows.empty(), rows.size(), " rows, ", positions.size(),
                " positions");
  TokenPack pack;
  pack.length = static_cast<int64_t>(rows.front().input_ids.size());
  for (auto* values : {&pack.tokens, &pack.positions}) values->reserve(rows.size() * rows.front().input_ids.size());
  pack.loss_weights.reserve(rows.size() * rows.front().input_ids.size());
  for (size_t i = 0; i < rows.size(); ++i) append_sample(pack, rows[i], positions[i], per_token);
  return pack;
}

TokenPack token_slice(TokenPack pack, int64_t index, int64_t count) {
  const int64_t tokens = pack.rows * pack.length, length = tokens / count;
  TRIREME_CHECK(tokens % count == 0 && index >= 0 && index < count, "slice ", index, " of ", count, " of ", pack.rows,
                " rows of ", pack.length, " tokens");
  if (pack.labels.empty()) {
    // The label of a row's last position has weight 0.
    pack.labels = pack.tokens;
    for (auto row = pack.labels.begin(); row != pack.labels.end(); row += pack.length)
      std::rotate(row, row + 1, row + pack.length);
  }
  const auto cut = [&](auto& values) {
    values.erase(values.begin(), values.begin() + index * length);
    values.resize(static_cast<size_t>(length));
  };
  cut(pack.tokens), cut(pack.positions), cut(pack.labels), cut(pack.loss_weights);
  pack.rows = 1;
  pack.length = length;
  return pack;
}

Sample filler_sample(int64_t length) {
  Sample sample = one_sequence(std::vector<int64_t>(static_cast<size_t>(length)));
  std::ranges::fill(sample.loss_mask, 0);
  return sample;
}

Sample with_labels(Sample sample) {
  const size_t length = sample.input_ids.size();
  sample.labels = sample.input_ids;
  std::rotate(sample.labels.begin(), sample.labels.begin() + 1, sample.labels.end());
  std::rotate(sample.loss_mask.begin(), sample.loss_mask.begin() + 1, sample.loss_mask.end());
  sample.loss_mask[length - 1] = 0;
  return sample;
}

Sample pattern_sample(int64_t length, int64_t vocab_size) {
  Sample sample = one_sequence(std::vector<int64_t>(static_cast<size_t>(length)));
  for (int64_t t = 0; t < length; ++t) sample.input_ids[static_cast<size_t>(t)] = (t * 7919 + 13) % vocab_size;
  sample.loss_mask[0] = 0;
  return sample;
}

}  // namespace trireme
