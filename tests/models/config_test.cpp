// config.json of every family and model.yaml of NeMo: what is read, written and refused.
#include "models/decoder/config.h"

#include "models/decoder/family.h"

#include "../formats/temporary.h"

#include <nlohmann/json.hpp>

namespace trireme {
namespace {

using DecoderConfigFile = TemporaryDirectory;

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

TEST_F(DecoderConfigFile, Llama2ConfigWithItsDefaults) {
  const DecoderConfig config = read_decoder_config(write("config.json", llama2().dump()));
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST_F(DecoderConfigFile, BothSpellingsOfRopeAgree) {
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
    const DecoderConfig config = read_decoder_config(write("config.json", json.dump()));
    EXPECT_EQ(config.rope.theta, 5e5);
    EXPECT_EQ(config.rope.scaling, RopeFrequencies::Scaling::kLlama3);
    EXPECT_EQ(config.rope.factor, 8.0);
    const DecoderConfig again = read_decoder_config(write("again.json", decoder_config_json(config)));
    EXPECT_EQ(again.rope.theta, 5e5);
    EXPECT_EQ(again.rope.original_max_position, 8192);
  }
}

TEST_F(DecoderConfigFile, RopeScalingTakesThePlaceOfRopeParameters) {
  auto json = llama2();
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  DecoderConfig config = read_decoder_config(write("config.json", json.dump()));
  EXPECT_EQ(config.rope.scaling, RopeFrequencies::Scaling::kLinear);
  EXPECT_EQ(config.rope.theta, 10000.0) << "rope_parameters counts for nothing then";
  json["rope_scaling"] = nlohmann::json::object();
  EXPECT_EQ(read_decoder_config(write("config.json", json.dump())).rope.theta, 5e5);
  json["rope_scaling"] = {{"rope_type", nullptr}, {"factor", 2.0}};
  expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                  "rope_scaling.rope_type");
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}}}};
  expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                  "rope_parameters.full_attention");
}

TEST_F(DecoderConfigFile, SpecialTokensAreListsNullOrAbsent) {
  const auto read = [&](const nlohmann::json& fields) {
    auto json = llama2();
    json.update(fields);
    const DecoderConfig config = read_decoder_config(write("config.json", json.dump()));
    const DecoderConfig again = read_decoder_config(write("again.json", decoder_config_json(config)));
    EXPECT_EQ(config.eos_token_ids, again.eos_token_ids) << fields;
    EXPECT_EQ(config.bos_token_id, again.bos_token_id) << fields;
    EXPECT_EQ(config.pad_token_id, again.pad_token_id) << fields;
    return config;
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(read(nlohmann::json::object()).eos_token_ids, Ids{2});
  EXPECT_EQ(read(nlohmann::json::object()).bos_token_id, 1);
  EXPECT_EQ(read(nlohmann::json::object()).pad_token_id, std::nullopt);
  EXPECT_EQ(read({{"eos_token_id", {5, 9, 7}}}).eos_token_ids, (Ids{5, 9, 7}));
  EXPECT_EQ(read({{"eos_token_id", nullptr}}).eos_token_ids, Ids{});
  EXPECT_EQ(read({{"bos_token_id", nullptr}}).bos_token_id, std::nullopt);
  EXPECT_EQ(read({{"pad_token_id", 0}}).pad_token_id, 0);
  auto json = llama2();
  json["eos_token_id"] = {1, "x"};
  expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                  "eos_token_id");
  // generation_config.json's list is the one that generate() takes.
  const DecoderConfig config = read({{"eos_token_id", 4}});
  EXPECT_EQ(end_of_text_ids(root_, config), Ids{4});
  write("generation_config.json", R"({"eos_token_id": [8, 9]})");
  EXPECT_EQ(end_of_text_ids(root_, config), (Ids{8, 9}));
}

TEST_F(DecoderConfigFile, WhatWeLackIsRefusedByName) {
  const std::pair<const char*, nlohmann::json> cases[] = {{"attention_bias", true},
                                                          {"mlp_bias", true},
                                                          {"hidden_act", "gelu"},
                                                          {"attention_dropout", 1.0},
                                                          {"model_type", "falcon"},
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
    expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }), key);
  }
}

TEST_F(DecoderConfigFile, AllMissingFieldsComeAtOnce) {
  const std::string message =
      failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", R"({"model_type": "llama"})")); });
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    expect_contains(message, std::string(key) + " is missing");
  expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", R"({"a": 1, "a": 2})")); }),
                  "appears twice");
}

TEST_F(DecoderConfigFile, NemoConfigsAreBoundedInWork) {
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

TEST_F(DecoderConfigFile, ShapesThatNoComputerHoldsAreRefused) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "head_dim"}) {
    auto json = llama2();
    json[key] = 1099511627776;
    expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }), key);
  }
  auto json = llama2();
  json["hidden_size"] = 2147483584;
  expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                  "parameters");
  json = llama2();
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 1e300}};
  expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                  "original_max_position_embeddings");
}

nlohmann::json config_of(const std::string& preset) {
  return nlohmann::json::parse(decoder_config_json(decoder_preset(preset)));
}

TEST_F(DecoderConfigFile, PresetsComeBackAsWritten) {
  for (const std::string& name : decoder_preset_names()) {
    const DecoderConfig config = decoder_preset(name);
    const std::string text = decoder_config_json(config);
    const DecoderConfig again = read_decoder_config(write("config.json", text));
    EXPECT_EQ(again.family, config.family);
    EXPECT_EQ(decoder_config_json(again), text) << name;
    EXPECT_EQ(again.head_dim, config.head_dim);
    EXPECT_EQ(again.positions, config.positions);
    EXPECT_EQ(again.norm, config.norm);
  }
}

TEST_F(DecoderConfigFile, AnUnknownFamilyIsRefusedWithTheKnownOnes) {
  const auto read = [&](const nlohmann::json& json) {
    return failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); });
  };
  expect_contains(read({{"model_type", "mixtral"}}),
                  "model_type: \"mixtral\" is not supported; known are gpt2, llama, mistral, qwen2, qwen3");
  expect_contains(
      read({{"architectures", {"FalconForCausalLM"}}}),
      "known are GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM");
  auto json = config_of("mistral-7b-v0.1");
  json["architectures"] = {"MistralForSequenceClassification"};
  expect_contains(read(json), "of a mistral it is [\"MistralForCausalLM\"]");
  json.erase("model_type");
  json["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(read_decoder_config(write("config.json", json.dump())).family, "mistral");
}

TEST_F(DecoderConfigFile, WhatAFamilyLacksIsRefusedByName) {
  const struct {
    const char *preset, *key;
    nlohmann::json value;
  } cases[] = {{"mistral-7b-v0.1", "hidden_act", "gelu"},
               {"mistral-7b-v0.1", "layer_types", {"full_attention"}},
               {"mistral-7b-v0.1", "sliding_window", 0},
               {"qwen2-7b", "layer_types", {"sliding_attention"}},
               {"qwen2-7b", "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
               {"qwen2-7b", "attention_dropout", 0.001},
               {"gpt2", "activation_function", "relu"},
               {"gpt2", "scale_attn_by_inverse_layer_idx", true},
               {"gpt2", "resid_pdrop", 1.5},
               {"gpt2", "n_head", 7}};
  for (const auto& c : cases) {
    auto json = config_of(c.preset);
    json[c.key] = c.value;
    const std::string part = c.key == std::string("n_head") ? "heads" : c.key;
    expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }), part);
  }
}

TEST_F(DecoderConfigFile, DefaultsOfAbsentFieldsAreThoseOfTransformers) {
  auto json = config_of("mistral-7b-v0.3");
  const auto read = [&] { return read_decoder_config(write("config.json", json.dump())); };
  EXPECT_EQ(read().sliding_window, std::nullopt);  // null
  for (const char* key : {"sliding_window", "num_key_value_heads", "max_position_embeddings"}) json.erase(key);
  EXPECT_EQ(read().sliding_window, 4096);
  EXPECT_EQ(read().num_key_value_heads, 8);
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(read().num_key_value_heads, 32);
  json = {{"model_type", "gpt2"}};
  EXPECT_EQ(decoder_config_json(read()), decoder_config_json(decoder_preset("gpt2")));
  EXPECT_EQ(read().intermediate_size, 3072);
}

TEST_F(DecoderConfigFile, ASlidingWindowBoundsTheSequence) {
  auto json = config_of("mistral-7b-v0.1");
  const auto message = [&](int64_t length) {
    const DecoderConfig config = read_decoder_config(write("config.json", json.dump()));
    return failure(ExitCode::kConfig, [&] { check_sequence_length(config, length, "data.seq_length"); });
  };
  const auto passes = [&](int64_t length) {
    check_sequence_length(read_decoder_config(write("config.json", json.dump())), length, "data.seq_length");
  };
  passes(4096);
  expect_contains(message(4097), "data.seq_length is 4097, and this mistral has a sliding_window of 4096 tokens");
  json["sliding_window"] = nullptr;
  passes(100'000);
  json = config_of("qwen2-7b");
  json["sliding_window"] = 64;
  passes(65);  // use_sliding_window is false
  json["use_sliding_window"] = true;
  passes(65);  // max_window_layers is the number of layers
  json["max_window_layers"] = 27;
  expect_contains(message(65), "sliding_window of 64");
  json = config_of("gpt2");
  passes(1024);
  expect_contains(message(1025), "learned positions for 1024 tokens");
}

TEST_F(DecoderConfigFile, Qwen3HasItsOwnHeadSize) {
  nlohmann::json json = config_of("qwen3-0.6b");
  json.erase("head_dim");
  json["hidden_size"] = 1000;  // no multiple of 16 heads
  EXPECT_EQ(read_decoder_config(write("config.json", json.dump())).head_dim, 128);
}

}  // namespace
}  // namespace trireme
