// The byte map of GPT-2 and the writers of byte-level BPE files.
#include "trireme/formats/huggingface/byte_level_model.h"

#include "trireme/base/text.h"

#include <nlohmann/json.hpp>

namespace trireme {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson vocabulary_object(const ByteLevelModel& model) {
  // nlohmann's ordered object searches linearly for every key that is inserted by name: build its vector.
  OrderedJson::object_t object;
  object.reserve(model.tokens.size());
  for (size_t id = 0; id < model.tokens.size(); ++id)
    if (!model.tokens[id].empty()) object.emplace_back(model.tokens[id], static_cast<int64_t>(id));
  return object;
}

OrderedJson step_json(const PreSplitStep& step) {
  return {{"type", "Split"},
          {"pattern", {{step.literal ? "String" : "Regex", step.pattern}}},
          {"behavior", step.removed ? "Removed" : "Isolated"},
          {"invert", step.invert}};
}

OrderedJson byte_level_json(bool prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer_json(const ByteLevelModel& model) {
  std::vector<OrderedJson> parts;
  for (const PreSplitStep& step : model.steps) {
    const bool last = &step == &model.steps.back();
    const bool own = last && (step.pattern.empty() || (step.pattern == kGpt2Pattern && !step.literal && !step.removed));
    if (own) {
      parts.push_back(byte_level_json(step.prefix_space, !step.pattern.empty()));
    } else {
      parts.push_back(step_json(step));
      if (last) parts.push_back(byte_level_json(false, false));
    }
  }
  if (parts.size() == 1) return parts[0];
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

}  // namespace

const std::array<char32_t, 256>& byte_level_characters() {
  static const std::array<char32_t, 256> map = [] {
    std::array<char32_t, 256> made{};
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      made[b] = printable ? b : next++;
    }
    return made;
  }();
  return map;
}

std::string byte_level_token(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) append_utf8(token, byte_level_characters()[static_cast<unsigned char>(c)]);
  return token;
}

std::string byte_level_bytes(std::string_view token) {
  static const std::array<int, 324> bytes_of = [] {
    std::array<int, 324> made{};
    made.fill(-1);
    for (size_t b = 0; b < 256; ++b) made[byte_level_characters()[b]] = static_cast<int>(b);
    return made;
  }();
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const auto first = static_cast<unsigned char>(token[at]);
    size_t character = first;
    if (first >= 0x80) {
      if (first >= 0xE0 || at + 1 == token.size()) return std::string(token);
      character = (first & 0x1Fu) << 6 | (static_cast<unsigned char>(token[++at]) & 0x3Fu);
    }
    ++at;
    if (character >= bytes_of.size() || bytes_of[character] < 0) return std::string(token);
    bytes += static_cast<char>(bytes_of[character]);
  }
  return bytes;
}

std::string tokenizer_json(const ByteLevelModel& model) {
  OrderedJson added = OrderedJson::array();
  for (const AddedToken& token : model.added)
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  OrderedJson merges = OrderedJson::array();
  const auto text = [&](int32_t id) { return model.tokens[static_cast<size_t>(id)]; };
  for (const ByteLevelMerge& merge : model.merges) merges.push_back({text(merge.left), text(merge.right)});
  const OrderedJson json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", model.normalisers.empty() ? OrderedJson() : OrderedJson{{"type", "NFC"}}},
      {"pre_tokenizer", pre_tokenizer_json(model)},
      {"post_processor",
       {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}}},
      {"decoder", byte_level_json(true, true)},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", model.unknown_id ? OrderedJson(text(*model.unknown_id)) : OrderedJson()},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", model.fuse_unknown},
        {"byte_fallback", false},
        {"ignore_merges", model.ignore_merges},
        {"vocab", vocabulary_object(model)},
        {"merges", merges}}}};
  return json.dump(2) + "\n";
}

std::string vocab_json(const ByteLevelModel& model) { return vocabulary_object(model).dump() + "\n"; }

std::string merges_txt(const ByteLevelModel& model) {
  std::string text = "#version: 0.2\n";
  for (const ByteLevelMerge& merge : model.merges) {
    text += model.tokens[static_cast<size_t>(merge.left)];
    text += ' ';
    text += model.tokens[static_cast<size_t>(merge.right)];
    text += '\n';
  }
  return text;
}

std::string byte_level_config_json(const ByteLevelModel& model, int64_t max_length) {
  const auto text = [&](const std::optional<int32_t>& id) {
    if (!id) return OrderedJson();
    for (const AddedToken& token : model.added)
      if (token.id == *id) return OrderedJson(token.content);
    return OrderedJson(model.tokens.at(static_cast<size_t>(*id)));
  };
  OrderedJson json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                      {"bos_token", text(model.bos_id)},
                      {"eos_token", text(model.eos_id)},
                      {"pad_token", text(model.pad_id)},
                      {"clean_up_tokenization_spaces", false}};
  if (max_length > 0) json["model_max_length"] = max_length;
  return json.dump(2) + "\n";
}

}  // namespace trireme
