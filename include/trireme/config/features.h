#pragma once
// Features of a program's configuration beside those of every program. Keys and words of src/config/description.cpp
// carry these as tags; --help, checks and did-you-mean follow from them.

#include <cstdint>

namespace trireme {

/// Bits of a FeatureSet. No file holds their numbers.
enum class Feature : uint32_t {
  kAlways = 0,               // every program's
  kAdapters = 1 << 0,        // lora: adapters over frozen weights
  kVocabularySize = 1 << 1,  // model.vocab_size: rows of the vocabulary beyond the model's
  kPackedRows = 1 << 2,      // a row of the data holds several samples
  kRankMeans = 1 << 3,       // losses and clipping of each rank separately
  kAccuracy = 1 << 4,        // an evaluation measures an accuracy
  kRecomputeMlp = 1 << 5,    // backward may recompute the MLP's first projections alone
  kMlperfSkip = 1 << 6,      // MLPerf's rule for the evaluations at the start
  kFp8Training = 1 << 7,     // trained matrices may be multiplied in FP8
  kPairs = 1 << 8,           // train.objective: losses of pairs of answers
  kFp8Attention = 1 << 9,    // attention may multiply FP8 codes

  kContext = 1 << 17,  // several ranks may share a row

  kMlperfLog = 1 << 16,  // MLPerf has a benchmark of the program

  kDocumentStreams = 1 << 12,  // rows packed from documents while the run reads them
  kMegatronData = 1 << 13,     // rows of Megatron's indexed files
};

class FeatureSet {
 public:
  constexpr FeatureSet() = default;
  template <class... Features>
  constexpr explicit FeatureSet(Features... features) : bits_((static_cast<uint32_t>(features) | ...)) {}
  static constexpr FeatureSet all() {
    FeatureSet set;
    set.bits_ = ~uint32_t{0};
    return set;
  }
  constexpr bool has(Feature feature) const {
    return (static_cast<uint32_t>(feature) & ~bits_) == 0;  // kAlways is in every set
  }

 private:
  uint32_t bits_ = 0;
};

/// What a program without `feature` does, for messages: "measures no accuracy".
const char* without_feature(Feature feature);

}  // namespace trireme
