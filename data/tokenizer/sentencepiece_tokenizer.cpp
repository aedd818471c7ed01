#include "data/tokenizer/sentencepiece_tokenizer.h"

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/byte_level_tokenizer.h"
#include "data/tokenizer/unigram.h"
#include "trireme/base/error.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <map>
#include <set>

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
  std::set<int32_t> hidden;              // decode() gives their text only with specials
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
  facts_ = {{id_of(processor.bos_id()), id_of(processor.eos_id()), id_of(processor.pad_id())},
            "sentencepiece",
            processor.GetPieceSize(),
            {}};
  std::optional<bool> add_bos;
  if (!folder.empty()) {
    const TokenizerFolder files(folder);
    state_->metaspace = llama_metaspace(files, false);
    if (state_->metaspace) load(state_->unchanged, without_normaliser(serialized_model));
    add_tokens_of(files);
    add_bos = files.flag("add_bos_token");
  }
  if (facts_.bos_id && add_bos.value_or(!state_->metaspace)) facts_.leading = {*facts_.bos_id};
}

void SentencepieceTokenizer::add_tokens_of(const TokenizerFolder& folder) {
  const bool llama = state_->metaspace.has_value();
  std::map<std::string, std::string> defaults;
  if (llama) defaults = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  const FolderTokens tokens =
      folder.tokens([&](const std::string& text) { return piece_of(text); }, vocab_size(), defaults);
  std::map<std::string, int32_t> controls;
  for (size_t id = 0; llama && !tokens.has_extra && id < state_->model.pieces.size(); ++id) {
    const SentencepiecePiece& piece = state_->model.pieces[id];
    if (piece.type == SentencepiecePiece::kControl) state_->hidden.insert(static_cast<int32_t>(id));
    if (piece.type == SentencepiecePiece::kControl || piece.type == SentencepiecePiece::kUserDefined)
      controls.emplace(piece.text, static_cast<int32_t>(id));
  }
  const auto add = [&](const AddedToken& token) {
    if (token.id >= facts_.base_vocab_size) state_->added.emplace(token.id, token.content);
    controls.erase(token.content);
    state_->specials[token.content] = token.id;
    add_token(token);
  };
  for (const AddedToken& token : tokens.listed) {
    add(token);
    if (token.special)
      state_->hidden.insert(token.id);
    else
      state_->hidden.erase(token.id);
  }
  const int64_t in_files = vocab_size();
  for (const auto* list : {&tokens.named, &tokens.extra})
    for (const AddedToken& token : *list) {
      if (token.special) state_->hidden.insert(token.id);
      // sentencepiece's own pieces stay text inside of a text.
      if (llama || token.id >= facts_.base_vocab_size)
        add(controls.contains(token.content) ? AddedToken{.content = token.content, .id = token.id} : token);
    }
  for (const auto& [text, id] : controls) {
    state_->specials.emplace(text, id);
    add_token({.content = text, .id = id});
  }
  const auto id_of = [&](const std::string& text) {
    const auto found = state_->specials.find(text);
    return found == state_->specials.end() ? piece_of(text) : std::optional(found->second);
  };
  folder.find_named_tokens(id_of, in_files, facts_);
}

std::optional<int32_t> SentencepieceTokenizer::piece_of(const std::string& text) const {
  const int32_t id = state_->processor.PieceToId(text);
  return state_->processor.IdToPiece(id) == text ? std::optional(id) : std::nullopt;
}

void SentencepieceTokenizer::add_token(const AddedToken& token) {
  (token.normalized ? state_->normalised : state_->raw).add(token, token.content);
}

SentencepieceTokenizer::~SentencepieceTokenizer() = default;

int64_t SentencepieceTokenizer::vocab_size() const {
  return facts_.base_vocab_size + static_cast<int64_t>(state_->added.size());
}

bool SentencepieceTokenizer::is_byte(int32_t id) const {
  return state_->metaspace && id < facts_.base_vocab_size && state_->processor.IsByte(id);
}

int32_t SentencepieceTokenizer::add_special(const std::string& text) {
  TRIREME_CHECK(!text.empty(), "an empty special token");
  if (const auto known = state_->specials.find(text); known != state_->specials.end()) return known->second;
  const auto piece = piece_of(text);
  const int32_t id = piece.value_or(static_cast<int32_t>(vocab_size()));
  if (!piece) state_->added.emplace(id, text);
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
  if (state_->metaspace) {
    std::vector<std::string> texts;
    for (const int32_t id : ids)
      if (with_specials || !state_->hidden.contains(id))
        texts.push_back(id < facts_.base_vocab_size ? state_->model.pieces[static_cast<size_t>(id)].text
                                                    : state_->added.at(id));
    return decode_characters(llama_decoder(*state_->metaspace), std::move(texts));
  }
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
    if (!with_specials && state_->hidden.contains(id)) continue;
    if (id >= facts_.base_vocab_size) {
      flush();
      text += state_->added.at(id);
    } else if (with_specials && (state_->processor.IsControl(id) || state_->processor.IsUnknown(id))) {
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
