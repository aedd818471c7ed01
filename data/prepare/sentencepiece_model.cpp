#include "data/prepare/sentencepiece_model.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <cmath>
#include <cstring>
#include <unordered_map>

namespace trireme {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw DataError(
      fmt::format("{}: not a whole sentencepiece model: {}. Copy it again, or train one with "
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
          fail(path_, fmt::format("the field at byte {} has {} bytes, but only {} are left (cut off?)", field.offset,
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

struct Piece {
  std::string_view text;
  float score = 0;
  uint64_t type = 1;  // NORMAL
};

Piece read_piece(Message message, int64_t id, const std::filesystem::path& path) {
  Piece piece;
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
      piece.type = field.value;
    }
  }
  if (piece.text.empty()) fail(path, fmt::format("piece {} is empty", id));
  if (!is_valid_utf8(piece.text)) fail(path, fmt::format("piece {} is not UTF-8", id));
  if (!std::isfinite(piece.score)) fail(path, fmt::format("piece {} has the score {}", id, piece.score));
  if (piece.type < 1 || piece.type > 6)
    fail(path, fmt::format("piece {} has the type {}, expected 1 to 6", id, piece.type));
  return piece;
}

constexpr uint64_t kUnknown = 2, kByte = 6;

}  // namespace

SentencepieceSummary check_sentencepiece_model(std::string_view bytes, const std::filesystem::path& path) {
  if (bytes.empty()) fail(path, "the file is empty");
  if (bytes.front() == '{')
    throw DataError(
        fmt::format("{}: looks like JSON (tokenizer.json?): Trireme reads sentencepiece's "
                    "tokenizer.model, which "
                    "Llama 1 and 2 directories hold beside it",
                    path.string()));
  SentencepieceSummary summary;
  std::unordered_map<std::string_view, int64_t> seen;
  bool trainer = false, normalizer = false;
  int64_t byte_pieces = 0;
  Message model(bytes, 0, path);
  for (Field field; model.next(field);) {
    if (field.number == 1) {
      expect_wire(field, 2, path);
      const Piece piece = read_piece(Message(field.bytes, model.offset_of(field), path), summary.pieces, path);
      const auto [first, is_new] = seen.emplace(piece.text, summary.pieces);
      if (!is_new) fail(path, fmt::format("pieces {} and {} are both '{}'", first->second, summary.pieces, piece.text));
      if (piece.type == kUnknown) {
        if (summary.unknown_id >= 0)
          fail(path, fmt::format("pieces {} and {} are both marked unknown", summary.unknown_id, summary.pieces));
        summary.unknown_id = summary.pieces;
      }
      byte_pieces += piece.type == kByte;
      ++summary.pieces;
    } else if (field.number == 2) {
      expect_wire(field, 2, path);
      trainer = true;
      Message spec(field.bytes, model.offset_of(field), path);
      for (Field inner; spec.next(inner);) {
        if (inner.number == 3 && (inner.value < 1 || inner.value > 4))
          fail(path, fmt::format("model type {}, expected 1 to 4", inner.value));
        if (inner.number == 35) summary.byte_fallback = inner.value != 0;
      }
    } else if (field.number == 3) {
      expect_wire(field, 2, path);
      normalizer = true;
      Message spec(field.bytes, model.offset_of(field), path);
      for (Field inner; spec.next(inner);) continue;  // well-formed to the end
    }
  }
  if (summary.pieces == 0) fail(path, "it holds no pieces");
  if (summary.unknown_id < 0) fail(path, fmt::format("none of its {} pieces is the unknown one", summary.pieces));
  if (!trainer || !normalizer)
    fail(path,
         fmt::format("no {} after {} pieces (cut off?)", trainer ? "normalizer_spec" : "trainer_spec", summary.pieces));
  if (summary.byte_fallback && byte_pieces != 256)
    fail(path, fmt::format("byte fallback is on, but it has {} of 256 byte pieces", byte_pieces));
  return summary;
}

}  // namespace trireme
