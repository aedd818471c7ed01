#pragma once
// sentencepiece models.

#include "data/tokenizer/tokenizer.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"

namespace trireme {

class SentencepieceTokenizer final : public TokenizerModel {
 public:
  /// DataError for bytes that are damaged or not a sentencepiece model.
  SentencepieceTokenizer(std::string serialized_model, const std::filesystem::path& name_for_errors);
  ~SentencepieceTokenizer() override;

  std::string kind() const override { return "sentencepiece"; }
  int32_t add_special(const std::string& text) override;
  void encode(std::string_view text, std::vector<int32_t>& ids, TextMarks* marks) const override;
  std::string decode(std::span<const int32_t> ids, bool with_specials) const override;
  int64_t vocab_size() const override;
  int64_t base_vocab_size() const override;
  std::optional<int32_t> bos_id() const override;
  std::optional<int32_t> eos_id() const override;
  std::optional<int32_t> pad_id() const override;
  std::vector<int32_t> leading() const override;

 private:
  /// The tokens of the places inside of a part without special tokens, which begins at byte `begin` of the text and
  /// gave the ids from `first` on.
  void find_marks(std::string_view part, size_t begin, const std::vector<int32_t>& ids, size_t first,
                  TextMarks& marks) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
