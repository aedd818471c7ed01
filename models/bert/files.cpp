#include "models/bert/files.h"

#include "models/common/stored.h"
#include "trireme/base/error.h"
#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

/// Files of a complete Hugging Face model directory besides the weights.
constexpr const char* kCompanions[] = {"vocab.txt", "tokenizer.json", "tokenizer_config.json",
                                       "special_tokens_map.json", "added_tokens.json"};

constexpr std::string_view kBase = "bert.";
// Of the head, with the names of the copies that files may have of tied tensors.
constexpr const char *kBias = "cls.predictions.bias", *kDecoderBias = "cls.predictions.decoder.bias",
                     *kEmbedding = "bert.embeddings.word_embeddings.weight",
                     *kDecoder = "cls.predictions.decoder.weight";

std::string replace_end(const std::string& text, const std::string& end, const std::string& by) {
  return text.ends_with(end) ? text.substr(0, text.size() - end.size()) + by : text;
}

/// All names under which Hugging Face files store this tensor; the canonical one is first.
std::vector<std::string> spellings(const std::string& name) {
  std::vector<std::string> all = {name};
  if (name.ends_with("LayerNorm.weight")) all.push_back(replace_end(name, "weight", "gamma"));
  if (name.ends_with("LayerNorm.bias")) all.push_back(replace_end(name, "bias", "beta"));
  if (name == kBias) all.emplace_back(kDecoderBias);
  const size_t own = all.size();
  for (size_t i = 0; i < own; ++i)  // of BertModel's files
    if (all[i].starts_with(kBase)) all.push_back(all[i].substr(kBase.size()));
  if (name == kEmbedding) all.emplace_back(kDecoder);
  return all;
}

/// The prefix of the TensorFlow checkpoint that `path` names; empty if it names none, or safetensors are there.
std::filesystem::path tensorflow_prefix(const std::filesystem::path& path) {
  if (has_safetensors(path)) return {};
  const auto without_index = [](const std::filesystem::path& file) { return file.parent_path() / file.stem(); };
  if (path.extension() == ".index" && std::filesystem::is_regular_file(path)) return without_index(path);
  if (std::filesystem::is_regular_file(path.string() + ".index")) return path;
  if (!std::filesystem::is_directory(path)) return {};
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.path().extension() == ".index" && entry.is_regular_file()) found.push_back(entry.path());
  if (found.size() > 1)
    throw ModelError(fmt::format("{} holds {} TensorFlow checkpoints ({}, {}, …): name one by its prefix in model.path",
                                 path.string(), found.size(), found[0].filename().string(),
                                 found[1].filename().string()));
  return found.empty() ? std::filesystem::path() : without_index(found[0]);
}

}  // namespace

std::string tensorflow_name(const std::string& name) {
  if (name == "cls.predictions.bias") return "cls/predictions/output_bias";
  if (name == "cls.seq_relationship.weight") return "cls/seq_relationship/output_weights";
  if (name == "cls.seq_relationship.bias") return "cls/seq_relationship/output_bias";
  std::string text = name;
  if (text.find("LayerNorm.") != std::string::npos)
    text = replace_end(replace_end(text, "weight", "gamma"), "bias", "beta");
  else if (text.find("embeddings.weight") != std::string::npos)
    text = replace_end(text, ".weight", "");
  else
    text = replace_end(text, "weight", "kernel");
  const std::string layer = "encoder.layer.";
  if (const size_t at = text.find(layer); at != std::string::npos) text.replace(at, layer.size(), "encoder.layer_");
  std::replace(text.begin(), text.end(), '.', '/');
  return text;
}

std::vector<std::filesystem::path> tensorflow_files(const std::filesystem::path& path) {
  const std::filesystem::path prefix = tensorflow_prefix(path);
  if (prefix.empty()) return {};
  std::vector<std::filesystem::path> files = {prefix.string() + ".index"};
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::absolute(prefix).parent_path()))
    if (entry.path().filename().string().starts_with(prefix.filename().string() + ".data-"))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::filesystem::path bert_config_path(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return path;
  if (path.extension() == ".index" || std::filesystem::is_regular_file(path.string() + ".index")) {
    const auto directory = path.parent_path();
    return directory.empty() ? std::filesystem::path(".") : directory;
  }
  return path;
}

std::unique_ptr<WeightSource> open_bert_weights(const std::filesystem::path& path, const BertModel& model) {
  StoredWeights::Rules rules{spellings, [](const std::string&) { return false; }};
  std::unique_ptr<WeightSource> source;
  if (const auto prefix = tensorflow_prefix(path); !prefix.empty()) {
    source = std::make_unique<TfCheckpoint>(prefix);
    rules.spellings = [](const std::string& name) { return std::vector{tensorflow_name(name)}; };
    rules.transposed = [](const std::string& name) { return tensorflow_name(name).ends_with("/kernel"); };
  } else {
    source = open_weights(path);
    for (const UnitSpec& unit : model.units())
      for (const ParameterSpec& parameter : unit.parameters)
        for (const auto& part : parameter.parts) {
          std::vector<std::string> stored = spellings(part.name);
          std::erase_if(stored, [&](const std::string& name) { return !source->find(name); });
          for (const std::string& other : stored)
            if (other != stored[0] && !equal_tensors(*source, stored[0], other) &&
                !read_tensor(*source, stored[0]).equal(read_tensor(*source, other)))  // may be stored in two types
              throw ModelError(
                  fmt::format("{}: {} differs from {}, and they are one tensor here: write a file without "
                              "one of them",
                              path.string(), other, stored[0]));
        }
  }
  auto weights = std::make_unique<StoredWeights>(std::move(source), std::move(rules));
  if (weights->find(kEmbedding) && !weights->find("cls.predictions.transform.dense.weight"))
    throw ModelError(fmt::format("{} {}", path.string(), kWithoutBertHeads));
  for (const UnitSpec& unit : model.units())
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.zero_rows_from >= 0)
        weights->pad_rows(parameter.parts[0].name, parameter.zero_rows_from, parameter.shape[0]);
  return weights;
}

void BertDirectoryWriter::finish(const std::filesystem::path& base, const BertConfig& config) {
  seal();
  const std::filesystem::path from = bert_config_path(base);
  copy_files(from, kCompanions, ExitCode::kModel);
  const std::filesystem::path file = from / "config.json";
  write_config(bert_config_json(config), std::filesystem::is_regular_file(file) ? file : from / "bert_config.json");
  commit();
}

}  // namespace trireme
