#pragma once
// The best segmentation of a unigram model: a sentencepiece model with the rounding of sentencepiece 0.2.3, or a
// tokenizer.json as `tokenizers` computes it: in double, and every token of the vocabulary is a piece.
//
// Of two segmentations whose scores are equal, or differ by less than a float's rounding, the rounding decides.
// sentencepiece up to 0.2.0 (Debian 12 and Ubuntu 24.04 have 0.1.9x) compares a candidate's score as a double with the
// best one so far as a float, and gives a user-defined piece the score -0.1; 0.2.3 rounds the candidate to float first,
// and gives user-defined pieces a tenth for each byte but the first. Both add piece by piece from the left and keep the
// first of equal candidates.

#include "trireme/formats/huggingface/byte_level_model.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme {

/// Finds the best segmentation of normalised text. Const members are thread-safe.
class UnigramDecoder {
 public:
  /// `model` must outlive the decoder.
  explicit UnigramDecoder(const SentencepieceModel& model);
  explicit UnigramDecoder(const ByteLevelModel& model);
  /// Appends the ids of `text`, which is normalised by the model's rules (▁ for spaces). A character without a piece
  /// gives its bytes where the model has byte fallback, else the unknown id, once for a run of such characters;
  /// DataError where the model has neither.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  /// The normalised text of the pieces that sentencepiece gives for a text.
  std::string normalised(const std::vector<std::string>& pieces) const;

 private:
  struct Entry {
    int32_t id = 0;
    double score = 0;
  };
  bool rounds_, byte_fallback_;  // scores to float
  int32_t unknown_id_;           // -1: none
  std::unordered_map<std::string_view, Entry> pieces_;
  std::unordered_map<std::string_view, char> bytes_of_;  // byte pieces
  std::vector<int32_t> bytes_;                           // their ids, by byte
  std::set<size_t> lengths_;                             // of the pieces, in bytes
  double unknown_score_ = 0;
};

}  // namespace trireme
