#include "data/tokenizer/sentencepiece_tokenizer.h"

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/unigram.h"
#include "trireme/base/error.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <map>

namespace trireme {

struct SentencepieceTokenizer::State {
  std::string name;
  SentencepieceModel model;
  std::optional<UnigramDecoder> unigram;
  sentencepiece::SentencePieceProcessor processor;
  std::optional<Metaspace> metaspace;               // none: sentencepiece's own space before a part
  sentencepiece::SentencePieceProcessor unchanged;  // with `metaspace`: does not normalise a text
  std::map<std::string, int32_t> specials;
  AddedTokenFinder raw, normalised;      // looked for first; in what lies between those
  std::map<int32_t, std::string> added;  // ids past the model's own pieces
};

SentencepieceTokenizer::SentencepieceTokenizer(std::string serialized_model,
                                               const std::filesystem::path& name_for_errors,
                                               const std::filesystem::path& folder)
    : state_(std::make_unique<State>()) {
  state_->name = name_for_errors.string();
  state_->model = read_sentencepiece_model(serialized_model, name_for_errors);
  if (state_->model.is_unigram) state_->unigram.emplace(state_->model);
  const auto load = [&](sentencepiece::SentencePieceProcessor& processor, const std::string& bytes) {
    if (const auto status = processor.LoadFromSerializedProto(bytes); !status.ok())
      throw DataError(
          fmt::format("{}: sentencepiece refuses this model: {}", name_for_errors.string(), status.ToString()));
  };
  load(state_->processor, serialized_model);
  const auto id_of = [](int id) { return id >= 0 ? std::optional<int32_t>(id) : std::nullopt; };
  const sentencepiece::SentencePieceProcessor& processor = state_->processor;
  facts_ = {"sentencepiece",           processor.GetPieceSize(),  id_of(processor.bos_id()),
            id_of(processor.eos_id()), id_of(processor.pad_id()), {}};
  if (facts_.bos_id) facts_.leading = {*facts_.bos_id};
  if (folder.empty()) return;
  state_->metaspace = llama_metaspace(folder, false);
  if (state_->metaspace) {
    load(state_->unchanged, without_normaliser(serialized_model));
    for (size_t id = 0; id < state_->model.pieces.size(); ++id) {
      const SentencepiecePiece& piece = state_->model.pieces[id];
      if (piece.type == SentencepiecePiece::kControl || piece.type == SentencepiecePiece::kUserDefined ||
          piece.type == SentencepiecePiece::kUnknown)
        state_->specials.emplace(piece.text, static_cast<int32_t>(id));
    }
  }
  std::vector<AddedToken> tokens = read_added_tokens(folder);
  for (const AddedToken& token : tokens) {
    const int32_t piece = state_->processor.PieceToId(token.content);
    const bool known = state_->processor.IdToPiece(piece) == token.content;
    if (const int64_t ours = known ? piece : vocab_size(); ours != token.id)
      throw DataError(fmt::format(
          "{}: the token '{}' has the id {}, but the {} pieces of the tokenizer and the tokens before it give it {}",
          folder.string(), token.content, token.id, facts_.base_vocab_size, ours));
    if (!known) state_->added.emplace(token.id, token.content);
    state_->specials.erase(token.content);
    add_token(token);
  }
  for (const auto& [text, id] : state_->specials) add_token({.content = text, .id = id});
  for (const AddedToken& token : tokens) state_->specials[token.content] = token.id;
}

void SentencepieceTokenizer::add_token(const AddedToken& token) {
  (token.normalized ? state_->normalised : state_->raw).add(token, token.content);
}

SentencepieceTokenizer::~SentencepieceTokenizer() = default;

int64_t SentencepieceTokenizer::vocab_size() const {
  return facts_.base_vocab_size + static_cast<int64_t>(state_->added.size());
}

int32_t SentencepieceTokenizer::add_special(const std::string& text) {
  TRIREME_CHECK(!text.empty(), "an empty special token");
  if (const auto known = state_->specials.find(text); known != state_->specials.end()) return known->second;
  int32_t id = state_->processor.PieceToId(text);
  if (state_->processor.IdToPiece(id) != text) {
    id = static_cast<int32_t>(vocab_size());
    state_->added.emplace(id, text);
  }
  state_->specials.emplace(text, id);
  add_token({.content = text, .id = id});
  return id;
}

void SentencepieceTokenizer::encode_plain(std::string_view text, bool first, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::string spaced;
  if (state_->metaspace) text = spaced = metaspace_words(*state_->metaspace, text, first).front();
  const sentencepiece::SentencePieceProcessor& processor = state_->metaspace ? state_->unchanged : state_->processor;
  std::vector<int> pieces;
  std::vector<std::string> texts;
  const auto status = state_->unigram ? processor.Encode(text, &texts) : processor.Encode(text, &pieces);
  // A model with damaged normalisation rules loads without an error, and fails on the first text.
  if (!status.ok())
    throw DataError(fmt::format("{}: sentencepiece could not encode {} bytes with this model: {}", state_->name,
                                text.size(), status.ToString()));
  if (state_->unigram)
    state_->unigram->encode(state_->unigram->normalised(texts), ids);
  else
    ids.insert(ids.end(), pieces.begin(), pieces.end());
}

void SentencepieceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids, TextMarks* marks) const {
  const auto found = [&](int32_t id, size_t end) {
    if (marks != nullptr) marks->token(end, ids.size());
    ids.push_back(id);
  };
  // Pieces are the text itself, with U+2581 for spaces and perhaps one before it, where nothing is normalised.
  const auto length_of = [&](int32_t id) {
    if (state_->processor.IsByte(id)) return size_t{1};
    const std::string& piece = state_->processor.IdToPiece(id);
    size_t length = piece.size();
    for (size_t at = piece.find("\u2581"); at != std::string::npos; at = piece.find("\u2581", at + 3)) length -= 2;
    return length;
  };
  const auto plain = [&](std::string_view part) {
    const size_t first = ids.size();
    const auto begin = static_cast<size_t>(part.data() - text.data());
    encode_plain(part, begin == 0, ids);
    if (marks != nullptr)
      marks->add_part(part, begin, ids, first, length_of,
                      [&](std::string_view head, std::vector<int32_t>& out) { encode_plain(head, begin == 0, out); });
  };
  state_->raw.split(text, found, [&](std::string_view between) {
    const auto begin = static_cast<size_t>(between.data() - text.data());
    state_->normalised.split(between, [&](int32_t id, size_t end) { found(id, begin + end); }, plain);
  });
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
    if (id >= facts_.base_vocab_size) {
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
