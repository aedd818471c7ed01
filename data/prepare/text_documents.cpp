#include "data/prepare/text_documents.h"

#include "data/prepare/documents.h"
#include "data/prepare/recent.h"
#include "data/tokenizer/tokenizer.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/arrow/arrow_table.h"
#include "trireme/formats/arrow/parquet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace trireme {

namespace {

namespace fs = std::filesystem;

constexpr size_t kRecentIds = size_t{64} << 20, kRecentText = size_t{512} << 20;  // bytes

/// What all files of a stream share: the tokenizer, and what was read last. Files are told apart by their number.
struct TextReader {
  TextReader(const fs::path& tokenizer_path, std::string text_column)
      : path(tokenizer_path), column(std::move(text_column)), ids(kRecentIds), groups(kRecentText) {}
  /// `data`: the file whose texts are asked for.
  const Tokenizer& tokenizer(const fs::path& data) {
    std::call_once(loaded, [&] {
      if (!find_tokenizer(path))
        throw DataError(fmt::format(
            "{} holds text, and {} has no tokenizer: put the model's {} there, or tokenise the text first with "
            "`trireme data pack`",
            data.string(), path.string(), kTokenizerFiles));
      model = std::make_unique<Tokenizer>(path);
    });
    return *model;
  }
  fs::path path;
  std::string column;
  std::once_flag loaded;
  std::unique_ptr<Tokenizer> model;
  int64_t files = 0;
  Recent<std::pair<int64_t, int64_t>, std::vector<int32_t>> ids;         // (file, document)
  Recent<std::pair<int64_t, int64_t>, std::vector<std::string>> groups;  // (file, row group)
};

/// Documents of one file of texts.
class TextFile : public DocumentSet {
 public:
  TextFile(fs::path path, std::shared_ptr<TextReader> reader)
      : path_(std::move(path)), reader_(std::move(reader)), number_(reader_->files++) {}

  void read(int64_t index, std::vector<int64_t>& tokens) const final {
    const auto make = [&] {
      const std::string text = read_text(index);
      if (const size_t good = valid_utf8_prefix(text); good < text.size())
        throw DataError(
            fmt::format("{}: the text is not UTF-8 from its byte {} on: remove it, or pack the rest with "
                        "`trireme data pack`, which drops such texts",
                        place(index), good));
      return reader_->tokenizer(path_).encode(text);
    };
    const auto ids = reader_->ids.get(
        {number_, index}, make, [](const std::vector<int32_t>& made) { return made.size() * sizeof(int32_t) + 128; });
    tokens.assign(ids->begin(), ids->end());
  }

 protected:
  virtual std::string read_text(int64_t index) const = 0;
  const fs::path path_;
  const std::shared_ptr<TextReader> reader_;
  const int64_t number_;
};

class ArrowTexts final : public TextFile {
 public:
  ArrowTexts(const fs::path& path, std::shared_ptr<TextReader> reader)
      : TextFile(path, std::move(reader)), table_(path, reader_->column) {}
  int64_t size() const override { return table_.documents(); }
  std::string place(int64_t index) const override { return fmt::format("{}: {}", path_.string(), table_.place(index)); }
  std::string kind() const override { return "Arrow text"; }

 private:
  std::string read_text(int64_t index) const override {
    std::string text;
    table_.read_text(index, text);
    return text;
  }
  ArrowTable table_;
};

class ParquetTexts final : public TextFile {
 public:
  ParquetTexts(const fs::path& path, std::shared_ptr<TextReader> reader)
      : TextFile(path, std::move(reader)), file_(path) {
    int64_t rows = 0;
    for (const int64_t group : file_.group_rows()) ends_.push_back(rows += group);
  }
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  std::string place(int64_t index) const override { return fmt::format("{}: row {}", path_.string(), index); }
  std::string kind() const override { return "Parquet text"; }

 private:
  std::string read_text(int64_t index) const override {
    const int64_t group = std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
    const int64_t row = index - (group == 0 ? 0 : ends_[static_cast<size_t>(group) - 1]);
    const auto make = [&] {
      const std::lock_guard lock(mutex_);
      return file_.read_text_group(reader_->column, group);
    };
    const auto texts = reader_->groups.get({number_, group}, make, [](const std::vector<std::string>& made) {
      size_t bytes = 0;
      for (const std::string& text : made) bytes += text.size() + sizeof(std::string);
      return bytes;
    });
    return texts->at(static_cast<size_t>(row));
  }
  ParquetFile file_;
  mutable std::mutex mutex_;
  std::vector<int64_t> ends_;  // rows through group i
};

/// Lines that are not blank; the place of every kStep-th is kept.
class JsonLines final : public TextFile {
 public:
  JsonLines(const fs::path& path, std::shared_ptr<TextReader> reader)
      : TextFile(path, std::move(reader)), file_(path, ExitCode::kData) {
    refuse_wide_text(path, text());
    Line line = next({0, 0, 0, 0});
    for (; line.begin < text().size(); line = next(line)) {
      if (size_ % kStep == 0) index_.push_back(line);
      ++size_;
    }
  }
  int64_t size() const override { return size_; }
  std::string place(int64_t index) const override { return fmt::format("{}:{}", path_.string(), find(index).number); }
  std::string kind() const override { return "JSON lines"; }

 private:
  static constexpr int64_t kStep = 64;
  struct Line {
    size_t begin = 0, end = 0, after = 0;  // bytes; after: where the next one begins
    int64_t number = 0;                    // from 1
  };
  std::string_view text() const { return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()}; }

  /// The next line that is not blank; at the end of the text one that begins there.
  Line next(Line line) const {
    const std::string_view all = text();
    while (true) {
      line.begin = line.after == 0 && all.starts_with("\xEF\xBB\xBF") ? 3 : line.after;
      ++line.number;
      if (line.begin >= all.size()) return {all.size(), all.size(), all.size(), line.number};
      line.end = std::min(all.find('\n', line.begin), all.size());
      line.after = std::min(line.end + 1, all.size());
      if (all.substr(line.begin, line.end - line.begin).find_first_not_of(" \t\r\f\v") != std::string_view::npos)
        return line;
    }
  }
  Line find(int64_t index) const {
    TRIREME_CHECK(index >= 0 && index < size_, "line ", index, " of ", size_);
    Line line = index_[static_cast<size_t>(index / kStep)];
    for (int64_t i = index % kStep; i > 0; --i) line = next(line);
    return line;
  }
  std::string read_text(int64_t index) const override {
    const Line line = find(index);
    const std::string_view bytes = text().substr(line.begin, line.end - line.begin);
    if (!is_valid_utf8(bytes)) return std::string(bytes);
    const auto value = json_line_text(path_, line.number, bytes, reader_->column);
    return value ? *value : "\xFF";
  }
  MappedFile file_;
  int64_t size_ = 0;
  std::vector<Line> index_;
};

}  // namespace

OpenText text_opener(const fs::path& tokenizer, const std::string& column) {
  auto reader = std::make_shared<TextReader>(tokenizer, column.empty() ? "text" : column);
  return [reader](const fs::path& path) -> std::unique_ptr<DocumentSet> {
    (void)reader->tokenizer(path);
    if (looks_like_arrow(path)) return std::make_unique<ArrowTexts>(path, reader);
    if (path.extension() == ".parquet" || looks_like_parquet(path)) return std::make_unique<ParquetTexts>(path, reader);
    return std::make_unique<JsonLines>(path, reader);
  };
}

}  // namespace trireme
