#pragma once
// BERT's WordPiece tokenizer (Devlin et al. 2018; rules as in MLPerf's reference tokenization.py): clean, split,
// lower-case and strip accents (not for a cased vocabulary), split punctuation, then greedy longest match. Gives the
// reference's tokens for the Unicode version of unicode_version().

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

/// vocab.txt: one token a line, white space stripped; the id is the line's number, from 0. If several lines have the
/// same token, the last one gives its id, as in google-research/bert and transformers; the embedding of a model still
/// has a row for each line.
class BertVocab {
 public:
  /// DataError for a file that cannot be read, is not UTF-8, lacks [UNK], [CLS], [SEP] or [MASK], or has more than
  /// 32,767 lines (the files store ids as int16).
  explicit BertVocab(const std::filesystem::path& path);
  /// -1: not in the vocabulary.
  int32_t find(std::string_view token) const;
  int32_t size() const { return lines_; }  // ids are below it
  /// Ids of the distinct tokens, in order of first appearance. Random tokens are drawn from this list.
  const std::vector<int16_t>& tokens() const { return tokens_; }
  /// Lines that a later line repeats: their ids are unused.
  int32_t repeated() const { return lines_ - static_cast<int32_t>(tokens_.size()); }
  /// Tokens with a capital letter of ASCII, without the special ones. Cased vocabularies have thousands of them, others
  /// almost none.
  int32_t capitals() const { return capitals_; }
  size_t longest() const { return longest_; }  // token, in bytes
  uint64_t hash() const { return hash_; }      // of the file
  int16_t unk = 0, cls = 0, sep = 0, mask = 0;

 private:
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> ids_;
  std::vector<int16_t> tokens_;
  int32_t lines_ = 0, capitals_ = 0;
  size_t longest_ = 0;
  uint64_t hash_ = 0;
};

/// Encodes lines. Caches the ids of words, so it is not thread-safe: one object per thread.
class BertTokenizer {
 public:
  /// `cased`: the text keeps its case and its accents, as with do_lower_case false.
  explicit BertTokenizer(const BertVocab& vocab, bool cased = false) : vocab_(vocab), cased_(cased) {}
  /// Appends the ids of `line`, which is valid UTF-8.
  void encode(std::string_view line, std::vector<int16_t>& ids);

 private:
  struct Span {
    uint32_t begin, count;
  };
  void encode_chunk(std::string_view chunk, std::vector<int16_t>& ids);
  void encode_word(std::u32string_view word, std::vector<int16_t>& ids);
  void match_pieces(const char32_t* first, const char32_t* last, std::vector<int16_t>& ids);

  const BertVocab& vocab_;
  const bool cased_;
  std::unordered_map<std::string, Span, StringHash, std::equal_to<>> known_;
  std::vector<int16_t> known_ids_;
  std::u32string cleaned_;
  std::u32string folded_;
  std::string bytes_;
  std::vector<size_t> boundaries_;
};

}  // namespace trireme
