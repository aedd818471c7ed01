#include "trireme/formats/huggingface/sentencepiece_model.h"

#include "protobuf.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace trireme {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw DataError(fmt::format(
      "{}: not a complete sentencepiece model: {}. Copy it again, or train one with `trireme tokenizer train`",
      path.string(), what));
}

/// As fail(), at a byte of the file.
DamagedAt damaged_at(const std::filesystem::path& path) {
  return [&path](size_t at, const std::string& why) { fail(path, fmt::format("at byte {}: {}", at, why)); };
}

void expect_wire(const ProtoField& field, WireType type, const std::filesystem::path& path) {
  if (field.type != type)
    fail(path, fmt::format("field {} at byte {} has wire type {}, expected {}", field.number, field.at,
                           static_cast<int>(field.type), static_cast<int>(type)));
}

SentencepiecePiece read_piece(const ProtoField& message, size_t id, const std::filesystem::path& path) {
  SentencepiecePiece piece;
  uint64_t type = SentencepiecePiece::kNormal;
  const auto read = [&](const ProtoField& field) {
    if (field.number == 1) {
      expect_wire(field, WireType::kBytes, path);
      piece.text = field.text();
    } else if (field.number == 2) {
      expect_wire(field, WireType::kFixed32, path);
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    } else if (field.number == 3) {
      expect_wire(field, WireType::kVarint, path);
      type = field.value;
    }
  };
  for_each_field(message.bytes, damaged_at(path), read, message.offset);
  if (piece.text.empty()) fail(path, fmt::format("piece {} is empty", id));
  // sentencepiece's own tables end at such a byte.
  if (piece.text.find('\0') != std::string::npos) fail(path, fmt::format("piece {} holds a zero byte", id));
  if (!is_valid_utf8(piece.text)) fail(path, fmt::format("piece {} is not UTF-8", id));
  if (!std::isfinite(piece.score)) fail(path, fmt::format("piece {} has the score {}", id, piece.score));
  if (type < 1 || type > 6) fail(path, fmt::format("piece {} has the type {}, expected 1 to 6", id, type));
  piece.type = static_cast<SentencepiecePiece::Type>(type);
  return piece;
}

/// The fields of trainer_spec, with the defaults of the proto.
struct TrainerSpec {
  uint64_t model_type = 1;  // UNIGRAM
  bool byte_fallback = false, names_input = false;
  int64_t max_line = 4192;
  std::string bos = "<s>", eos = "</s>", pad = "<pad>";
};

void read_trainer_spec(const ProtoField& message, TrainerSpec& spec, const std::filesystem::path& path) {
  const auto read = [&](const ProtoField& field) {
    if (field.number == 3) {
      if (field.value < 1 || field.value > 4) fail(path, fmt::format("model type {}, expected 1 to 4", field.value));
      spec.model_type = field.value;
    }
    if (field.number == 1) spec.names_input = true;
    if (field.number == 18) spec.max_line = static_cast<int64_t>(field.value);
    if (field.number == 35) spec.byte_fallback = field.value != 0;
    for (const auto& [number, text] :
         {std::pair<uint32_t, std::string*>{46, &spec.bos}, {47, &spec.eos}, {48, &spec.pad}})
      if (field.number == number) {
        expect_wire(field, WireType::kBytes, path);
        *text = field.text();
      }
  };
  for_each_field(message.bytes, damaged_at(path), read, message.offset);
}

}  // namespace

SentencepieceModel read_sentencepiece_model(std::string_view bytes, const std::filesystem::path& path) {
  if (bytes.empty()) fail(path, "the file is empty");
  if (bytes.front() == '{')
    throw DataError(
        fmt::format("{}: looks like JSON, not a sentencepiece model: a tokenizer.json keeps its name", path.string()));
  SentencepieceModel result;
  std::unordered_map<std::string, size_t> seen;
  bool trainer = false, normalizer = false;
  int64_t byte_pieces = 0;
  TrainerSpec spec;
  const DamagedAt damaged = damaged_at(path);
  const auto read = [&](const ProtoField& field) {
    if (field.number >= 1 && field.number <= 3) expect_wire(field, WireType::kBytes, path);
    if (field.number == 1) {
      const size_t id = result.pieces.size();
      SentencepiecePiece piece = read_piece(field, id, path);
      const auto [first, is_new] = seen.emplace(piece.text, id);
      if (!is_new) fail(path, fmt::format("pieces {} and {} are both '{}'", first->second, id, piece.text));
      if (piece.type == SentencepiecePiece::kUnknown) {
        if (result.unknown_id >= 0)
          fail(path, fmt::format("pieces {} and {} are both marked unknown", result.unknown_id, id));
        result.unknown_id = static_cast<int64_t>(id);
      }
      byte_pieces += piece.type == SentencepiecePiece::kByte;
      result.pieces.push_back(std::move(piece));
    } else if (field.number == 2) {
      trainer = true;
      read_trainer_spec(field, spec, path);
    } else if (field.number == 3) {
      normalizer = true;
      for_each_field(field.bytes, damaged, [](const ProtoField&) {}, field.offset);  // well-formed to the end
    }
  };
  for_each_field(std::as_bytes(std::span(bytes)), damaged, read);
  if (result.pieces.empty()) fail(path, "it holds no pieces");
  if (result.unknown_id < 0) fail(path, fmt::format("none of its {} pieces is the unknown one", result.pieces.size()));
  if (!trainer || !normalizer)
    fail(path, fmt::format("no {} after {} pieces (truncated?)", trainer ? "normalizer_spec" : "trainer_spec",
                           result.pieces.size()));
  if (spec.byte_fallback && byte_pieces != 256)
    fail(path, fmt::format("byte fallback is on, but it has {} of 256 byte pieces", byte_pieces));
  result.byte_fallback = spec.byte_fallback;
  if (!spec.names_input) result.max_line = spec.max_line;
  result.is_unigram = spec.model_type == 1;
  for (const SentencepiecePiece& piece : result.pieces)
    if (piece.type == SentencepiecePiece::kUnused && !result.is_unigram)
      throw DataError(
          fmt::format("{}: the piece '{}' is marked unused, which sentencepiece's versions read in different ways in "
                      "models other than unigram: mark it as a normal or a control piece",
                      path.string(), piece.text));
  const auto control = [&](const std::string& text) -> std::optional<int64_t> {
    const auto found = seen.find(text);
    if (found == seen.end() || result.pieces[found->second].type != SentencepiecePiece::kControl) return std::nullopt;
    return static_cast<int64_t>(found->second);
  };
  result.bos_id = control(spec.bos);
  result.eos_id = control(spec.eos);
  result.pad_id = control(spec.pad);
  return result;
}

std::string tokenizer_config_json(const SentencepieceModel& model, int64_t max_length) {
  const auto text = [&](const std::optional<int64_t>& id) {
    return id ? nlohmann::ordered_json(model.pieces[static_cast<size_t>(*id)].text) : nlohmann::ordered_json();
  };
  const nlohmann::ordered_json json = {{"tokenizer_class", "LlamaTokenizer"},
                                       {"bos_token", text(model.bos_id)},
                                       {"eos_token", text(model.eos_id)},
                                       {"unk_token", text(model.unknown_id)},
                                       {"pad_token", text(model.pad_id)},
                                       {"add_bos_token", model.bos_id.has_value()},
                                       {"add_eos_token", false},
                                       {"clean_up_tokenization_spaces", false},
                                       {"legacy", true},
                                       {"model_max_length", max_length}};
  return json.dump(2) + "\n";
}

std::string without_normaliser(std::string_view bytes) {
  // protobuf merges a second normalizer_spec into the first: only the fields that it contains change.
  std::string spec, result(bytes);
  put_bytes(spec, 2, "");  // precompiled_charsmap
  put_int(spec, 3, 0);     // add_dummy_prefix
  put_int(spec, 4, 0);     // remove_extra_whitespaces
  put_bytes(result, 3, spec);
  return result;
}

std::string add_sentencepiece_pieces(std::string_view bytes, const std::filesystem::path& path,
                                     const std::vector<std::string>& texts) {
  const SentencepieceModel model = read_sentencepiece_model(bytes, path);
  std::string result(bytes);
  size_t id = model.pieces.size();
  for (const std::string& text : texts) {
    if (text.empty() || !is_valid_utf8(text)) throw DataError("a token to add is empty, or not UTF-8");
    for (const SentencepiecePiece& piece : model.pieces)
      if (piece.text == text) throw DataError(fmt::format("{} has the piece '{}' already", path.string(), text));
    // Fields of a protobuf message may have any order; elements of a repeated field are ordered by position.
    std::string piece;
    put_bytes(piece, 1, text);
    put_int(piece, 3, SentencepiecePiece::kUserDefined);
    put_bytes(result, 1, piece);
    ++id;
  }
  // protobuf merges a second trainer_spec into the first: only the field that it contains changes.
  std::string vocabulary;
  put_int(vocabulary, 4, static_cast<int64_t>(id));
  put_bytes(result, 2, vocabulary);
  return result;
}

}  // namespace trireme
