#include "data/tokenizer/sentencepiece_tokenizer.h"

#include "data/tokenizer/unigram.h"
#include "trireme/base/error.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <algorithm>
#include <map>

namespace trireme {

struct SentencepieceTokenizer::State {
  std::string name;
  SentencepieceModel model;
  std::optional<UnigramDecoder> unigram;
  sentencepiece::SentencePieceProcessor processor;
  std::vector<std::pair<std::string, int32_t>> specials;  // longest first
  std::map<int32_t, std::string> added;                   // ids past the model's own pieces
};

SentencepieceTokenizer::SentencepieceTokenizer(std::string serialized_model,
                                               const std::filesystem::path& name_for_errors)
    : state_(std::make_unique<State>()) {
  state_->name = name_for_errors.string();
  state_->model = read_sentencepiece_model(serialized_model, name_for_errors);
  if (state_->model.is_unigram) state_->unigram.emplace(state_->model);
  const auto status = state_->processor.LoadFromSerializedProto(serialized_model);
  if (!status.ok())
    throw DataError(
        fmt::format("{}: sentencepiece refuses this model: {}", name_for_errors.string(), status.ToString()));
}

SentencepieceTokenizer::~SentencepieceTokenizer() = default;

int64_t SentencepieceTokenizer::base_vocab_size() const { return state_->processor.GetPieceSize(); }
int64_t SentencepieceTokenizer::vocab_size() const {
  return base_vocab_size() + static_cast<int64_t>(state_->added.size());
}

std::optional<int32_t> SentencepieceTokenizer::bos_id() const {
  const int id = state_->processor.bos_id();
  return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
}
std::optional<int32_t> SentencepieceTokenizer::eos_id() const {
  const int id = state_->processor.eos_id();
  return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
}
std::optional<int32_t> SentencepieceTokenizer::pad_id() const {
  const int id = state_->processor.pad_id();
  return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
}
std::vector<int32_t> SentencepieceTokenizer::leading() const {
  const auto bos = bos_id();
  return bos ? std::vector<int32_t>{*bos} : std::vector<int32_t>{};
}

int32_t SentencepieceTokenizer::add_special(const std::string& text) {
  TRIREME_CHECK(!text.empty(), "an empty special token");
  for (const auto& [known, id] : state_->specials)
    if (known == text) return id;
  int32_t id = state_->processor.PieceToId(text);
  if (state_->processor.IdToPiece(id) != text) {
    id = static_cast<int32_t>(vocab_size());
    state_->added.emplace(id, text);
  }
  state_->specials.emplace_back(text, id);
  std::stable_sort(state_->specials.begin(), state_->specials.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  return id;
}

void SentencepieceTokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::vector<int> pieces;
  std::vector<std::string> texts;
  const auto status =
      state_->unigram ? state_->processor.Encode(text, &texts) : state_->processor.Encode(text, &pieces);
  // A model with damaged normalisation rules loads without an error, and fails on the first text.
  if (!status.ok())
    throw DataError(fmt::format("{}: sentencepiece could not encode {} bytes with this model: {}", state_->name,
                                text.size(), status.ToString()));
  if (state_->unigram)
    state_->unigram->encode(state_->unigram->normalised(texts), ids);
  else
    ids.insert(ids.end(), pieces.begin(), pieces.end());
}

void SentencepieceTokenizer::find_marks(std::string_view part, size_t begin, const std::vector<int32_t>& ids,
                                        size_t first, TextMarks& marks) const {
  const auto open = [&] { return marks.tokens.size() < marks.places.size(); };
  const auto place = [&] { return marks.places[marks.tokens.size()]; };
  while (open() && place() <= begin) marks.tokens.push_back(first);
  if (!open() || place() >= begin + part.size()) return;
  // Pieces are the text itself, with U+2581 for spaces and perhaps one before it, where nothing is normalised.
  std::vector<size_t> lengths;
  size_t total = 0;
  for (size_t i = first; i < ids.size(); ++i) {
    const std::string& piece = state_->processor.IdToPiece(ids[i]);
    size_t length = state_->processor.IsByte(ids[i]) ? 1 : piece.size();
    for (size_t at = piece.find("\u2581"); at != std::string::npos; at = piece.find("\u2581", at + 3)) length -= 2;
    lengths.push_back(length);
    total += length;
  }
  if (total == part.size() || (total == part.size() + 1 && !lengths.empty() && lengths[0] > 0)) {
    size_t at = begin + part.size() - total;  // one less than begin with a space before
    for (size_t i = 0; i < lengths.size(); ++i) marks.token(at += lengths[i], first + i);
    return;
  }
  while (open() && place() < begin + part.size()) {
    std::vector<int32_t> head;
    encode_plain(part.substr(0, place() - begin), head);
    size_t same = 0;
    while (same < head.size() && first + same < ids.size() && head[same] == ids[first + same]) ++same;
    marks.tokens.push_back(first + same);
  }
}

void SentencepieceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids, TextMarks* marks) const {
  size_t plain = 0;
  const auto part = [&](size_t end) {
    const size_t first = ids.size();
    encode_plain(text.substr(plain, end - plain), ids);
    if (marks != nullptr) find_marks(text.substr(plain, end - plain), plain, ids, first, *marks);
  };
  for (size_t at = 0; at < text.size() && !state_->specials.empty();) {
    const std::string_view rest = text.substr(at);
    const auto found = std::find_if(state_->specials.begin(), state_->specials.end(),
                                    [&](const auto& special) { return rest.starts_with(special.first); });
    if (found == state_->specials.end()) {
      ++at;
      continue;
    }
    part(at);
    plain = at += found->first.size();
    if (marks != nullptr) marks->token(at, ids.size());
    ids.push_back(found->second);
  }
  part(text.size());
}

std::string SentencepieceTokenizer::decode(std::span<const int32_t> ids, bool with_specials) const {
  std::string text;
  std::vector<int> run;
  const auto flush = [&] {
    if (run.empty()) return;
    std::string part;
    const auto status = state_->processor.Decode(run, &part);
    if (!status.ok())
      throw DataError(fmt::format("{}: sentencepiece could not decode {} ids with this model: {}", state_->name,
                                  run.size(), status.ToString()));
    text += part;
    run.clear();
  };
  for (const int32_t id : ids) {
    if (id >= base_vocab_size()) {
      flush();
      text += state_->added.at(id);
    } else if (with_specials && state_->processor.IsControl(id)) {
      flush();
      text += state_->processor.IdToPiece(id);
    } else {
      run.push_back(id);
    }
  }
  flush();
  return text;
}

}  // namespace trireme
