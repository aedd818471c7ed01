#include "document_rows.h"

#include "task_base.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/config/keys.h"
#include "trireme/formats/arrow/parquet.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

namespace trireme {

StreamFiles stream_files(const Config& config, const std::string& key) {
  StreamFiles files;
  files.key = key;
  const bool train = key == "data.train";
  files.paths = paths(train ? config.data.train : key == "data.test" ? config.data.test : config.data.valid);
  if (train) {
    files.weights = config.data.weights;
    files.names = config.data.names;
  }
  files.column = config.data.column.value_or("");
  files.tokenizer = config.model.path;
  return files;
}

StreamOptions stream_options(const Config& config, int64_t vocab_size) {
  const DataSection& data = config.data;
  const std::pair<const char*, std::optional<int64_t>> ids[] = {{"data.bos_token", data.bos_token},
                                                                {"data.eos_token", data.eos_token},
                                                                {"data.bol_token", data.bol_token},
                                                                {"data.eol_token", data.eol_token}};
  for (const auto& [key, id] : ids)
    if (id && *id >= vocab_size)
      throw ConfigError(fmt::format("{} {} is outside the model's vocabulary of {}", key, *id, vocab_size));
  return {.seq_length = data.seq_length,
          .vocab_size = vocab_size,
          .logical_shards = data.logical_shards,
          .seed = static_cast<uint64_t>(config.train.seed),
          .shuffle = data.shuffle,
          .bos = data.bos_token,
          .eos = data.eos_token,
          .strip = data.strip_tokens,
          .min_length = data.min_length,
          .bol = data.bol_token,
          .eol = data.eol_token};
}

std::shared_ptr<const TokenStream> open_evaluation_stream(const Config& config, const std::string& key,
                                                          int64_t vocab_size) {
  StreamOptions options = stream_options(config, vocab_size);
  options.logical_shards = 1;
  options.shuffle = false;
  return open_token_stream(stream_files(config, key), options);
}

Sample stream_sample(std::vector<int64_t> tokens) {
  Sample sample;
  sample.loss_mask.assign(tokens.size(), 1);
  sample.loss_mask[0] = 0;
  sample.input_ids = std::move(tokens);
  sample.sequence_starts = {0};
  return sample;
}

void refuse_document_keys(const Config& config) {
  if (const std::string keys = keys_without_meaning(config, kRowData, kDocumentData); !keys.empty())
    throw ConfigError(fmt::format("{}: for documents, but {} holds rows that are packed already: leave it out", keys,
                                  config.data.train.front()));
}

namespace fs = std::filesystem;

namespace {

constexpr const char* kFields[] = {"messages", "conversations"};

/// The field with conversations, or "". Only the beginning of a JSON file is read: its first line, or of a list the
/// name of the field in its first 64 KiB.
std::string field_of_json(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(size_t{64} << 10, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
  const size_t first = begin.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  const std::string line = begin.substr(first, begin.find('\n', first) - first);
  const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  for (const char* field : kFields) {
    if (object.is_object() && object.contains("text")) return "";
    const bool named = begin.find(fmt::format("\"{}\"", field)) != std::string::npos;
    if (object.is_object() ? object.contains(field) && object[field].is_array() : begin[first] == '[' && named)
      return field;
  }
  return "";
}

std::string field_of(const fs::path& path) {
  const fs::path extension = path.extension();
  if (extension == ".json" || extension == ".jsonl" || extension == ".ndjson") return field_of_json(path);
  if (!looks_like_parquet(path)) return "";
  const ParquetFile file(path);
  for (const char* field : kFields)
    if (file.has_column(field) && !file.has_column("text")) return field;
  return "";
}

}  // namespace

void refuse_conversations(const Config& config, const std::string& key, const std::vector<std::string>& files) {
  if (config.data.column) return;
  for (const std::string& file : files) {
    const std::string field = field_of(file);
    if (field.empty()) continue;
    const std::string rows = fs::path(file).stem().string() + ".npy";
    throw DataError(
        fmt::format("{}: holds conversations ('{}'). Make rows of them: trireme data chat --model '{}' --input '{}' "
                    "--seq-length {} --output {}; then set {} to {}",
                    file, field, config.model.path, file, config.data.seq_length, rows, key, rows));
  }
}

}  // namespace trireme
