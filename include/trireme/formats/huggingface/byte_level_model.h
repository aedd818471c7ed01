#pragma once
// Hugging Face's files of tokenizers: tokenizer.json, or GPT-2's vocab.json and merges.txt (openai/gpt-2
// src/encoder.py; huggingface/tokenizers): byte-level BPE, and sentencepiece's BPE and unigram models in
// tokenizer.json. This part reads and writes the files; data/tokenizer encodes and decodes.

#include "trireme/formats/huggingface/folder_tokens.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The pre-split of GPT-2, as by a ByteLevel pre-tokenizer with use_regex.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// GPT-2's special token.
inline constexpr const char* kEndOfText = "<|endoftext|>";
/// The pre-tokenizer Digits with individual_digits, and without.
inline constexpr std::string_view kDigitPattern = R"(\p{N})", kDigitsPattern = R"(\p{N}+)";

/// One step of the pre-tokenizer: cuts every piece of text into smaller ones.
struct PreSplitStep {
  std::string pattern;        // in Oniguruma's syntax; empty: no cut
  bool literal = false;       // the pattern is plain text
  bool invert = false;        // with `removed`: the text between the matches is removed, not the matches
  bool removed = false;       // else matches and the text between them are pieces (Isolated)
  bool prefix_space = false;  // a space is put before a piece that does not begin with one, before it is cut
  bool operator==(const PreSplitStep&) const = default;
};

struct ByteLevelMerge {
  int32_t left = 0, right = 0, result = 0;  // token ids
};

/// A change of the text before it is cut into words.
struct NormaliserStep {
  enum Kind { kNfc, kPrepend, kReplace } kind = kNfc;
  std::string from = {}, to = {};  // replace `from` by `to`; put `to` before a text that is not empty
  bool operator==(const NormaliserStep&) const = default;
};

/// The pre-tokenizer of sentencepiece's kind: "▁" for spaces.
struct Metaspace {
  enum Scheme { kAlways, kFirst, kNever };
  std::string replacement = "\u2581";
  Scheme scheme = kAlways;  // what gets a leading "▁": each part between added tokens, the text, nothing
  bool split = true;        // each "▁" begins a word
};

/// One step of the decoder of sentencepiece's kind, over the texts of the tokens.
struct DecoderStep {
  enum Kind { kReplace, kByteFallback, kFuse, kStrip, kMetaspace } kind = kFuse;
  std::string from = {}, to = {};  // kReplace; kStrip: `from`; kMetaspace: "▁" is `from`
  int64_t start = 0, stop = 0;     // kStrip: number of `from` to remove; kMetaspace: 1 if the first token's is removed
  bool operator==(const DecoderStep&) const = default;
};

/// NamedTokens: from tokenizer_config.json or special_tokens_map.json beside the file; else from the post-processor;
/// else <|endoftext|>, GPT-2's.
struct ByteLevelModel : NamedTokens {
  /// Tokens are text (sentencepiece's kind); otherwise they are in the characters of the byte map.
  bool characters = false;
  bool byte_fallback = false;          // characters without a token become the tokens <0x00> to <0xFF>
  std::vector<double> scores;          // by id: a unigram model, without merges
  std::vector<DecoderStep> decoder;    // characters; none: spaces between the tokens
  std::optional<Metaspace> metaspace;  // characters
  std::vector<std::string> tokens;     // by id; empty: no token has this id
  std::vector<ByteLevelMerge> merges;  // the first has the highest priority
  std::optional<int32_t> unknown_id;   // for bytes without a token
  bool fuse_unknown = false;
  bool ignore_merges = false;  // a word that is a token needs no merges
  std::vector<NormaliserStep> normalisers;
  std::vector<PreSplitStep> steps;
  std::vector<AddedToken> added;
  std::vector<int32_t> leading, trailing;  // tokens that the post-processor puts before and after a text
};

/// The character for byte b in tokens: the byte itself if it is printable Latin-1, else a character from U+0100 on.
const std::array<char32_t, 256>& byte_level_characters();
/// The bytes of a token; the token itself if one of its characters represents no byte.
std::string byte_level_bytes(std::string_view token);
/// The token of these bytes.
std::string byte_level_token(std::string_view bytes);

/// Reads tokenizer.json, or vocab.json with the merges.txt beside it, and BOS, EOS and padding from
/// tokenizer_config.json and special_tokens_map.json. DataError with path and place for damaged files, duplicate ids
/// and merges of unknown tokens; unsupported features are refused by name. If tokenizer_config.json names
/// LlamaTokenizer, for which transformers 5 builds a tokenizer from the vocabulary, `metaspace` is that of this class;
/// where it names another such class, or config.json's family has one, whose rules are not those of the file, a warning
/// says so.
ByteLevelModel read_byte_level_model(const std::filesystem::path& path, const std::filesystem::path& config = {});
/// Reads the bytes of a tokenizer.json. `path` is for messages.
ByteLevelModel parse_tokenizer_json(std::string_view bytes, const std::filesystem::path& path);
ByteLevelModel parse_vocab_and_merges(std::string_view vocab, const std::filesystem::path& vocab_path,
                                      std::string_view merges, const std::filesystem::path& merges_path);

/// The words of a part of a text by `metaspace`. `first`: it is the text's first part.
std::vector<std::string> metaspace_words(const Metaspace& metaspace, std::string_view text, bool first);
/// The Metaspace of transformers' LlamaTokenizer with "legacy" and "add_prefix_space" from tokenizer_config.json.
/// nullopt if that file names neither the class nor these keys, or (with `checks_model`) if config.json is of another
/// family than llama; then the tokenizer's own file applies.
std::optional<Metaspace> llama_metaspace(const TokenizerFolder& folder, bool checks_model);
/// The decoder of that class.
std::vector<DecoderStep> llama_decoder(const Metaspace& metaspace);

/// The files of a model, from which `tokenizers` and `transformers` get the same ids.
std::string tokenizer_json(const ByteLevelModel& model);
std::string vocab_json(const ByteLevelModel& model);
std::string merges_txt(const ByteLevelModel& model);
/// A tokenizer_config.json with which transformers' AutoTokenizer gives the same ids. `max_length`: model_max_length; 0
/// = not written.
std::string byte_level_config_json(const ByteLevelModel& model, int64_t max_length);

}  // namespace trireme
