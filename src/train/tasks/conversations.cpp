#include "conversations.h"

#include "trireme/base/error.h"
#include "trireme/formats/arrow/parquet.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

namespace trireme {

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
