#include "data/stream/documents.h"

#include "data/parquet_rows.h"
#include "data/stream/dataset_card.h"
#include "data/text_file.h"
#include "data/tokenizer/tokenizer.h"
#include "trireme/arrow/arrow_table.h"
#include "trireme/arrow/parquet.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

namespace trireme {

namespace fs = std::filesystem;

using Ids = std::vector<int64_t>;

/// What the files of a stream share: the tokenizer, and what was read last. Files are told apart by their number.
struct TextTokens {
  TextTokens(fs::path tokenizer_path, const std::string& text_column)
      : path(std::move(tokenizer_path)), column(text_column.empty() ? "text" : text_column) {}
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
  const fs::path path;
  const std::string column;
  std::once_flag loaded;
  std::unique_ptr<Tokenizer> model;
  int64_t files = 0;
  Recent<std::pair<int64_t, int64_t>, std::vector<int32_t>> ids{size_t{64} << 20};  // by (file, document)
  std::shared_ptr<TextGroups> groups = std::make_shared<TextGroups>();
  std::shared_ptr<RowGroups<Ids>> id_groups = std::make_shared<RowGroups<Ids>>();
};

namespace {

/// The texts of one file, tokenised.
class TokenisedTexts : public DocumentSet {
 public:
  TokenisedTexts(const fs::path& path, std::shared_ptr<TextTokens> tokens)
      : path_(path), tokens_(std::move(tokens)), number_(tokens_->files++) {
    (void)tokens_->tokenizer(path);
    file_ = open_text_file(path, tokens_->column, tokens_->groups);
  }
  int64_t size() const override { return file_->size(); }
  void read(int64_t index, std::vector<int64_t>& tokens) const override {
    const auto make = [&] {
      const std::string text = file_->text(index);
      if (const size_t good = valid_utf8_prefix(text); good < text.size())
        throw DataError(
            fmt::format("{}: the text is not UTF-8 from its byte {} on: remove it, or pack the rest with "
                        "`trireme data pack`, which drops such texts",
                        place(index), good));
      return tokens_->tokenizer(path_).encode(text);
    };
    const auto ids = tokens_->ids.get(
        {number_, index}, make, [](const std::vector<int32_t>& made) { return made.size() * sizeof(int32_t) + 128; });
    tokens.assign(ids->begin(), ids->end());
  }
  std::string place(int64_t index) const override { return file_->place(index); }
  std::string kind() const override { return file_->kind(); }

 private:
  const fs::path path_;
  const std::shared_ptr<TextTokens> tokens_;
  const int64_t number_;
  std::unique_ptr<TextFile> file_;
};

class ArrowDocuments : public DocumentSet {
 public:
  ArrowDocuments(fs::path path, ArrowTable table) : path_(std::move(path)), table_(std::move(table)) {}
  int64_t size() const override { return table_.documents(); }
  void read(int64_t index, std::vector<int64_t>& tokens) const override { table_.read_tokens(index, tokens); }
  std::string place(int64_t index) const override { return fmt::format("{}: {}", path_.string(), table_.place(index)); }
  std::string kind() const override { return "Arrow"; }

 private:
  fs::path path_;
  ArrowTable table_;
};

/// Lists of ids in a column of Parquet.
class ParquetDocuments : public DocumentSet {
 public:
  ParquetDocuments(fs::path path, ParquetFile file, std::string column, std::shared_ptr<RowGroups<Ids>> groups)
      : path_(std::move(path)),
        rows_(std::move(file), std::move(column), &ParquetFile::read_list_group, std::move(groups)) {}
  int64_t size() const override { return rows_.size(); }
  void read(int64_t index, std::vector<int64_t>& tokens) const override { tokens = rows_.at(index); }
  std::string place(int64_t index) const override { return fmt::format("{}: row {}", path_.string(), index); }
  std::string kind() const override { return "Parquet"; }

 private:
  const fs::path path_;
  const ParquetRows<Ids> rows_;
};

/// The column of Parquet that is read where data.column names none.
std::string document_column(const ParquetFile& file, const std::string& wanted) {
  if (!wanted.empty()) return wanted;
  for (const char* name : {"text", "tokens", "input_ids"})
    if (file.has_column(name)) return name;
  return "text";
}

/// The data files that datasets.save_to_disk lists.
std::vector<fs::path> saved_files(const fs::path& directory) {
  const fs::path state = directory / "state.json";
  const nlohmann::json json = read_json(state, ExitCode::kData);
  const auto wrong = [&](const char* what) { return DataError(fmt::format("{}: {}", state.string(), what)); };
  if (!json.is_object()) throw wrong("not an object, as datasets.save_to_disk writes it");
  if (const auto indices = json.find("_indices_data_files"); indices != json.end() && !indices->empty())
    throw wrong("the data set has an index of rows: save it again after Dataset.flatten_indices()");
  const auto files = json.find("_data_files");
  if (files == json.end() || !files->is_array() || files->empty())
    throw wrong("no list _data_files, as datasets.save_to_disk writes it");
  std::vector<fs::path> paths;
  for (const nlohmann::json& file : *files) {
    const auto name = file.is_object() ? file.find("filename") : file.end();
    if (!file.is_object() || name == file.end() || !name->is_string())
      throw wrong("_data_files has an entry without a filename");
    paths.push_back(safe_join(directory, name->get<std::string>(), ExitCode::kData));
  }
  return paths;
}

/// The labels of a file's first rows; none where they are texts. DataError where they are of another type.
std::vector<std::vector<int64_t>> first_labels(const ParquetFile& parquet, const fs::path&) {
  if (parquet.rows() == 0 || !parquet.has_integer_lists("labels")) return {};
  return parquet.read_list_group("labels", 0);
}
std::vector<std::vector<int64_t>> first_labels(const ArrowTable&, const fs::path& file) {
  const ArrowTable table(file, "labels");
  const int64_t rows = table.is_text() ? 0 : std::min<int64_t>(table.documents(), 100);
  std::vector<std::vector<int64_t>> labels(static_cast<size_t>(rows));
  for (size_t i = 0; i < labels.size(); ++i) table.read_tokens(static_cast<int64_t>(i), labels[i]);
  return labels;
}

/// Whether the first labels leave tokens out of the loss.
template <class Table>
bool labels_mask(const Table& table, const fs::path& file) {
  constexpr int64_t kNoLoss = -100;
  if (!table.has_column("labels")) return false;
  try {
    const auto labels = first_labels(table, file);
    return std::ranges::any_of(labels, [=](const auto& row) { return std::ranges::find(row, kNoLoss) != row.end(); });
  } catch (const DataError&) {
    return false;  // of another type they are no labels of tokens
  }
}

/// Documents have a loss on every token: refuses a file whose masks or first labels say otherwise, and says of labels
/// that are a copy of the ids that they are not read. `column`: empty = nobody has named the one that is read.
template <class Table>
void check_targets(const fs::path& file, const Table& table, const std::string& column) {
  if (!column.empty()) return;
  const auto refuse = [&](const char* name) {
    throw DataError(fmt::format(
        "{}: '{}' says which tokens have a loss, and documents have one on every token: make rows that keep it with "
        "`trireme data chat`, or name the column to read by data.column",
        file.string(), name));
  };
  for (const char* name : {"loss_mask", "assistant_masks", "completion_mask"})
    if (table.has_column(name)) refuse(name);
  if (labels_mask(table, file)) refuse("labels");
  static std::once_flag told;
  for (const char* name : {"labels", "attention_mask", "position_ids"})
    if (table.has_column(name))
      std::call_once(told, [&] {
        log_info(fmt::format(
            "{}: '{}' is not read: every token has a loss, padding too. Where labels or masks leave some out, make "
            "rows with `trireme data chat`",
            file.string(), name));
      });
}

/// Files of JSON that `datasets` and `trireme data` write beside the data.
bool is_about_data(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "config.json" || name == "dataset_info.json" || name == "dataset_infos.json" ||
         name.ends_with("tokenizer.json");
}

/// What `datasets` leaves out of a directory too: editors' and notebooks' copies, caches (cache-<hash>.arrow holds what
/// map() and filter() made of the files beside it), downloads under way.
bool is_left_out(const fs::path& path, bool directory) {
  const std::string name = path.filename().string();
  return name.starts_with('.') || (directory && name.starts_with("__")) ||
         (!directory && name.starts_with("cache-") && name.ends_with(".arrow"));
}

/// What the words of a name say about its split.
struct NamedSplit {
  std::string split;  // of the first word that is one; empty: none
  bool alone = true;  // all words are such words, as in "test-00000-of-00002"
};

/// "train_sft-00000-of-00003" is how `datasets` names the files of a split of any name: there it is "train_sft".
NamedSplit split_of(std::string name) {
  static const std::map<std::string, std::string> kSplits = {
      {"train", "train"},      {"training", "train"}, {"validation", "validation"},
      {"valid", "validation"}, {"dev", "validation"}, {"val", "validation"},
      {"test", "test"},        {"testing", "test"},   {"eval", "test"},
      {"evaluation", "test"}};
  static const std::regex kShard("(?:.*-)?([^-]*)[-.][0-9]+-of-[0-9]+");
  if (std::smatch shard; std::regex_match(name, shard, kShard)) {
    const std::string split = shard[1];
    for (const std::string& word : trireme::split(split, '_'))
      if (kSplits.contains(word)) return {kSplits.contains(split) ? kSplits.at(split) : split};
  }
  std::ranges::replace_if(
      name, [](char c) { return std::string_view("-._0123456789").find(c) != std::string_view::npos; }, ' ');
  std::istringstream words(name);
  NamedSplit found;
  for (std::string word; words >> word;) {
    const auto split = kSplits.find(word);
    if (split == kSplits.end())
      found.alone &= word == "of";
    else if (found.split.empty())
      found.split = split->second;
  }
  return found;
}

/// "data/train" of "data/train.jsonl.gz".
fs::path without_format(fs::path path) {
  while (is_json(path) || unpacked_extension(path) == ".parquet" || unpacked_extension(path) == ".arrow")
    path.replace_extension();
  return path;
}

/// The split of a file of a directory, by the names of its folders or else by its own: "test/one.parquet",
/// "train-00000-of-00002.parquet", "json-train.arrow".
NamedSplit split_of_file(const fs::path& file) {
  for (fs::path part = file.parent_path(); !part.empty(); part = part.parent_path())
    if (NamedSplit named = split_of(part.filename().string()); !named.split.empty()) return named;
  return split_of(without_format(file).filename().string());
}

/// Refuses a directory of several splits, of a test or validation split beside other files, and of one file in two
/// formats.
void refuse_mixtures(const fs::path& directory, const std::vector<fs::path>& files) {
  std::map<std::string, fs::path> splits;  // an example of each
  std::map<fs::path, fs::path> names;
  fs::path of_none, of_other;
  for (const fs::path& file : files) {
    const fs::path inside = file.lexically_relative(directory);
    const NamedSplit named = split_of_file(inside);
    if (!named.split.empty()) splits.emplace(named.split, inside);
    if (named.split.empty()) of_none = inside;
    if (named.alone && !named.split.empty() && named.split != "train") of_other = inside;
    if (const auto [same, is_new] = names.emplace(without_format(inside), inside); !is_new)
      throw DataError(fmt::format("{}: holds {} and {}, which may be the same data: name the files to read one by one",
                                  directory.string(), same->second.string(), inside.string()));
  }
  if (splits.empty()) return;
  std::vector<std::string> found;
  for (const auto& [split, file] : splits) found.push_back(fmt::format("{} ({})", split, file.string()));
  if (found.size() == 1 && !of_none.empty() && !of_other.empty())
    found.push_back(fmt::format("no split ({})", of_none.string()));
  if (found.size() > 1)
    throw DataError(fmt::format("{}: holds several splits: {}: name the files or the folder of one of them",
                                directory.string(), join(found, ", ")));
}

/// Refuses files of several configurations or splits by the data set's own card.
void refuse_card_mixtures(const fs::path& directory, const std::vector<fs::path>& files) {
  if (files.size() < 2) return;
  const std::vector<CardSplit> splits = read_dataset_card(directory);
  std::vector<fs::path> rest;  // of no split so far
  for (const fs::path& file : files) rest.push_back(file.lexically_relative(directory));
  const auto lists_all = [&](const CardSplit& split) {
    return std::ranges::all_of(rest, [&](const fs::path& file) { return lists_file(split, file); });
  };
  if (splits.empty() || std::ranges::any_of(splits, lists_all)) return;
  std::map<std::string, fs::path> examples;
  for (const CardSplit& split : splits) {
    const auto listed = std::ranges::partition(rest, [&](const fs::path& file) { return !lists_file(split, file); });
    if (!listed.empty()) examples.emplace(split.name, std::ranges::min(listed));
    rest.erase(listed.begin(), listed.end());
  }
  if (!rest.empty()) examples.emplace("not listed", std::ranges::min(rest));
  if (examples.size() < 2) return;
  std::vector<std::string> found;
  for (const auto& [split, file] : examples) found.push_back(fmt::format("{} ({})", split, file.string()));
  throw DataError(fmt::format("{}: README.md lists the files below it apart: {}: name the files or the folder of one",
                              directory.string(), join(found, ", ")));
}

std::vector<fs::path> files_below(const fs::path& directory) {
  std::vector<fs::path> arrow, text, json;
  std::error_code error;
  fs::path listed = directory;
  fs::recursive_directory_iterator entry(directory, fs::directory_options::follow_directory_symlink, error);
  for (const fs::recursive_directory_iterator end; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    if (entry.depth() > 32)
      throw DataError(path.string() + ": more than 32 directories deep: do symbolic links turn in a circle?");
    std::error_code unreadable;
    const bool folder = entry->is_directory(unreadable);
    listed = folder ? path : path.parent_path();
    if (is_left_out(path, folder)) {
      entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_regular_file(unreadable)) continue;
    const std::string extension = unpacked_extension(path);
    if (extension == ".arrow") arrow.push_back(path);
    if (extension == ".json" && !is_about_data(path)) json.push_back(path);
    if (extension == ".parquet" || (is_json(path) && extension != ".json")) text.push_back(path);
  }
  if (error)
    throw DataError(fmt::format("{}: cannot be listed: {}: make it readable, or name the folders beside it one by one",
                                listed.string(), error.message()));
  // A .json beside other data is more likely about it.
  auto& found = !arrow.empty() ? arrow : !text.empty() ? text : json;
  const auto first_time = [&] {  // a run lists a directory several times
    static std::mutex mutex;
    static std::set<fs::path> told;
    const std::lock_guard lock(mutex);
    return told.insert(directory).second;
  };
  if (!json.empty() && &found != &json && first_time())
    log_info(fmt::format("{}: {} .json file{} beside other data not read, the first is {}: name each to read it",
                         directory.string(), json.size(), json.size() == 1 ? " is" : "s are",
                         std::ranges::min(json).filename().string()));
  if (found.empty())
    throw DataError(fmt::format(
        "{}: no *.arrow, *.parquet, *.jsonl, *.ndjson or *.json below this directory, hidden ones (.*), folders "
        "__* and cache-*.arrow aside: files of rows (npy, HDF5) are listed one by one",
        directory.string()));
  std::sort(found.begin(), found.end());
  refuse_mixtures(directory, found);
  refuse_card_mixtures(directory, found);
  return found;
}

}  // namespace

ConcatenatedDocuments::ConcatenatedDocuments(std::vector<std::unique_ptr<DocumentSet>> sets) : sets_(std::move(sets)) {
  for (const auto& set : sets_) ends_.push_back(size() + set->size());
}

std::pair<const DocumentSet*, int64_t> ConcatenatedDocuments::locate(int64_t index) const {
  TRIREME_CHECK(index >= 0 && index < size(), "document ", index, " of ", size());
  const auto set = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  return {sets_[set].get(), index - (set == 0 ? 0 : ends_[set - 1])};
}

void ConcatenatedDocuments::read(int64_t index, std::vector<int64_t>& tokens) const {
  const auto [set, document] = locate(index);
  set->read(document, tokens);
}

std::string ConcatenatedDocuments::place(int64_t index) const {
  const auto [set, document] = locate(index);
  return set->place(document);
}

std::string ConcatenatedDocuments::kind() const {
  std::vector<std::string> kinds;
  for (const auto& set : sets_)
    if (std::find(kinds.begin(), kinds.end(), set->kind()) == kinds.end()) kinds.push_back(set->kind());
  return join(kinds, ", ");
}

bool holds_documents(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) || looks_like_arrow(path) || looks_like_parquet(path) ||
         (is_json(path) && fs::is_regular_file(path, error));
}

std::vector<fs::path> document_files(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  if (fs::exists(path / "dataset_dict.json", error)) {
    std::vector<std::string> splits;
    const nlohmann::json json = read_json(path / "dataset_dict.json", ExitCode::kData);
    if (json.is_object() && json.contains("splits") && json["splits"].is_array())
      for (const nlohmann::json& split : json["splits"])
        if (split.is_string()) splits.push_back(split.get<std::string>());
    throw DataError(fmt::format("{}: holds the splits {}: name one of them, as {}", path.string(), join(splits, ", "),
                                (path / (splits.empty() ? "train" : splits.front())).string()));
  }
  return fs::exists(path / "state.json", error) ? saved_files(path) : files_below(path);
}

bool hold_texts(const std::vector<fs::path>& paths, const std::string& column) {
  return std::ranges::any_of(paths, [&](const fs::path& path) {
    const fs::path file = document_files(path).front();
    switch (text_kind(file)) {
      case TextKind::kArrow: return ArrowTable(file, column).is_text();
      case TextKind::kParquet: {
        const ParquetFile parquet(file);
        return !parquet.has_integer_lists(document_column(parquet, column));
      }
      default: return true;
    }
  });
}

bool is_chosen_column(const std::vector<fs::path>& paths, const std::string& column) {
  const auto chosen = [](const fs::path& file) -> std::string {
    switch (text_kind(file)) {
      case TextKind::kArrow: return ArrowTable(file).column();
      case TextKind::kParquet: return document_column(ParquetFile(file), "");
      default: return "text";
    }
  };
  return std::ranges::all_of(paths, [&](const fs::path& path) {
    return std::ranges::all_of(document_files(path), [&](const fs::path& file) { return chosen(file) == column; });
  });
}

std::shared_ptr<TextTokens> text_tokens(const fs::path& tokenizer, const std::string& column) {
  return std::make_shared<TextTokens>(tokenizer, column);
}

std::shared_ptr<const DocumentSet> open_documents(const std::vector<fs::path>& paths, const std::string& column,
                                                  const std::shared_ptr<TextTokens>& texts) {
  std::vector<std::unique_ptr<DocumentSet>> sets;
  for (const fs::path& path : paths)
    for (const fs::path& file : document_files(path)) {
      // A file named *.arrow with other content is for Arrow's reader to refuse.
      const TextKind kind = text_kind(file);
      if (kind == TextKind::kArrow)
        if (ArrowTable table(file, column); !table.is_text()) {
          check_targets(file, table, column);
          sets.push_back(std::make_unique<ArrowDocuments>(file, std::move(table)));
          continue;
        }
      if (kind == TextKind::kParquet) {
        ParquetFile parquet(file);
        if (std::string name = document_column(parquet, column); parquet.has_integer_lists(name)) {
          check_targets(file, parquet, column);
          sets.push_back(
              std::make_unique<ParquetDocuments>(file, std::move(parquet), std::move(name), texts->id_groups));
          continue;
        }
      }
      sets.push_back(std::make_unique<TokenisedTexts>(file, texts));
    }
  return std::make_shared<const ConcatenatedDocuments>(std::move(sets));
}

}  // namespace trireme
