#include "data/tokenizer/packed_with.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <span>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// Of vocabulary_hash(). Files of before the second have none: in theirs a tokenizer.model alone has other names for
/// the unknown token and the byte of a space than beside the files of a model.
constexpr int kVersion = 2;

fs::path stem_of(const fs::path& file) {
  return file.extension() == ".idx" || file.extension() == ".bin" ? fs::path(file).replace_extension() : file;
}

fs::path note_of(const fs::path& file) { return stem_of(file).string() + ".tokenizer.json"; }

/// Bytes of the ids: another program that writes the file anew leaves our note beside it.
uint64_t size_of(const fs::path& file) {
  std::error_code error;
  const fs::path stem = stem_of(file);
  const auto size = fs::file_size(fs::is_regular_file(stem, error) ? stem : fs::path(stem.string() + ".bin"), error);
  return error ? 0 : size;
}

struct Note {
  std::string tokenizer, hash;
  int64_t count = 0;
  int version = kVersion;
};

std::optional<Note> read_note(const fs::path& file) {
  const fs::path path = note_of(file);
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  const auto json = nlohmann::json::parse(read_text_file(path, ExitCode::kData), nullptr, /*allow_exceptions=*/false);
  try {
    if (json.at("bytes").get<uint64_t>() != size_of(file)) return std::nullopt;
    return Note{json.at("tokenizer").get<std::string>(), json.at("vocabulary_hash").get<std::string>(),
                json.at("vocabulary").get<int64_t>(), json.value("version", 1)};
  } catch (const nlohmann::json::exception&) {
    throw DataError(fmt::format("{}: not what trireme data writes there: remove it", path.string()));
  }
}

void write_note(const fs::path& file, const Note& note) {
  const nlohmann::ordered_json json = {{"tokenizer", note.tokenizer},
                                       {"vocabulary", note.count},
                                       {"vocabulary_hash", note.hash},
                                       {"version", note.version},
                                       {"bytes", size_of(file)}};
  write_file_atomic(note_of(file), json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace

std::string vocabulary_hash(const Tokenizer& tokenizer, int64_t count, int version) {
  uint64_t hash = static_cast<uint64_t>(count);
  for (int32_t id = 0; id < count; ++id) {
    std::string text = tokenizer.decode(std::span(&id, 1), /*with_specials=*/true);
    // A decoder that cuts the first space of a text has nothing for it.
    if (text == " " && version > 1) text.clear();
    hash = xxh3_64(text.data(), text.size(), hash);
  }
  return hex64(hash);
}

void write_packed_with(const fs::path& file, const Tokenizer& tokenizer, const fs::path& opened) {
  const int64_t count = tokenizer.base_vocab_size();
  write_note(file,
             {fs::absolute(opened).lexically_normal().string(), vocabulary_hash(tokenizer, count, kVersion), count});
}

void check_packed_alike(const std::vector<fs::path>& parts) {
  std::optional<Note> first;
  for (const fs::path& part : parts) {
    const auto note = read_note(part);
    if (!note) continue;
    if (first && first->version == note->version && (first->hash != note->hash || first->count != note->count))
      throw DataError(
          fmt::format("{} was packed with the tokenizer {} and other parts with {}, which has other tokens: "
                      "pack them with one tokenizer",
                      part.string(), note->tokenizer, first->tokenizer));
    if (!first) first = note;
  }
}

void merge_packed_with(const std::vector<fs::path>& parts, const fs::path& file) {
  std::optional<Note> note;
  for (const fs::path& part : parts)
    if (note = read_note(part); !note) return;
  if (note) write_note(file, *note);
}

std::vector<std::string> packed_with_others(const std::vector<fs::path>& files, const fs::path& model) {
  std::optional<Tokenizer> tokenizer;
  std::vector<std::string> sentences;
  for (const fs::path& file : files) {
    const auto note = read_note(file);
    if (!note) continue;
    if (!tokenizer) {
      if (!find_tokenizer(model)) return sentences;
      tokenizer.emplace(model);
    }
    if (note->version < kVersion && tokenizer->kind() == "sentencepiece") continue;
    const int64_t count = tokenizer->base_vocab_size();
    const std::string ours = vocabulary_hash(*tokenizer, std::min(count, note->count), note->version);
    if (count >= note->count && ours == note->hash) continue;
    sentences.push_back(fmt::format(
        "{} was packed with the tokenizer {} ({} tokens, hash {}), and that of the model, {} ({} tokens, hash {}), has "
        "other tokens: its ids mean other texts to the model",
        file.string(), note->tokenizer, format_count(note->count), note->hash, find_tokenizer(model)->string(),
        format_count(count), ours));
  }
  return sentences;
}

}  // namespace trireme
