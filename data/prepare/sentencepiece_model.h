#pragma once
// A strict look at a sentencepiece model file (protobuf ModelProto, google/sentencepiece
// src/sentencepiece_model.proto) before the library gets it: the library accepts files cut off
// between two fields.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace trireme {

struct SentencepieceSummary {
  int64_t pieces = 0;
  bool byte_fallback = false;
  int64_t unknown_id = -1;
};

/// DataError with the byte offset (or the piece's id) unless `bytes` is a whole model: well-formed
/// fields, pieces that are non-empty, distinct UTF-8 with finite scores, one unknown piece, a
/// trainer_spec and a normalizer_spec.
SentencepieceSummary check_sentencepiece_model(std::string_view bytes, const std::filesystem::path& path);

}  // namespace trireme
