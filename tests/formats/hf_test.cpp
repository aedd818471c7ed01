#include "trireme/formats/huggingface/bert_config.h"
#include "trireme/formats/huggingface/peft_adapter.h"
#include "trireme/formats/huggingface/staged_model.h"
#include "trireme/formats/json.h"

#include "../base/base_testing.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trireme {
namespace {

using HuggingFace = DirectoryTest;

TEST_F(HuggingFace, ABertDropoutBelowItsResolutionIsRefused) {
  nlohmann::json bert = {{"hidden_size", 64},          {"num_hidden_layers", 1},
                         {"num_attention_heads", 1},   {"intermediate_size", 256},
                         {"vocab_size", 100},          {"attention_probs_dropout_prob", 0.004},
                         {"hidden_dropout_prob", 1e-5}};
  EXPECT_EQ(read_bert_config(write("config.json", bert.dump())).attention_probs_dropout_prob, 0.004);
  bert["attention_probs_dropout_prob"] = 0.0039;
  const auto read = [&] { read_bert_config(write("config.json", bert.dump())); };
  EXPECT_TRUE(contains(failure(ExitCode::kModel, read),
                       "attention_probs_dropout_prob 0.0039 is less than half a step of 1/128 and would drop nothing: "
                       "nearest are 0 and 0.0078125"));
  bert["attention_probs_dropout_prob"] = 0;
  bert["hidden_dropout_prob"] = 7e-6;
  EXPECT_TRUE(
      contains(failure(ExitCode::kModel, read), "hidden_dropout_prob 7e-06 is less than half a step of 1/65536"));
}

TEST(Json, AnObjectInOrderHasABound) {
  std::string text = "{\"0\": 0";
  for (int i = 1; i < 16384; ++i) text += fmt::format(", \"{}\": {}", i, i);
  EXPECT_EQ(parse_ordered_json(text + "}", "row", ExitCode::kData).size(), 16384u);
  text += ", \"more\": 0}";
  EXPECT_EQ(parse_json(text, "row", ExitCode::kData).size(), 16385u);
  EXPECT_EQ(failure(ExitCode::kData, [&] { parse_ordered_json(text, "row", ExitCode::kData); }),
            "row: an object of more than 16384 keys");
}

TEST_F(HuggingFace, ABertMayHaveNoPadding) {
  nlohmann::json bert = {{"hidden_size", 64},
                         {"num_hidden_layers", 1},
                         {"num_attention_heads", 1},
                         {"intermediate_size", 256},
                         {"vocab_size", 100}};
  EXPECT_EQ(read_bert_config(write("config.json", bert.dump())).pad_token_id, 0);
  bert["pad_token_id"] = nullptr;
  const BertConfig config = read_bert_config(write("config.json", bert.dump()));
  EXPECT_EQ(config.pad_token_id, -1);
  EXPECT_EQ(read_bert_config(write("config.json", bert_config_json(config))).pad_token_id, -1);
  bert["architectures"] = {"BertModel"};
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_bert_config(write("config.json", bert.dump())); }),
                       "[\"BertModel\"], which has no heads for pre-training (cls.*)"));
  bert["architectures"] = nullptr;
  bert["per_layer_config"] = {{"0", {{"layer_norm_eps", 0.1}}}};
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_bert_config(write("config.json", bert.dump())); }),
                       "per_layer_config"));
}

TEST_F(HuggingFace, OneProcessAtATimeWritesAModel) {
  {
    const StagedModel first(path("model"));
    EXPECT_TRUE(contains(failure(ExitCode::kCannotWrite, [&] { const StagedModel second(path("model")); }),
                         "another process writes a model into"));
    EXPECT_TRUE(std::filesystem::exists(first.path()));
  }
  const StagedModel next(path("model"));
}

TEST_F(HuggingFace, AnAdapterConfigThatIsNoObjectIsRefused) {
  for (const char* text : {"[]", "5", "\"LORA\"", "null"}) {
    write("adapter_config.json", text);
    EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_adapter_config(root_); }), "not a JSON object"));
  }
}

Adapter small_adapter() {
  Adapter adapter;
  adapter.config = {"base", {2, 4, 0.1, {{"q_proj"}}}};
  adapter.modules["model.layers.0.self_attn.q_proj"] = {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4}, 2, 3, 2};
  return adapter;
}

TEST_F(HuggingFace, AnAdapterOfTiedMatricesIsCalledSo) {
  Adapter adapter = small_adapter();
  adapter.config.lora.target_modules.names.emplace_back("embed_tokens");
  adapter.config.lora.ensure_weight_tying = true;
  adapter.modules["lm_head"] = adapter.modules.begin()->second;
  write_adapter(root_, adapter, DType::kF32);
  EXPECT_TRUE(
      contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }),
               "lm_head.lora_A.weight is of an adapter that ensure_weight_tying puts on the embedding and the output"));
}

TEST_F(HuggingFace, AdaptersComeBackAsWritten) {
  write_adapter(root_, small_adapter(), DType::kF32);
  const Adapter read = read_adapter(root_);
  EXPECT_EQ(read.config.lora.r, 2);
  EXPECT_EQ(read.config.lora.alpha, 4);
  EXPECT_EQ(read.modules.at("model.layers.0.self_attn.q_proj").a, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(read.modules.at("model.layers.0.self_attn.q_proj").out, 2);
}

TEST_F(HuggingFace, AnAdapterWhoseConfigurationCannotBeWrittenReplacesNone) {
  std::filesystem::create_symlink("none/config.json", root_ / "adapter_config.json");
  EXPECT_THROW(write_adapter(root_, small_adapter(), DType::kF32), WriteError);
  EXPECT_FALSE(std::filesystem::exists(root_ / "adapter_model.safetensors"));
}

TEST_F(HuggingFace, AdaptersKeepTheirRowsOfTheVocabulary) {
  Adapter adapter = small_adapter();
  adapter.token_rows["model.embed_tokens"] = {{7, 9}, {1, 2, 3, 4, 5, 6}, 3};
  write_adapter(root_, adapter, DType::kF32);
  const Adapter read = read_adapter(root_);
  EXPECT_EQ(read.config.token_indices.at("model.embed_tokens"), (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(read.token_rows.at("model.embed_tokens").values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  auto json = nlohmann::json::parse(slurp("adapter_config.json"));
  EXPECT_EQ(json["trainable_token_indices"]["embed_tokens"], (std::vector<int>{7, 9}));
  for (const nlohmann::json& indices :
       std::vector<nlohmann::json>{{7}, {9, 9}, {{"lm_head", {1}}}, {{"k_proj", {1}}}, "all"}) {
    json["trainable_token_indices"] = indices;
    write("adapter_config.json", json.dump());
    EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "trainable_token"));
  }
}

TEST_F(HuggingFace, WhatPeftWouldLeaveOutIsRefused) {
  write_adapter(root_, small_adapter(), DType::kF32);
  auto json = nlohmann::json::parse(slurp("adapter_config.json"));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto changed = json;
    changed[key] = value;
    write("adapter_config.json", changed.dump());
  };
  with("exclude_modules", {"layers.0.self_attn.q_proj"});
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "exclude_modules"));
  with("target_modules", {"proj"});
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "target_modules"));
  with("target_modules", {"self_attn.q_proj", "lm_head"});
  EXPECT_EQ(read_adapter(root_).modules.size(), 1u);
  // Fields that only affect the values before training; and an unknown field with an empty value.
  for (const nlohmann::json& init : std::vector<nlohmann::json>{true, false, "gaussian", "eva", "orthogonal", "mica"}) {
    with("init_lora_weights", init);
    EXPECT_NO_THROW(read_adapter(root_)) << init;
  }
  for (const char* init : {"pissa", "pissa_niter_16", "OLoRA", "corda", "loftq", "lora_ga", "of_tomorrow"}) {
    with("init_lora_weights", init);
    EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "init_lora_weights"));
  }
  with("of_tomorrow", nullptr);
  EXPECT_NO_THROW(read_adapter(root_));
  with("of_tomorrow", 0.5);
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "of_tomorrow"));
}

TEST_F(HuggingFace, AdaptersWeLackAreRefusedByName) {
  write_adapter(root_, small_adapter(), DType::kF32);
  const std::string config = adapter_config_json(small_adapter().config);
  const std::pair<const char*, nlohmann::json> cases[] = {{"use_qalora", true},
                                                          {"lora_bias", true},
                                                          {"alora_invocation_tokens", {1, 2}},
                                                          {"layer_replication", {{0, 2}}},
                                                          {"target_parameters", {"experts"}},
                                                          {"layers_pattern", "blocks"},
                                                          {"kasa_config", nlohmann::json::object()},
                                                          {"use_bdlora", nlohmann::json::object()},
                                                          {"peft_type", "IA3"},
                                                          {"bias", "some"},
                                                          {"modules_to_save", {"lm_head"}},
                                                          {"modules_to_save", {"norm"}},
                                                          {"rank_pattern", {{"(q_proj", 4}}},
                                                          {"alpha_pattern", {{"q_proj", 0}}},
                                                          {"layers_to_transform", {1}},
                                                          {"layers_to_transform", "0"},
                                                          {"target_modules", ".*(?<=q)_proj"},
                                                          {"target_modules", ".*k_proj"},
                                                          {"r", 0}};
  for (const auto& [key, value] : cases) {
    auto json = nlohmann::json::parse(config);
    json[key] = value;
    write("adapter_config.json", json.dump());
    const std::string message = failure(ExitCode::kModel, [&] { read_adapter(root_); });
    EXPECT_TRUE(contains(message, key));
  }
  auto json = nlohmann::json::parse(config);
  json["r"] = 3;
  write("adapter_config.json", json.dump());
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "r = 3"));
  // DoRA without its magnitudes.
  json["r"] = 2;
  json["use_dora"] = true;
  write("adapter_config.json", json.dump());
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "lora_magnitude_vector of 0 values"));
}

TEST_F(HuggingFace, AdaptersComeBackWithAllThatPeftsCanHave) {
  Adapter adapter = small_adapter();
  LoraOptions& lora = adapter.config.lora;
  lora.use_dora = lora.use_rslora = true;
  lora.bias = LoraOptions::Bias::kLoraOnly;
  lora.modules_to_save = {"lm_head"};
  lora.target_modules = {{"embed_tokens", "q_proj"}};
  lora.exclude_modules = {{}, ".*layers\\.1\\..*"};
  lora.layers_to_transform = {0};
  lora.rank_pattern = {{"embed_tokens", 1}};
  lora.alpha_pattern = {{"q_proj", 0.5}};
  const std::string module = "model.layers.0.self_attn.q_proj";
  adapter.modules[module].magnitude = {5, 6};
  adapter.saved["lm_head.weight"] = {{2, 3}, {1, 2, 3, 4, 5, 6}};
  adapter.saved[module + ".bias"] = {{2}, {7, 8}};
  adapter.token_rows["model.embed_tokens"] = {{4}, {1, 2, 3}, 3};
  write_adapter(root_, adapter, DType::kF32);
  const Adapter read = read_adapter(root_);
  EXPECT_EQ(read.config.lora, lora);
  EXPECT_EQ(read.modules.at(module).magnitude, (std::vector<float>{5, 6}));
  EXPECT_EQ(read.saved.at("lm_head.weight").values, adapter.saved["lm_head.weight"].values);
  EXPECT_EQ(read.saved.at(module + ".bias").values, (std::vector<float>{7, 8}));
  const SafetensorsFile file(root_ / "adapter_model.safetensors");
  for (const char* name :
       {"base_model.model.lm_head.weight", "base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"})
    EXPECT_TRUE(file.entries().contains(name)) << name;
  // ids in the order of the file.
  auto json = nlohmann::json::parse(slurp("adapter_config.json"));
  EXPECT_EQ(json["bias"], "lora_only");
  EXPECT_EQ(json["exclude_modules"], ".*layers\\.1\\..*");
}

}  // namespace
}  // namespace trireme
