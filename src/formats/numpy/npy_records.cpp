// MLPerf llama2_70b_lora records: a one-dimensional object array of dicts {input_ids, loss_mask, seq_start_id}.
#include "trireme/formats/numpy/npy.h"

#include "pickle_stack.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <optional>

namespace trireme {

namespace {

using pickle::Array;
using pickle::Dict;
using pickle::List;
using pickle::Text;
using pickle::Tuple;
using pickle::ValuePtr;

/// The values of a list, a tuple or a one-dimensional integer array, checked to be in the range of T.
template <class T>
std::vector<T> integers(const ValuePtr& value, const std::string& where) {
  std::vector<T> out;
  const auto add = [&](std::optional<int64_t> number) {
    if (!number || *number < std::numeric_limits<T>::min() || *number > std::numeric_limits<T>::max())
      throw DataError(fmt::format("{}[{}] (of the list at byte {}): the value {}", where, out.size(), value->offset,
                                  number ? fmt::to_string(*number) : "of 2^63 or more"));
    out.push_back(static_cast<T>(*number));
  };
  const auto add_items = [&](const std::vector<ValuePtr>& items) {
    for (const ValuePtr& item : items)
      if (const auto* number = std::get_if<int64_t>(&item->data))
        add(*number);
      else if (const auto* flag = std::get_if<bool>(&item->data))
        add(*flag ? 1 : 0);
      else
        throw DataError(
            fmt::format("{}[{}] (of the list at byte {}) is not an integer", where, out.size(), value->offset));
  };
  if (const auto* list = std::get_if<List>(&value->data)) {
    out.reserve(list->size());
    for (const uint8_t number : list->small) add(number);
    for (const int64_t number : list->numbers) add(number);
    add_items(list->items);
    return out;
  }
  if (const auto* tuple = std::get_if<Tuple>(&value->data)) {
    add_items(tuple->items);
    return out;
  }
  const auto* array = std::get_if<Array>(&value->data);
  if (array == nullptr || !array->built || array->shape.size() != 1 || array->type.kind == 'O')
    throw DataError(fmt::format("{} is neither a list, a tuple nor a one-dimensional integer array (byte {})", where,
                                value->offset));
  out.reserve(static_cast<size_t>(array->shape[0]));
  for (int64_t i = 0; i < array->shape[0]; ++i)
    add(pickle::integer_at(array->bytes.data.data() + i * array->type.item_size, array->type));
  return out;
}

}  // namespace

struct NpyPackedRecords::State {
  MappedFile file;
  ValuePtr root;
  const List* records = nullptr;

  std::string where(int64_t index, const char* field) const {
    return fmt::format("{}: record {}: {}", file.path().string(), index, field);
  }

  const Dict& dict(int64_t index) const {
    const ValuePtr& item = records->items[static_cast<size_t>(index)];
    const auto* found = std::get_if<Dict>(&item->data);
    if (found == nullptr)
      throw DataError(fmt::format("{}: record {} is not a dict (byte {})", file.path().string(), index, item->offset));
    return *found;
  }
  const ValuePtr& field(int64_t index, const char* name) const {
    for (const auto& [key, value] : dict(index).items)
      if (const auto* text = std::get_if<Text>(&key->data); text != nullptr && text->text == name) return value;
    throw DataError(fmt::format("{}: record {} (byte {}) has no '{}'", file.path().string(), index,
                                records->items[static_cast<size_t>(index)]->offset, name));
  }
};

NpyPackedRecords::NpyPackedRecords(MappedFile file, const NpyHeader& header) : state_(std::make_unique<State>()) {
  state_->file = std::move(file);
  const std::string path = state_->file.path().string();
  if (header.descr != "|O" || header.shape.size() != 1)
    throw DataError(fmt::format("{} has type '{}' and shape [{}]; packed records are a one-dimensional object array",
                                path, header.descr, fmt::join(header.shape, ", ")));
  state_->root = pickle::read(state_->file.bytes(), header.data_offset, state_->file.path());
  const auto* array = std::get_if<Array>(&state_->root->data);
  if (array == nullptr || !array->built || array->type.kind != 'O')
    throw DataError(fmt::format("{}: the pickle holds no object array", path));
  state_->records = std::get_if<List>(&array->items->data);
  const size_t count = state_->records->size();
  if (static_cast<int64_t>(count) != header.shape[0] || array->shape != header.shape)
    throw DataError(fmt::format("{} declares {} records and holds {}", path, header.shape[0], count));
  if (count > 0 && state_->records->form != List::Form::kItems)
    throw DataError(fmt::format("{}: record 0 is not a dict", path));
}

NpyPackedRecords::~NpyPackedRecords() = default;
NpyPackedRecords::NpyPackedRecords(NpyPackedRecords&&) noexcept = default;

int64_t NpyPackedRecords::size() const { return static_cast<int64_t>(state_->records->size()); }

size_t NpyPackedRecords::record_offset(int64_t index) const {
  return state_->records->items[static_cast<size_t>(index)]->offset;
}

PackedRecord NpyPackedRecords::read(int64_t index) const {
  TRIREME_CHECK(index >= 0 && index < size(), "record ", index, " of ", size());
  PackedRecord record;
  record.input_ids = integers<int32_t>(state_->field(index, "input_ids"), state_->where(index, "input_ids"));
  record.loss_mask = integers<uint8_t>(state_->field(index, "loss_mask"), state_->where(index, "loss_mask"));
  record.seq_start_id = integers<int32_t>(state_->field(index, "seq_start_id"), state_->where(index, "seq_start_id"));
  if (record.loss_mask.size() != record.input_ids.size())
    throw DataError(fmt::format("{}: record {} (byte {}) has {} input_ids and {} loss_mask entries",
                                state_->file.path().string(), index, record_offset(index), record.input_ids.size(),
                                record.loss_mask.size()));
  for (size_t i = 0; i < record.loss_mask.size(); ++i)
    if (record.loss_mask[i] > kMostLossMask)
      throw DataError(fmt::format("{}: record {} (byte {}): loss_mask[{}] is {}, expected 0 to 3",
                                  state_->file.path().string(), index, record_offset(index), i, record.loss_mask[i]));
  return record;
}

}  // namespace trireme
