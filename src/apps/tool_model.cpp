// `trireme model resize-vocab`: a model with more rows in its vocabulary.
#include "tools.h"

#include "data/chat/chat_template.h"
#include "models/decoder/decoder.h"
#include "models/decoder/model_directory.h"
#include "models/decoder/vocabulary.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/byte_level_model.h"
#include "trireme/formats/huggingface/folder_tokens.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ResizeOptions {
  std::string model, output, eos_token, chat_template;
  std::optional<int64_t> vocab_size, pad_to;
  std::vector<std::string> tokens;
  uint64_t seed = 0;
  bool force = false;
};

Json read_ordered(const fs::path& path) {
  try {
    return Json::parse(read_text_file(path, ExitCode::kModel, size_t{512} << 20));
  } catch (const nlohmann::json::exception& error) {
    throw ModelError(fmt::format("{} is not valid JSON: {}", path.string(), json_reason(error)));
  }
}

/// Objects that keep the order of their keys look through all of them for each: with the 128,256 tokens of Llama 3 half
/// a minute. The vocabulary is in the order of its ids, as `tokenizers` writes it; other keys are sorted.
Json read_tokenizer_json(const fs::path& path) {
  const auto sorted = trireme::read_json(path, ExitCode::kModel, size_t{512} << 20);
  Json json = sorted;
  const auto vocab = member(member(sorted, "model"), "vocab");
  if (!vocab.is_object()) return json;
  std::vector<std::pair<std::string, Json>> tokens;
  for (const auto& [text, id] : vocab.items()) tokens.emplace_back(text, id);
  std::ranges::stable_sort(tokens, {}, [](const auto& token) {
    return token.second.is_number_integer() ? token.second.template get<int64_t>() : 0;
  });
  json["model"]["vocab"] = Json::object_t(tokens.begin(), tokens.end());
  return json;
}

Json added_token(const AddedToken& token) {
  return {{"content", token.content}, {"lstrip", token.lstrip},           {"normalized", token.normalized},
          {"rstrip", token.rstrip},   {"single_word", token.single_word}, {"special", token.special}};
}

/// The tokenizer files of a directory, with tokens added after the last id that any of them has.
class TokenizerFiles {
 public:
  TokenizerFiles(const fs::path& directory, int64_t max_length) : directory_(directory) {
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"})
      if (fs::is_regular_file(directory / name)) json_[name] = read_ordered(directory / name);
    if (const fs::path path = directory / "tokenizer.json"; fs::is_regular_file(path))
      json_["tokenizer.json"] = read_tokenizer_json(path);
    folder_.emplace(directory);
    if (const fs::path path = directory / "tokenizer.model"; fs::is_regular_file(path)) {
      pieces_ = read_text_file(path, ExitCode::kModel, size_t{256} << 20);
      const SentencepieceModel model = read_sentencepiece_model(*pieces_, path);
      piece_count_ = next_id_ = static_cast<int64_t>(model.pieces.size());
      for (int64_t id = 0; id < piece_count_; ++id) vocabulary_.emplace(model.pieces[static_cast<size_t>(id)].text, id);
      if (!json_.contains("tokenizer_config.json"))
        json_["tokenizer_config.json"] = Json::parse(tokenizer_config_json(model, max_length));
    }
    if (json_.contains("tokenizer.json")) {
      const Json vocab = member(member(json_["tokenizer.json"], "model"), "vocab");
      if (vocab.is_array()) next_id_ = std::max(next_id_, static_cast<int64_t>(vocab.size()));  // Unigram's
      for (const auto& [piece, id] : vocab.items())
        if (vocab.is_object() && id.is_number_integer()) {
          know(Json(), id);
          vocabulary_.emplace(piece, id.get<int64_t>());
        }
      for (const Json& token : member(json_["tokenizer.json"], "added_tokens")) {
        const Json id = member(token, "id"), text = member(token, "content");
        if (id.is_number_integer() && id > next_id_ && text.is_string() &&
            !vocabulary_.contains(text.get<std::string>()))
          throw DataError(fmt::format(
              "{}: the added token {} has the id {}, but `tokenizers` gives it {}: list the missing tokens before it",
              (directory / "tokenizer.json").string(), text.dump(), id.dump(), next_id_));
        know(token, id);
      }
    }
    if (!pieces_ && !json_.contains("tokenizer.json"))
      throw ModelError(
          fmt::format("{} has neither tokenizer.model nor tokenizer.json: --add-token and --eos-token need one",
                      directory.string()));
    const auto id_of = [&](const std::string& text) {
      const auto known = known_.find(text), own = vocabulary_.find(text);
      const bool is_known = known != known_.end();
      return !is_known && own == vocabulary_.end()
                 ? std::nullopt
                 : std::optional(static_cast<int32_t>(is_known ? known->second : own->second));
    };
    // Refuses a listed id that is not the next one.
    for (AddedToken& token : folder_->tokens(id_of, next_id_).listed)
      if (!id_of(token.content)) unlisted_.push_back(std::move(token));
    if (json_.contains("tokenizer_config.json")) {
      const Json decoder = member(json_["tokenizer_config.json"], "added_tokens_decoder");
      for (const auto& [id, token] : decoder.items()) know(token, Json::parse(id, nullptr, false));
    }
    // transformers 4 and Llama 2 chat models have added tokens in this file alone: text and id.
    if (json_.contains("added_tokens.json"))
      for (const auto& [text, id] : json_["added_tokens.json"].items()) know({{"content", text}}, id);
    const FolderTokens others = folder_->tokens(id_of, next_id_);
    for (const auto* list : {&others.named, &others.extra})
      for (const AddedToken& token : *list) {
        if (token.id >= next_id_) unlisted_.push_back(token);
        known_[token.content] = token.id;
        next_id_ = std::max(next_id_, int64_t{token.id} + 1);
      }
  }

  /// Ids from next_id() on.
  void add(const std::vector<std::string>& tokens) {
    std::set<std::string> given;
    for (const std::string& text : tokens) {
      if (text.empty()) throw ConfigError("--add-token: a token is empty");
      if (!given.insert(text).second) throw ConfigError(fmt::format("--add-token {}: is given twice", text));
      if (known_.contains(text) || vocabulary_.contains(text))
        throw ConfigError(fmt::format("--add-token {}: the tokenizer has this token already", text));
    }
    // Pieces take the ids that follow the last piece: these are free only in a tokenizer without added tokens.
    if (pieces_ && next_id_ == piece_count_)
      *pieces_ = add_sentencepiece_pieces(*pieces_, directory_ / "tokenizer.model", tokens);
    list_added_tokens();
    if (!tokens.empty()) keep_control_pieces();
    for (const AddedToken& token : unlisted_) put(token);
    for (const std::string& text : tokens) {
      known_[text] = next_id_;
      put({.content = text, .id = static_cast<int32_t>(next_id_++)});
      if (!json_.contains("tokenizer_config.json")) continue;
      // transformers 5 and 4 have their own name for the same list.
      Json& config = json_["tokenizer_config.json"];
      if (!config.contains("extra_special_tokens") && config.contains("additional_special_tokens"))
        config["extra_special_tokens"] = config["additional_special_tokens"];
      for (const char* key : {"extra_special_tokens", "additional_special_tokens"})
        if (!config.contains(key) || config[key].is_array()) config[key].push_back(text);
    }
  }

  /// Makes a special token the one that ends texts; returns its id.
  int64_t set_eos(const std::string& text) {
    const auto found = known_.find(text);
    if (found == known_.end())
      throw ConfigError(
          fmt::format("--eos-token {}: the tokenizer has no such special token; add it with --add-token", text));
    Json& config = json_["tokenizer_config.json"];
    config["eos_token"] = text;
    if (json_.contains("special_tokens_map.json"))
      json_["special_tokens_map.json"]["eos_token"] = added_token({.content = text});
    return found->second;
  }

  int64_t next_id() const { return next_id_; }
  /// ModelError where the tokenizer in `written` cannot be read, or gives a token another id: a list of added tokens
  /// that lacks some moves the ids of others.
  void check_ids(const fs::path& written, const fs::path& config) const {
    try {
      for (const AddedToken& token : read_byte_level_model(written / "tokenizer.json", config).added)
        if (const auto known = known_.find(token.content); known != known_.end() && known->second != token.id)
          throw ModelError(
              fmt::format("model resize-vocab: '{}' would have the id {} in place of {}: added_tokens_decoder of "
                          "tokenizer_config.json has to list all added tokens of tokenizer.json, or to be absent",
                          token.content, token.id, known->second));
    } catch (const DataError& error) {
      throw ModelError(fmt::format("model resize-vocab: the result could not be read: {}", error.what()));
    }
  }
  void write(ModelDirectoryWriter& writer) const {
    for (const auto& [name, json] : json_) writer.write_companion(name, json.dump(2) + "\n");
    if (pieces_) writer.write_companion("tokenizer.model", *pieces_);
  }

 private:
  static Json member(const Json& object, const char* key) {
    return object.is_object() && object.contains(key) ? object.at(key) : Json();
  }
  /// Beside a list of extra tokens transformers' Llama tokenizer takes no control pieces of tokenizer.model for
  /// special.
  void keep_control_pieces() {
    if (!pieces_ || json_.contains("tokenizer.json")) return;
    Json& config = json_["tokenizer_config.json"];
    const Json of_class = member(config, "tokenizer_class");
    if (!of_class.is_string() || of_class.get<std::string>().find("LlamaTokenizer") == std::string::npos) return;
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"})
      if (!member(config, key).empty()) return;
    const SentencepieceModel model = read_sentencepiece_model(*pieces_, directory_ / "tokenizer.model");
    for (int64_t id = 0; id < piece_count_; ++id) {
      const SentencepiecePiece& piece = model.pieces[static_cast<size_t>(id)];
      const bool control = piece.type == SentencepiecePiece::kControl;
      if ((control || piece.type == SentencepiecePiece::kUserDefined) &&
          !member(config, "added_tokens_decoder").contains(std::to_string(id)))
        config["added_tokens_decoder"][std::to_string(id)] = added_token({.content = piece.text, .special = control});
    }
  }
  /// Writes a token into every file that lists some.
  void put(const AddedToken& token) {
    Json entry = {{"id", token.id}};
    entry.update(added_token(token));
    if (json_.contains("tokenizer.json")) json_["tokenizer.json"]["added_tokens"].push_back(entry);
    if (json_.contains("added_tokens.json")) json_["added_tokens.json"][token.content] = token.id;
    if (json_.contains("tokenizer_config.json"))
      json_["tokenizer_config.json"]["added_tokens_decoder"][std::to_string(token.id)] = added_token(token);
  }
  void list_beside_pieces(Json& config) {
    const auto id_of = [&](const std::string& text) {
      const auto own = vocabulary_.find(text);
      return own == vocabulary_.end() ? std::nullopt : std::optional(static_cast<int32_t>(own->second));
    };
    for (const AddedToken& token : folder_->tokens(id_of, piece_count_).listed)
      config["added_tokens_decoder"][std::to_string(token.id)] = added_token(token);
  }
  /// transformers 5 takes a tokenizer_config.json that lists some added tokens for all of them.
  void list_added_tokens() {
    if (!json_.contains("tokenizer_config.json")) return;
    Json& config = json_["tokenizer_config.json"];
    if (config.contains("added_tokens_decoder")) return;
    if (json_.contains("tokenizer.json")) {
      for (Json token : member(json_["tokenizer.json"], "added_tokens")) {
        const Json id = member(token, "id");
        if (!id.is_number_integer()) continue;
        token.erase("id");
        config["added_tokens_decoder"][id.dump()] = token;
      }
    } else {
      list_beside_pieces(config);
    }
    // From now on transformers takes the names from here alone.
    for (const auto& [key, text] : folder_->named_tokens()) config[key] = text ? Json(*text) : Json();
  }
  void know(const Json& token, const Json& id) {
    if (!id.is_number_integer() || id.get<int64_t>() > INT32_MAX) return;
    if (const Json content = member(token, "content"); content.is_string()) known_[content] = id;
    next_id_ = std::max(next_id_, id.get<int64_t>() + 1);
  }

  fs::path directory_;
  std::optional<TokenizerFolder> folder_;  // after json_, whose errors are of the model
  std::map<std::string, Json> json_;
  std::optional<std::string> pieces_;  // tokenizer.model
  int64_t piece_count_ = 0, next_id_ = 0;
  std::map<std::string, int64_t> known_;       // added and special tokens
  std::map<std::string, int64_t> vocabulary_;  // the others
  std::vector<AddedToken> unlisted_;           // not in the list of every file that has one
};

bool reads_tokenizer(const fs::path& model) {
  try {
    (void)read_byte_level_model(model / "tokenizer.json", model / "config.json");
    return true;
  } catch (const Error&) {
    return false;  // absent, or of another kind
  }
}

void resize_vocab(const ResizeOptions& options) {
  const fs::path model = options.model, output = options.output, config_file = model / "config.json";
  if (!options.vocab_size && !options.pad_to && options.tokens.empty() && options.eos_token.empty() &&
      options.chat_template.empty())
    throw ConfigError("model resize-vocab: give --vocab-size, --pad-to, --add-token, --eos-token or --chat-template");
  std::string chat_template;
  if (!options.chat_template.empty()) {
    chat_template = read_text_file(options.chat_template, ExitCode::kData);
    (void)ChatTemplate(chat_template, options.chat_template);  // its syntax
  }
  require_model_output("model resize-vocab", options.output, options.force, options.model);
  const DecoderConfig stored = read_model_config(model);
  std::optional<TokenizerFiles> tokenizer;
  std::optional<int64_t> wanted = options.vocab_size;
  std::optional<int64_t> eos;
  if (!options.tokens.empty() || !options.eos_token.empty()) {
    tokenizer.emplace(model, stored.max_position_embeddings);
    const int64_t first = tokenizer->next_id();
    tokenizer->add(options.tokens);
    if (wanted && *wanted < tokenizer->next_id())
      throw ConfigError(fmt::format("model resize-vocab: --vocab-size is {}, the tokens to add have ids up to {}",
                                    *wanted, tokenizer->next_id() - 1));
    if (!wanted) wanted = std::max(stored.vocab_size, tokenizer->next_id());
    if (!options.eos_token.empty()) eos = tokenizer->set_eos(options.eos_token);
    for (size_t i = 0; i < options.tokens.size(); ++i)
      fmt::print("{} = {}\n", options.tokens[i], first + static_cast<int64_t>(i));
  }
  if (wanted && *wanted > ConfigReader::kMaxInteger)
    throw ConfigError(fmt::format("model resize-vocab: --vocab-size is {}; it must be at most {}", *wanted,
                                  ConfigReader::kMaxInteger));
  if (wanted && *wanted < stored.vocab_size)
    throw ConfigError(
        fmt::format("model resize-vocab: --vocab-size is {}, and the model has {} rows already: rows are only added",
                    *wanted, stored.vocab_size));
  DecoderConfig config = stored;
  config.vocab_size = resized_vocab(stored.vocab_size, wanted, options.pad_to);
  const auto source = open_decoder_weights(model, stored, config.vocab_size, options.seed);
  std::vector<StoredTensor> tensors = stored_tensors(DecoderModel(config, std::nullopt).units(), DType::kF32);
  for (StoredTensor& tensor : tensors) tensor.info.dtype = weight_type(*source, tensor.name, tensor.info.shape);
  ModelDirectoryWriter writer(output, tensors);
  writer.copy_companions(model);
  if (tokenizer) tokenizer->write(writer);
  if (tokenizer && reads_tokenizer(model)) tokenizer->check_ids(writer.path(), config_file);
  for (const StoredTensor& tensor : tensors) writer.copy(tensor.name, *source);
  writer.seal(config);
  // Nothing else in it changes for a Hugging Face model; of a NeMo checkpoint it is new.
  Json json = read_ordered(fs::is_regular_file(config_file) ? config_file : writer.path() / "config.json");
  json["vocab_size"] = config.vocab_size;
  json.erase("transformers_weights");
  Json& added = json[kAddedRowsKey];  // what LoRA trains beside its adapters
  if (!added.contains("first")) added["first"] = stored.vocab_size;
  for (size_t i = 0; i < options.tokens.size(); ++i)
    added["tokens"][options.tokens[i]] = tokenizer->next_id() - static_cast<int64_t>(options.tokens.size() - i);
  if (eos) {
    json["eos_token_id"] = *eos;
    writer.write_ends(model, stored, *eos);
  }
  if (!chat_template.empty()) writer.write_companion("chat_template.jinja", chat_template);
  writer.write_companion("config.json", json.dump(2) + "\n");
  writer.commit();
  fmt::print("{}: vocabulary of {} rows, {} of them new\n", options.output, format_count(config.vocab_size),
             format_count(config.vocab_size - stored.vocab_size));
}

}  // namespace

void add_model_tool(CLI::App& app) {
  CLI::App* tool = app.add_subcommand("model", "Change a model: resize-vocab, quantize");
  tool->require_subcommand(1);
  add_quantize_tool(*tool);
  auto options = std::make_shared<ResizeOptions>();
  CLI::App* resize = tool->add_subcommand(
      "resize-vocab",
      "Add rows to a model's vocabulary, as transformers' resize_token_embeddings does: the embedding and the output "
      "matrix get rows with the mean of their own ones and 1e-9 times their covariance; everything else is copied");
  resize->add_option("--model", options->model, "Hugging Face directory, or NeMo zarr checkpoint directory")
      ->required();
  resize->add_option("--output", options->output, "Directory to write")->required();
  resize->add_option("--vocab-size", options->vocab_size, "Rows afterwards (default: as many as the tokens need)");
  resize->add_option("--pad-to", options->pad_to, "Round the rows up to a multiple of this")
      ->check(CLI::Range(1, 65536));
  resize
      ->add_option("--add-token", options->tokens,
                   "Special tokens that the tokenizer files get, with the ids after its last one")
      ->allow_extra_args(false);
  resize->add_option(
      "--eos-token", options->eos_token,
      "Special token that ends a turn of a chat: the tokenizer's EOS from now on, and first among the ids "
      "of config.json and generation_config.json at which generation stops");
  resize->add_option("--chat-template", options->chat_template, "Jinja file that becomes the model's chat template");
  resize->add_option("--seed", options->seed, "Seed of the new rows")->capture_default_str();
  resize->add_flag("--force", options->force, "Replace the model in --output");
  resize->callback([options] { resize_vocab(*options); });
}

}  // namespace trireme
