#include "imported_model.h"

#include "data/tokenizer/tokenizer.h"
#include "models/decoder/hf_config.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme {

namespace {

/// GPT-2's choices as an imported GPT run changes them.
void set_gpt_choices(DecoderConfig& config, const ImportedModel& model) {
  config.activation = model.gelu_erf ? Activation::kGeluErf : Activation::kGeluTanh;
  config.embedding_dropout = config.residual_dropout = model.hidden_dropout;
  config.attention_dropout = model.attention_dropout;
}

std::string imported_model_json(const ImportedModel& model) {
  DecoderConfig config = with_sizes(model.gpt ? decoder_preset("gpt2") : DecoderConfig(), model.hidden_size,
                                    model.intermediate_size, model.layers, model.heads, model.kv_heads);
  config.vocab_size = model.vocab_size;
  config.max_position_embeddings = model.positions;
  config.norm_eps = model.norm_eps;
  config.initializer_range = model.initializer_range;
  config.rope.theta = model.rope_theta;
  if (model.llama3_rope) {
    config.rope.scaling = RopeFrequencies::Scaling::kLlama3;
    config.rope.factor = 8;
  }
  config.dtype = "bfloat16";
  if (model.gpt) set_gpt_choices(config, model);
  config.bos_token_id = model.bos;
  config.eos_token_ids.clear();
  if (model.eos) config.eos_token_ids.push_back(*model.eos);
  return decoder_config_json(config);
}

}  // namespace

std::optional<ImportedTokenizer> read_imported_tokenizer(const std::filesystem::path& path) {
  const auto file = find_tokenizer(path);
  if (!file) return std::nullopt;
  ImportedTokenizer found;
  const std::string name = file->filename().string();
  if (file->extension() == ".json" && name != "tokenizer.json") {
    // NeMo names the vocabulary and the merges one by one, under names of the user's.
    const auto vocabulary = nlohmann::json::parse(read_text_file(*file, ExitCode::kConfig, size_t{1} << 30), nullptr,
                                                  /*allow_exceptions=*/false);
    if (!vocabulary.is_object() || vocabulary.empty())
      throw ConfigError(fmt::format("{}: a vocabulary is a JSON object of tokens and their ids", file->string()));
    for (const auto& [token, id] : vocabulary.items()) {
      if (!id.is_number_unsigned()) throw ConfigError(fmt::format("{}: '{}' has no id", file->string(), token));
      found.vocab_size = std::max(found.vocab_size, id.get<int64_t>() + 1);
    }
    if (const auto end = vocabulary.find("<|endoftext|>"); end != vocabulary.end())
      found.bos = found.eos = end->get<int64_t>();
    found.files.emplace_back(*file, "vocab.json");
    return found;
  }
  const Tokenizer tokenizer(*file);
  found.vocab_size = tokenizer.vocab_size();
  found.bos = tokenizer.bos_id();
  found.eos = tokenizer.eos_id();
  found.files.emplace_back(*file, name == "tokenizer.json" ? name : "tokenizer.model");
  for (const std::filesystem::path& beside : tokenizer_files(*file))
    if (beside != *file) found.files.emplace_back(beside, beside.filename().string());
  for (const char* beside : {"generation_config.json", "chat_template.jinja", "chat_template.json"})
    if (std::filesystem::is_regular_file(file->parent_path() / beside))
      found.files.emplace_back(file->parent_path() / beside, beside);
  return found;
}

std::vector<std::pair<std::filesystem::path, std::string>> imported_model_files(
    const ImportedConfig& imported, const std::filesystem::path& directory) {
  std::vector<std::pair<std::filesystem::path, std::string>> files;
  if (!imported.model) return files;
  files.emplace_back(directory / "config.json", imported_model_json(*imported.model));
  if (!imported.tokenizer) return files;
  std::error_code error;
  for (const auto& [file, name] : imported.tokenizer->files)
    if (!std::filesystem::equivalent(file, directory / name, error))
      files.emplace_back(directory / name, read_text_file(file, ExitCode::kConfig, size_t{1} << 30));
  return files;
}

}  // namespace trireme
