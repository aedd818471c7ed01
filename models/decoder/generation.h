#pragma once
// Text from a model: the whole context is computed again for every token, without a cache of keys and values. For a
// look at a model, not for serving.

#include "models/decoder/decoder.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace trireme {

struct GenerationOptions {
  int64_t max_new_tokens = 50;
  double temperature = 0;          // 0: the likeliest token
  uint64_t seed = 0;               // of the draws, which depend on it, the text's number and the position only
  std::vector<int64_t> ends = {};  // ids that end a text, which does not get them
  /// Logits of ids that the text has are divided by it where they are positive, else multiplied, as by transformers'
  /// RepetitionPenaltyLogitsProcessor.
  double repetition_penalty = 1;
  /// Ids from here on are never chosen: a padded vocabulary has rows without a token.
  int64_t vocabulary = std::numeric_limits<int64_t>::max();
  /// Most tokens of a forward pass: as many texts as fit are continued at once. A text and its new ones that exceed it
  /// are an internal error.
  int64_t pass_tokens = std::numeric_limits<int64_t>::max();
};

struct GenerationSteps {
  /// Makes the chosen ids the same on all ranks; empty: one rank.
  std::function<void(std::vector<int64_t>& ids)> agree = {};
  /// Text `text` gets a token.
  std::function<void(size_t text, int32_t id)> token = {};
  /// After each forward pass, of at most `total`; may throw.
  std::function<void(int64_t done, int64_t total)> pass = {};
};

struct Continuation {
  std::vector<int32_t> ids;  // new ones
  bool ended = false;        // by one of the ends
};

/// Continues texts of ids, none of them empty. Where weights are sharded all ranks call it with the same texts, and
/// `steps.agree`.
std::vector<Continuation> generate(const DecoderModel& model, UnitStore& store, at::Device device,
                                   const std::vector<std::vector<int32_t>>& texts, const GenerationOptions& options,
                                   const GenerationSteps& steps = {});

}  // namespace trireme
