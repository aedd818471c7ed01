#include "trireme/formats/huggingface/byte_level_model.h"

#include "token_json.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string_view>
#include <unordered_map>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using TokenIds = std::unordered_map<std::string, int32_t>;

/// A score as `tokenizers` reads it: serde_json divides the digits by a power of ten, which rounds twice. The last bit
/// decides between segmentations of equal score.
double as_serde_reads(double score) {
  char text[32] = {};  // the shortest digits: 1.2345e-02
  const auto end = std::to_chars(text, std::end(text), std::abs(score), std::chars_format::scientific).ptr;
  uint64_t digits = 0;
  int exponent = 0;
  const char* at = text;
  for (; at < end && *at != 'e'; ++at) {
    if (*at == '.') continue;
    digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    exponent -= at > text ? 1 : 0;
  }
  exponent += at < end ? std::atoi(at + 1) : 0;
  if (std::abs(exponent) > std::numeric_limits<double>::max_exponent10) return score;
  const double power = std::stod(fmt::format("1e{}", std::abs(exponent))), whole = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? whole / power : whole * power, score);
}

/// One tokenizer's reader.
class TokenizerReader : public TokenJson {
 public:
  using TokenJson::TokenJson;

  [[noreturn]] void unsupported(const std::string& what) const {
    fail(what +
         ": not supported (byte-level BPE as GPT-2, Llama 3 and Qwen2 have it is, and sentencepiece's BPE and unigram "
         "models)");
  }

  void vocabulary(const nlohmann::json& vocab, ByteLevelModel& model) {
    if (!vocab.is_object() || vocab.empty()) fail("the vocabulary is empty or not a JSON object of token and id");
    int64_t largest = 0;
    ids_.reserve(vocab.size());
    for (const auto& [token, value] : vocab.items()) {
      if (token.empty()) fail("the vocabulary has an empty token");
      const int32_t number = id(value, fmt::format("token '{}'", token));
      largest = std::max<int64_t>(largest, number);
      ids_.emplace(token, number);
    }
    // Some holes are normal; a file of ten tokens must not ask for gigabytes.
    if (largest > 64 * static_cast<int64_t>(vocab.size()) + 65536)
      fail(fmt::format("{} tokens have ids up to {}", vocab.size(), largest));
    model.tokens.resize(static_cast<size_t>(largest) + 1);
    for (const auto& [token, number] : ids_) {
      std::string& place = model.tokens[static_cast<size_t>(number)];
      if (!place.empty())
        fail(fmt::format("tokens '{}' and '{}' both have the id {}", std::min(token, place), std::max(token, place),
                         number));
      place = token;
    }
  }

  void merge(const std::string& left, const std::string& right, const std::string& where, ByteLevelModel& model) const {
    ByteLevelMerge made;
    for (const auto& [token, number] :
         {std::pair<std::string, int32_t*>{left, &made.left}, {right, &made.right}, {left + right, &made.result}}) {
      const auto found = ids_.find(token);
      if (found == ids_.end())
        fail(fmt::format("{} ('{}' '{}'): '{}' is not in the vocabulary", where, left, right, token));
      *number = found->second;
    }
    model.merges.push_back(made);
  }

  std::optional<int32_t> find(const std::string& token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
  }

  void any_model(const nlohmann::json& json, ByteLevelModel& model);
  void bpe(const nlohmann::json& json, ByteLevelModel& model);
  void unigram(const nlohmann::json& json, ByteLevelModel& model);
  void added_tokens(const nlohmann::json& list, ByteLevelModel& model);
  void normalizer(const nlohmann::json& json, ByteLevelModel& model) const;
  void pre_tokenizer(const nlohmann::json& json, ByteLevelModel& model) const;
  void post_processor(const nlohmann::json& json, ByteLevelModel& model) const;
  void metaspace(const nlohmann::json& json, ByteLevelModel& model) const;
  void decoder(const nlohmann::json& json, ByteLevelModel& model) const;
  void check_bytes(const ByteLevelModel& model) const;

 private:
  TokenIds ids_;
};

void TokenizerReader::any_model(const nlohmann::json& json, ByteLevelModel& model) {
  // Files of early versions lack the type.
  const std::string type = !member(json, "type").is_null()    ? text(json, "type", "model")
                           : member(json, "vocab").is_array() ? "Unigram"
                                                              : "BPE";
  if (type != "BPE" && type != "Unigram") unsupported(fmt::format("the model '{}'", type));
  model.byte_fallback = flag(json, "byte_fallback", false, "model");
  type == "BPE" ? bpe(json, model) : unigram(json, model);
}

void TokenizerReader::unigram(const nlohmann::json& json, ByteLevelModel& model) {
  model.characters = true;
  const auto vocab = member(json, "vocab");
  if (!vocab.is_array() || vocab.empty()) fail("the vocabulary of a Unigram model is empty or not a list");
  for (size_t i = 0; i < vocab.size(); ++i) {
    const auto& entry = vocab[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      fail(fmt::format("entry {} of the vocabulary is not a token and its score", i));
    model.tokens.push_back(entry[0].get<std::string>());
    model.scores.push_back(as_serde_reads(entry[1].get<double>()));
    if (model.tokens.back().empty()) fail("the vocabulary has an empty token");
    if (!ids_.emplace(model.tokens.back(), static_cast<int32_t>(i)).second)
      fail(fmt::format("the token '{}' is twice in the vocabulary", model.tokens.back()));
  }
  if (const auto unknown = member(json, "unk_id"); !unknown.is_null()) {
    model.unknown_id = id(unknown, "unk_id");
    if (static_cast<size_t>(*model.unknown_id) >= vocab.size())
      fail(fmt::format("unk_id {} is not in the vocabulary", *model.unknown_id));
  }
}

void TokenizerReader::bpe(const nlohmann::json& json, ByteLevelModel& model) {
  if (const auto dropout = member(json, "dropout"); !dropout.is_null() && !(dropout.is_number() && dropout == 0))
    unsupported("dropout " + dropout.dump());
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const auto value = member(json, key); !value.is_null() && value != "") unsupported(key + (" " + value.dump()));
  model.fuse_unknown = flag(json, "fuse_unk", false, "model");
  model.ignore_merges = flag(json, "ignore_merges", false, "model");
  vocabulary(member(json, "vocab"), model);
  if (const auto unknown = member(json, "unk_token"); !unknown.is_null() && unknown != "") {
    model.unknown_id = find(text(json, "unk_token", "model"));
    if (!model.unknown_id) fail(fmt::format("unk_token {} is not in the vocabulary", unknown.dump()));
  }
  const nlohmann::json& merges = json.contains("merges") ? json.at("merges") : json;
  if (!merges.is_array()) fail("\"merges\" is missing or not a list");
  model.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto& entry = merges[i];
    const std::string where = fmt::format("merge {}", i);
    if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      merge(entry[0].get<std::string>(), entry[1].get<std::string>(), where, model);
    } else if (entry.is_string()) {
      const std::vector<std::string> parts = split(entry.get<std::string>(), ' ');
      if (parts.size() != 2) fail(fmt::format("{} is '{}', expected two tokens", where, entry.get<std::string>()));
      merge(parts[0], parts[1], where, model);
    } else {
      fail(where + " is neither a string nor a pair of strings");
    }
  }
}

void TokenizerReader::added_tokens(const nlohmann::json& list, ByteLevelModel& model) {
  if (list.is_null()) return;
  if (!list.is_array()) fail("\"added_tokens\" is not a list");
  auto next = static_cast<int64_t>(ids_.size());  // `tokenizers` counts, and reads no ids
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("added token {}", i);
    AddedToken token = added_token(list[i], where);
    if (token.content.empty()) fail(where + " is empty");
    token.id = id(member(list[i], "id"), where);
    for (const AddedToken& other : model.added)
      if (other.content == token.content || other.id == token.id)
        fail(fmt::format("added tokens '{}' (id {}) and '{}' (id {}) are the same, or have the same id", other.content,
                         other.id, token.content, token.id));
    const auto known = find(token.content);
    if (known && *known != token.id)
      fail(fmt::format("'{}' has the id {} as an added token and {} in the vocabulary", token.content, token.id,
                       *known));
    const auto place = static_cast<size_t>(token.id);
    if (!known && place < model.tokens.size() && !model.tokens[place].empty())
      fail(fmt::format("the added token '{}' has the id {} of '{}'", token.content, token.id, model.tokens[place]));
    if (!known && token.id != next)
      fail(fmt::format(
          "the added token '{}' has the id {}, but `tokenizers` gives it {}: list the missing tokens before it",
          token.content, token.id, next));
    next = std::max(next, int64_t{token.id} + 1);
    model.added.push_back(std::move(token));
  }
}

void TokenizerReader::normalizer(const nlohmann::json& json, ByteLevelModel& model) const {
  if (json.is_null()) return;
  const std::string type = text(json, "type", "normalizer");
  if (type == "NFC") {
    model.normalisers.push_back({});
  } else if (type == "Prepend") {
    model.normalisers.push_back({NormaliserStep::kPrepend, "", text(json, "prepend", "normalizer Prepend")});
  } else if (type == "Replace" && member(member(json, "pattern"), "String").is_string()) {
    NormaliserStep step{NormaliserStep::kReplace, text(json.at("pattern"), "String", "normalizer Replace"),
                        text(json, "content", "normalizer Replace")};
    if (step.from.empty()) fail("normalizer Replace: the pattern is empty");
    model.normalisers.push_back(std::move(step));
  } else if (type == "Sequence") {
    const auto parts = member(json, "normalizers");
    for (const auto& part : parts) normalizer(part, model);
  } else {
    unsupported(fmt::format("the normalizer '{}'{}", type, type == "Replace" ? " with a regular expression" : ""));
  }
}

void TokenizerReader::metaspace(const nlohmann::json& json, ByteLevelModel& model) const {
  Metaspace made;
  const std::string where = "pre_tokenizer Metaspace";
  made.replacement = text(json, "replacement", where);
  if (made.replacement.empty() || character_count(made.replacement) != 1)
    fail(fmt::format("{}: the replacement '{}' is not one character", where, made.replacement));
  const std::string scheme = member(json, "prepend_scheme").is_null() ? "always" : text(json, "prepend_scheme", where);
  if (scheme != "always" && scheme != "first" && scheme != "never")
    unsupported(fmt::format("{} with the prepend_scheme '{}'", where, scheme));
  made.scheme = scheme == "always" ? Metaspace::kAlways : scheme == "first" ? Metaspace::kFirst : Metaspace::kNever;
  // Files of before tokenizers 0.15.
  if (!flag(json, "add_prefix_space", true, where)) made.scheme = Metaspace::kNever;
  made.split = flag(json, "split", true, where);
  model.metaspace = made;
}

/// Whether the normalizer leaves no `text`, one character. Gemma's replaces the spaces at which its pre-tokenizer
/// splits.
bool is_replaced(const std::vector<NormaliserStep>& steps, const std::string& text) {
  bool replaced = false;
  for (const NormaliserStep& step : steps) {
    const bool writes = step.to.find(text) != std::string::npos;
    replaced = (replaced || (step.kind == NormaliserStep::kReplace && step.from == text)) && !writes;
  }
  return replaced;
}

void TokenizerReader::pre_tokenizer(const nlohmann::json& json, ByteLevelModel& model) const {
  std::vector<nlohmann::json> parts;
  const std::string outer = json.is_null() ? "null" : text(json, "type", "pre_tokenizer");
  if (outer == "Sequence") {
    const auto list = member(json, "pretokenizers");
    if (!list.is_array()) fail("pre_tokenizer: \"pretokenizers\" is not a list");
    parts.assign(list.begin(), list.end());
  } else if (!json.is_null()) {
    parts.push_back(json);
  }
  std::erase_if(parts, [&](const nlohmann::json& part) {
    const auto split = member(member(part, "pattern"), "String");
    return member(part, "type") == "Split" && member(part, "invert") != true && split.is_string() &&
           character_count(split.get<std::string>()) == 1 && is_replaced(model.normalisers, split);
  });
  bool byte_level = false;
  if (parts.empty() || (parts.size() == 1 && member(parts[0], "type") == "Metaspace")) {
    model.characters = true;
    if (!parts.empty()) metaspace(parts[0], model);
    return;
  }
  if (!model.scores.empty()) unsupported(fmt::format("the pre_tokenizer '{}' of a Unigram model", outer));
  for (const auto& part : parts) {
    const std::string type = text(part, "type", "pre_tokenizer");
    if (byte_level) unsupported(fmt::format("the pre_tokenizer '{}' after ByteLevel", type));
    PreSplitStep step;
    if (type == "ByteLevel") {
      byte_level = true;
      step.prefix_space = flag(part, "add_prefix_space", true, "pre_tokenizer ByteLevel");
      if (flag(part, "use_regex", true, "pre_tokenizer ByteLevel")) step.pattern = kGpt2Pattern;
    } else if (type == "Split") {
      const auto pattern = member(part, "pattern");
      step.literal = member(pattern, "Regex").is_null();
      step.pattern = text(pattern, step.literal ? "String" : "Regex", "pre_tokenizer Split: pattern");
      if (step.pattern.empty()) fail("pre_tokenizer Split: the pattern is empty");
      const std::string behaviour = text(part, "behavior", "pre_tokenizer Split");
      step.removed = behaviour == "Removed";
      if (!step.removed && behaviour != "Isolated")
        unsupported(fmt::format("the behaviour '{}' of the pre_tokenizer Split", behaviour));
      step.invert = flag(part, "invert", false, "pre_tokenizer Split");
    } else if (type == "Digits") {
      step.pattern = flag(part, "individual_digits", false, "pre_tokenizer Digits") ? kDigitPattern : kDigitsPattern;
    } else {
      unsupported(fmt::format("the pre_tokenizer '{}'", type));
    }
    model.steps.push_back(std::move(step));
  }
  if (!byte_level) unsupported(fmt::format("the pre_tokenizer '{}' without ByteLevel", outer));
}

void TokenizerReader::post_processor(const nlohmann::json& json, ByteLevelModel& model) const {
  if (json.is_null()) return;
  const std::string type = text(json, "type", "post_processor");
  if (type == "Sequence") {
    for (const auto& part : member(json, "processors")) post_processor(part, model);
  } else if (type == "TemplateProcessing") {
    const auto single = member(json, "single"), special = member(json, "special_tokens");
    if (!single.is_array()) fail("post_processor TemplateProcessing: \"single\" is not a list");
    std::vector<int32_t>* side = &model.leading;
    for (const auto& part : single) {
      if (const auto sequence = member(part, "Sequence"); !sequence.is_null()) {
        if (member(sequence, "id") != "A" || side == &model.trailing)
          fail("post_processor TemplateProcessing: \"single\" needs the sequence A once");
        side = &model.trailing;
        continue;
      }
      const std::string name =
          text(member(part, "SpecialToken"), "id", "post_processor TemplateProcessing: a part of \"single\"");
      const auto entry = special.find(name);
      const auto ids = entry == special.end() ? nlohmann::json() : member(*entry, "ids");
      if (!ids.is_array() || ids.empty()) fail(fmt::format("post_processor TemplateProcessing: '{}' has no ids", name));
      if (side->size() + ids.size() > 1024) fail("post_processor: more than 1024 tokens on one side of a text");
      for (const auto& value : ids) side->push_back(id(value, fmt::format("'{}' in post_processor", name)));
    }
    if (side == &model.leading) fail("post_processor TemplateProcessing: \"single\" lacks the sequence A");
  } else if (type != "ByteLevel") {  // ByteLevel changes offsets only
    unsupported(fmt::format("the post_processor '{}'", type));
  }
}

void TokenizerReader::decoder(const nlohmann::json& json, ByteLevelModel& model) const {
  if (json.is_null()) return;
  const std::string type = text(json, "type", "decoder"), where = "decoder " + type;
  if (type == "Sequence") {
    const auto parts = member(json, "decoders");
    for (const auto& part : parts) decoder(part, model);
  } else if (!model.characters) {
    if (type != "ByteLevel") unsupported(fmt::format("the decoder '{}'", type));
  } else if (type == "Replace" && member(member(json, "pattern"), "String").is_string()) {
    model.decoder.push_back(
        {DecoderStep::kReplace, text(json.at("pattern"), "String", where), text(json, "content", where)});
    if (model.decoder.back().from.empty()) fail(where + ": the pattern is empty");
  } else if (type == "ByteFallback" || type == "Fuse") {
    model.decoder.push_back({type == "Fuse" ? DecoderStep::kFuse : DecoderStep::kByteFallback});
  } else if (type == "Strip") {
    const auto count = [&](const char* key) {
      const auto value = member(json, key);
      if (!value.is_number_unsigned() || value.get<uint64_t>() > 1024)
        fail(fmt::format("{}: \"{}\" is no count", where, key));
      return value.get<int64_t>();
    };
    model.decoder.push_back({DecoderStep::kStrip, text(json, "content", where), "", count("start"), count("stop")});
    if (model.decoder.back().from.empty()) fail(where + ": the content is empty");
  } else if (type == "Metaspace") {
    ByteLevelModel other;
    metaspace(json, other);
    model.decoder.push_back(
        {DecoderStep::kMetaspace, other.metaspace->replacement, " ", other.metaspace->scheme != Metaspace::kNever, 0});
  } else {
    unsupported(fmt::format("the decoder '{}'", type));
  }
}

/// byte_fallback needs every byte: `tokenizers` changes the order of tokens where some are absent.
void TokenizerReader::check_bytes(const ByteLevelModel& model) const {
  if (!model.byte_fallback) return;
  if (!model.characters) unsupported("byte_fallback of a model with the pre_tokenizer ByteLevel");
  for (int byte = 0; byte < 256; ++byte)
    if (!ids_.contains(fmt::format("<0x{:02X}>", byte)))
      fail(fmt::format("byte_fallback is on, and the vocabulary has no token <0x{:02X}>", byte));
}

bool has_token(const ByteLevelModel& model, int32_t id) {
  const auto place = static_cast<size_t>(id);
  return (place < model.tokens.size() && !model.tokens[place].empty()) ||
         std::any_of(model.added.begin(), model.added.end(), [&](const AddedToken& token) { return token.id == id; });
}

std::optional<int32_t> id_of(const ByteLevelModel& model, const std::string& content) {
  for (const AddedToken& token : model.added)
    if (token.content == content) return token.id;
  const auto found = std::find(model.tokens.begin(), model.tokens.end(), content);
  return found == model.tokens.end() ? std::nullopt : std::optional(static_cast<int32_t>(found - model.tokens.begin()));
}

/// BOS, EOS and padding where no file beside the tokenizer names them.
void choose_ends(ByteLevelModel& model) {
  if (!model.leading.empty()) model.bos_id = model.leading.front();
  if (!model.trailing.empty()) model.eos_id = model.trailing.back();
  const auto begin = id_of(model, model.characters ? "<s>" : kEndOfText),
             end = id_of(model, model.characters ? "</s>" : kEndOfText);
  if (!model.bos_id && (model.trailing.empty() || model.characters)) model.bos_id = begin;
  if (!model.eos_id) model.eos_id = end;
}

}  // namespace

ByteLevelModel parse_tokenizer_json(std::string_view bytes, const fs::path& path) {
  TokenizerReader reader(path);
  const auto json = parse_json(bytes, path.string(), ExitCode::kData);
  if (!json.is_object() || !json.contains("model") || !json.at("model").is_object())
    reader.fail("it has no \"model\": not a tokenizer.json");
  ByteLevelModel model;
  reader.any_model(json.at("model"), model);
  reader.added_tokens(member(json, "added_tokens"), model);
  reader.normalizer(member(json, "normalizer"), model);
  double growth = 1;
  for (const NormaliserStep& step : model.normalisers)
    if (step.kind == NormaliserStep::kReplace)
      growth *= std::max(1.0, static_cast<double>(step.to.size()) / static_cast<double>(step.from.size()));
  if (growth > 4096) reader.fail(fmt::format("the normalizer makes texts up to {:.3g} times as long", growth));
  reader.pre_tokenizer(member(json, "pre_tokenizer"), model);
  reader.post_processor(member(json, "post_processor"), model);
  reader.decoder(member(json, "decoder"), model);
  reader.check_bytes(model);
  for (const auto* ids : {&model.leading, &model.trailing})
    for (const int32_t id : *ids)
      if (!has_token(model, id)) reader.fail(fmt::format("post_processor: no token has the id {}", id));
  choose_ends(model);
  return model;
}

ByteLevelModel parse_vocab_and_merges(std::string_view vocab, const fs::path& vocab_path, std::string_view merges,
                                      const fs::path& merges_path) {
  TokenizerReader reader(vocab_path);
  ByteLevelModel model;
  reader.vocabulary(parse_json(vocab, vocab_path.string(), ExitCode::kData), model);
  if (const size_t good = valid_utf8_prefix(merges); good < merges.size())
    throw DataError(fmt::format("{}: not UTF-8 from byte {} on", merges_path.string(), good));
  size_t number = 0;
  for (size_t at = 0; at < merges.size();) {
    const size_t end = std::min(merges.find('\n', at), merges.size());
    std::string_view line = merges.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version") || line.empty()) continue;
    const std::vector<std::string> parts = split(line, ' ');
    if (parts.size() != 2 || parts[0].empty() || parts[1].empty())
      throw DataError(fmt::format("{}:{}: expected two tokens and a space between them, not '{}'", merges_path.string(),
                                  number, line.substr(0, 80)));
    reader.merge(parts[0], parts[1], fmt::format("{}:{}", merges_path.string(), number), model);
  }
  model.steps.push_back({.pattern = std::string(kGpt2Pattern)});
  if (const auto id = reader.find(kEndOfText)) model.added.push_back({.content = kEndOfText, .id = *id});
  choose_ends(model);
  return model;
}

std::vector<std::string> metaspace_words(const Metaspace& metaspace, std::string_view text, bool first) {
  std::string made;
  for (const char c : text) c == ' ' ? made += metaspace.replacement : made += c;
  const bool wanted = metaspace.scheme == Metaspace::kAlways || (metaspace.scheme == Metaspace::kFirst && first);
  if (wanted && !made.starts_with(metaspace.replacement)) made.insert(0, metaspace.replacement);
  std::vector<std::string> words;
  for (size_t at = 0; at < made.size();) {
    const size_t end = metaspace.split ? std::min(made.find(metaspace.replacement, at + 1), made.size()) : made.size();
    words.push_back(made.substr(at, end - at));
    at = end;
  }
  return words;
}

}  // namespace trireme
