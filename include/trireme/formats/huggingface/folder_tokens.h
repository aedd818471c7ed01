#pragma once
// The tokens that the files of a folder add to a tokenizer, and those that have a part of their own, as transformers 5
// reads them: tokenizer_config.json, special_tokens_map.json, added_tokens.json.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme {

/// A token that is cut out of the text before it is split into words.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = true;       // decode() omits it by default
  bool single_word = false;  // only if no word character is beside it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // … after it
  bool normalized = false;   // searched in the normalised text

  bool operator==(const AddedToken&) const = default;
};

/// Ids of a tokenizer's tokens with a part of their own; nullopt: it has none.
struct NamedTokens {
  std::optional<int32_t> bos_id, eos_id, pad_id;
};

/// The id of a token's text; nullopt: there is none.
using TokenLookup = std::function<std::optional<int32_t>(const std::string& text)>;

/// What the files in a folder add to a tokenizer. `listed`: tokenizer_config.json's "added_tokens_decoder", or else
/// added_tokens.json, by id. `named`: the other texts of TokenizerFolder::named_tokens() and model_tokens(), which are
/// special tokens. `extra`: those of "extra_special_tokens" or "additional_special_tokens", which are special where the
/// tokenizer does not have them.
struct FolderTokens {
  std::vector<AddedToken> listed, named, extra;
  bool has_flags = false;  // `listed` says how each token is found; else it has an id alone
  bool has_extra = false;  // that list is there, be it empty: transformers then takes no control pieces of its own
};

/// The files beside a tokenizer. All but config.json are read once, by the constructor; what is absent says nothing.
/// DataError with the path for damaged ones.
class TokenizerFolder {
 public:
  /// `config`: the model's config.json; empty: that of the folder.
  explicit TokenizerFolder(const std::filesystem::path& folder, const std::filesystem::path& config = {});

  /// bos_token, eos_token, unk_token, sep_token, pad_token, cls_token and mask_token; a key with null says "none". As
  /// in transformers special_tokens_map.json wins, unless tokenizer_config.json has "added_tokens_decoder".
  std::map<std::string, std::optional<std::string>> named_tokens() const;
  /// Other keys that end with _token, and the members of "extra_special_tokens" where that is an object.
  std::map<std::string, std::string> model_tokens() const;
  /// A token without an id in the tokenizer gets the next one, from `next` on. `defaults`: the names of a class's own
  /// tokens where the files do not name others, by key; only those that the tokenizer has. DataError for a listed id
  /// that is another.
  FolderTokens tokens(const TokenLookup& id_of, int64_t next,
                      const std::map<std::string, std::string>& defaults = {}) const;
  /// Replaces what named_tokens() has. Padding from id `in_files` on, which no file has, is none.
  void find_named_tokens(const TokenLookup& id_of, int64_t in_files, NamedTokens& tokens) const;

  /// The texts of tokenizer_config.json's "added_tokens_decoder"; nullopt without it.
  std::optional<std::set<std::string>> listed_texts() const;

  /// "tokenizer_class" of tokenizer_config.json; empty where it names none.
  std::string tokenizer_class() const;
  /// "model_type" of config.json, which is read with each call.
  std::string model_type() const;
  /// A key of tokenizer_config.json that is true or false.
  std::optional<bool> flag(const char* key) const;

 private:
  struct Files;
  std::shared_ptr<const Files> files_;
};

}  // namespace trireme
