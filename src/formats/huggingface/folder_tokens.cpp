#include "trireme/formats/huggingface/folder_tokens.h"

#include "token_json.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace trireme {

namespace {

namespace fs = std::filesystem;

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};  // in transformers' order

/// The texts of a list, or of an object's values, whose entries are texts or have them as "content".
void add_texts(const nlohmann::json& list, std::vector<std::string>& texts) {
  for (const auto& entry : list)
    if (const auto text = entry.is_object() ? member(entry, "content") : entry; text.is_string())
      texts.push_back(text.get<std::string>());
}

/// "extra_special_tokens", or "additional_special_tokens", its name in transformers 4.
std::vector<std::string> extra_tokens(const fs::path& folder) {
  std::vector<std::string> texts;
  const auto config = read_json_beside(folder / "tokenizer_config.json");
  const auto extra = member(config, "extra_special_tokens");
  add_texts(extra.empty() ? member(config, "additional_special_tokens") : extra, texts);
  if (member(config, "added_tokens_decoder").is_null())
    add_texts(member(read_json_beside(folder / "special_tokens_map.json"), "extra_special_tokens"), texts);
  return texts;
}

/// What the files in `folder` name, in the order in which transformers adds it. `defaults`: for keys that are absent.
std::vector<std::string> named_in_order(const fs::path& folder, const std::map<std::string, std::string>& defaults) {
  std::vector<std::string> texts;
  const auto named = named_tokens(folder);
  for (const char* key : kNamedTokens) {
    const auto by_file = named.find(key);
    const auto by_class = defaults.find(key);
    if (by_file != named.end() ? by_file->second.has_value() : by_class != defaults.end())
      texts.push_back(by_file != named.end() ? *by_file->second : by_class->second);
  }
  std::erase(texts, "");
  return texts;
}

/// The tokens of added_tokens_decoder (`has_flags`) or else of added_tokens.json.
std::map<int64_t, AddedToken> listed_tokens(const fs::path& folder, const std::set<std::string>& named,
                                            const std::vector<std::string>& extra, bool& has_flags) {
  std::map<int64_t, AddedToken> tokens;
  const fs::path path = folder / "tokenizer_config.json", other = folder / "added_tokens.json";
  const auto decoder = member(read_json_beside(path), "added_tokens_decoder");
  const auto add = [&](const fs::path& file, int64_t id, AddedToken token) {
    if (id < 0 || id >= kMaxTokenId || token.content.empty())
      throw DataError(fmt::format("{}: the added token '{}' with the id {}", file.string(), token.content, id));
    token.id = static_cast<int32_t>(id);
    tokens[id] = std::move(token);
  };
  const TokenJson reader(path);
  for (const auto& [key, entry] : decoder.items()) {
    const auto id = nlohmann::json::parse(key, nullptr, false);
    const std::string where = "added token " + key;
    if (!id.is_number_unsigned()) reader.fail(where + ": the key is not an id");
    AddedToken token = reader.added_token(entry, where);
    token.special |= named.contains(token.content);
    add(path, id.get<int64_t>(), std::move(token));
  }
  has_flags = !decoder.empty();
  if (has_flags) return tokens;
  const auto list = read_json_beside(other);
  std::set<std::string> special = named;
  special.insert(extra.begin(), extra.end());
  for (const auto& [text, id] : list.items())
    add(other, id.is_number_unsigned() ? id.get<int64_t>() : -1,
        {.content = text, .special = special.contains(text), .normalized = !special.contains(text)});
  return tokens;
}

}  // namespace

FolderTokens read_folder_tokens(const fs::path& folder, const TokenLookup& id_of, int64_t next,
                                const std::map<std::string, std::string>& defaults) {
  FolderTokens tokens;
  const std::vector<std::string> extra = extra_tokens(folder), named = named_in_order(folder, defaults);
  tokens.has_extra = !extra.empty();
  std::set<std::string> seen;
  for (auto& [id, token] : listed_tokens(folder, {named.begin(), named.end()}, extra, tokens.has_flags)) {
    const int64_t ours = id_of(token.content).value_or(static_cast<int32_t>(next));
    if (ours != id)
      throw DataError(fmt::format(
          "{}: the token '{}' has the id {}, but the {} tokens of the tokenizer and those before it give it {}",
          folder.string(), token.content, id, next, ours));
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

std::map<std::string, std::optional<std::string>> named_tokens(const fs::path& folder) {
  const auto config = read_json_beside(folder / "tokenizer_config.json");
  std::vector<const char*> names = {"special_tokens_map.json", "tokenizer_config.json"};
  if (!member(config, "added_tokens_decoder").is_null()) std::swap(names[0], names[1]);
  std::map<std::string, std::optional<std::string>> tokens;
  for (const char* name : names) {
    const fs::path path = folder / name;
    const auto json = read_json_beside(path);
    for (const char* key : kNamedTokens) {
      if (!json.is_object() || !json.contains(key)) continue;
      auto value = json.at(key);
      if (value.is_object()) value = member(value, "content");
      if (!value.is_null() && !value.is_string())
        throw DataError(fmt::format("{}: \"{}\" is not the text of a token", path.string(), key));
      tokens.emplace(key, value.is_null() ? std::nullopt : std::optional(value.get<std::string>()));
    }
  }
  return tokens;
}

void read_named_tokens(const fs::path& folder, const TokenLookup& id_of, int64_t in_files, NamedTokens& tokens) {
  const auto named = named_tokens(folder);
  for (const auto& [key, id] :
       {std::pair{"bos_token", &tokens.bos_id}, {"eos_token", &tokens.eos_id}, {"pad_token", &tokens.pad_id}}) {
    const auto found = named.find(key);
    if (found == named.end() || found->second == "") continue;  // files of Llama 1 name nothing so
    *id = found->second ? id_of(*found->second) : std::nullopt;
  }
  if (tokens.pad_id >= in_files) tokens.pad_id.reset();  // a model need not have a row for it
}

std::optional<bool> read_add_bos(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  const auto value = member(read_json_beside(path), "add_bos_token");
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean())
    throw DataError(fmt::format("{}: \"add_bos_token\" is {}, expected true or false", path.string(), value.dump()));
  return value.get<bool>();
}

}  // namespace trireme
