#pragma once
// Tokenizers: sentencepiece models and byte-level BPE behind one interface.

#include "trireme/formats/huggingface/folder_tokens.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Finds the tokens of places in a text while the text is encoded.
struct TextMarks {
  std::vector<size_t> places;  // bytes of the text, ascending
  std::vector<size_t> tokens;  // filled: for each place the number of tokens that end at or before it

  /// Token `index` of the text ends at byte `end`; called in order.
  void token(size_t end, size_t index) {
    while (tokens.size() < places.size() && places[tokens.size()] < end) tokens.push_back(index);
  }
  /// The tokens from `first` on are those of `part`, which begins at byte `begin`. Where `length_of` (bytes of the text
  /// that a token stands for) does not sum up to it, a place's token is found by encoding the part up to the place.
  void add_part(std::string_view part, size_t begin, const std::vector<int32_t>& ids, size_t first,
                const std::function<size_t(int32_t)>& length_of,
                const std::function<void(std::string_view, std::vector<int32_t>&)>& encode_head);
};

/// What Tokenizer's members of these names give.
struct TokenizerFacts : NamedTokens {
  std::string kind;
  int64_t base_vocab_size = 0;
  std::vector<int32_t> leading;
};

/// What the two kinds of tokenizers implement. Const members are thread-safe.
class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  const TokenizerFacts& facts() const { return facts_; }
  virtual int32_t add_special(const std::string& text) = 0;
  /// Appends the ids of `text`, which is valid UTF-8. `marks`: null, or called for each token, as far as one is left.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids, TextMarks* marks) const = 0;
  /// `ids` are inside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids, bool with_specials) const = 0;
  virtual int64_t vocab_size() const = 0;
  /// The token is a byte whose text depends on the bytes beside it: a run of them that is not UTF-8 is U+FFFD.
  virtual bool is_byte(int32_t id) const = 0;

 protected:
  TokenizerFacts facts_;
};

/// A loaded tokenizer of either kind. Const members are thread-safe.
class Tokenizer {
 public:
  /// Opens a directory, or one of its files: tokenizer.json, sentencepiece's tokenizer.model, or GPT-2's vocab.json
  /// with merges.txt; a directory's files are looked for in this order, as transformers does. DataError for a directory
  /// without any, for files that are damaged, and for tokenizers of other kinds (by name). `config`: the model's
  /// config.json, whose family may decide how the files are read; empty: that beside them.
  explicit Tokenizer(const std::filesystem::path& path, const std::filesystem::path& config = {});
  /// A sentencepiece model from its bytes.
  Tokenizer(std::string serialized_model, const std::filesystem::path& name_for_errors);
  explicit Tokenizer(std::unique_ptr<TokenizerModel> model) : model_(std::move(model)) {}

  /// "sentencepiece" (a tokenizer.model), "byte-level BPE", or "BPE" and "unigram" (of characters, in tokenizer.json).
  std::string kind() const { return model_->facts().kind; }
  /// Makes `text` a single token and returns its id: the id of the existing token with that name, otherwise the next id
  /// after the vocabulary.
  int32_t add_special(const std::string& text) { return model_->add_special(text); }

  /// Ids of UTF-8 text, without what the model expects around it (leading()). DataError with the offset of the first
  /// byte that is not UTF-8. Special tokens are split out first.
  ///
  /// tokenizer.model alone, or beside a tokenizer_config.json that names no class: special tokens are those of
  /// add_special(), leftmost, longest, and the text between two of them is encoded by sentencepiece on its own: each
  /// such part gets sentencepiece's leading space. With transformers' LlamaTokenizer in tokenizer_config.json, or its
  /// keys "legacy" and "add_prefix_space": control pieces and the tokens that the files add are special tokens too, and
  /// spaces are put before a part as that class (transformers 5) does. A unigram model gives the segmentation of
  /// sentencepiece 0.2.3, whichever version is linked (unigram.h).
  ///
  /// tokenizer.json: what `tokenizers` gives with add_special_tokens=False.
  std::vector<int32_t> encode(std::string_view text) const;
  /// The same, and the tokens of the places in `marks`. Where a sentencepiece model or NFC changes the text, a token
  /// that begins and ends beside the place counts by the longest common beginning with the text up to the place.
  std::vector<int32_t> encode(std::string_view text, TextMarks& marks) const;
  /// encode() of every text, in order, on `threads` threads (0: one per core).
  std::vector<std::vector<int32_t>> encode_all(std::span<const std::string_view> texts, unsigned threads = 0) const;
  /// Text of ids. Control pieces of sentencepiece (BOS, EOS) and special tokens of the files give no text unless
  /// `with_specials`; tokens of add_special() give their name. Byte-level: bytes that are not UTF-8 become U+FFFD as
  /// Python's errors="replace" does it, and an id without a token inside the vocabulary gives no text. DataError for an
  /// id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool with_specials = false) const;

  bool is_byte(int32_t id) const { return model_->is_byte(id); }
  int64_t vocab_size() const { return model_->vocab_size(); }  // largest id + 1, with added special tokens
  int64_t base_vocab_size() const { return model_->facts().base_vocab_size; }  // without those of add_special()
  std::optional<int32_t> bos_id() const { return model_->facts().bos_id; }     // none when the model has no such token
  std::optional<int32_t> eos_id() const { return model_->facts().eos_id; }
  std::optional<int32_t> pad_id() const { return model_->facts().pad_id; }
  /// What the model expects before a text. tokenizer.json: what its post-processor says (GPT-2, Qwen2: nothing). Other
  /// files: BOS if tokenizer_config.json says add_bos_token; without the key none, but BOS of a tokenizer.model that is
  /// read as sentencepiece does (encode()).
  std::vector<int32_t> leading() const { return model_->facts().leading; }

 private:
  std::unique_ptr<TokenizerModel> model_;
};

/// The file that Tokenizer opens for `path`; nullopt for a directory without one, or where nothing is.
std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& path);
/// That file and those of its directory from which Tokenizer reads tokens and settings; empty without one.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& path);

/// A sentence for a model directory that lacks a tokenizer: which files it may be.
inline constexpr const char* kTokenizerFiles = "tokenizer.model, tokenizer.json, or vocab.json with merges.txt";

/// The text of ids that come one by one. A character whose bytes are not complete is held back.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, bool with_specials = false)
      : tokenizer_(tokenizer), with_specials_(with_specials) {}
  /// The text that `id` completes, perhaps none. All texts together, with finish(), are decode() of all ids.
  std::string add(int32_t id);
  /// What is held back at the end; incomplete characters are U+FFFD.
  std::string finish();

 private:
  std::string take(bool all);
  const Tokenizer& tokenizer_;
  bool with_specials_;
  // The ids since the one before the last text: earlier ones do not change what later ones give.
  std::vector<int32_t> ids_;
  size_t read_ = 0;  // ids of which the text is given
};

}  // namespace trireme
