#include "data/bert/bert_shard.h"

#include "trireme/base/error.h"

#include <fmt/format.h>

namespace trireme {

namespace {

constexpr const char* kInputIds = "input_ids";
constexpr const char* kSegmentIds = "segment_ids";
constexpr const char* kPositions = "masked_lm_positions";
constexpr const char* kMaskedIds = "masked_lm_ids";
constexpr const char* kLabels = "next_sentence_labels";
constexpr const char* kLengths = "packed_input_len";

/// Packed shards store sequence lengths; variable-length files have one sequence a row.
bool is_packed(const Hdf5RowFile& file) { return file.has(kLengths); }

std::vector<int32_t> to_vector(std::span<const int32_t> values) { return {values.begin(), values.end()}; }

}  // namespace

BertShardHeader read_bert_header(const std::filesystem::path& path) {
  const Hdf5RowFile file(path);
  if (!is_packed(file) && file.has("input_mask"))
    throw DataError(fmt::format(
        "{} holds rows of fixed length; convert it to variable length: trireme data bert export --layout varlength",
        path.string()));
  return {is_packed(file), file.rows(kInputIds)};
}

int64_t count_bert_sequences(const std::filesystem::path& path) {
  const Hdf5RowFile file(path);
  return is_packed(file) ? file.count_values(kLengths, kMaxPackedSequences) : file.rows(kInputIds);
}

BertShard::BertShard(const std::filesystem::path& path, const BertLimits& limits) : path_(path), limits_(limits) {
  const Hdf5RowFile file(path);
  packed_ = is_packed(file);
  input_ids_ = file.read_rows(kInputIds, limits.max_length);
  const auto require = [&](const char* dataset, int64_t rows) {
    if (rows != size())
      throw DataError(
          fmt::format("{}: dataset {} has {} rows and {} has {}", path.string(), dataset, rows, kInputIds, size()));
  };
  const auto read = [&](const char* dataset, int64_t max_length) {
    IntegerRows rows = file.read_rows(dataset, max_length);
    require(dataset, rows.size());
    return rows;
  };
  segment_ids_ = read(kSegmentIds, limits.max_length);
  masked_positions_ = read(kPositions, limits.max_length);
  masked_ids_ = read(kMaskedIds, limits.max_length);
  if (packed_) {
    lengths_ = read(kLengths, kMaxPackedSequences);
    labels_ = read(kLabels, kMaxPackedSequences);
  } else {
    row_labels_ = file.read_column(kLabels);
    require(kLabels, static_cast<int64_t>(row_labels_.size()));
  }
}

int64_t BertShard::sequences() const { return packed_ ? lengths_.offsets.back() : size(); }

void BertShard::fail(const char* dataset, int64_t row, const std::string& what) const {
  throw DataError(fmt::format("{}: dataset {}, row {}: {}", path_.string(), dataset, row, what));
}

BertRow BertShard::read(int64_t row) const {
  TRIREME_CHECK(row >= 0 && row < size(), "row ", row, " of ", size());
  BertRow result;
  result.input_ids = to_vector(input_ids_.row(row));
  result.segment_ids = to_vector(segment_ids_.row(row));
  result.masked_positions = to_vector(masked_positions_.row(row));
  result.masked_ids = to_vector(masked_ids_.row(row));
  if (packed_) {
    result.sequence_lengths = to_vector(lengths_.row(row));
    result.next_sentence_labels = to_vector(labels_.row(row));
  } else {
    result.sequence_lengths = {static_cast<int32_t>(result.input_ids.size())};
    result.next_sentence_labels = {row_labels_[static_cast<size_t>(row)]};
  }
  check_sequences(row, result);
  check_tokens(row, result);
  check_masks(row, result);
  return result;
}

void BertShard::check_sequences(int64_t row, const BertRow& result) const {
  const auto tokens = static_cast<int64_t>(result.input_ids.size());
  if (tokens == 0) fail(kInputIds, row, "no tokens");
  const std::vector<int32_t>& lengths = result.sequence_lengths;
  if (lengths.empty()) fail(kLengths, row, "no sequences");
  int64_t sum = 0;
  for (const int32_t length : lengths) {
    if (length < 1 || length > limits_.max_length)
      fail(kLengths, row, fmt::format("a sequence of {} tokens, expected 1 to {}", length, limits_.max_length));
    sum += length;
  }
  if (sum != tokens)
    fail(kLengths, row, fmt::format("sequences of {} tokens in all, {} has {}", sum, kInputIds, tokens));
  const std::vector<int32_t>& labels = result.next_sentence_labels;
  if (labels.size() != lengths.size())
    fail(kLabels, row, fmt::format("{} labels for {} sequences", labels.size(), lengths.size()));
  for (const int32_t label : labels)
    if (label != 0 && label != 1) fail(kLabels, row, fmt::format("label {} is neither 0 nor 1", label));
}

void BertShard::check_tokens(int64_t row, const BertRow& result) const {
  if (result.segment_ids.size() != result.input_ids.size())
    fail(kSegmentIds, row, fmt::format("{} entries for {} tokens", result.segment_ids.size(), result.input_ids.size()));
  for (size_t i = 0; i < result.input_ids.size(); ++i) {
    const int32_t id = result.input_ids[i], segment = result.segment_ids[i];
    if (id < 0 || id >= limits_.vocab_size)
      fail(kInputIds, row,
           fmt::format("position {}: token id {} is outside the vocabulary of {}", i, id, limits_.vocab_size));
    if (segment != 0 && segment != 1)
      fail(kSegmentIds, row, fmt::format("position {}: segment {} is neither 0 nor 1", i, segment));
    if (segment >= limits_.segments)
      fail(
          kSegmentIds, row,
          fmt::format("position {}: segment {}, and type_vocab_size of the model is {}", i, segment, limits_.segments));
  }
}

void BertShard::check_masks(int64_t row, const BertRow& result) const {
  const std::vector<int32_t>& positions = result.masked_positions;
  if (result.masked_ids.size() != positions.size())
    fail(kMaskedIds, row,
         fmt::format("{} entries for {} masked positions", result.masked_ids.size(), positions.size()));
  for (size_t i = 0; i < positions.size(); ++i) {
    const int32_t id = result.masked_ids[i];
    if (positions[i] < 0 || positions[i] >= static_cast<int64_t>(result.input_ids.size()))
      fail(kPositions, row,
           fmt::format("position {} is outside the row of {} tokens", positions[i], result.input_ids.size()));
    // Sequences are stored one after the other, so positions ascend within the row too.
    if (i > 0 && positions[i] <= positions[i - 1])
      fail(kPositions, row,
           fmt::format("position {} follows {}, expected ascending positions", positions[i], positions[i - 1]));
    if (id < 0 || id >= limits_.vocab_size)
      fail(kMaskedIds, row, fmt::format("token id {} is outside the vocabulary of {}", id, limits_.vocab_size));
  }
}

}  // namespace trireme
