#pragma once
// Cuts text into the words that byte-level BPE encodes one by one.

#include "data/tokenizer/characters.h"
#include "data/tokenizer/pattern.h"
#include "trireme/formats/huggingface/byte_level_model.h"

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The end of the word that begins at `at` < text.size(). `text` is valid UTF-8; `flags`: character_flags().
using WordEnd = size_t (*)(std::string_view text, size_t at, const uint8_t* flags);
/// The hand-written splitter of a pattern, which is several times as fast as the regular expression; null: it has none.
WordEnd known_pattern(const PreSplitStep& step);

/// All steps of a model. Const members are thread-safe.
class PreSplitter {
 public:
  /// DataError, with `path`, for a pattern that PCRE2 does not take.
  PreSplitter(const std::vector<PreSplitStep>& steps, const std::filesystem::path& path);

  /// Calls visit(word) in order. A word may lie outside of `text` where a space was put before it.
  template <class Visit>
  void split(std::string_view text, const Visit& visit) const {
    std::string spaced;
    if (known_ == nullptr) {
      std::deque<std::string> pieces;
      for (const std::string_view word : general(text, pieces)) visit(word);
      return;
    }
    if (steps_[0].prefix_space && !text.starts_with(' ')) {
      spaced = " ";
      spaced += text;
      text = spaced;
    }
    for (size_t at = 0, end; at < text.size(); at = end) {
      end = known_(text, at, flags_);
      visit(text.substr(at, end - at));
    }
  }

 private:
  /// `spaced` holds the pieces that got a space.
  std::vector<std::string_view> general(std::string_view text, std::deque<std::string>& spaced) const;
  std::vector<PreSplitStep> steps_;
  std::vector<std::unique_ptr<Pattern>> patterns_;  // of the step; null where it has none, or a known one
  WordEnd known_ = nullptr;                         // of the one step that cuts
  const uint8_t* flags_;
};

}  // namespace trireme
