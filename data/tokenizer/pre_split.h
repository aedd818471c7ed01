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

/// The patterns that have a hand-written splitter, which is several times as fast as the regular expression.
enum class KnownPattern { kNone, kGpt2, kLlama3, kQwen2 };
KnownPattern known_pattern(const PreSplitStep& step);

/// The end of the word that begins at `at` < text.size(). `text` is valid UTF-8; `flags`: character_flags().
size_t gpt2_word_end(std::string_view text, size_t at, const uint8_t* flags);
/// Llama 3 has numbers of up to three digits, Qwen2 of one.
size_t llama3_word_end(std::string_view text, size_t at, const uint8_t* flags, int digits);

/// All steps of a model. Const members are thread-safe.
class PreSplitter {
 public:
  /// DataError, with `path`, for a pattern that PCRE2 does not take.
  PreSplitter(const std::vector<PreSplitStep>& steps, const std::filesystem::path& path);

  /// Calls visit(word) in order. A word may lie outside of `text` where a space was put before it.
  template <class Visit>
  void split(std::string_view text, const Visit& visit) const {
    std::string spaced;
    if (known_ == KnownPattern::kNone) {
      std::deque<std::string> pieces;
      for (const std::string_view word : general(text, pieces)) visit(word);
      return;
    }
    if (steps_[0].prefix_space && !text.starts_with(' ')) {
      spaced = " ";
      spaced += text;
      text = spaced;
    }
    const auto all = [&](const auto& end) {
      for (size_t at = 0; at < text.size();) {
        const size_t next = end(at);
        visit(text.substr(at, next - at));
        at = next;
      }
    };
    switch (known_) {
      case KnownPattern::kGpt2: return all([&](size_t at) { return gpt2_word_end(text, at, flags_); });
      case KnownPattern::kLlama3: return all([&](size_t at) { return llama3_word_end(text, at, flags_, 3); });
      default: return all([&](size_t at) { return llama3_word_end(text, at, flags_, 1); });
    }
  }

 private:
  /// `spaced` holds the pieces that got a space.
  std::vector<std::string_view> general(std::string_view text, std::deque<std::string>& spaced) const;
  std::vector<PreSplitStep> steps_;
  std::vector<std::unique_ptr<Pattern>> patterns_;  // of the step; null where it has none, or a known one
  KnownPattern known_ = KnownPattern::kNone;        // the one step that cuts has a hand-written splitter
  const uint8_t* flags_;
};

}  // namespace trireme
