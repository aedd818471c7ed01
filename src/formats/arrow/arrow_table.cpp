#include "trireme/arrow/arrow_table.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#ifdef TRIREME_WITH_PARQUET
#include "arrow_arrays.h"

#include <arrow/io/memory.h>
#include <arrow/ipc/api.h>
#endif

namespace trireme {

namespace {

constexpr std::string_view kArrowMagic = "ARROW1";

}  // namespace

bool looks_like_arrow(const std::filesystem::path& path) {
  std::string head = file_head(path, 8);
  if (head.starts_with(kArrowMagic)) return true;
  head.resize(8);
  // A stream begins with the continuation marker and the length of the schema's message, a multiple of 8.
  const auto marker = value_at<int32_t>(head.data()), length = value_at<int32_t>(head.data() + 4);
  return marker == -1 && length > 0 && length % 8 == 0;
}

#ifdef TRIREME_WITH_PARQUET

namespace {

template <class T>
T load(std::span<const std::byte> bytes, size_t at) {
  TRIREME_CHECK(at + sizeof(T) <= bytes.size(), "byte ", at, " of ", bytes.size());
  return value_at<T>(bytes.data() + at);
}

std::shared_ptr<arrow::io::BufferReader> reader_of(const MappedFile& map) {
  return std::make_shared<arrow::io::BufferReader>(std::make_shared<arrow::Buffer>(
      reinterpret_cast<const uint8_t*>(map.bytes().data()), static_cast<int64_t>(map.bytes().size())));
}

bool has_footer(const MappedFile& map) {
  const auto bytes = map.bytes();
  return bytes.size() >= kArrowMagic.size() && std::memcmp(bytes.data(), kArrowMagic.data(), kArrowMagic.size()) == 0;
}

}  // namespace

struct ArrowTable::State {
  /// Where the message of a record batch lies. metadata: bytes of its header, with the eight before it.
  struct Block {
    int64_t offset = 0;
    int32_t metadata = 0;
  };

  enum class ColumnKind { kBatchOfIntegers, kListRow, kTextRow };

  std::filesystem::path path;
  MappedFile map;
  std::shared_ptr<arrow::io::BufferReader> file;
  std::shared_ptr<arrow::Schema> schema;
  arrow::ipc::IpcReadOptions options;
  ColumnKind kind = ColumnKind::kListRow;
  std::string column;
  bool has_footer = false;
  int64_t batches = 0;
  std::vector<Block> blocks;  // of a stream
  size_t footer_blocks = 0;   // of a file: where its table of blocks begins, 24 bytes each
  std::vector<int64_t> ends;  // rows through batch i; empty where a batch is a document

  [[noreturn]] void fail(const std::string& what) const { throw DataError(fmt::format("{}: {}", path.string(), what)); }
  template <class T>
  T value_or_fail(arrow::Result<T> result, const std::string& where) const {
    if (!result.ok()) fail(fmt::format("{}: damaged: {}", where, result.status().message()));
    return std::move(result).ValueUnsafe();
  }

  Block block(int64_t batch) const {
    if (!has_footer) return blocks[static_cast<size_t>(batch)];
    const size_t at = footer_blocks + static_cast<size_t>(batch) * 24;
    return {load<int64_t>(map.bytes(), at), load<int32_t>(map.bytes(), at + 8)};
  }
  std::string batch_place(int64_t batch) const {
    return fmt::format("batch {} (byte {})", batch, format_count(block(batch).offset));
  }

  void open_file();
  void open_stream();
  void find_footer_blocks();
  void choose_column(const std::string& wanted);
  void count_rows();
  std::shared_ptr<arrow::Array> read_batch(int64_t batch) const;
  /// The batch and the row in it of a document (row -1: the whole batch).
  std::pair<int64_t, int64_t> locate(int64_t document) const;
  void check_row(const arrow::Array& array, int64_t batch, int64_t row) const;
};

void ArrowTable::State::open_file() {
  const auto reader = value_or_fail(arrow::ipc::RecordBatchFileReader::Open(file, options), "footer");
  schema = reader->schema();
  batches = reader->num_record_batches();
  find_footer_blocks();
}

// Arrow has verified the footer, but does not give the offsets of its batches. It is a FlatBuffers table: its offset,
// then relative offsets to the fields; field 3 is the vector of blocks {offset, metadata length, body length}.
void ArrowTable::State::find_footer_blocks() {
  const auto bytes = map.bytes();
  const size_t tail = bytes.size() - kArrowMagic.size() - 4;
  const size_t footer = tail - static_cast<size_t>(load<int32_t>(bytes, tail));
  const size_t table = footer + load<uint32_t>(bytes, footer);
  const size_t fields = table - static_cast<size_t>(static_cast<int64_t>(load<int32_t>(bytes, table)));
  constexpr size_t kBlocksField = 4 + 2 * 3;
  const uint16_t at = load<uint16_t>(bytes, fields) > kBlocksField ? load<uint16_t>(bytes, fields + kBlocksField) : 0;
  if (at == 0) {
    if (batches != 0) fail("footer: damaged: it has no table of batches");
    return;
  }
  const size_t vector = table + at + load<uint32_t>(bytes, table + at);
  if (load<uint32_t>(bytes, vector) != static_cast<uint64_t>(batches) ||
      vector + 4 + static_cast<size_t>(batches) * 24 > bytes.size())
    fail(fmt::format("footer: damaged: its table of {} batches", batches));
  footer_blocks = vector + 4;
}

void ArrowTable::State::open_stream() {
  arrow::io::BufferReader stream(file->buffer());
  arrow::ipc::DictionaryMemo memo;
  while (true) {
    const int64_t offset = stream.Tell().ValueOr(0);
    const auto where = fmt::format("message at byte {}", format_count(offset));
    const auto message = value_or_fail(arrow::ipc::ReadMessage(&stream), where);
    if (!message) break;
    if (message->type() == arrow::ipc::MessageType::SCHEMA) {
      if (schema) fail(where + ": damaged: a second schema");
      schema = value_or_fail(arrow::ipc::ReadSchema(*message, &memo), where);
    } else if (message->type() == arrow::ipc::MessageType::RECORD_BATCH) {
      if (!schema) fail(where + ": damaged: a record batch before the schema");
      blocks.push_back({offset, load<int32_t>(map.bytes(), static_cast<size_t>(offset) + 4) + 8});
    }
  }
  if (!schema) fail("damaged: an Arrow stream without a schema");
  batches = static_cast<int64_t>(blocks.size());
}

void ArrowTable::State::choose_column(const std::string& wanted) {
  column = wanted;
  if (wanted.empty())
    for (const char* name : {"tokens", "input_ids", "text"})
      if (column.empty() && schema->GetFieldByName(name)) column = name;
  if (column.empty())
    fail(fmt::format("no column 'tokens', 'input_ids' or 'text'; it has: {}: name the one to read by data.column",
                     join(schema->field_names(), ", ")));
  const arrow::DataType& type = *field_named(path, *schema, column)->type();
  if (arrow::is_integer(type.id()))
    kind = ColumnKind::kBatchOfIntegers;
  else if (is_integer_list(type))
    kind = ColumnKind::kListRow;
  else if (trireme::is_text(type) && type.id() != arrow::Type::DICTIONARY)
    kind = ColumnKind::kTextRow;
  else if (trireme::is_text(type))
    fail(fmt::format("column '{}' is {}, strings that a dictionary codes: make rows of them with `trireme data pack`",
                     column, type.ToString()));
  else
    fail(fmt::format("column '{}' is {}, expected a list of integers, integers, or strings", column, type.ToString()));
  options.included_fields = {schema->GetFieldIndex(column)};
}

void ArrowTable::State::count_rows() {
  if (kind == ColumnKind::kBatchOfIntegers) return;
  int64_t rows = 0;
  for (int64_t batch = 0; batch < batches; ++batch) {
    rows += read_batch(batch)->length();
    ends.push_back(rows);
  }
}

std::shared_ptr<arrow::Array> ArrowTable::State::read_batch(int64_t batch) const {
  const Block at = block(batch);
  const std::string where = batch_place(batch);
  if (at.offset < 0 || at.metadata < 8 || at.offset > static_cast<int64_t>(map.bytes().size()) - at.metadata)
    fail(where + ": damaged: it lies outside the file");
  try {
    const auto message = value_or_fail(arrow::ipc::ReadMessage(at.offset, at.metadata, file.get()), where);
    const arrow::ipc::DictionaryMemo memo;
    const auto records = value_or_fail(arrow::ipc::ReadRecordBatch(*message, schema, &memo, options), where);
    if (records->num_columns() != 1) fail(where + ": damaged: the column is missing");
    const auto array = records->column(0);
    if (const auto status = array->Validate(); !status.ok())
      fail(fmt::format("{}: damaged: {}", where, status.message()));
    return array;
  } catch (const std::bad_alloc&) {
    fail(where + ": damaged: it asks for more memory than there is");
  }
}

std::pair<int64_t, int64_t> ArrowTable::State::locate(int64_t document) const {
  if (kind == ColumnKind::kBatchOfIntegers) {
    TRIREME_CHECK(document >= 0 && document < batches, "document ", document, " of ", batches);
    return {document, -1};
  }
  TRIREME_CHECK(document >= 0 && !ends.empty() && document < ends.back(), "document ", document);
  const auto batch = std::upper_bound(ends.begin(), ends.end(), document) - ends.begin();
  return {batch, document - (batch == 0 ? 0 : ends[static_cast<size_t>(batch) - 1])};
}

void ArrowTable::State::check_row(const arrow::Array& array, int64_t batch, int64_t row) const {
  if (row >= array.length())
    fail(fmt::format("{}: has {} rows, and had more when it was opened: do not change files that a run reads",
                     batch_place(batch), array.length()));
}

ArrowTable::ArrowTable(const std::filesystem::path& path, const std::string& column)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  s.map = MappedFile(path, ExitCode::kData);
  s.options.use_threads = false;
  s.file = reader_of(s.map);
  s.has_footer = trireme::has_footer(s.map);
  s.has_footer ? s.open_file() : s.open_stream();
  s.choose_column(column);
  s.count_rows();
}

int64_t ArrowTable::documents() const {
  if (state_->kind == State::ColumnKind::kBatchOfIntegers) return state_->batches;
  return state_->ends.empty() ? 0 : state_->ends.back();
}

const std::string& ArrowTable::column() const { return state_->column; }

bool ArrowTable::has_column(const std::string& name) const { return state_->schema->GetFieldIndex(name) >= 0; }

bool ArrowTable::is_text() const { return state_->kind == State::ColumnKind::kTextRow; }

std::string ArrowTable::place(int64_t document) const {
  const auto [batch, row] = state_->locate(document);
  return row < 0 ? state_->batch_place(batch)
                 : fmt::format("batch {}, row {} (batch at byte {})", batch, row,
                               format_count(state_->block(batch).offset));
}

void ArrowTable::read_tokens(int64_t document, std::vector<int64_t>& tokens) const {
  const State& s = *state_;
  TRIREME_CHECK(!is_text(), s.path.string(), " holds text");
  const auto [batch, row] = s.locate(document);
  const auto array = s.read_batch(batch);
  const auto text = [&] { return fmt::format("{}: {}", s.path.string(), place(document)); };
  if (row < 0) {
    integers_of(*array, {0, array->length()}, text, tokens);
  } else {
    s.check_row(*array, batch, row);
    integers_of_row(*array, row, text, tokens);
  }
}

void ArrowTable::read_text(int64_t document, std::string& text) const {
  const State& s = *state_;
  TRIREME_CHECK(is_text(), s.path.string(), " holds token ids");
  const auto [batch, row] = s.locate(document);
  const auto array = s.read_batch(batch);
  s.check_row(*array, batch, row);
  text.clear();
  if (array->IsNull(row)) return;
  const auto check_of = [&](const auto& typed) {
    const int64_t begin = typed.value_offset(row), end = typed.value_offset(row + 1),
                  size = typed.value_data() ? typed.value_data()->size() : 0;
    if (begin < 0 || end < begin || end > size)
      s.fail(fmt::format("{}: damaged: the text spans the bytes {} to {} of {}", place(document), begin, end, size));
  };
  if (array->type_id() == arrow::Type::STRING_VIEW) {
    const auto& view = static_cast<const arrow::StringViewArray&>(*array).raw_values()[row];
    const auto& buffers = array->data()->buffers;  // validity, views, then texts
    const int64_t buffer = view.is_inline() ? 0 : int64_t{view.ref.buffer_index} + 2;
    if (view.size() < 0 ||
        (!view.is_inline() && (buffer < 2 || buffer >= static_cast<int64_t>(buffers.size()) || view.ref.offset < 0 ||
                               int64_t{view.ref.offset} + view.size() > buffers[static_cast<size_t>(buffer)]->size())))
      s.fail(fmt::format("{}: damaged: the text lies outside of the file's texts", place(document)));
  } else if (array->type_id() == arrow::Type::STRING)
    check_of(static_cast<const arrow::StringArray&>(*array));
  else
    check_of(static_cast<const arrow::LargeStringArray&>(*array));
  text = text_at(*array, row);
}

namespace {

/// Calls read(first row, batch) for every batch of a file or stream, validated.
template <class Read>
void for_each_arrow_batch(const std::filesystem::path& path, const Read& read) {
  const MappedFile map(path, ExitCode::kData);
  const auto file = reader_of(map);
  int64_t row = 0;
  const auto value_or_fail = [&](auto result) {
    if (!result.ok())
      throw DataError(fmt::format("{}: damaged at or after row {}: {}", path.string(), row, result.status().message()));
    return std::move(result).ValueUnsafe();
  };
  const auto check_and_read = [&](const arrow::RecordBatch& batch) {
    if (const auto status = batch.ValidateFull(); !status.ok())
      throw DataError(fmt::format("{}: damaged at or after row {}: {}", path.string(), row, status.message()));
    read(row, batch);
    row += batch.num_rows();
  };
  if (has_footer(map)) {
    const auto reader = value_or_fail(arrow::ipc::RecordBatchFileReader::Open(file));
    for (int i = 0; i < reader->num_record_batches(); ++i) check_and_read(*value_or_fail(reader->ReadRecordBatch(i)));
  } else {
    const auto reader = value_or_fail(arrow::ipc::RecordBatchStreamReader::Open(file));
    while (const auto batch = value_or_fail(reader->Next())) check_and_read(*batch);
  }
}

}  // namespace

void read_arrow_json(const std::filesystem::path& path, const ParquetFile::JsonColumns& columns,
                     const ParquetFile::JsonVisitor& visit) {
  for_each_arrow_batch(path, [&](int64_t first, const arrow::RecordBatch& batch) {
    visit_json(path, *batch.schema(), batch, first, columns, visit);
  });
}

void read_arrow_text(const std::filesystem::path& path, const std::string& column,
                     const ParquetFile::TextVisitor& visit) {
  for_each_arrow_batch(path, [&](int64_t first, const arrow::RecordBatch& batch) {
    require_text(path, *batch.schema(), column);
    visit_texts(*batch.GetColumnByName(column), first, visit);
  });
}

std::vector<std::string> arrow_columns(const std::filesystem::path& path) {
  const MappedFile map(path, ExitCode::kData);
  const auto file = reader_of(map);
  const auto names = [&](const auto& reader, const char* where) {
    if (!reader.ok())
      throw DataError(fmt::format("{}: {}: damaged: {}", path.string(), where, reader.status().message()));
    return (*reader)->schema()->field_names();
  };
  return has_footer(map) ? names(arrow::ipc::RecordBatchFileReader::Open(file), "footer")
                         : names(arrow::ipc::RecordBatchStreamReader::Open(file), "schema");
}

#else

namespace {

[[noreturn]] void refuse(const std::filesystem::path& path) {
  throw ConfigError(
      fmt::format("{}: this build reads no Arrow files, because pyarrow was not found when it was configured: install "
                  "it and configure again",
                  path.string()));
}

}  // namespace

void read_arrow_json(const std::filesystem::path& path, const ParquetFile::JsonColumns&,
                     const ParquetFile::JsonVisitor&) {
  refuse(path);
}
void read_arrow_text(const std::filesystem::path& path, const std::string&, const ParquetFile::TextVisitor&) {
  refuse(path);
}

std::vector<std::string> arrow_columns(const std::filesystem::path& path) { refuse(path); }

struct ArrowTable::State {
  std::string column;
};
ArrowTable::ArrowTable(const std::filesystem::path& path, const std::string&) { refuse(path); }
int64_t ArrowTable::documents() const { return 0; }
const std::string& ArrowTable::column() const { return state_->column; }
bool ArrowTable::has_column(const std::string&) const { return false; }
bool ArrowTable::is_text() const { return false; }
void ArrowTable::read_tokens(int64_t, std::vector<int64_t>&) const {}
void ArrowTable::read_text(int64_t, std::string&) const {}
std::string ArrowTable::place(int64_t) const { return ""; }

#endif

ArrowTable::~ArrowTable() = default;
ArrowTable::ArrowTable(ArrowTable&&) noexcept = default;

}  // namespace trireme
