#pragma once
// tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen2), BPE and unigram models of sentencepiece's kind: the ids of
// Hugging Face `tokenizers`.

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_encoder.h"
#include "data/tokenizer/pre_split.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unigram.h"
#include "trireme/formats/huggingface/byte_level_model.h"

#include <mutex>

namespace trireme {

/// The text of tokens of characters; no steps: spaces between the tokens.
std::string decode_characters(const std::vector<DecoderStep>& steps, std::vector<std::string> texts);

class ByteLevelTokenizer final : public TokenizerModel {
 public:
  /// DataError, with `path`, for a pre-split that PCRE2 refuses.
  ByteLevelTokenizer(ByteLevelModel model, const std::filesystem::path& path);
  ~ByteLevelTokenizer() override;

  int32_t add_special(const std::string& text) override;
  void encode(std::string_view text, std::vector<int32_t>& ids, TextMarks* marks) const override;
  std::string decode(std::span<const int32_t> ids, bool with_specials) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  bool is_byte(int32_t id) const override;

 private:
  /// Encodes text without added tokens that begins at byte `begin` of what `marks` counts in.
  void encode_words(std::string_view plain, size_t begin, BpeEncoder::Cache& cache, std::vector<int32_t>& ids,
                    TextMarks* marks) const;
  /// The same for a model of characters; `first`: the text begins with this part.
  void encode_characters(std::string_view part, bool first, BpeEncoder::Cache& cache, std::vector<int32_t>& ids) const;
  /// Applies model_.normalisers. Returns false, without writing `out`, if nothing changes.
  /// `of_first`: how many bytes at the result's start `tokenizers` holds to come from the first character of the text:
  /// what replaces a match comes from its last one.
  bool normalise(std::string_view text, std::string& out, size_t* of_first = nullptr) const;
  struct Piece {
    std::string bytes;
    bool special = false;  // special in the file: decode() omits it
  };
  void add_token(const AddedToken& token, bool of_file);
  std::shared_ptr<BpeEncoder::Cache> take_cache() const;

  ByteLevelModel model_;
  PreSplitter splitter_;
  BpeEncoder encoder_;
  std::optional<UnigramDecoder> unigram_;
  AddedTokenFinder raw_, normalised_;  // in the text as it is; in the normalised text
  std::vector<Piece> pieces_;          // by id
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<BpeEncoder::Cache>> caches_;  // of no thread at the moment
};

/// Text in which every byte that is not UTF-8 is U+FFFD, one for each maximal part of a character (Unicode 16, 3.9).
std::string replace_invalid_utf8(std::string bytes);

}  // namespace trireme
