// How transformers' classes of tokenizers, and the files beside one, change it.
#include "trireme/formats/huggingface/byte_level_model.h"

#include "token_json.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// The class that transformers 5.23 takes for a tokenizer.json (TOKENIZER_MAPPING_NAMES and
/// MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS), without "Fast"; empty: it reads the file as it is.
std::string class_of(const TokenizerFolder& folder) {
  constexpr std::string_view kFileCounts =
      " arctic ernie4_5 ernie4_5_moe flex_olmo glm glm4 glm4_moe glm4_moe_lite gpt_bigcode granite granitemoe "
      "granitemoehybrid granitemoeshared hyperclovax internlm2 internlm3 jamba kimi_linear llava llava_next "
      "mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral mistral3 mistral_large4 mixtral nemotron olmo2 "
      "olmo3 olmo_hybrid persimmon phi3 phi3_v phimoe pixtral qwen3_5 qwen3_5_moe smolvlm stablelm voxtral ";
  const std::string family = folder.model_type();
  if (kFileCounts.find(" " + family + " ") != std::string_view::npos) return "";
  std::string named = folder.tokenizer_class();
  if (named.ends_with("Fast")) named.resize(named.size() - 4);
  if (!named.empty() && family != "qwen2") return named;
  if (family == "gpt2") return "GPT2Tokenizer";
  if (family == "gemma3" || family == "gemma3_text") return "GemmaTokenizer";
  return family == "qwen2" || family == "qwen3" ? "Qwen2Tokenizer" : "";
}

/// Words, normalisation and decoder of a class that builds them anew; nullopt for other classes.
std::optional<ByteLevelModel> rules_of(const std::string& of_class) {
  ByteLevelModel rules;
  if (of_class == "GPT2Tokenizer") {
    rules.steps = {{.pattern = std::string(kGpt2Pattern)}};
  } else if (of_class == "Qwen2Tokenizer") {
    rules.normalisers = {{NormaliserStep::kNfc}};
    rules.steps = {{.pattern = std::string(kQwen2Pattern)}, {}};
  } else if (of_class == "GemmaTokenizer") {
    rules.characters = true;
    rules.normalisers = {{NormaliserStep::kReplace, " ", "\u2581"}};
    rules.decoder = {{DecoderStep::kReplace, "\u2581", " "}, {DecoderStep::kByteFallback}, {DecoderStep::kFuse}};
  } else {
    return std::nullopt;
  }
  return rules;
}

/// The tokens that a class names where the files name no others, by key.
std::map<std::string, std::string> names_of(const std::string& of_class) {
  if (of_class == "GPT2Tokenizer")
    return {{"bos_token", kEndOfText}, {"eos_token", kEndOfText}, {"unk_token", kEndOfText}};
  if (of_class == "Qwen2Tokenizer")
    return {{"eos_token", kEndOfText}, {"unk_token", kEndOfText}, {"pad_token", kEndOfText}};
  if (of_class == "LlamaTokenizer" || of_class == "CodeLlamaTokenizer")
    return {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  if (of_class == "GemmaTokenizer")
    return {{"bos_token", "<bos>"},
            {"eos_token", "<eos>"},
            {"unk_token", "<unk>"},
            {"pad_token", "<pad>"},
            {"mask_token", "<mask>"}};
  return {};
}

/// "add_prefix_space" of a class with the rules of the file; a warning where its rules are others. Returns whether
/// `model` is what the class builds of the file.
bool apply_rules(const std::string& of_class, const TokenizerFolder& folder, const fs::path& path,
                 ByteLevelModel& model) {
  const auto rules = rules_of(of_class);
  if (!rules) return false;
  std::vector<PreSplitStep> steps = model.steps;
  if (!steps.empty()) steps.back().prefix_space = false;
  if (model.characters == rules->characters && model.scores.empty() && !model.metaspace && !model.ignore_merges &&
      model.normalisers == rules->normalisers && steps == rules->steps && model.decoder == rules->decoder) {
    if (!steps.empty()) model.steps.back().prefix_space = folder.flag("add_prefix_space").value_or(false);
    return true;
  }
  static std::once_flag said;
  std::call_once(said, [&] {
    log_warn(fmt::format(
        "{}: transformers 5 replaces the normalizer, pre_tokenizer and decoder of this file by those of {}, which are "
        "others: its ids differ from those of the file, which Trireme takes",
        path.string(), of_class));
  });
  return false;
}

/// The added tokens of tokenizer.json, out of `model`, where "added_tokens_decoder" lacks one: a class that builds the
/// tokenizer anew then takes those of that list, and not these.
std::vector<AddedToken> take_unlisted(const TokenizerFolder& folder, ByteLevelModel& model) {
  const auto listed = folder.listed_texts();
  if (!listed || std::ranges::all_of(model.added, [&](const auto& token) { return listed->contains(token.content); }))
    return {};
  return std::exchange(model.added, {});
}

}  // namespace

std::optional<Metaspace> llama_metaspace(const TokenizerFolder& folder, bool checks_model) {
  const std::string of_class = checks_model ? class_of(folder) : folder.tokenizer_class();
  const bool code = of_class == "CodeLlamaTokenizer" || of_class == "CodeLlamaTokenizerFast";
  const bool llama = code || of_class == "LlamaTokenizer" || of_class == "LlamaTokenizerFast";
  if (checks_model && !llama) return std::nullopt;
  const auto legacy = folder.flag("legacy"), prefix = folder.flag("add_prefix_space");
  if (!llama && !legacy && !prefix) return std::nullopt;
  Metaspace rule{.split = false};
  rule.scheme = prefix == false ? Metaspace::kNever : legacy == true && !code ? Metaspace::kAlways : Metaspace::kFirst;
  return rule;
}

std::vector<DecoderStep> llama_decoder(const Metaspace& metaspace) {
  std::vector<DecoderStep> steps = {
      {DecoderStep::kReplace, metaspace.replacement, " "}, {DecoderStep::kByteFallback}, {}};
  if (metaspace.scheme != Metaspace::kNever) steps.push_back({DecoderStep::kStrip, " ", "", 1, 0});
  return steps;
}

namespace {

/// What transformers' class for vocab.json and merges.txt adds to them; returns the class.
std::string apply_class(const TokenizerFolder& folder, ByteLevelModel& model) {
  const std::string named = folder.tokenizer_class();
  const bool qwen = named.starts_with("Qwen2Tokenizer") || (named.empty() && folder.model_type().starts_with("qwen"));
  const std::string of_class = qwen ? "Qwen2Tokenizer" : "GPT2Tokenizer";
  ByteLevelModel rules = *rules_of(of_class);
  model.added.clear();
  model.normalisers = std::move(rules.normalisers);
  model.steps = std::move(rules.steps);
  model.steps.back().prefix_space = folder.flag("add_prefix_space").value_or(false);
  if (qwen) model.bos_id.reset();
  return of_class;
}

/// Tokens that the files in `folder` list and name beside the tokenizer's own.
void add_folder_tokens(const TokenizerFolder& folder, const std::string& of_class, ByteLevelModel& model) {
  std::unordered_map<std::string, int32_t> ids;
  auto next = static_cast<int64_t>(model.tokens.size());
  for (size_t id = 0; id < model.tokens.size(); ++id) ids.emplace(model.tokens[id], static_cast<int32_t>(id));
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < model.added.size(); ++i) {
    ids[model.added[i].content] = model.added[i].id;
    places.emplace(model.added[i].content, i);
    next = std::max<int64_t>(next, model.added[i].id + 1);
  }
  const auto id_of = [&](const std::string& text) {
    const auto found = ids.find(text);
    return found == ids.end() || text.empty() ? std::nullopt : std::optional(found->second);
  };
  FolderTokens tokens = folder.tokens(id_of, next, names_of(of_class));
  for (AddedToken& token : tokens.listed) {
    ids[token.content] = token.id;
    next = std::max<int64_t>(next, token.id + 1);
    if (const auto place = places.find(token.content); place != places.end()) {
      AddedToken& known = model.added[place->second];
      token.special |= known.special;
      if (tokens.has_flags)
        known = std::move(token);
      else
        known.special = token.special;
    } else {
      places.emplace(token.content, model.added.size());
      model.added.push_back(std::move(token));
    }
  }
  for (AddedToken& token : tokens.named) {
    ids[token.content] = token.id;
    if (const auto place = places.find(token.content); place != places.end())
      model.added[place->second].special = true;
    else
      model.added.push_back(std::move(token));
  }
  for (AddedToken& token : tokens.extra) {
    ids[token.content] = token.id;
    if (!places.contains(token.content)) model.added.push_back(std::move(token));
  }
  folder.find_named_tokens(id_of, next, model);
}

/// Those of `before` that `model` has not.
std::vector<std::string> dropped_of(const std::vector<AddedToken>& before, const ByteLevelModel& model) {
  std::set<std::string> kept;
  for (const AddedToken& token : model.added) kept.insert(token.content);
  std::vector<std::string> dropped;
  for (const AddedToken& token : before)
    if (!kept.contains(token.content)) dropped.push_back(token.content);
  return dropped;
}

/// add_folder_tokens() of a model without the added tokens `before`; warns of those that it stays without.
void add_listed_tokens(const TokenizerFolder& folder, const std::string& of_class, const fs::path& path,
                       const std::vector<AddedToken>& before, ByteLevelModel& model) {
  constexpr const char* kLacks = "added_tokens_decoder of tokenizer_config.json lacks";
  try {
    add_folder_tokens(folder, of_class, model);
  } catch (const DataError& error) {
    if (before.empty()) throw;
    throw DataError(fmt::format("{}; {} a token of {}: list them all there, or remove that list", error.what(), kLacks,
                                path.string()));
  }
  const std::vector<std::string> dropped = dropped_of(before, model);
  static std::once_flag said;
  if (dropped.empty()) return;
  const size_t others = dropped.size() - 1;
  std::call_once(said, [&] {
    log_warn(fmt::format("{}: '{}'{} no added token{}, as in transformers 5: {} {}", path.string(), dropped.front(),
                         others == 0 ? " is" : fmt::format(" and {} more are", others), others == 0 ? "" : "s", kLacks,
                         others == 0 ? "it" : "them"));
  });
}

}  // namespace

ByteLevelModel read_byte_level_model(const fs::path& path, const fs::path& config) {
  const std::string bytes = read_text_file(path, ExitCode::kData, kMaxTokenizerFile);
  const TokenizerFolder folder(path.parent_path(), config);
  ByteLevelModel model;
  std::string of_class;
  bool anew = false;
  if (path.filename() == "vocab.json") {
    const fs::path merges = path.parent_path() / "merges.txt";
    if (!fs::is_regular_file(merges))
      throw DataError(fmt::format("{}: there is no merges.txt beside it", path.string()));
    model = parse_vocab_and_merges(bytes, path, read_text_file(merges, ExitCode::kData, kMaxTokenizerFile), merges);
    of_class = apply_class(folder, model);
  } else {
    model = parse_tokenizer_json(bytes, path);
    if (model.characters && model.scores.empty())
      if (auto rule = llama_metaspace(folder, true)) {
        model.normalisers.clear();
        model.decoder = llama_decoder(*rule);
        model.metaspace = std::move(rule);
        anew = true;
      }
    of_class = class_of(folder);
    anew |= apply_rules(of_class, folder, path, model);
    // These classes have no BOS of their own.
    if (model.leading.empty())
      for (const char* name : {"PreTrainedTokenizerFast", "TokenizersBackend", "Qwen2Tokenizer", "Qwen2TokenizerFast"})
        if (folder.tokenizer_class() == name) model.bos_id.reset();
  }
  const std::vector<AddedToken> unlisted = anew ? take_unlisted(folder, model) : std::vector<AddedToken>();
  add_listed_tokens(folder, of_class, path, unlisted, model);
  // tokenizer.json has a post-processor of its own.
  if (path.filename() == "vocab.json" && model.bos_id && folder.flag("add_bos_token").value_or(false))
    model.leading = {*model.bos_id};
  return model;
}

}  // namespace trireme
