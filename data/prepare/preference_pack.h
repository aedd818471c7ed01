#pragma once
// Pairs of a chosen and a rejected answer to training rows (data/dataset.h): rendered by the model's chat template,
// tokenised and cut as TRL's DPOTrainer does it.

#include "data/prepare/chat_rows.h"

#include <cstdint>
#include <string>

namespace trireme {

struct PreferencePackOptions : ChatRowOptions {
  bool unpaired = false;   // rows of judged answers (Answers::kJudged)
  int64_t max_length = 0;  // tokens of a prompt with one answer; 0: half a row, of judged answers an eighth
  /// A longer one keeps its start or its end, or the pair is dropped. Pairs whose prompts leave no room are dropped.
  enum class Long { kKeepStart, kKeepEnd, kDrop } longer = Long::kKeepStart;
};

/// Pairs, or judged answers, that were dropped for one reason.
struct DroppedPairs {
  int64_t count = 0;
  std::string first;  // its place, or a sentence with it
};

struct FirstAnswer {
  std::string prompt, text;
};

struct PreferencePackReport {
  int64_t pairs = 0;  // read; judged answers: prompts with the answers of one row of the file
  DroppedPairs unreadable, refused, long_prompts, too_long, without_answer;
  DroppedPairs unwritten;      // kept: unwritten_message() says what is behind the place
  int64_t same = 0;            // pairs kept whose answers are equal
  int64_t cut = 0;             // pairs of which an answer was cut
  DroppedPairs other_prompts;  // kept: the tokens of the prompt alone are not the first ones of prompt and answer
  int64_t vocab_size = 0;
  RowCounts train, valid;
  int64_t alone = 0;  // judged answers without another one in their row
  /// Of the first pair of the training rows: context, and the texts with a loss. Judged answers: the first desirable
  /// and the first undesirable one.
  std::string prompt;
  FirstAnswer chosen, rejected;
};

/// Keeps all tokens in memory. ConfigError, DataError with the place of the pair, WriteError.
PreferencePackReport pack_preferences(const PreferencePackOptions& options);

}  // namespace trireme
