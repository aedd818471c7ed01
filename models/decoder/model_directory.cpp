#include "models/decoder/model_directory.h"

#include "models/decoder/vocabulary.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/formats/huggingface/byte_level_model.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>

namespace trireme {

namespace {

/// Files beside the weights that make a directory a complete Hugging Face model.
constexpr const char* kTokenizerCompanions[] = {
    "tokenizer.model",         "tokenizer.json",     "tokenizer_config.json",
    "special_tokens_map.json", "vocab.json",         "added_tokens.json",
    "chat_template.jinja",     "chat_template.json", "merges.txt"};

const std::filesystem::path kTemplateFolder = "additional_chat_templates";

}  // namespace

void ModelDirectoryWriter::copy_tokenizer(const std::filesystem::path& from) {
  if (std::filesystem::is_directory(from)) {
    copy_files(from, kTokenizerCompanions, ExitCode::kData);
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(from / kTemplateFolder, error))
      if (entry.path().extension() == ".jinja")
        write_companion(kTemplateFolder / entry.path().filename(), read_text_file(entry.path(), ExitCode::kData));
    return;
  }
  const std::filesystem::path folder = from.parent_path();
  const auto copy_as = [&](const char* name) {
    write_companion(name, read_text_file(from, ExitCode::kData, size_t{256} << 20));
  };
  const bool vocabulary = from.filename() == "vocab.json" || from.filename() == "merges.txt";
  if (!vocabulary && from.extension() != ".json") return copy_as("tokenizer.model");
  // `from` is the tokenizer: another one beside it is not copied.
  copy_files(folder, std::span(kTokenizerCompanions).subspan(2), ExitCode::kData);
  if (!vocabulary) copy_as("tokenizer.json");
}

void ModelDirectoryWriter::copy_companions(const std::filesystem::path& from, const std::filesystem::path& tokenizer) {
  copy_tokenizer(tokenizer.empty() ? from : tokenizer);
  constexpr const char* kGeneration[] = {"generation_config.json"};
  copy_files(from, kGeneration, ExitCode::kModel);
  source_config_ = from / "config.json";
}

void ModelDirectoryWriter::write_ends(const std::filesystem::path& from, const DecoderConfig& config, int64_t eos) {
  // What ended texts before still does: a base was trained with it.
  std::vector<int64_t> ends = end_of_text_ids(from, config);
  std::erase(ends, eos);
  ends.insert(ends.begin(), eos);
  const auto file = from / "generation_config.json";
  auto json = nlohmann::ordered_json::parse(
      std::filesystem::is_regular_file(file) ? read_text_file(file, ExitCode::kModel) : generation_config_json(config));
  json["eos_token_id"] = ends;
  write_companion("generation_config.json", json.dump(2) + "\n");
}

void ModelDirectoryWriter::seal(const DecoderConfig& config) {
  ModelWriter::seal();
  if (const auto tokenizer = path() / "tokenizer.model";
      std::filesystem::exists(tokenizer) && !std::filesystem::exists(path() / "tokenizer_config.json")) {
    // Without it transformers puts its own idea of BOS before a text. Llama 3's file of this name is not
    // sentencepiece's.
    try {
      const auto model = read_sentencepiece_model(read_text_file(tokenizer, ExitCode::kData), tokenizer);
      write_companion("tokenizer_config.json", tokenizer_config_json(model, config.max_position_embeddings));
      if (model.is_unigram)
        log_warn(
            "tokenizer.model is a unigram model: transformers 5 segments a text with it as with BPE, and its ids "
            "differ from Trireme's and sentencepiece's");
    } catch (const DataError&) {
      log_info("no tokenizer_config.json is written: tokenizer.model is no sentencepiece model");
    }
  }
  if (const auto tokenizer = path() / "tokenizer.json";
      std::filesystem::exists(tokenizer) && !std::filesystem::exists(path() / "tokenizer_config.json")) {
    try {
      write_companion("tokenizer_config.json",
                      byte_level_config_json(read_byte_level_model(tokenizer), config.max_position_embeddings));
    } catch (const DataError& error) {
      log_info(std::string("no tokenizer_config.json is written: ") + error.what());
    }
  }
  write_config(decoder_config_json(config), source_config_, {kAddedRowsKey});
}

void ModelDirectoryWriter::finish(const DecoderConfig& config) {
  seal(config);
  commit();
}

}  // namespace trireme
