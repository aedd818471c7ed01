#pragma once
// Strict reader of sentencepiece's model file (protobuf ModelProto, google/sentencepiece
// src/sentencepiece_model.proto). The library's own reader accepts files that are truncated between two fields.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct SentencepiecePiece {
  /// ModelProto.SentencePiece.Type.
  enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  std::string text;
  float score = 0;
  Type type = kNormal;
};

struct SentencepieceModel {
  std::vector<SentencepiecePiece> pieces;  // by id
  bool is_unigram = true;
  bool byte_fallback = false;
  /// Bytes of the longest line that the training took; absent if it read files by name, as sentencepiece's program
  /// does.
  std::optional<int64_t> max_line;
  int64_t unknown_id = -1;
  /// Ids of the control pieces named in trainer_spec; nullopt if the model has no such piece.
  std::optional<int64_t> bos_id, eos_id, pad_id;
};

/// DataError with the byte offset (or the piece's id) unless `bytes` is a complete model: well-formed fields; pieces
/// that are non-empty, distinct, UTF-8, with finite scores; one unknown piece; a trainer_spec and a normalizer_spec.
SentencepieceModel read_sentencepiece_model(std::string_view bytes, const std::filesystem::path& path);

/// A tokenizer_config.json with which transformers' AutoTokenizer gives the same ids as Trireme: the model's own
/// special pieces, BOS before a text if the model has one, no EOS. `max_length`: model_max_length.
std::string tokenizer_config_json(const SentencepieceModel& model, int64_t max_length);

/// The model, already read, with a normalizer that does not change the text: no rules, no added spaces.
std::string without_normaliser(std::string_view bytes);

/// The model with `texts` appended as user-defined pieces: their ids follow the last piece. DataError for a text that
/// is already a piece.
std::string add_sentencepiece_pieces(std::string_view bytes, const std::filesystem::path& path,
                                     const std::vector<std::string>& texts);

}  // namespace trireme
