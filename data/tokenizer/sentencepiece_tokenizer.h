#pragma once
// sentencepiece models.

#include "data/tokenizer/tokenizer.h"
#include "trireme/formats/huggingface/byte_level_model.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"

namespace trireme {

class SentencepieceTokenizer final : public TokenizerModel {
 public:
  /// DataError for bytes that are damaged or not a sentencepiece model. With `folder`, what the tokenizer_config.json
  /// and added_tokens.json there say of added tokens and of the space before a part is applied (Tokenizer::encode).
  SentencepieceTokenizer(std::string serialized_model, const std::filesystem::path& name_for_errors,
                         const std::filesystem::path& folder = {});
  ~SentencepieceTokenizer() override;

  int32_t add_special(const std::string& text) override;
  void encode(std::string_view text, std::vector<int32_t>& ids, TextMarks* marks) const override;
  std::string decode(std::span<const int32_t> ids, bool with_specials) const override;
  int64_t vocab_size() const override;
  bool is_byte(int32_t id) const override;

 private:
  /// A part without special tokens; `first`: the text begins with it.
  void encode_plain(std::string_view text, bool first, std::vector<int32_t>& ids) const;
  /// What the files in `folder` add and name.
  void add_tokens_of(const TokenizerFolder& folder);
  void add_token(const AddedToken& token);
  std::optional<int32_t> piece_of(const std::string& text) const;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
