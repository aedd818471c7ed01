#pragma once
// Private to formats/arrow: values of list, integer and string arrays.

#include "trireme/arrow/parquet.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <arrow/api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
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

/// Strings, also coded by a dictionary.
inline bool is_text(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY)
    return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING ||
         type.id() == arrow::Type::STRING_VIEW;
}

/// The place of value `index` in its dictionary. Arrow does not check those of Parquet files.
inline int64_t place_in_dictionary(const arrow::DictionaryArray& coded, int64_t index) {
  const int64_t value = coded.GetValueIndex(index), size = coded.dictionary()->length();
  if (value < 0 || value >= size) throw std::out_of_range(fmt::format("value {} of a dictionary of {}", value, size));
  return value;
}

/// A null among the values of a dictionary is an empty text.
inline std::string_view text_at(const arrow::Array& array, int64_t index) {
  if (array.type_id() == arrow::Type::DICTIONARY) {
    const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
    const int64_t value = place_in_dictionary(coded, index);
    return coded.dictionary()->IsNull(value) ? std::string_view{} : text_at(*coded.dictionary(), value);
  }
  if (array.type_id() == arrow::Type::STRING_VIEW)
    return static_cast<const arrow::StringViewArray&>(array).GetView(index);
  if (array.type_id() == arrow::Type::STRING) return static_cast<const arrow::StringArray&>(array).GetView(index);
  return static_cast<const arrow::LargeStringArray&>(array).GetView(index);
}

inline std::shared_ptr<arrow::Field> field_named(const std::filesystem::path& path, const arrow::Schema& schema,
                                                 const std::string& name) {
  if (const size_t columns = schema.GetAllFieldIndices(name).size(); columns > 1)
    throw DataError(fmt::format("{}: {} columns have the name '{}': rename all but one", path.string(), columns, name));
  const auto field = schema.GetFieldByName(name);
  if (!field)
    throw DataError(fmt::format("{}: no column '{}'; it has: {}.{}", path.string(), name,
                                join(schema.field_names(), ", "), did_you_mean(name, schema.field_names())));
  return field;
}

/// DataError unless the column is there and holds text.
inline void require_text(const std::filesystem::path& path, const arrow::Schema& schema, const std::string& column) {
  const auto type = field_named(path, schema, column)->type();
  if (!is_text(*type))
    throw DataError(fmt::format("{}: column '{}' is {}, expected string", path.string(), column, type->ToString()));
}

/// Calls visit(row, text) for a column of text from row `first` on; a null is an empty text.
template <class Visit>
inline void visit_texts(const arrow::Array& array, int64_t first, const Visit& visit) {
  for (int64_t i = 0; i < array.length(); ++i)
    visit(first + i, array.IsNull(i) ? std::string_view{} : text_at(array, i));
}

inline bool is_integer_list(const arrow::DataType& type) {
  return is_list(type) && arrow::is_integer(static_cast<const arrow::BaseListType&>(type).value_type()->id());
}

/// DataError for an integer above those of 64 bits with a sign; `place()` is for its message.
template <class Array, class Place>
inline void append_integers(const arrow::Array& values, ListRow range, const Place& place, std::vector<int64_t>& out) {
  const auto& typed = static_cast<const Array&>(values);
  for (int64_t i = range.begin; i < range.end; ++i) {
    if (!std::in_range<int64_t>(typed.Value(i)))
      throw DataError(
          fmt::format("{}: token {} is {}, more than any id can be", place(), i - range.begin, typed.Value(i)));
    out.push_back(static_cast<int64_t>(typed.Value(i)));
  }
}

/// The elements [begin, end) of `values`; false when they are no integers. DataError with place() for one that is null.
template <class Place>
inline bool integers_of(const arrow::Array& values, ListRow range, const Place& place, std::vector<int64_t>& out) {
  out.clear();
  for (int64_t i = range.begin; i < range.end && values.null_count() > 0; ++i)
    if (values.IsNull(i)) throw DataError(fmt::format("{}: value {} is null", place(), i - range.begin));
  switch (values.type_id()) {
    case arrow::Type::INT8: append_integers<arrow::Int8Array>(values, range, place, out); return true;
    case arrow::Type::INT16: append_integers<arrow::Int16Array>(values, range, place, out); return true;
    case arrow::Type::INT32: append_integers<arrow::Int32Array>(values, range, place, out); return true;
    case arrow::Type::INT64: append_integers<arrow::Int64Array>(values, range, place, out); return true;
    case arrow::Type::UINT8: append_integers<arrow::UInt8Array>(values, range, place, out); return true;
    case arrow::Type::UINT16: append_integers<arrow::UInt16Array>(values, range, place, out); return true;
    case arrow::Type::UINT32: append_integers<arrow::UInt32Array>(values, range, place, out); return true;
    case arrow::Type::UINT64: append_integers<arrow::UInt64Array>(values, range, place, out); return true;
    default: return false;
  }
}

/// The integers of row `row` of a list column, none of a null. DataError with place() for a row that does not lie in
/// its values, and for a null among them.
template <class Place>
inline void integers_of_row(const arrow::Array& array, int64_t row, const Place& place, std::vector<int64_t>& out) {
  out.clear();
  if (array.IsNull(row)) return;
  std::shared_ptr<arrow::Array> values;
  const ListRow range = list_row(array, row, values);
  if (range.begin < 0 || range.end < range.begin || range.end > values->length())
    throw DataError(fmt::format("{}: damaged: the row spans the values {} to {} of {}", place(), range.begin, range.end,
                                values->length()));
  (void)integers_of(*values, range, place, out);
}

/// Value `i` as JSON. `level`: of objects in it, members that are null are left out from level 2 on. `place` is for
/// messages. DataError for a type without a JSON form.
inline nlohmann::ordered_json json_at(const arrow::Array& array, int64_t i, const std::string& place, int level = 0) {
  using Json = nlohmann::ordered_json;
  using arrow::Type;
  const auto text = [&](std::string_view value) -> Json {
    if (!is_valid_utf8(value)) throw DataError(place + ": not UTF-8");
    return std::string(value);
  };
  if (array.IsNull(i)) return {};
  switch (array.type_id()) {
    case Type::NA: return {};
    case Type::BOOL: return static_cast<const arrow::BooleanArray&>(array).Value(i);
    case Type::UINT64: return static_cast<const arrow::UInt64Array&>(array).Value(i);
    case Type::FLOAT: return static_cast<const arrow::FloatArray&>(array).Value(i);
    case Type::DOUBLE: return static_cast<const arrow::DoubleArray&>(array).Value(i);
    case Type::STRING:
    case Type::LARGE_STRING:
    case Type::STRING_VIEW: return text(text_at(array, i));
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return json_at(*coded.dictionary(), place_in_dictionary(coded, i), place, level);
    }
    case Type::EXTENSION: {
      const auto& extended = static_cast<const arrow::ExtensionArray&>(array);
      Json value = json_at(*extended.storage(), i, place, level);
      const bool is_json = static_cast<const arrow::ExtensionType&>(*array.type()).extension_name() == "arrow.json";
      return is_json && value.is_string() ? parse_ordered_json(value.get<std::string>(), place, ExitCode::kData)
                                          : std::move(value);
    }
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST: {
      std::shared_ptr<arrow::Array> values;
      const ListRow range = list_row(array, i, values);
      Json list = Json::array();
      for (int64_t k = range.begin; k < range.end; ++k) list.push_back(json_at(*values, k, place, level + 1));
      return list;
    }
    case Type::STRUCT: {
      const auto& structs = static_cast<const arrow::StructArray&>(array);
      Json object = Json::object();
      for (int k = 0; k < structs.num_fields(); ++k) {
        Json value = json_at(*structs.field(k), i, place, level + 1);
        if (level < 2 || !value.is_null()) object[structs.struct_type()->field(k)->name()] = std::move(value);
      }
      return object;
    }
    default: break;
  }
  std::vector<int64_t> number;
  if (!integers_of(array, {i, i + 1}, [&] { return place; }, number)) {
    // Times and other types beside the fields that are read, as in messages with a timestamp: the text that Arrow
    // gives.
    const bool nested = array.type()->num_fields() > 0;  // maps, views of lists, unions
    if (const auto scalar = array.GetScalar(i); level > 0 && !nested && scalar.ok()) return text((*scalar)->ToString());
    throw DataError(fmt::format("{}: a value of type {} has no JSON form", place, array.type()->ToString()));
  }
  return number[0];
}

/// Row `i` of a batch, as an object of the columns that are there.
inline nlohmann::ordered_json json_row(const arrow::RecordBatch& batch, const ParquetFile::JsonColumns& columns,
                                       int64_t i, const std::string& place) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  const auto is_in = [](const std::vector<std::string>& names, const std::string& column) {
    return std::ranges::find(names, column) != names.end();
  };
  for (const std::string& column : columns.names) {
    if (const auto array = batch.GetColumnByName(column)) try {
        object[column] = json_at(*array, i, fmt::format("{}, column '{}'", place, column),
                                 is_in(columns.without_nulls, column) ? 2 : 0);
      } catch (const DataError&) {
        if (!is_in(columns.optional, column)) throw;
        object[column] = true;
      }
    else if (batch.schema()->GetAllFieldIndices(column).size() > 1)
      throw DataError(fmt::format("{}: several columns have the name '{}': rename all but one", place, column));
  }
  return object;
}

/// Calls visit() for the rows of a batch, of which the first is row `first` of a file with the schema `file`.
inline void visit_json(const std::filesystem::path& path, const arrow::Schema& file, const arrow::RecordBatch& batch,
                       int64_t first, const ParquetFile::JsonColumns& columns, const ParquetFile::JsonVisitor& visit) {
  std::vector<std::string> unread = file.field_names();
  std::erase_if(unread,
                [&](const std::string& name) { return std::ranges::find(columns.names, name) != columns.names.end(); });
  for (int64_t i = 0; i < batch.num_rows(); ++i)
    visit(first + i, json_row(batch, columns, i, fmt::format("{}: row {}", path.string(), first + i)), unread);
}

}  // namespace trireme
