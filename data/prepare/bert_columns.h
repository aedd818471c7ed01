#pragma once
// Private to the preparation of BERT's data: columns of an output file, filled row by row.

#include "data/prepare/bert_instances.h"
#include "trireme/formats/hdf5/hdf5_rows.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// A variable-length column that grows.
template <class T>
struct GrowingRows {
  std::vector<T> values;
  std::vector<int64_t> offsets{0};
  void append(std::span<const T> part) { values.insert(values.end(), part.begin(), part.end()); }
  void append(int value) { values.push_back(static_cast<T>(value)); }
  void end_row() { offsets.push_back(static_cast<int64_t>(values.size())); }
  int64_t row_size() const { return static_cast<int64_t>(values.size()) - offsets.back(); }
};

/// The columns of packed and of variable-length files.
class BertColumns {
 public:
  /// Adds an instance to the current row.
  void append(const BertInstance& instance);
  void end_row();
  int64_t rows() const { return static_cast<int64_t>(input_ids_.offsets.size()) - 1; }
  int64_t sequences() const { return static_cast<int64_t>(lengths_.values.size()); }
  int64_t tokens() const { return static_cast<int64_t>(input_ids_.values.size()); }
  /// `packed`: several instances a row; else one, in the variable-length layout.
  void write(Hdf5RowWriter& writer, bool packed) const;

 private:
  GrowingRows<int16_t> input_ids_, positions_, masked_ids_, lengths_, mask_lengths_;
  GrowingRows<int8_t> segment_ids_, labels_;
};

}  // namespace trireme
