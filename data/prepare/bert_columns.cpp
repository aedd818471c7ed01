#include "data/prepare/bert_columns.h"

namespace trireme {

void BertColumns::append(const BertInstance& instance) {
  const auto before = static_cast<int>(input_ids_.row_size());
  const auto length = static_cast<int>(instance.input_ids.size());
  input_ids_.append(instance.input_ids);
  for (int i = 0; i < length; ++i) segment_ids_.append(i < instance.first_length ? 0 : 1);
  for (const int16_t position : instance.masked_positions) positions_.append(before + position);
  masked_ids_.append(instance.masked_ids);
  lengths_.append(length);
  mask_lengths_.append(static_cast<int>(instance.masked_positions.size()));
  labels_.append(instance.random_next);
}

void BertColumns::end_row() {
  for (auto* column : {&input_ids_, &positions_, &masked_ids_, &lengths_, &mask_lengths_}) column->end_row();
  for (auto* column : {&segment_ids_, &labels_}) column->end_row();
}

void BertColumns::write(Hdf5RowWriter& writer, bool packed) const {
  writer.write_rows("input_ids", input_ids_.values, input_ids_.offsets);
  writer.write_rows("segment_ids", segment_ids_.values, segment_ids_.offsets);
  writer.write_rows("masked_lm_positions", positions_.values, positions_.offsets);
  writer.write_rows("masked_lm_ids", masked_ids_.values, masked_ids_.offsets);
  if (!packed) return writer.write_table("next_sentence_labels", labels_.values);
  writer.write_rows("packed_input_len", lengths_.values, lengths_.offsets);
  writer.write_rows("packed_masked_lm_len", mask_lengths_.values, mask_lengths_.offsets);
  writer.write_rows("next_sentence_labels", labels_.values, labels_.offsets);
}

}  // namespace trireme
