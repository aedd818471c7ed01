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
                     *kAdded = "added_tokens.json", *kExtra = "extra_special_tokens",
                     *kOldExtra = "additional_special_tokens";
constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};  // in transformers' order

/// In the order of the text: by "" the keys of its object for tokens that only some models have, and by the key of each
/// object in it that object's keys. An ordered_json is too slow where added_tokens_decoder has many.
using Keys = std::map<std::string, std::vector<std::string>>;

Keys keys_in_order(const std::string& text) {
  Keys keys;
  std::string outer;
  const auto see = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    if (event != nlohmann::json::parse_event_t::key || depth > 2) return false;
    const auto& key = value.get_ref<const std::string&>();
    if (depth == 2 || (key.ends_with("_token") && std::ranges::find(kNamedTokens, key) == std::end(kNamedTokens)))
      keys[depth == 1 ? "" : outer].push_back(key);
    if (depth == 1) outer = key;
    return false;
  };
  [[maybe_unused]] const auto nothing = nlohmann::json::parse(text, see);
  return keys;
}

}  // namespace

struct TokenizerFolder::Files {
  Files(const fs::path& where, const fs::path& of_model)
      : folder(where),
        model(of_model.empty() ? where / "config.json" : of_model),
        config(read(kConfig, &config_keys)),
        map(read(kMap, &map_keys)) {
    const auto name = member(config, "tokenizer_class");
    if (name.is_string()) tokenizer_class = name.get<std::string>();
    decoder = member(config, "added_tokens_decoder");
    if (decoder.is_null()) {
      added = read(kAdded);
    } else {
      map = nullptr;
      map_keys.clear();
    }
    if (config.contains(kOldExtra) && member(config, kExtra).empty()) extra_key = kOldExtra;
    if (member(config, "split_special_tokens") == true)
      throw DataError((where / kConfig).string() +
                      ": \"split_special_tokens\" is true, which makes special tokens in a text plain text: not "
                      "supported; remove the key if texts have none");
    find_names();
    find_model_tokens();
    find_extra();
  }

  nlohmann::json read(const char* name, Keys* keys = nullptr) const {
    const fs::path path = folder / name;
    if (!fs::is_regular_file(path)) return {};
    const std::string text = read_text_file(path, ExitCode::kData, kMaxTokenizerFile);
    auto json = parse_json(text, path.string(), ExitCode::kData);
    if (keys != nullptr && json.is_object()) *keys = keys_in_order(text);
    return json;
  }
  void find_names();
  void find_model_tokens();
  void find_extra();
  /// nullopt where `json` is no token. A token that is a text is special.
  std::optional<AddedToken> token_of(nlohmann::json json, bool special) const;

  std::vector<AddedToken> named_in_order(const std::map<std::string, std::string>& defaults) const;
  std::map<int64_t, AddedToken> listed_tokens(const std::vector<AddedToken>& special) const;

  fs::path folder, model;
  Keys config_keys, map_keys;  // before what read() makes
  nlohmann::json config, map, decoder, added;
  std::map<std::string, std::optional<AddedToken>> named;
  std::vector<std::pair<std::string, AddedToken>> model_tokens;  // other special tokens with a name, and their keys
  std::string extra_key = kExtra;                                // or transformers 4's
  std::vector<AddedToken> extra;
  bool has_extra = false;
  std::string tokenizer_class;
};

std::optional<AddedToken> TokenizerFolder::Files::token_of(nlohmann::json json, bool special) const {
  if (json.is_string()) return AddedToken{.content = json.get<std::string>()};
  if (!member(json, "content").is_string()) return std::nullopt;
  if (special) json["special"] = true;
  return TokenJson(folder).added_token(json, "a special token");
}

void TokenizerFolder::Files::find_names() {
  for (const auto& [name, json] : {std::pair{kMap, &map}, {kConfig, &config}})
    for (const char* key : kNamedTokens) {
      if (!json->is_object() || !json->contains(key) || named.contains(key)) continue;
      const auto token = token_of(json->at(key), true);
      if (!token && !json->at(key).is_null())
        throw DataError(fmt::format("{}: \"{}\" is not the text of a token", (folder / name).string(), key));
      named.emplace(key, token);
    }
}

/// As transformers merges them: a later token replaces one with its key, and takes its place.
void TokenizerFolder::Files::find_model_tokens() {
  std::vector<std::string> order;
  std::map<std::string, nlohmann::json> tokens;
  const auto set = [&](const std::string& key, const nlohmann::json& token) {
    if (tokens.insert_or_assign(key, token).second) order.push_back(key);
  };
  for (const std::string& key : config_keys[""])
    if (member(config[key], "__type") == "AddedToken") set(key, config[key]);
  for (const std::string& key : map_keys[""]) set(key, map[key]);
  for (const std::string& key : config_keys[""])
    if (config[key].is_string()) set(key, config[key]);
  for (const std::string& key : config_keys[extra_key]) set(key, config[extra_key][key]);
  for (const std::string& key : map_keys[kExtra]) set(key, map[kExtra][key]);
  for (const std::string& key : order)
    if (auto token = token_of(tokens[key], true)) model_tokens.emplace_back(key, std::move(*token));
}

/// As transformers merges them: an object in either file is find_model_tokens()'s, and what else stands under the old
/// key counts where nothing stands under the new one.
void TokenizerFolder::Files::find_extra() {
  const auto of_map = member(map, kExtra);
  const bool in_config = config.contains(extra_key) && !config[extra_key].is_object(), in_map = map.contains(kExtra);
  has_extra = in_map ? !of_map.is_object() : in_config;
  const auto add = [&](const nlohmann::json& list, bool special) {
    for (const auto& json : list)
      if (auto token = token_of(json, special)) extra.push_back(std::move(*token));
  };
  if (in_config && (!in_map || of_map.is_array())) add(config[extra_key], false);
  if (in_map && has_extra) add(of_map, true);
  // Of a tokenizer.model transformers takes the control pieces instead.
  if (has_extra || (fs::exists(folder / "tokenizer.model") && !fs::exists(folder / "tokenizer.json"))) return;
  if (const auto old = member(map, kOldExtra); !old.is_null())
    add(old, true);
  else if (extra_key != kOldExtra)
    add(member(config, kOldExtra), false);
}

/// In the order in which transformers adds them. `defaults`: for keys that are absent.
std::vector<AddedToken> TokenizerFolder::Files::named_in_order(
    const std::map<std::string, std::string>& defaults) const {
  std::vector<AddedToken> tokens;
  for (const char* key : kNamedTokens) {
    const auto by_file = named.find(key);
    const auto by_class = defaults.find(key);
    if (by_file == named.end() && by_class != defaults.end())
      tokens.push_back({.content = by_class->second});
    else if (by_file != named.end() && by_file->second)
      tokens.push_back(*by_file->second);
  }
  for (const auto& [key, token] : model_tokens) tokens.push_back(token);
  std::erase_if(tokens, [](const AddedToken& token) { return token.content.empty(); });
  return tokens;
}

/// The tokens of added_tokens_decoder or else of added_tokens.json.
std::map<int64_t, AddedToken> TokenizerFolder::Files::listed_tokens(const std::vector<AddedToken>& special) const {
  std::map<int64_t, AddedToken> tokens;
  std::set<std::string> texts;
  for (const AddedToken& token : special) texts.insert(token.content);
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
    token.special |= texts.contains(token.content);
    add(path, *id, std::move(token));
  }
  if (!decoder.empty()) return tokens;
  if (has_extra)
    for (const AddedToken& token : extra)
      if (token.special) texts.insert(token.content);
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
  const std::vector<AddedToken> named = files.named_in_order(defaults);
  tokens.has_extra = files.has_extra;
  tokens.has_flags = !files.decoder.empty();
  std::set<std::string> seen;
  for (auto& [id, token] : files.listed_tokens(named)) {
    const int64_t ours = id_of(token.content).value_or(static_cast<int32_t>(next));
    if (ours != id)
      throw DataError(fmt::format(
          "{}: the token '{}' has the id {}, but the {} tokens of the tokenizer and those before it give it {}",
          files.folder.string(), token.content, id, next, ours));
    next = std::max(next, ours + 1);
    seen.insert(token.content);
    tokens.listed.push_back(std::move(token));
  }
  // Those of a text that differ. The last ones count, but a token that was special once stays special.
  std::map<std::string, std::vector<AddedToken>> flags;
  for (const auto* list : {&named, &files.extra})
    for (const AddedToken& token : *list)
      if (auto& known = flags[token.content]; std::ranges::find(known, token) == known.end()) known.push_back(token);
  const auto add = [&](const std::string& text, std::vector<AddedToken>& to) {
    const auto id = id_of(text);
    const bool by_default = std::ranges::any_of(defaults, [&](const auto& entry) { return entry.second == text; });
    if (text.empty() || !seen.insert(text).second || (!id && by_default)) return;
    to.push_back(flags[text].back());
    to.back().special = &to == &tokens.named || std::ranges::any_of(flags[text], &AddedToken::special);
    to.back().id = id.value_or(static_cast<int32_t>(next));
    next = std::max<int64_t>(next, to.back().id + 1);
  };
  for (const AddedToken& token : named) add(token.content, tokens.named);
  for (const AddedToken& token : files.extra) add(token.content, tokens.extra);
  return tokens;
}

std::map<std::string, std::optional<std::string>> TokenizerFolder::named_tokens() const {
  std::map<std::string, std::optional<std::string>> texts;
  for (const auto& [key, token] : files_->named)
    texts.emplace(key, token ? std::optional(token->content) : std::nullopt);
  return texts;
}

std::map<std::string, std::string> TokenizerFolder::model_tokens() const {
  std::map<std::string, std::string> texts;
  for (const auto& [key, token] : files_->model_tokens) texts.emplace(key, token.content);
  return texts;
}

void TokenizerFolder::find_named_tokens(const TokenLookup& id_of, int64_t in_files, NamedTokens& tokens) const {
  for (const auto& [key, id] :
       {std::pair{"bos_token", &tokens.bos_id}, {"eos_token", &tokens.eos_id}, {"pad_token", &tokens.pad_id}}) {
    const auto found = files_->named.find(key);
    if (found == files_->named.end() || (found->second && found->second->content.empty()))
      continue;  // files of Llama 1 name nothing so
    *id = found->second ? id_of(found->second->content) : std::nullopt;
  }
  if (tokens.pad_id >= in_files) tokens.pad_id.reset();  // a model need not have a row for it
}

std::optional<std::set<std::string>> TokenizerFolder::listed_texts() const {
  if (files_->decoder.is_null()) return std::nullopt;
  std::set<std::string> texts;
  for (const auto& [id, token] : files_->decoder.items())
    if (const auto text = member(token, "content"); text.is_string()) texts.insert(text.get<std::string>());
  return texts;
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
