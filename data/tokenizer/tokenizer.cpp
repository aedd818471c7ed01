#include "data/tokenizer/tokenizer.h"

#include "data/tokenizer/byte_level_tokenizer.h"
#include "data/tokenizer/sentencepiece_tokenizer.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// The first line, of at most 64 bytes.
std::string first_line(const fs::path& path) {
  const std::string head = file_head(path, 64);
  return head.substr(0, head.find('\n'));
}

/// Llama 3's and 4's original tokenizer.model: lines of a token in base64 and its rank.
bool is_tiktoken(const fs::path& path) { return first_line(path).ends_with("= 0"); }

std::unique_ptr<TokenizerModel> open_model(const fs::path& path, const fs::path& config) {
  std::error_code error;
  const auto file = find_tokenizer(path);
  if (!file)
    throw DataError(fmt::format("{}: {}: a tokenizer is {}{}", path.string(),
                                fs::exists(path, error) ? "no tokenizer there" : "not there", kTokenizerFiles,
                                hub_cache_text(path)));
  std::string head = lower(file_head(*file, 64));
  head.erase(0, head.find_first_not_of(" \t\r\n\xEF\xBB\xBF"));
  if (head.starts_with("<!") || head.starts_with("<html"))
    throw DataError(fmt::format("{}: a web page, not a tokenizer: download the file itself", file->string()));
  const bool json = MappedFile(*file, ExitCode::kData).bytes().size() > 0 && file->extension() == ".json";
  if (json) try {
      return std::make_unique<ByteLevelTokenizer>(read_byte_level_model(*file, config), *file);
    } catch (const DataError& refused) {
      const fs::path other = path / "tokenizer.model";
      if (!fs::is_directory(path, error) || !fs::is_regular_file(other, error) || is_tiktoken(other)) throw;
      throw DataError(
          fmt::format("{}; a copy of the directory without this file is read by its tokenizer.model, whose "
                      "ids may differ from those that transformers takes from tokenizer.json",
                      refused.what()));
    }
  if (fs::is_regular_file(*file) && is_tiktoken(*file))
    throw DataError(
        fmt::format("{}: a vocabulary of tiktoken, as original/ of Llama 3 and 4 has it: give the tokenizer.json "
                    "of the model's Hugging Face directory",
                    file->string()));
  return std::make_unique<SentencepieceTokenizer>(read_text_file(*file, ExitCode::kData, size_t{256} << 20), *file,
                                                  file->parent_path().empty() ? "." : file->parent_path());
}

}  // namespace

void TextMarks::add_part(std::string_view part, size_t begin, const std::vector<int32_t>& ids, size_t first,
                         const std::function<size_t(int32_t)>& length_of,
                         const std::function<void(std::string_view, std::vector<int32_t>&)>& encode_head) {
  const auto open = [&] { return tokens.size() < places.size(); };
  const auto place = [&] { return places[tokens.size()]; };
  while (open() && place() <= begin) tokens.push_back(first);
  if (!open() || place() >= begin + part.size()) return;
  std::vector<size_t> lengths;
  size_t total = 0;
  for (size_t i = first; i < ids.size(); ++i) total += lengths.emplace_back(length_of(ids[i]));
  if (total == part.size() || (total == part.size() + 1 && !lengths.empty() && lengths[0] > 0)) {
    size_t at = begin + part.size() - total;  // one less than begin with a space before
    for (size_t i = 0; i < lengths.size(); ++i) token(at += lengths[i], first + i);
    return;
  }
  while (open() && place() < begin + part.size()) {
    std::vector<int32_t> head;
    encode_head(part.substr(0, place() - begin), head);
    size_t same = 0;
    while (same < head.size() && first + same < ids.size() && head[same] == ids[first + same]) ++same;
    tokens.push_back(first + same);
  }
}

std::optional<fs::path> find_tokenizer(const fs::path& path) {
  std::error_code error;
  if (path.filename() == "merges.txt" && fs::is_regular_file(path.parent_path() / "vocab.json", error))
    return path.parent_path() / "vocab.json";
  if (!fs::is_directory(path, error)) {
    if (path.filename() == "config.json") return find_tokenizer(path.parent_path().empty() ? "." : path.parent_path());
    if (fs::exists(path, error)) return path;
    return std::nullopt;
  }
  const fs::path model = path / "tokenizer.model", json = path / "tokenizer.json";
  if (fs::is_regular_file(json, error)) return json;
  if (fs::is_regular_file(model, error)) return model;
  if (fs::is_regular_file(path / "vocab.json", error) && fs::is_regular_file(path / "merges.txt", error))
    return path / "vocab.json";
  return std::nullopt;
}

std::vector<fs::path> tokenizer_files(const fs::path& path) {
  const auto file = find_tokenizer(path);
  if (!file) return {};
  std::vector<fs::path> files = {*file};
  std::vector<std::string> names = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
  if (file->filename() == "vocab.json") names.emplace_back("merges.txt");
  std::error_code error;
  for (const std::string& name : names)
    if (fs::is_regular_file(file->parent_path() / name, error)) files.push_back(file->parent_path() / name);
  return files;
}

Tokenizer::Tokenizer(const fs::path& path, const fs::path& config) : model_(open_model(path, config)) {}
Tokenizer::Tokenizer(std::string serialized_model, const fs::path& name_for_errors)
    : model_(std::make_unique<SentencepieceTokenizer>(std::move(serialized_model), name_for_errors)) {}

namespace {

void require_utf8(std::string_view text) {
  if (const size_t good = valid_utf8_prefix(text); good < text.size())
    throw DataError(fmt::format("the text is not UTF-8 from its byte {} on", good));
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  require_utf8(text);
  std::vector<int32_t> ids;
  model_->encode(text, ids, nullptr);
  return ids;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, TextMarks& marks) const {
  require_utf8(text);
  std::vector<int32_t> ids;
  marks.tokens.clear();
  model_->encode(text, ids, &marks);
  marks.tokens.resize(marks.places.size(), ids.size());
  return ids;
}

std::vector<std::vector<int32_t>> Tokenizer::encode_all(std::span<const std::string_view> texts,
                                                        unsigned threads) const {
  std::vector<std::vector<int32_t>> result(texts.size());
  parallel_for(texts.size(), threads, [&](size_t i) { result[i] = encode(texts[i]); });
  return result;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool with_specials) const {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size())
      throw DataError(
          fmt::format("token id {} at position {} is outside the vocabulary of {}", ids[i], i, vocab_size()));
  return model_->decode(ids, with_specials);
}

std::string StreamingDecoder::add(int32_t id) {
  ids_.push_back(id);
  return take(false);
}

std::string StreamingDecoder::finish() { return take(true); }

std::string StreamingDecoder::take(bool all) {
  if (!all && tokenizer_.is_byte(ids_.back())) return "";  // an invalid byte after it makes its run invalid
  const std::string before = tokenizer_.decode(std::span(ids_).first(read_), with_specials_);
  std::string text = tokenizer_.decode(ids_, with_specials_);
  if (text.size() <= before.size() || (!all && text.ends_with("\xEF\xBF\xBD"))) return "";
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(read_));
  read_ = ids_.size();
  return text.substr(before.size());
}

}  // namespace trireme
