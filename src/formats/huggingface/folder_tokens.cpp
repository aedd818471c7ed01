#include "trireme/formats/huggingface/folder_tokens.h"

#include "token_json.h"

#include "trireme/base/text.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace trireme {

namespace {

namespace fs = std::filesystem;

constexpr const char *kConfig = "tokenizer_config.json", *kMap = "special_tokens_map.json",
                     *kAdded = "added_tokens.json";
constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};  // in transformers' order

/// The texts of a list, or of an object's values, whose entries are texts or have them as "content".
void add_texts(const nlohmann::json& list, std::vector<std::string>& texts) {
  for (const auto& entry : list)
    if (const auto text = entry.is_object() ? member(entry, "content") : entry; text.is_string())
      texts.push_back(text.get<std::string>());
}

}  // namespace

struct TokenizerFolder::Files {
  Files(const fs::path& where, const fs::path& of_model)
      : folder(where),
        model(of_model.empty() ? where / "config.json" : of_model),
        config(read(kConfig)),
        map(read(kMap)) {
    const auto name = member(config, "tokenizer_class");
    if (name.is_string()) tokenizer_class = name.get<std::string>();
    decoder = member(config, "added_tokens_decoder");
    if (decoder.empty()) added = read(kAdded);
    if (member(config, "split_special_tokens") == true)
      throw DataError((where / kConfig).string() +
                      ": \"split_special_tokens\" is true, which makes special tokens in a text plain text: not "
                      "supported; remove the key if texts have none");
    find_names();
  }

  nlohmann::json read(const char* name) const {
    return read_json_if_there(folder / name, ExitCode::kData, kMaxTokenizerFile);
  }
  void find_names();

  std::vector<std::string> named_in_order(const std::map<std::string, std::string>& defaults) const;
  std::vector<std::string> extra_tokens() const;
  std::map<int64_t, AddedToken> listed_tokens(const std::set<std::string>& special,
                                              const std::vector<std::string>& extra) const;

  fs::path folder, model;
  nlohmann::json config, map, decoder, added;
  std::map<std::string, std::optional<std::string>> named;
  std::string tokenizer_class;
};

void TokenizerFolder::Files::find_names() {
  std::vector<std::pair<const char*, const nlohmann::json*>> files = {{kConfig, &config}};
  if (decoder.is_null()) files.insert(files.begin(), {kMap, &map});
  for (const auto& [name, json] : files)
    for (const char* key : kNamedTokens) {
      if (!json->is_object() || !json->contains(key)) continue;
      auto value = json->at(key);
      if (value.is_object()) value = member(value, "content");
      if (!value.is_null() && !value.is_string())
        throw DataError(fmt::format("{}: \"{}\" is not the text of a token", (folder / name).string(), key));
      named.emplace(key, value.is_null() ? std::nullopt : std::optional(value.get<std::string>()));
    }
}

/// The names in the order in which transformers adds them. `defaults`: for keys that are absent.
std::vector<std::string> TokenizerFolder::Files::named_in_order(
    const std::map<std::string, std::string>& defaults) const {
  std::vector<std::string> texts;
  for (const char* key : kNamedTokens) {
    const auto by_file = named.find(key);
    const auto by_class = defaults.find(key);
    if (by_file != named.end() ? by_file->second.has_value() : by_class != defaults.end())
      texts.push_back(by_file != named.end() ? *by_file->second : by_class->second);
  }
  std::erase(texts, "");
  return texts;
}

/// "extra_special_tokens", or "additional_special_tokens", its name in transformers 4.
std::vector<std::string> TokenizerFolder::Files::extra_tokens() const {
  std::vector<std::string> texts;
  const auto extra = member(config, "extra_special_tokens");
  add_texts(extra.empty() ? member(config, "additional_special_tokens") : extra, texts);
  if (decoder.is_null()) add_texts(member(map, "extra_special_tokens"), texts);
  return texts;
}

/// The tokens of added_tokens_decoder or else of added_tokens.json.
std::map<int64_t, AddedToken> TokenizerFolder::Files::listed_tokens(const std::set<std::string>& special,
                                                                    const std::vector<std::string>& extra) const {
  std::map<int64_t, AddedToken> tokens;
  const fs::path path = folder / kConfig, other = folder / kAdded;
  const auto add = [&](const fs::path& file, int64_t id, AddedToken token) {
    if (id < 0 || id >= kMaxTokenId || token.content.empty())
      throw DataError(fmt::format("{}: the added token '{}' with the id {}", file.string(), token.content, id));
    token.id = static_cast<int32_t>(id);
    tokens[id] = std::move(token);
  };
  const TokenJson reader(path);
  for (const auto& [key, entry] : decoder.items()) {
    const auto id = parse_whole<int64_t>(key);
    const std::string where = "added token " + key;
    if (!id || *id < 0) reader.fail(where + ": the key is not an id");
    AddedToken token = reader.added_token(entry, where);
    token.special |= special.contains(token.content);
    add(path, *id, std::move(token));
  }
  if (!decoder.empty()) return tokens;
  std::set<std::string> texts = special;
  texts.insert(extra.begin(), extra.end());
  for (const auto& [text, id] : added.items())
    add(other, id.is_number_unsigned() ? id.get<int64_t>() : -1,
        {.content = text, .special = texts.contains(text), .normalized = !texts.contains(text)});
  return tokens;
}

TokenizerFolder::TokenizerFolder(const fs::path& folder, const fs::path& config)
    : files_(std::make_shared<const Files>(folder, config)) {}

FolderTokens TokenizerFolder::tokens(const TokenLookup& id_of, int64_t next,
                                     const std::map<std::string, std::string>& defaults) const {
  const Files& files = *files_;
  FolderTokens tokens;
  const std::vector<std::string> extra = files.extra_tokens(), named = files.named_in_order(defaults);
  tokens.has_extra = !extra.empty();
  tokens.has_flags = !files.decoder.empty();
  std::set<std::string> seen;
  for (auto& [id, token] : files.listed_tokens({named.begin(), named.end()}, extra)) {
    const int64_t ours = id_of(token.content).value_or(static_cast<int32_t>(next));
    if (ours != id)
      throw DataError(fmt::format(
          "{}: the token '{}' has the id {}, but the {} tokens of the tokenizer and those before it give it {}",
          files.folder.string(), token.content, id, next, ours));
    next = std::max(next, ours + 1);
    seen.insert(token.content);
    tokens.listed.push_back(std::move(token));
  }
  const auto add = [&](const std::string& text, std::vector<AddedToken>& to) {
    const auto id = id_of(text);
    const bool by_default = std::ranges::any_of(defaults, [&](const auto& entry) { return entry.second == text; });
    if (text.empty() || !seen.insert(text).second || (!id && by_default)) return;
    to.push_back({.content = text, .id = id.value_or(static_cast<int32_t>(next))});
    next = std::max<int64_t>(next, to.back().id + 1);
  };
  for (const std::string& text : named) add(text, tokens.named);
  for (const std::string& text : extra) add(text, tokens.extra);
  return tokens;
}

std::map<std::string, std::optional<std::string>> TokenizerFolder::named_tokens() const { return files_->named; }

std::map<std::string, std::string> TokenizerFolder::model_tokens() const {
  std::map<std::string, std::string> tokens;
  const auto extra = member(files_->config, "extra_special_tokens");
  for (const auto& [key, value] : extra.items())
    if (const auto text = value.is_object() ? member(value, "content") : value; extra.is_object() && text.is_string())
      tokens.emplace(key, text.get<std::string>());
  return tokens;
}

void TokenizerFolder::find_named_tokens(const TokenLookup& id_of, int64_t in_files, NamedTokens& tokens) const {
  for (const auto& [key, id] :
       {std::pair{"bos_token", &tokens.bos_id}, {"eos_token", &tokens.eos_id}, {"pad_token", &tokens.pad_id}}) {
    const auto found = files_->named.find(key);
    if (found == files_->named.end() || found->second == "") continue;  // files of Llama 1 name nothing so
    *id = found->second ? id_of(*found->second) : std::nullopt;
  }
  if (tokens.pad_id >= in_files) tokens.pad_id.reset();  // a model need not have a row for it
}

std::string TokenizerFolder::tokenizer_class() const { return files_->tokenizer_class; }

std::string TokenizerFolder::model_type() const {
  const auto type = member(read_json_if_there(files_->model, ExitCode::kData, kMaxTokenizerFile), "model_type");
  return type.is_string() ? type.get<std::string>() : "";
}

std::optional<bool> TokenizerFolder::flag(const char* key) const {
  const auto value = member(files_->config, key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean())
    throw DataError(fmt::format("{}: \"{}\" is {}, expected true or false", (files_->folder / kConfig).string(), key,
                                value.dump()));
  return value.get<bool>();
}

}  // namespace trireme
