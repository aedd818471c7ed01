#pragma once
// Private to formats/arrow: values of list, integer and string arrays.

#include <arrow/api.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace trireme {

/// The elements [begin, end) of `values` in row `row` of a list column of any list type.
struct ListRow {
  int64_t begin, end;
};

template <class List>
inline ListRow list_row_of(const arrow::Array& array, int64_t row, std::shared_ptr<arrow::Array>& values) {
  const auto& list = static_cast<const List&>(array);
  values = list.values();
  return {list.value_offset(row), list.value_offset(row) + list.value_length(row)};
}

inline bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
         type.id() == arrow::Type::FIXED_SIZE_LIST;
}

inline ListRow list_row(const arrow::Array& array, int64_t row, std::shared_ptr<arrow::Array>& values) {
  if (array.type_id() == arrow::Type::LIST) return list_row_of<arrow::ListArray>(array, row, values);
  if (array.type_id() == arrow::Type::LARGE_LIST) return list_row_of<arrow::LargeListArray>(array, row, values);
  return list_row_of<arrow::FixedSizeListArray>(array, row, values);
}

inline bool is_text(const arrow::DataType& type) {
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING;
}

inline std::string_view text_at(const arrow::Array& array, int64_t index) {
  if (array.type_id() == arrow::Type::STRING) return static_cast<const arrow::StringArray&>(array).GetView(index);
  return static_cast<const arrow::LargeStringArray&>(array).GetView(index);
}

template <class Array>
inline void append_integers(const arrow::Array& values, ListRow range, std::vector<int64_t>& out) {
  const auto& typed = static_cast<const Array&>(values);
  for (int64_t i = range.begin; i < range.end; ++i) out.push_back(static_cast<int64_t>(typed.Value(i)));
}

/// False when the element type is not an integer.
inline bool integers_of(const arrow::Array& values, ListRow range, std::vector<int64_t>& out) {
  out.clear();
  switch (values.type_id()) {
    case arrow::Type::INT8: append_integers<arrow::Int8Array>(values, range, out); return true;
    case arrow::Type::INT16: append_integers<arrow::Int16Array>(values, range, out); return true;
    case arrow::Type::INT32: append_integers<arrow::Int32Array>(values, range, out); return true;
    case arrow::Type::INT64: append_integers<arrow::Int64Array>(values, range, out); return true;
    case arrow::Type::UINT8: append_integers<arrow::UInt8Array>(values, range, out); return true;
    case arrow::Type::UINT16: append_integers<arrow::UInt16Array>(values, range, out); return true;
    case arrow::Type::UINT32: append_integers<arrow::UInt32Array>(values, range, out); return true;
    default: return false;
  }
}

}  // namespace trireme
