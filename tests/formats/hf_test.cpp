#include "trireme/formats/bert_config.h"
#include "trireme/formats/hf_config.h"
#include "trireme/formats/peft_adapter.h"

#include "temporary.h"

#include <nlohmann/json.hpp>

namespace trireme {
namespace {

using HuggingFace = TemporaryDirectory;

nlohmann::json llama2() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 8192},
          {"intermediate_size", 28672},
          {"num_hidden_layers", 80},
          {"num_attention_heads", 64},
          {"num_key_value_heads", 8},
          {"vocab_size", 32000},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"rope_scaling", nullptr}};
}

TEST_F(HuggingFace, Llama2ConfigWithItsDefaults) {
  const LlamaConfig config = read_llama_config(write("config.json", llama2().dump()));
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST_F(HuggingFace, BothSpellingsOfRopeAgree) {
  auto flat = llama2(), nested = llama2();
  const nlohmann::json llama3 = {{"rope_type", "llama3"},
                                 {"factor", 8.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 8192}};
  flat["rope_theta"] = 5e5;
  flat["rope_scaling"] = llama3;
  nested["rope_parameters"] = llama3;
  nested["rope_parameters"]["rope_theta"] = 5e5;
  for (const auto& json : {flat, nested}) {
    const LlamaConfig config = read_llama_config(write("config.json", json.dump()));
    EXPECT_EQ(config.rope_theta, 5e5);
    EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kLlama3);
    EXPECT_EQ(config.rope_scaling.factor, 8.0);
    const LlamaConfig again = read_llama_config(write("again.json", llama_config_json(config)));
    EXPECT_EQ(again.rope_theta, 5e5);
    EXPECT_EQ(again.rope_scaling.original_max_position, 8192);
  }
}

TEST_F(HuggingFace, ABertDropoutBelowItsResolutionIsRefused) {
  nlohmann::json bert = {{"hidden_size", 64},          {"num_hidden_layers", 1},
                         {"num_attention_heads", 1},   {"intermediate_size", 256},
                         {"vocab_size", 100},          {"attention_probs_dropout_prob", 0.004},
                         {"hidden_dropout_prob", 1e-5}};
  EXPECT_EQ(read_bert_config(write("config.json", bert.dump())).attention_probs_dropout_prob, 0.004);
  bert["attention_probs_dropout_prob"] = 0.0039;
  const auto read = [&] { read_bert_config(write("config.json", bert.dump())); };
  expect_contains(failure(ExitCode::kModel, read),
                  "attention_probs_dropout_prob 0.0039 is less than half a step of 1/128 and would drop nothing: "
                  "nearest are 0 and 0.0078125");
  bert["attention_probs_dropout_prob"] = 0;
  bert["hidden_dropout_prob"] = 7e-6;
  expect_contains(failure(ExitCode::kModel, read), "hidden_dropout_prob 7e-06 is less than half a step of 1/65536");
}

TEST_F(HuggingFace, WhatWeLackIsRefusedByName) {
  const std::pair<const char*, nlohmann::json> cases[] = {{"attention_bias", true},
                                                          {"mlp_bias", true},
                                                          {"hidden_act", "gelu"},
                                                          {"attention_dropout", 0.1},
                                                          {"model_type", "mistral"},
                                                          {"architectures", {"MistralForCausalLM"}},
                                                          {"quantization_config", {{"bits", 4}}},
                                                          {"sliding_window", 4096},
                                                          {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}},
                                                          {"num_key_value_heads", 7},
                                                          {"hidden_size", "big"},
                                                          {"vocab_size", -5}};
  for (const auto& [key, value] : cases) {
    auto json = llama2();
    json[key] = value;
    expect_contains(failure(ExitCode::kModel, [&] { read_llama_config(write("config.json", json.dump())); }), key);
  }
}

TEST_F(HuggingFace, AllMissingFieldsComeAtOnce) {
  const std::string message =
      failure(ExitCode::kModel, [&] { read_llama_config(write("config.json", R"({"model_type": "llama"})")); });
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    expect_contains(message, std::string(key) + " is missing");
  expect_contains(failure(ExitCode::kModel, [&] { read_llama_config(write("config.json", R"({"a": 1, "a": 2})")); }),
                  "stands twice");
}

TEST_F(HuggingFace, NemoConfigsAreBoundedInWork) {
  write("weights/module.embedding.word_embeddings.weight/.zarray", R"({"shape": [96, 16]})");
  const std::string good =
      "config:\n  num_layers: 2\n  hidden_size: 16\n  ffn_hidden_size: 48\n  num_attention_heads: 4\n  "
      "num_query_groups: 2\n";
  write("context/model.yaml", good);
  EXPECT_EQ(read_model_config(root_).vocab_size, 96);
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 9; ++k) bomb += (k == 0 ? "*a" : ", *a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  const std::pair<std::string, const char*> cases[] = {
      {bomb + good, "more than 100000 nodes"},
      {std::string(100'000, '['), "model.yaml"},
      {std::string(300'000, '['), "more than the 262144"},
      {good + "  rotary_base: .nan\n", "rotary_base is .nan"},
      {good + "  kv_channels: 3\n", "head_dim 3 is odd"},
      {"config: {num_layers: 2147483647, hidden_size: 16, ffn_hidden_size: 48, num_attention_heads: 4}",
       "at most 10000"},
      {"config: {num_layers: 2, hidden_size: 2147483646, ffn_hidden_size: 2147483646, num_attention_heads: 2}",
       "parameters"},
      {"config: {num_layers: 2, hidden_size: 16, ffn_hidden_size: 48, num_attention_heads: 4, num_query_groups: 3}",
       "no multiple"},
  };
  for (const auto& [text, part] : cases) {
    write("context/model.yaml", text);
    expect_contains(failure(ExitCode::kModel, [&] { read_model_config(root_); }), part);
  }
}

TEST_F(HuggingFace, ShapesThatNoComputerHoldsAreRefused) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "head_dim"}) {
    auto json = llama2();
    json[key] = 1099511627776;
    expect_contains(failure(ExitCode::kModel, [&] { read_llama_config(write("config.json", json.dump())); }), key);
  }
  auto json = llama2();
  json["hidden_size"] = 2147483584;
  expect_contains(failure(ExitCode::kModel, [&] { read_llama_config(write("config.json", json.dump())); }),
                  "parameters");
  json = llama2();
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 1e300}};
  expect_contains(failure(ExitCode::kModel, [&] { read_llama_config(write("config.json", json.dump())); }),
                  "original_max_position_embeddings");
}

TEST_F(HuggingFace, AnAdapterConfigThatIsNoObjectIsRefused) {
  for (const char* text : {"[]", "5", "\"LORA\"", "null"}) {
    write("adapter_config.json", text);
    expect_contains(failure(ExitCode::kModel, [&] { read_adapter_config(root_); }), "not a JSON object");
  }
}

Adapter small_adapter() {
  Adapter adapter;
  adapter.config = {"base", 2, 4, 0.1, {"q_proj"}};
  adapter.modules["model.layers.0.self_attn.q_proj"] = {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4}, 2, 3, 2};
  return adapter;
}

TEST_F(HuggingFace, AdaptersComeBackAsWritten) {
  write_adapter(root_, small_adapter(), DType::kF32);
  const Adapter read = read_adapter(root_);
  EXPECT_EQ(read.config.r, 2);
  EXPECT_EQ(read.config.alpha, 4);
  EXPECT_EQ(read.modules.at("model.layers.0.self_attn.q_proj").a, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(read.modules.at("model.layers.0.self_attn.q_proj").out, 2);
}

TEST_F(HuggingFace, AdaptersWeLackAreRefusedByName) {
  write_adapter(root_, small_adapter(), DType::kF32);
  const std::string config = adapter_config_json(small_adapter().config);
  const std::pair<const char*, nlohmann::json> cases[] = {{"use_dora", true},
                                                          {"use_rslora", true},
                                                          {"peft_type", "IA3"},
                                                          {"bias", "all"},
                                                          {"modules_to_save", {"lm_head"}},
                                                          {"rank_pattern", {{"q_proj", 4}}},
                                                          {"target_modules", "all-linear"},
                                                          {"r", 0}};
  for (const auto& [key, value] : cases) {
    auto json = nlohmann::json::parse(config);
    json[key] = value;
    write("adapter_config.json", json.dump());
    const std::string message = failure(ExitCode::kModel, [&] { read_adapter(root_); });
    expect_contains(message, key);
  }
  auto json = nlohmann::json::parse(config);
  json["r"] = 3;
  write("adapter_config.json", json.dump());
  expect_contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "r = 3");
}

}  // namespace
}  // namespace trireme
