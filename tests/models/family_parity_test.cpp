// Logits, loss and gradients of a tiny random model of each family against transformers and peft, in fp64 and fp32,
// read from the files that they write; and the way back: what we write, transformers loads.

#include "../base/base_testing.h"
#include "models/decoder/adapter.h"
#include "models/decoder/model_directory.h"
#include "models/decoder/vocabulary.h"
#include "models/decoder/weights.h"

#include "../ops/gradient_check.h"
#include "reference.h"

#include <gtest/gtest.h>

#include <cstring>

namespace trireme {
namespace {

using namespace testing;

const std::vector<std::string> kCases = {"llama",
                                         "mistral",
                                         "mistral_window",
                                         "mistral_short_window",
                                         "mistral_window_packed",
                                         "mistral_lora",
                                         "qwen2",
                                         "qwen2_tied",
                                         "llama_padding",
                                         "llama_padding_tied",
                                         "qwen2_window",
                                         "qwen2_short_window",
                                         "qwen2_layer_types",
                                         "qwen2_lora",
                                         "qwen3",
                                         "qwen3_packed",
                                         "qwen3_lora",
                                         "llama_yarn",
                                         "qwen3_yarn",
                                         "llama_yarn_factor",
                                         "llama_dynamic",
                                         "llama_dynamic_packed",
                                         "llama_longrope",
                                         "phi3",
                                         "phi3_window",
                                         "phi3_longrope",
                                         "phi3_partial",
                                         "phi3_lora",
                                         "olmo2",
                                         "olmo2_packed",
                                         "olmo2_lora",
                                         "olmo2_lora_o",
                                         "smollm3",
                                         "smollm3_window",
                                         "smollm3_lora",
                                         "granite",
                                         "granite_tied",
                                         "granite_lora",
                                         "gemma3",
                                         "gemma3_scaled",
                                         "gemma3_untied",
                                         "gemma3_lora",
                                         "gpt2",
                                         "gpt2_packed",
                                         "gpt2_untied_erf",
                                         "gpt3",
                                         "gpt2_lora"};
/// What peft's adapters can have (ADAPTERS of family_reference.py).
const std::vector<std::string> kAdapters = {"all_linear",
                                            "pattern",
                                            "layers",
                                            "saved",
                                            "saved_embedding_of_tied",
                                            "saved_output_of_tied",
                                            "saved_tied",
                                            "saved_gpt2",
                                            "saved_tied_gpt2",
                                            "saved_untied_gpt2",
                                            "tokens",
                                            "tokens_padding",
                                            "tokens_of_tied",
                                            "embedding",
                                            "embedding_padding",
                                            "embedding_of_tied",
                                            "dora",
                                            "dora_pattern",
                                            "dora_gpt2",
                                            "dora_biases",
                                            "bias_all"};

std::vector<std::string> all_cases() {
  std::vector<std::string> all = kCases;
  for (const std::string& name : kAdapters) all.push_back("adapter_" + name);
  return all;
}

class FamilyParity : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder_ = decoder_references() / "families";
};

/// Tensors of reference.safetensors in their own types.
std::map<std::string, at::Tensor> read_reference(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : file.entries()) {
    const at::ScalarType type = entry.info.dtype == DType::kF64   ? at::kDouble
                                : entry.info.dtype == DType::kF32 ? at::kFloat
                                                                  : at::kLong;
    at::Tensor value = at::empty(entry.info.shape, at::TensorOptions(type));
    std::memcpy(value.mutable_data_ptr(), file.bytes(entry).data(), value.nbytes());
    tensors[name] = value;
  }
  return tensors;
}

struct Loaded {
  DecoderModel model;
  std::unique_ptr<WeightSource> source;
  std::optional<Adapter> adapter;
  std::vector<std::vector<at::Tensor>> units;
};

Loaded load(const std::filesystem::path& directory, at::ScalarType dtype) {
  const DecoderConfig config = read_model_config(directory);
  std::optional<Adapter> adapter;
  if (std::filesystem::exists(directory / "adapter")) adapter = read_adapter(directory / "adapter");
  std::optional<LoraOptions> lora;
  if (adapter) {
    lora = model_for_adapter(config, *adapter).lora();
    // Rows that replace the base's are trained here.
    for (const auto& [module, rows] : adapter->token_rows) lora->trainable_token_indices.emplace_back(module, rows.ids);
  }
  Loaded loaded{DecoderModel(config, lora), open_decoder_weights(directory, config), adapter, {}};
  loaded.units = load_whole(loaded.model, *loaded.source, dtype);
  if (!adapter) return loaded;
  check_base_tensors(*adapter, *loaded.source);
  auto tensors = import_adapter(*adapter, loaded.model);
  for (auto& [module, rows] : adapter->token_rows)
    tensors[module + kTokenRowsSuffix] = at::tensor(rows.values).view({-1, rows.columns});
  assign_adapter(loaded.model, tensors, loaded.units);
  return loaded;
}

/// Gradients by checkpoint name, of every trained parameter.
std::map<std::string, at::Tensor> gradients_of(const Loaded& loaded) {
  std::map<std::string, at::Tensor> result;
  for (size_t u = 0; u < loaded.units.size(); ++u)
    for (size_t p = 0; p < loaded.units[u].size(); ++p) {
      if (!loaded.units[u][p].requires_grad()) continue;
      int64_t row = 0;
      for (const ParameterPart& part : loaded.model.units()[u].parameters[p].parts) {
        result[part.name] = loaded.units[u][p].grad().narrow(0, row, part.rows);
        row += part.rows;
      }
    }
  return result;
}

TEST_P(FamilyParity, LogitsLossAndGradients) {
  const auto reference = read_reference(folder_ / GetParam() / "reference.safetensors");
  const TokenBatch batch = batch_of(reference);
  for (const auto& [dtype, bound] : {std::pair(at::kDouble, 1e-10), std::pair(at::kFloat, 1e-4)}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kMlp, Recompute::kAttention, Recompute::kFull}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + ", recompute " + std::to_string(static_cast<int>(recompute)));
      const Loaded loaded = load(folder_ / GetParam(), dtype);
      WholeUnitStore store(loaded.units);
      ForwardOptions options;
      options.train = true;
      options.recompute.blocks.assign(static_cast<size_t>(loaded.model.config().num_hidden_layers), recompute);
      ForwardOptions without_dropout = options;
      without_dropout.train = false;
      EXPECT_LT(relative_difference(loaded.model.logits(store, batch, without_dropout).to(at::kDouble),
                                    reference.at("logits")),
                1e-5);
      // The reference has no dropout, and a gradient needs train.
      DecoderConfig plain = loaded.model.config();
      plain.embedding_dropout = plain.attention_dropout = plain.residual_dropout = 0;
      const at::Tensor loss = DecoderModel(plain, loaded.model.lora()).loss(store, batch, options);
      EXPECT_NEAR(loss.item<double>() / reference.at("loss_sum").item<double>(), 1.0, bound);
      loss.backward();
      const auto ours = gradients_of(loaded);
      size_t compared = 0;
      for (const auto& [name, want] : reference) {
        if (!name.starts_with("grad/")) continue;
        const auto found = ours.find(name.substr(5));
        ASSERT_NE(found, ours.end()) << name;
        EXPECT_LT(relative_difference(found->second, want), bound) << name;
        ++compared;
      }
      EXPECT_EQ(compared, ours.size());
      EXPECT_GT(compared, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, FamilyParity, ::testing::ValuesIn(all_cases()));

class FamilyFiles : public FamilyParity {};

TEST_F(FamilyFiles, WhatIsWrittenLoadsInTransformers) {
  for (const std::string& name : all_cases()) {
    const Loaded loaded = load(folder_ / name, at::kFloat);
    const auto directory = folder_ / name / "exported";
    const DecoderModel base(loaded.model.config(), std::nullopt);
    ModelDirectoryWriter writer(directory, stored_tensors(base.units(), DType::kF32));
    std::map<std::string, at::Tensor> values, tensors;  // of the base, of the adapter
    for (size_t u = 0; u < loaded.units.size(); ++u)
      for (size_t p = 0; p < loaded.units[u].size(); ++p) {
        int64_t row = 0;
        for (const ParameterPart& part : loaded.model.units()[u].parameters[p].parts) {
          auto& of = loaded.model.of_adapter(u) ? tensors : values;
          of[part.name] = loaded.units[u][p].narrow(0, row, part.rows);
          row += part.rows;
        }
      }
    // One half from memory, the other from the file.
    size_t count = 0;
    for (const StoredTensor& tensor : stored_tensors(base.units(), DType::kF32)) {
      if (++count % 2 == 0 || !values.contains(tensor.name))
        writer.copy(tensor.name, *loaded.source);
      else
        writer.append(tensor.name, values[tensor.name]);
    }
    writer.finish(loaded.model.config());
    if (!loaded.adapter) continue;
    std::filesystem::create_directories(directory / "adapter");
    const Adapter exported = export_adapter(tensors, loaded.model, directory.string(), loaded.adapter->token_rows);
    write_adapter(directory / "adapter", exported, DType::kF32);
  }
  // decoder_references.py loads them.
}

TEST_F(FamilyFiles, AMissingBiasAndAFileWithoutThePrefix) {
  const auto directory = folder_ / "altered";
  for (const auto& [name, dropped] : {std::pair("qwen2", "model.layers.1.self_attn.k_proj.bias"),
                                      std::pair("gpt2", "transformer.h.1.mlp.c_fc.bias")}) {
    const SafetensorsFile file(folder_ / name / "model.safetensors");
    std::filesystem::create_directories(directory);
    std::filesystem::copy_file(folder_ / name / "config.json", directory / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    const auto write = [&](const std::string& without, const std::string& prefix) {
      std::vector<std::pair<std::string, TensorInfo>> tensors;
      std::vector<const SafetensorsFile::Entry*> entries;
      for (const auto& [stored, entry] : file.entries()) {
        if (stored == without) continue;
        tensors.emplace_back(stored.starts_with(prefix) ? stored.substr(prefix.size()) : stored, entry.info);
        entries.push_back(&entry);
      }
      SafetensorsWriter writer(directory / "model.safetensors", tensors);
      for (const auto* entry : entries) writer.append(file.bytes(*entry).data(), file.bytes(*entry).size());
      writer.commit();
    };
    write(dropped, "");
    EXPECT_TRUE(contains(message_of<ModelError>([&] { return load(directory, at::kFloat); }), dropped));
    // Files saved from the model without its output matrix have names without the first part.
    write("", name == std::string("gpt2") ? "transformer." : "model.");
    const Loaded bare = load(directory, at::kFloat), whole = load(folder_ / name, at::kFloat);
    for (size_t u = 0; u < whole.units.size(); ++u)
      for (size_t p = 0; p < whole.units[u].size(); ++p) EXPECT_TRUE(at::equal(bare.units[u][p], whole.units[u][p]));
  }
}

}  // namespace
}  // namespace trireme
