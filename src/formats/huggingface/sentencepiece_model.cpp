#include "trireme/formats/huggingface/sentencepiece_model.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace trireme {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw DataError(
      fmt::format("{}: not a complete sentencepiece model: {}. Copy it again, or train one with "
                  "`trireme tokenizer "
                  "train`",
                  path.string(), what));
}

struct Field {
  uint64_t number = 0;
  int wire_type = 0;
  uint64_t value = 0;      // varint, fixed32, fixed64
  std::string_view bytes;  // length-delimited
  size_t offset = 0;       // of the tag, in the file
};

/// Fields of one protobuf message, in order. Offsets are absolute in the file.
class Message {
 public:
  Message(std::string_view bytes, size_t offset, const std::filesystem::path& path)
      : bytes_(bytes), base_(offset), path_(path) {}

  bool next(Field& field) {
    if (at_ == bytes_.size()) return false;
    field = Field{};
    field.offset = base_ + at_;
    const uint64_t tag = varint();
    field.number = tag >> 3;
    field.wire_type = static_cast<int>(tag & 7);
    if (field.number == 0) fail(path_, fmt::format("field number 0 at byte {}", field.offset));
    switch (field.wire_type) {
      case 0: field.value = varint(); break;
      case 1: field.value = fixed(8); break;
      case 5: field.value = fixed(4); break;
      case 2: {
        const uint64_t length = varint();
        if (length > bytes_.size() - at_)
          fail(path_, fmt::format("the field at byte {} has {} bytes, but only {} are left (truncated?)", field.offset,
                                  length, bytes_.size() - at_));
        field.bytes = bytes_.substr(at_, length);
        at_ += length;
        break;
      }
      default: fail(path_, fmt::format("wire type {} at byte {}", field.wire_type, field.offset));
    }
    return true;
  }

  size_t offset_of(const Field& field) const { return base_ + static_cast<size_t>(field.bytes.data() - bytes_.data()); }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) fail(path_, fmt::format("ends inside a number at byte {}", base_ + at_));
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    fail(path_, fmt::format("a number of more than 64 bits before byte {}", base_ + at_));
  }

  uint64_t fixed(size_t size) {
    if (bytes_.size() - at_ < size) fail(path_, fmt::format("ends inside a number at byte {}", base_ + at_));
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i)
      value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes_[at_++])) << (8 * i);
    return value;
  }

  std::string_view bytes_;
  size_t base_, at_ = 0;
  const std::filesystem::path& path_;
};

void expect_wire(const Field& field, int wire_type, const std::filesystem::path& path) {
  if (field.wire_type != wire_type)
    fail(path, fmt::format("field {} at byte {} has wire type {}, expected {}", field.number, field.offset,
                           field.wire_type, wire_type));
}

SentencepiecePiece read_piece(Message message, size_t id, const std::filesystem::path& path) {
  SentencepiecePiece piece;
  uint64_t type = SentencepiecePiece::kNormal;
  for (Field field; message.next(field);) {
    if (field.number == 1) {
      expect_wire(field, 2, path);
      piece.text = field.bytes;
    } else if (field.number == 2) {
      expect_wire(field, 5, path);
      const auto bits = static_cast<uint32_t>(field.value);
      std::memcpy(&piece.score, &bits, sizeof(bits));
    } else if (field.number == 3) {
      expect_wire(field, 0, path);
      type = field.value;
    }
  }
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
  bool byte_fallback = false;
  std::string bos = "<s>", eos = "</s>", pad = "<pad>";
};

void read_trainer_spec(Message message, TrainerSpec& spec, const std::filesystem::path& path) {
  for (Field field; message.next(field);) {
    if (field.number == 3) {
      if (field.value < 1 || field.value > 4) fail(path, fmt::format("model type {}, expected 1 to 4", field.value));
      spec.model_type = field.value;
    }
    if (field.number == 35) spec.byte_fallback = field.value != 0;
    for (const auto& [number, text] :
         {std::pair<uint64_t, std::string*>{46, &spec.bos}, {47, &spec.eos}, {48, &spec.pad}})
      if (field.number == number) {
        expect_wire(field, 2, path);
        *text = field.bytes;
      }
  }
}

void append_varint(std::string& bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  bytes += static_cast<char>(value);
}

void append_message(std::string& bytes, int field, const std::string& message) {
  append_varint(bytes, static_cast<uint64_t>(field) << 3 | 2);
  append_varint(bytes, message.size());
  bytes += message;
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
  Message model(bytes, 0, path);
  for (Field field; model.next(field);) {
    if (field.number == 1) {
      expect_wire(field, 2, path);
      const size_t id = result.pieces.size();
      SentencepiecePiece piece = read_piece(Message(field.bytes, model.offset_of(field), path), id, path);
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
      expect_wire(field, 2, path);
      trainer = true;
      read_trainer_spec(Message(field.bytes, model.offset_of(field), path), spec, path);
    } else if (field.number == 3) {
      expect_wire(field, 2, path);
      normalizer = true;
      Message inner_spec(field.bytes, model.offset_of(field), path);
      for (Field inner; inner_spec.next(inner);) continue;  // well-formed to the end
    }
  }
  if (result.pieces.empty()) fail(path, "it holds no pieces");
  if (result.unknown_id < 0) fail(path, fmt::format("none of its {} pieces is the unknown one", result.pieces.size()));
  if (!trainer || !normalizer)
    fail(path, fmt::format("no {} after {} pieces (truncated?)", trainer ? "normalizer_spec" : "trainer_spec",
                           result.pieces.size()));
  if (spec.byte_fallback && byte_pieces != 256)
    fail(path, fmt::format("byte fallback is on, but it has {} of 256 byte pieces", byte_pieces));
  result.byte_fallback = spec.byte_fallback;
  result.is_unigram = spec.model_type == 1;
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
  append_message(spec, 2, "");                               // precompiled_charsmap
  for (const uint64_t field : {uint64_t{3}, uint64_t{4}}) {  // add_dummy_prefix, remove_extra_whitespaces
    append_varint(spec, field << 3);
    append_varint(spec, 0);
  }
  append_message(result, 3, spec);
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
    append_message(piece, 1, text);
    append_varint(piece, 3 << 3);
    append_varint(piece, SentencepiecePiece::kUserDefined);
    append_message(result, 1, piece);
    ++id;
  }
  // protobuf merges a second trainer_spec into the first: only the field that it contains changes.
  std::string vocabulary;
  append_varint(vocabulary, 4 << 3);
  append_varint(vocabulary, id);
  append_message(result, 2, vocabulary);
  return result;
}

}  // namespace trireme
