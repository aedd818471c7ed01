#include "data/bert/bert_pack.h"

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"

namespace trireme {

namespace {

void append_bert_row(BertPack& pack, const BertRow& row, int64_t position, const BertPackOptions& options) {
  const auto base = static_cast<int64_t>(pack.ids.size());
  const bool counts = position >= 0;
  int64_t offset = 0;
  size_t word = 0;
  for (size_t s = 0; s < row.sequence_lengths.size(); ++s) {
    const int64_t length = row.sequence_lengths[s], end = offset + length;
    const auto append = [&](int64_t t) {
      pack.ids.push_back(row.input_ids[static_cast<size_t>(t)]);
      pack.positions.push_back(t - offset);
      pack.types.push_back(row.segment_ids[static_cast<size_t>(t)]);
      pack.keys.push_back((counts ? position : 0) * options.row_length + t);
    };
    const size_t first = word;
    while (word < row.masked_positions.size() && row.masked_positions[word] < end) ++word;
    const size_t words = word - first;
    const float weight = !counts ? 0.0f : options.per_sequence ? 1.0f / static_cast<float>(words) : 1.0f;
    append(offset);
    for (size_t w = first; w < word; ++w) {
      const int64_t t = row.masked_positions[w];
      if (t > offset) append(t);
      pack.masked_rows.push_back(static_cast<int64_t>(pack.ids.size()) - 1);
      pack.masked_ids.push_back(row.masked_ids[w]);
      pack.masked_weights.push_back(weight);
    }
    pack.needed.push_back(static_cast<int32_t>(static_cast<int64_t>(pack.ids.size()) - base - offset));
    size_t masked = first;
    for (int64_t t = offset; t < end; ++t) {
      if (masked < word && row.masked_positions[masked] == t)
        ++masked;
      else if (t > offset)
        append(t);
    }
    pack.first_rows.push_back(base + offset);
    pack.next_labels.push_back(row.next_sentence_labels[s]);
    pack.next_weights.push_back(counts ? 1.0f : 0.0f);
    pack.boundaries.push_back(static_cast<int32_t>(base + end));
    pack.sequence_keys.push_back((counts ? position : 0) * options.row_length + offset);
    if (counts) {
      pack.words += options.per_sequence ? (words > 0 ? 1.0 : 0.0) : static_cast<double>(words);
      pack.sequences += 1;
    }
    offset = end;
  }
  TRIREME_CHECK(word == row.masked_positions.size() && offset == static_cast<int64_t>(row.input_ids.size()),
                "a row of ", row.input_ids.size(), " tokens has sequences of ", offset, " and ",
                row.masked_positions.size() - word, " masked words beyond them");
}

}  // namespace

BertPack make_bert_pack(const std::vector<BertRow>& rows, const std::vector<int64_t>& positions,
                        const BertPackOptions& options) {
  TRIREME_CHECK(rows.size() == positions.size() && !rows.empty(), rows.size(), " rows, ", positions.size(),
                " positions");
  BertPack pack;
  pack.boundaries.push_back(0);
  for (size_t i = 0; i < rows.size(); ++i) append_bert_row(pack, rows[i], positions[i], options);
  const auto tokens = static_cast<int64_t>(pack.ids.size());
  const int64_t padded = round_up(tokens, options.multiple);
  for (auto* values : {&pack.ids, &pack.positions, &pack.types, &pack.keys})
    values->resize(static_cast<size_t>(padded), 0);
  if (padded > tokens) {
    pack.boundaries.push_back(static_cast<int32_t>(padded));
    pack.sequence_keys.push_back(0);
    pack.needed.push_back(1);
  }
  if (pack.masked_rows.empty()) {  // the heads want at least one row
    pack.masked_rows.push_back(0);
    pack.masked_ids.push_back(0);
    pack.masked_weights.push_back(0.0f);
  }
  return pack;
}

BertRow filler_bert_row() {
  BertRow row;
  row.input_ids = row.segment_ids = row.next_sentence_labels = {0};
  row.sequence_lengths = {1};
  return row;
}

BertRow pattern_bert_row(int64_t length, int64_t vocab_size) {
  const auto tokens = static_cast<int32_t>(length), first = tokens / 2;
  BertRow row;
  for (int32_t t = 0; t < tokens; ++t) {
    row.input_ids.push_back(static_cast<int32_t>((int64_t{t} * 7919 + 13) % vocab_size));
    row.segment_ids.push_back(0);
    if (t % 7 != 3) continue;
    row.masked_positions.push_back(t);
    row.masked_ids.push_back(row.input_ids.back());
  }
  row.sequence_lengths = first > 0 ? std::vector<int32_t>{first, tokens - first} : std::vector<int32_t>{tokens};
  row.next_sentence_labels.assign(row.sequence_lengths.size(), 0);
  return row;
}

}  // namespace trireme
