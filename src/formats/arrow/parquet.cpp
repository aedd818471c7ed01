#include "trireme/arrow/parquet.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>

#ifdef TRIREME_WITH_PARQUET
#include "arrow_arrays.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <algorithm>
#endif

namespace trireme {

bool looks_like_parquet(const std::filesystem::path& path) { return file_head(path, 4) == "PAR1"; }

#ifdef TRIREME_WITH_PARQUET

struct ParquetFile::State {
  std::filesystem::path path;
  std::unique_ptr<parquet::arrow::FileReader> reader;
  std::shared_ptr<arrow::Schema> schema;
  int64_t rows = 0;
};

namespace {

constexpr int64_t kBatchRows = 1024;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw DataError(fmt::format("{}: {}", path.string(), what));
}

template <class T>
T value_or_fail(arrow::Result<T> result, const std::filesystem::path& path) {
  if (!result.ok()) fail(path, fmt::format("damaged or not Parquet: {}", result.status().ToString()));
  return std::move(result).ValueUnsafe();
}

}  // namespace

ParquetFile::ParquetFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  state_->path = path;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) fail(path, "no such file");
  const MappedFile regular(path, ExitCode::kData);  // Arrow would wait for the writer of a FIFO
  try {
    auto file = value_or_fail(arrow::io::ReadableFile::Open(path.string()), path);
    state_->reader = value_or_fail(parquet::arrow::OpenFile(file, arrow::default_memory_pool()), path);
    const auto status = state_->reader->GetSchema(&state_->schema);
    if (!status.ok()) fail(path, fmt::format("its schema cannot be read: {}", status.ToString()));
    state_->reader->set_batch_size(kBatchRows);
    state_->rows = state_->reader->parquet_reader()->metadata()->num_rows();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& reason) {
    fail(path, fmt::format("damaged or not Parquet: {}", reason.what()));
  }
}

int64_t ParquetFile::rows() const { return state_->rows; }

namespace {

/// Reads the named top-level columns batch by batch and calls visit(first row, batch). `group`: of this row group,
/// whose rows count from 0; -1: of all.
template <class State, class Visit>
void for_each_batch(const State& state, const std::vector<std::string>& columns, const Visit& visit,
                    int64_t group = -1) {
  const auto& path = state.path;
  try {
    const auto& metadata = *state.reader->parquet_reader()->metadata();
    std::vector<int> leaves, groups;
    for (int i = 0; i < metadata.num_columns(); ++i) {
      const auto dotted = metadata.schema()->Column(i)->path()->ToDotVector();
      if (std::find(columns.begin(), columns.end(), dotted.at(0)) != columns.end()) leaves.push_back(i);
    }
    for (int i = 0; i < metadata.num_row_groups(); ++i)
      if (group < 0 || i == group) groups.push_back(i);
    const int64_t declared = group < 0 ? state.rows : metadata.RowGroup(static_cast<int>(group))->num_rows();
    int64_t row = 0;
    const auto check = [&](const arrow::Status& status) {
      if (status.IsNotImplemented())
        fail(path, fmt::format("cannot be read at or after row {}: {}: write columns that a dictionary codes as plain "
                               "strings",
                               row, status.message()));
      if (!status.ok()) fail(path, fmt::format("damaged at or after row {}: {}", row, status.ToString()));
    };
    // One by one: Arrow makes no batch over two groups of a dictionary inside a struct or a list.
    for (const int each : groups) {
      const auto batches = value_or_fail(state.reader->GetRecordBatchReader({each}, leaves), path);
      while (true) {
        const auto next = batches->Next();
        check(next.status());
        const auto& batch = *next;
        if (!batch) break;
        check(batch->Validate());
        visit(row, *batch);
        row += batch->num_rows();
      }
    }
    if (row != declared) fail(path, fmt::format("its footer declares {} rows, but it holds {}", declared, row));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& reason) {
    fail(path, fmt::format("damaged: {}", reason.what()));
  }
}

/// Calls visit(row, text) for a column of text, as for_each_batch().
template <class State, class Visit>
void for_each_text(const State& state, const std::string& column, const Visit& visit, int64_t group = -1) {
  require_text(state.path, *state.schema, column);
  const auto of_batch = [&](int64_t first, const arrow::RecordBatch& batch) {
    visit_texts(*batch.GetColumnByName(column), first, visit);
  };
  for_each_batch(state, {column}, of_batch, group);
}

}  // namespace

std::vector<int64_t> ParquetFile::group_rows() const {
  const auto& metadata = *state_->reader->parquet_reader()->metadata();
  std::vector<int64_t> rows;
  for (int i = 0; i < metadata.num_row_groups(); ++i) rows.push_back(metadata.RowGroup(i)->num_rows());
  return rows;
}

std::vector<std::string> ParquetFile::read_text_group(const std::string& column, int64_t group) const {
  std::vector<std::string> texts;
  for_each_text(*state_, column, [&](int64_t, std::string_view text) { texts.emplace_back(text); }, group);
  return texts;
}

void ParquetFile::read_text(const std::string& column, const TextVisitor& visit) const {
  for_each_text(*state_, column, visit);
}

void ParquetFile::read_integer_lists(const std::string& first, const std::string& second,
                                     const ListsVisitor& visit) const {
  for (const std::string& name : {first, second}) {
    const auto field = field_named(state_->path, *state_->schema, name);
    if (!is_integer_list(*field->type()))
      fail(state_->path,
           fmt::format("column '{}' is {}, expected a list of integers", name, field->type()->ToString()));
  }
  std::vector<int64_t> a, b;
  const auto read = [&](const arrow::Array& array, const std::string& name, int64_t i, int64_t row,
                        std::vector<int64_t>& out) {
    if (array.IsNull(i)) fail(state_->path, fmt::format("row {}: column '{}' is null", row, name));
    const auto place = [&] { return fmt::format("{}: row {}, column '{}'", state_->path.string(), row, name); };
    integers_of_row(array, i, place, out);
  };
  for_each_batch(*state_, {first, second}, [&](int64_t begin, const arrow::RecordBatch& batch) {
    const auto a_array = batch.GetColumnByName(first), b_array = batch.GetColumnByName(second);
    for (int64_t i = 0; i < batch.num_rows(); ++i) {
      read(*a_array, first, i, begin + i, a);
      read(*b_array, second, i, begin + i, b);
      visit(begin + i, a, b);
    }
  });
}

bool ParquetFile::has_column(const std::string& column) const {
  return state_->schema->GetFieldByName(column) != nullptr;
}

std::vector<std::string> ParquetFile::columns() const { return state_->schema->field_names(); }

bool ParquetFile::has_integer_lists(const std::string& column) const {
  const auto field = field_named(state_->path, *state_->schema, column);
  const bool lists = is_integer_list(*field->type());
  if (!lists && !is_text(*field->type()))
    fail(state_->path,
         fmt::format("column '{}' is {}, expected string or a list of integers", column, field->type()->ToString()));
  return lists;
}

std::vector<std::vector<int64_t>> ParquetFile::read_list_group(const std::string& column, int64_t group) const {
  int64_t before = 0;
  const std::vector<int64_t> rows = group_rows();
  for (int64_t i = 0; i < group; ++i) before += rows[static_cast<size_t>(i)];
  std::vector<std::vector<int64_t>> lists;
  const auto visit = [&](int64_t first, const arrow::RecordBatch& batch) {
    const auto array = batch.GetColumnByName(column);
    for (int64_t i = 0; i < batch.num_rows(); ++i) {
      const auto place = [&] { return fmt::format("{}: row {}", state_->path.string(), before + first + i); };
      integers_of_row(*array, i, place, lists.emplace_back());
    }
  };
  for_each_batch(*state_, {column}, visit, group);
  return lists;
}

void ParquetFile::read_messages(const std::string& column, const MessagesVisitor& visit) const {
  const auto field = field_named(state_->path, *state_->schema, column);
  const auto wrong = [&] {
    fail(state_->path,
         fmt::format(
             "column '{}' is {}, expected a list of structs with the strings role and content, or from and value",
             column, field->type()->ToString()));
  };
  if (!is_list(*field->type())) wrong();
  std::vector<ChatMessage> messages;
  for_each_batch(*state_, {column}, [&](int64_t first, const arrow::RecordBatch& batch) {
    const auto array = batch.GetColumnByName(column);
    for (int64_t i = 0; i < batch.num_rows(); ++i) {
      messages.clear();
      std::shared_ptr<arrow::Array> values;
      const ListRow range = array->IsNull(i) ? ListRow{0, 0} : list_row(*array, i, values);
      if (values) {
        if (values->type_id() != arrow::Type::STRUCT) wrong();
        const auto& structs = static_cast<const arrow::StructArray&>(*values);
        const bool turns = structs.GetFieldByName("role") == nullptr;  // as ShareGPT has it
        const auto role = structs.GetFieldByName(turns ? "from" : "role");
        const auto content = structs.GetFieldByName(turns ? "value" : "content");
        if (!role || !content || !is_text(*role->type()) || !is_text(*content->type())) wrong();
        for (int64_t k = range.begin; k < range.end; ++k) {
          if (structs.IsNull(k) || role->IsNull(k) || content->IsNull(k))
            fail(state_->path,
                 fmt::format("row {}: {}[{}] has a null role or content", first + i, column, k - range.begin));
          messages.push_back({text_at(*role, k), text_at(*content, k)});
        }
      }
      visit(first + i, messages);
    }
  });
}

void ParquetFile::read_json(const JsonColumns& columns, const JsonVisitor& visit) const {
  for_each_batch(*state_, columns.names, [&](int64_t first, const arrow::RecordBatch& batch) {
    visit_json(state_->path, *state_->schema, batch, first, columns, visit);
  });
}

#else  // without Parquet

struct ParquetFile::State {};

ParquetFile::ParquetFile(const std::filesystem::path& path) {
  throw ConfigError(
      fmt::format("{}: this trireme was built without Parquet: install pyarrow into the Python of LibTorch "
                  "(scripts/setup.sh does) and build again, or convert the file to .jsonl",
                  path.string()));
}
int64_t ParquetFile::rows() const { return 0; }
std::vector<int64_t> ParquetFile::group_rows() const { return {}; }
std::vector<std::string> ParquetFile::read_text_group(const std::string&, int64_t) const { return {}; }
void ParquetFile::read_text(const std::string&, const TextVisitor&) const {}
void ParquetFile::read_integer_lists(const std::string&, const std::string&, const ListsVisitor&) const {}
bool ParquetFile::has_column(const std::string&) const { return false; }
std::vector<std::string> ParquetFile::columns() const { return {}; }
bool ParquetFile::has_integer_lists(const std::string&) const { return false; }
std::vector<std::vector<int64_t>> ParquetFile::read_list_group(const std::string&, int64_t) const { return {}; }
void ParquetFile::read_messages(const std::string&, const MessagesVisitor&) const {}
void ParquetFile::read_json(const JsonColumns&, const JsonVisitor&) const {}

#endif

ParquetFile::~ParquetFile() = default;
ParquetFile::ParquetFile(ParquetFile&&) noexcept = default;

}  // namespace trireme
