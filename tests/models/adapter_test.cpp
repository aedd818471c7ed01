#include "models/decoder/adapter.h"
#include "../base/base_testing.h"
#include "models/decoder/family.h"
#include "models/decoder/vocabulary.h"
#include "models/decoder/weights.h"

#include "../ops/gradient_check.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

DecoderModel model_with(std::vector<std::string> targets, int64_t r = 3) {
  DecoderConfig config = decoder_preset("llama-tiny");
  config.num_hidden_layers = 2;
  return {config, LoraOptions{r, 6, 0.1, {std::move(targets)}}};
}

std::map<std::string, at::Tensor> random_adapters(const DecoderModel& model) {
  std::map<std::string, at::Tensor> tensors;
  uint64_t seed = 0;
  for (const ParameterSpec& parameter : model.units().back().parameters)
    tensors[parameter.parts[0].name] = random(parameter.shape, ++seed, at::kFloat);
  return tensors;
}

TEST(Adapter, ExportThenImportGivesTheSameBits) {
  for (const auto& targets : std::vector<std::vector<std::string>>{{"q_proj", "v_proj"},
                                                                   {"down_proj", "gate_proj", "o_proj"},
                                                                   {"qkv_proj"},
                                                                   {"qkv_proj", "o_proj", "up_proj"}}) {
    const DecoderModel model = model_with(targets);
    const auto tensors = random_adapters(model);
    const auto again = import_adapter(export_adapter(tensors, model, "base"), model);
    ASSERT_EQ(again.size(), tensors.size());
    for (const auto& [name, tensor] : tensors) EXPECT_EQ(max_difference(again.at(name), tensor), 0) << name;
  }
}

TEST(Adapter, FusedExportsAsItsEquivalents) {
  const DecoderModel model = model_with({"qkv_proj", "o_proj"});
  const auto tensors = random_adapters(model);
  const Adapter adapter = export_adapter(tensors, model, "base");
  EXPECT_EQ(adapter.config.lora.target_modules.names,
            (std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj"}));
  EXPECT_EQ(adapter.config.base_model, "base");
  EXPECT_EQ(adapter.config.lora.r, 3);
  ASSERT_EQ(adapter.modules.size(), 8u);
  const AdapterPair& k = adapter.modules.at("model.layers.1.self_attn.k_proj");
  const at::Tensor b = tensors.at("model.layers.1.self_attn.qkv_proj.lora_B.weight");
  EXPECT_EQ(k.out, 64);
  EXPECT_EQ(k.a, adapter.modules.at("model.layers.1.self_attn.q_proj").a);
  EXPECT_EQ(k.b[0], b[128][0].item<float>());  // rows 0 to 127 are q's
}

TEST(Adapter, SeparatePairsCannotBecomeFused) {
  const DecoderModel separate = model_with({"q_proj", "k_proj", "v_proj"}), fused = model_with({"qkv_proj"});
  const Adapter adapter = export_adapter(random_adapters(separate), separate, "");
  const std::string message = message_of<ModelError>([&] { import_adapter(adapter, fused); });
  EXPECT_TRUE(contains(message, "lora_A of its own"));
  EXPECT_TRUE(contains(message, "[q_proj, k_proj, v_proj]"));
}

TEST(Adapter, MismatchesAreNamed) {
  const DecoderModel model = model_with({"q_proj"});
  const Adapter adapter = export_adapter(random_adapters(model), model, "");
  EXPECT_TRUE(
      contains(message_of<ModelError>([&] { import_adapter(adapter, model_with({"q_proj"}, 4)); }), "set lora.r to 3"));
  EXPECT_TRUE(contains(message_of<ModelError>([&] { import_adapter(adapter, model_with({"q_proj", "o_proj"})); }),
                       "has no module"));
  EXPECT_TRUE(
      contains(message_of<ModelError>([&] { import_adapter(adapter, model_with({"o_proj"})); }), "has no module"));
  const DecoderModel both = model_with({"q_proj", "o_proj"});
  const Adapter larger = export_adapter(random_adapters(both), both, "");
  EXPECT_TRUE(contains(message_of<ModelError>([&] { import_adapter(larger, model); }), "does not cover"));
  Adapter wide = adapter;
  wide.modules.begin()->second.in += 1;
  EXPECT_TRUE(contains(message_of<ModelError>([&] { import_adapter(wide, model); }), "maps 129 to 128"));
}

TEST(Adapter, OptionsThatNameNothingAreRefused) {
  const auto refused = [](const std::function<void(LoraOptions&)>& change) -> std::string {
    LoraOptions lora{3, 6, 0, {{"q_proj"}}};
    change(lora);
    DecoderConfig config = decoder_preset("llama-tiny");
    config.num_hidden_layers = 2;
    return message_of<ConfigError>([&] { DecoderModel(config, lora); });
  };
  const std::vector<std::pair<std::function<void(LoraOptions&)>, const char*>> cases = {
      {[](auto& l) { l.target_modules = {{"layers.7.self_attn.q_proj"}}; }, "has no module"},
      {[](auto& l) { l.target_modules = {{}, ".*x_proj"}; }, "no module of a llama matches"},
      {[](auto& l) { l.target_modules = {{}, ".*lm_head"}; }, "modules_to_save"},
      {[](auto& l) { l.target_modules = {{"lm_head"}}; }, "modules_to_save"},
      {[](auto& l) { l.target_modules = {{"c_attn"}}, l.layers_to_transform = {2}, l.exclude_modules = {{"wte"}}; },
       "no module 'c_attn'.; lora.exclude_modules: a llama has no module 'wte'.; lora.layers_to_transform has 2"},
      {[](auto& l) { l.target_modules = {{}, ".*(lm_head|q_proj)"}; }, "modules_to_save"},
      {[](auto& l) { l.exclude_modules = {{"q_proj"}}; }, "leave no module"},
      {[](auto& l) { l.target_modules = {{"qkv_proj"}}, l.exclude_modules = {{"q_proj"}}; }, "has the part q_proj"},
      {[](auto& l) { l.target_modules = {{"q_proj", "v_proj"}}, l.exclude_modules = {{"qkv_proj"}}; },
       "only one of them is excluded"},
      {[](auto& l) { l.layers_to_transform = {2}; }, "blocks are 0 to 1"},
      {[](auto& l) { l.rank_pattern = {{"v_proj", 2}}; }, "matches no module with an adapter"},
      {[](auto& l) { l.rank_pattern = {{"q_proj", 2}, {"layers.0.*", 4}}; }, "two values, 2 by 'q_proj' and 4"},
      {[](auto& l) { l.target_modules = {{"qkv_proj"}}, l.rank_pattern = {{"q_proj", 2}}; }, "name the parts"},
      {[](auto& l) { l.target_modules = {{"embed_tokens"}}, l.use_dora = true; }, "linear layers"},
      {[](auto& l) { l.modules_to_save = {"lm_head", "wte"}; }, "has no module 'wte'"},
      {[](auto& l) { l.target_modules = {{"embed_tokens"}}, l.trainable_token_indices = {{"", {5}}}; },
       "rows are trained, too"},
      {[](auto& l) { l.modules_to_save = {"embed_tokens"}, l.trainable_token_indices = {{"", {5}}}; },
       "trains all rows of embed_tokens"},
      {[](auto& l) { l.trainable_token_indices = {{"", {5000}}}; }, "names row 5000"},
      {[](auto& l) {
         l.modules_to_save = {"wte", "wpe"}, l.trainable_token_indices = {{"norm", {1}}, {"lm_head", {5000}}};
         l.target_modules = {{"c_attn"}};
       },
       "no module 'wte', only model.embed_tokens and lm_head; lora.modules_to_save: a llama has no module 'wpe', only "
       "model.embed_tokens and lm_head; lora.trainable_token_indices.norm: a llama has rows for tokens in "
       "model.embed_tokens and lm_head; lora.trainable_token_indices.lm_head: it names row 5000, the vocabulary has "},
      {[](auto& l) { l.modules_to_save = {"wte"}, l.target_modules = {{"c_attn"}}; }, "lora.target_modules: a llama"},
      {[](auto& l) { l.trainable_token_indices = {{"norm", {1}}}; }, "has rows for tokens in"}};
  for (const auto& [change, said] : cases) EXPECT_TRUE(contains(refused(change), said));
}

TEST(Adapter, OfAnotherArchitectureIsCalledSo) {
  DecoderConfig phi = decoder_preset("phi3-mini-4k");
  phi.num_hidden_layers = 1;
  const DecoderModel model(phi, LoraOptions{3, 6, 0, {{"qkv_proj", "o_proj"}}});
  const Adapter adapter = export_adapter(random_adapters(model), model, "phi");
  EXPECT_EQ(message_of<ModelError>([&] { model_for_adapter(decoder_preset("llama-tiny"), adapter); }),
            "the adapter is of another architecture: it adapts qkv_proj of phi, and the blocks of a llama have "
            "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj: take the base that it was trained on");
  EXPECT_EQ(message_of<ModelError>([&] { model_for_adapter(phi, adapter); }), "");
}

TEST(Adapter, RowsAddedToASavedMatrixAreTrainedWithIt) {
  DecoderConfig config = decoder_preset("llama-tiny");
  config.tie_word_embeddings = true;
  for (const bool ensured : {false, true}) {
    LoraOptions lora{3, 6, 0, {{"q_proj"}}};
    lora.modules_to_save = {"lm_head"};
    lora.ensure_weight_tying = ensured;
    train_added_rows({{10, 11}, ""}, config, lora);
    EXPECT_EQ(lora.trainable_token_indices.empty(), ensured);
    if (ensured) continue;
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { DecoderModel(config, lora); }),
                         "add embed_tokens to lora.modules_to_save"))
        << "peft cannot open its adapter";
    // What the message advises.
    lora.modules_to_save.emplace_back("embed_tokens");
    lora.trainable_token_indices.clear();
    train_added_rows({{10, 11}, ""}, config, lora);
    EXPECT_NO_THROW(DecoderModel(config, lora));
  }
}

TEST(Adapter, OfSpareRowsThoseOfNewTokensAreTrained) {
  const TemporaryDirectory work;
  const auto ids = [&](const std::string& added, int64_t data_vocab = 8) {
    work.write("config.json", R"({"trireme_added_rows": )" + added + "}");
    return added_rows(work.root(), 8, data_vocab).ids;
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(ids(R"({"first": 8, "tokens": {"<a>": 6, "<b>": 4}})"), (Ids{4, 6})) << "7 is a spare row still";
  EXPECT_EQ(ids(R"({"first": 7, "tokens": {"<a>": 7, "<b>": 4}})", 9), (Ids{4, 7, 8}));
  EXPECT_EQ(ids(R"({"first": 8})"), Ids{});
  EXPECT_TRUE(contains(message_of<ModelError>([&] { ids(R"({"tokens": {"<a>": 8}})"); }), "expected a row of 8"));
}

TEST(Adapter, OfATiedModelIsTiedAsTheRunSays) {
  DecoderConfig config = decoder_preset("llama-tiny");
  config.tie_word_embeddings = true;
  LoraOptions lora{3, 6, 0, {{"q_proj"}}};
  lora.modules_to_save = {"embed_tokens"};
  Adapter adapter;
  adapter.config = {"base", lora};
  lora.ensure_weight_tying = true;
  const std::string message = message_of<ModelError>([&] { import_adapter(adapter, DecoderModel(config, lora)); });
  EXPECT_TRUE(contains(message, "set lora.ensure_weight_tying to false"));
}

TEST(Adapter, EachModuleHasItsOwnStrength) {
  DecoderConfig config = decoder_preset("llama-tiny");
  config.num_hidden_layers = 3;
  LoraOptions lora{4, 6, 0, {{}, ModuleSelector::kAllLinear}};
  lora.use_rslora = true;
  lora.rank_pattern = {{"layers\\.1\\.mlp\\..*", 16}};
  lora.alpha_pattern = {{"q_proj", 3}};
  const DecoderModel model(config, lora);
  ASSERT_EQ(model.targets().size(), 3u);
  EXPECT_EQ(model.targets()[0].size(), 7u);
  for (size_t block = 0; block < 3; ++block)
    for (const LoraTarget& target : model.targets()[block]) {
      EXPECT_EQ(target.strength.r, block == 1 && target.module.starts_with("mlp.") ? 16 : 4) << target.name;
      EXPECT_EQ(target.strength.scale, (target.name == "q_proj" ? 3.0 : 6.0) / (target.strength.r == 4 ? 2 : 4));
    }
  // The plan counts alike adapters together.
  double matrices = 0;
  for (const AdapterShape& shape : model.shape(8, 4).adapters)
    matrices += shape.share * static_cast<double>(shape.rank * (shape.in + shape.rows));
  EXPECT_NEAR(3 * matrices, static_cast<double>(model.num_trained_parameters()), 1e-6);
}

TEST(Adapter, RandomStartIsPefts) {
  const DecoderModel model = model_with({"q_proj", "down_proj"}, 8);
  const auto units = random_whole(model, at::kFloat, 1);
  const at::Tensor& a = units.back()[0];
  EXPECT_LE(a.abs().max().item<double>(), 1 / std::sqrt(128.0));
  EXPECT_NEAR(a.detach().std().item<double>(), 1 / std::sqrt(3 * 128.0), 0.05 / std::sqrt(128.0));
  EXPECT_EQ(units.back()[1].abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace trireme
