#include "data/prepare/chat_rows.h"

#include "data/prepare/outputs.h"
#include "trireme/base/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// The directory whose tokenizer_config.json belongs to a tokenizer.
fs::path model_directory(const fs::path& tokenizer) {
  std::error_code error;
  return fs::is_directory(tokenizer, error) ? tokenizer : tokenizer.parent_path();
}

/// The named tokens of a model need not be among those that its files add to sentencepiece's. A tokenizer.json has
/// them.
void add_named_tokens(Tokenizer& tokenizer, const fs::path& directory) {
  if (tokenizer.kind() != "sentencepiece") return;
  for (const auto& [key, text] : named_tokens(directory))
    if (!text.empty()) tokenizer.add_special(text);
  for (const auto id : {tokenizer.bos_id(), tokenizer.eos_id()})
    if (id) tokenizer.add_special(tokenizer.decode(std::vector<int32_t>{*id}, true));
}

Tokenizer open_tokenizer(const fs::path& path) {
  Tokenizer tokenizer(path);
  add_named_tokens(tokenizer, model_directory(path));
  return tokenizer;
}

std::map<std::string, std::string> template_variables(const Tokenizer& tokenizer, const fs::path& directory) {
  std::map<std::string, std::string> variables;
  for (const auto& [name, id] : {std::pair{"bos_token", tokenizer.bos_id()}, {"eos_token", tokenizer.eos_id()}})
    if (id) variables[name] = tokenizer.decode(std::vector<int32_t>{*id}, true);
  for (const auto& [name, text] : named_tokens(directory)) variables[name] = text;
  return variables;
}

/// The groups of each row, in order. `lengths`: of the groups.
std::vector<std::vector<size_t>> best_fit(const std::vector<size_t>& lengths, int64_t seq_length, bool one_per_row) {
  std::vector<std::vector<size_t>> rows;
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!one_per_row)
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::multimap<size_t, size_t> room;  // free tokens -> row
  for (const size_t group : order) {
    const size_t length = lengths[group];
    const auto found = one_per_row ? room.end() : room.lower_bound(length);
    size_t row = rows.size(), free = static_cast<size_t>(seq_length);
    if (found == room.end()) {
      rows.emplace_back();
    } else {
      std::tie(free, row) = *found;
      room.erase(found);
    }
    rows[row].push_back(group);
    if (free > length) room.emplace(free - length, row);
  }
  for (auto& row : rows) std::sort(row.begin(), row.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace

void check_row_options(const ChatRowOptions& options) {
  if (options.seq_length < 2 || options.seq_length > (1 << 24))
    throw ConfigError(fmt::format("--seq-length {}: expected 2 to {}", options.seq_length, 1 << 24));
  check_row_outputs(options.output, options.valid_output, options.valid_fraction);
}

ChatModel::ChatModel(const ChatRowOptions& options)
    : tokenizer(open_tokenizer(options.tokenizer)),
      variables(template_variables(tokenizer, model_directory(options.tokenizer))) {
  if (!options.template_file.empty()) {
    chat_.emplace(read_text_file(options.template_file, ExitCode::kData), options.template_file.string(), variables);
    return;
  }
  try {
    chat_.emplace(ChatTemplate::open(model_directory(options.tokenizer), options.template_name, variables));
  } catch (const DataError& error) {
    without_chat_ = error.what();
  }
}

const ChatTemplate& ChatModel::chat() const {
  if (!chat_) throw DataError(without_chat_);
  return *chat_;
}

RowCounts write_whole_rows(const fs::path& path, const std::vector<RowDocument>& documents, size_t together,
                           int64_t seq_length, bool one_per_row, int32_t padding) {
  std::vector<size_t> lengths(documents.size() / together);
  for (size_t d = 0; d < documents.size(); ++d) lengths[d / together] += documents[d].ids.size();
  const auto rows = best_fit(lengths, seq_length, one_per_row);
  RowCounts counts;
  counts.documents = static_cast<int64_t>(documents.size());
  counts.rows = static_cast<int64_t>(rows.size());
  for (const RowDocument& document : documents) {
    counts.tokens += static_cast<int64_t>(document.ids.size());
    counts.targets +=
        std::count_if(document.mask.begin(), document.mask.end(), [](uint8_t value) { return value != 0; });
  }
  counts.padding = counts.rows * seq_length - counts.tokens;
  write_masked_rows(path, seq_length, counts.rows, [&](int64_t index) {
    PackedRecord record;
    for (const size_t group : rows[static_cast<size_t>(index)])
      for (size_t d = group * together; d < (group + 1) * together; ++d) {
        const RowDocument& document = documents[d];
        record.seq_start_id.push_back(static_cast<int32_t>(record.input_ids.size()));
        record.input_ids.insert(record.input_ids.end(), document.ids.begin(), document.ids.end());
        record.loss_mask.insert(record.loss_mask.end(), document.mask.begin(), document.mask.end());
      }
    const auto length = static_cast<size_t>(seq_length);
    if (record.input_ids.size() < length) record.seq_start_id.push_back(static_cast<int32_t>(record.input_ids.size()));
    record.input_ids.resize(length, padding);
    record.loss_mask.resize(length, 0);
    return record;
  });
  return counts;
}

}  // namespace trireme
