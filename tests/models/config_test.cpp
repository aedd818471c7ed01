// config.json of every family and model.yaml of NeMo: what is read, written and refused.
#include "models/decoder/config.h"

#include "models/decoder/family.h"

#include "../base/base_testing.h"

#include <nlohmann/json.hpp>

#include <cmath>

namespace trireme {
namespace {

using DecoderConfigFile = DirectoryTest;

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
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                       "rope_scaling.rope_type"));
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}}}};
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                       "rope_parameters.full_attention"));
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
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                       "eos_token_id"));
  // generation_config.json's list is the one that generate() takes.
  const DecoderConfig config = read({{"eos_token_id", 4}});
  EXPECT_EQ(end_of_text_ids(root_, config), Ids{4});
  write("generation_config.json", R"({"eos_token_id": [8, 9]})");
  EXPECT_EQ(end_of_text_ids(root_, config), (Ids{8, 9}));
  EXPECT_EQ(repetition_penalty(root_), 1);
  write("generation_config.json", R"({"repetition_penalty": 0})");
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { repetition_penalty(root_); }), "repetition_penalty is 0"));
}

TEST_F(DecoderConfigFile, WhatWeLackIsRefusedByName) {
  const std::pair<const char*, nlohmann::json> cases[] = {
      {"attention_bias", true},
      {"mlp_bias", true},
      {"hidden_act", "gelu"},
      {"attention_dropout", 1.0},
      {"model_type", "falcon"},
      {"architectures", {"MistralForCausalLM"}},
      {"quantization_config", {{"bits", 4}}},
      {"sliding_window", 4096},
      {"rope_scaling", {{"rope_type", "mrope"}, {"factor", 2.0}}},
      {"rope_scaling", {{"rope_type", "yarn"}}},
      {"rope_scaling", {{"rope_type", "dynamic"}}},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", nullptr}}},
      {"rope_scaling", {{"rope_type", "longrope"}}},
      {"partial_rotary_factor", 0.5},
      {"num_key_value_heads", 7},
      {"hidden_size", "big"},
      {"vocab_size", -5},
      {"pad_token_id", 32000},
      {"pad_token_id", {1}},
      {"pad_token_id", UINT64_MAX},  // -1 in 64 bits with a sign
      {"bos_token_id", {1}},
      {"rms_norm_eps", nullptr},
      {"rope_parameters", nlohmann::json::array()}};
  for (const auto& [key, value] : cases) {
    auto json = llama2();
    json[key] = value;
    EXPECT_TRUE(
        contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }), key));
  }
  EXPECT_TRUE(contains(
      failure(ExitCode::kModel,
              [&] { read_decoder_config(write("config.json", R"({"model_type": "gpt2", "rope_parameters": "x"})")); }),
      "rope_parameters is not an object"));
}

TEST_F(DecoderConfigFile, AllMissingFieldsComeAtOnce) {
  const std::string message =
      failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", R"({"model_type": "llama"})")); });
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    EXPECT_TRUE(contains(message, std::string(key) + " is missing"));
  EXPECT_TRUE(
      contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", R"({"a": 1, "a": 2})")); }),
               "appears twice"));
}

TEST_F(DecoderConfigFile, FoldersOfTheHubsCacheNameTheirSnapshot) {
  write("refs/main", "0abc");
  for (const char* revision : {"0abc", "fedc"}) write(std::string("snapshots/") + revision + "/config.json", "{}");
  const auto says = [&] { return failure(ExitCode::kModel, [&] { read_model_config(root_); }); };
  EXPECT_TRUE(contains(says(), "has no config.json; it is a folder of the Hugging Face Hub's cache: the files are in"));
  EXPECT_TRUE(contains(says(), "/snapshots/0abc"));
  write("refs/main", "1111");  // was removed
  EXPECT_TRUE(contains(says(), "/snapshots/fedc"));
}

TEST_F(DecoderConfigFile, NemoConfigsAreBoundedInWork) {
  write("weights/module.embedding.word_embeddings.weight/.zarray", R"({"shape": [96, 16]})");
  const std::string good =
      "config:\n  num_layers: 2\n  hidden_size: 16\n  ffn_hidden_size: 48\n  num_attention_heads: 4\n  "
      "num_query_groups: 2\n";
  write("context/model.yaml", good);
  EXPECT_EQ(read_model_config(root_).vocab_size, 96);
  write("context/model.yaml", good + "  hidden_dropout: 0.00\n  attention_dropout: 0e0\n  rotary_percent: 1.00\n");
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
      {good + "  hidden_dropout: 0.1\n  attention_dropout: 0.0\n", "hidden_dropout: 0.1 is not supported"},
      {good + "  attention_dropout: 0.001\n", "attention_dropout: 0.001 is not supported"},
      {good + "  softmax_type: learnable\n", "softmax_type: learnable is not supported"},
      {"config: {num_layers: 2147483647, hidden_size: 16, ffn_hidden_size: 48, num_attention_heads: 4}",
       "at most 10000"},
      {"config: {num_layers: 2, hidden_size: 2147483646, ffn_hidden_size: 2147483646, num_attention_heads: 2}",
       "parameters"},
      {"config: {num_layers: 2, hidden_size: 16, ffn_hidden_size: 48, num_attention_heads: 4, num_query_groups: 3}",
       "no multiple"},
  };
  for (const auto& [text, part] : cases) {
    write("context/model.yaml", text);
    EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_model_config(root_); }), part));
  }
}

TEST_F(DecoderConfigFile, ShapesThatNoComputerHoldsAreRefused) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "head_dim"}) {
    auto json = llama2();
    json[key] = 1099511627776;
    EXPECT_TRUE(
        contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }), key));
  }
  auto json = llama2();
  json["hidden_size"] = 2147483584;
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                       "parameters"));
  json = llama2();
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 1e300}};
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                       "original_max_position_embeddings"));
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
  EXPECT_TRUE(
      contains(read({{"model_type", "mixtral"}}),
               "model_type: \"mixtral\" is not supported; known are gemma3_text, gpt2, granite, llama, mistral, olmo2, "
               "phi3, qwen2, qwen3, smollm3"));
  EXPECT_TRUE(contains(
      read({{"architectures", {"FalconForCausalLM"}}}),
      "known are Gemma3ForCausalLM, GPT2LMHeadModel, GraniteForCausalLM, LlamaForCausalLM, MistralForCausalLM, "
      "Olmo2ForCausalLM, Phi3ForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, SmolLM3ForCausalLM"));
  auto json = config_of("mistral-7b-v0.1");
  json["architectures"] = {"MistralForSequenceClassification"};
  EXPECT_TRUE(contains(read(json), "of a mistral it is [\"MistralForCausalLM\"]"));
  json.erase("model_type");
  json["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(read_decoder_config(write("config.json", json.dump())).family, "mistral");
}

TEST_F(DecoderConfigFile, WhatAFamilyLacksIsRefusedByName) {
  const struct {
    const char *preset, *key;
    nlohmann::json value;
  } cases[] = {
      {"mistral-7b-v0.1", "hidden_act", "gelu"},
      {"mistral-7b-v0.1", "layer_types", {"full_attention"}},
      {"mistral-7b-v0.1", "sliding_window", 0},
      {"qwen2-7b", "layer_types", {"sliding_attention"}},
      {"qwen2-7b", "rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 0.5}}},
      {"qwen2-7b", "rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", 1}}},
      {"phi3-mini-4k", "rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}},
      {"phi3-mini-4k", "embd_pdrop", 0.1},
      {"phi3-mini-4k", "partial_rotary_factor", -1},
      {"phi4-mini", "head_dim", 64},
      {"olmo2-7b", "attention_bias", true},
      {"smollm3-3b", "no_rope_layers", {1, 0}},
      {"smollm3-3b", "mlp_bias", true},
      {"granite3.3-2b", "residual_multiplier", 0},
      {"gemma3-1b", "final_logit_softcapping", 30.0},
      {"gemma3-1b", "attn_logit_softcapping", 50.0},
      {"gemma3-1b", "hidden_activation", "gelu"},
      {"gemma3-1b", "use_bidirectional_attention", true},
      {"gemma3-1b", "sliding_window", nullptr},
      {"gemma3-1b", "layer_types", {"full_attention"}},
      {"gemma3-1b", "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
      {"gemma3-1b",
       "rope_parameters",
       {{"full_attention", {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", false}}}}},
      {"qwen2-7b", "attention_dropout", 0.001},
      {"llama3.2-1b", "is_causal", false},
      {"llama3.2-1b", "per_layer_config", {{"1", {{"rms_norm_eps", 0.1}}}}},
      {"llama3.2-1b", "transformers_weights", "other.safetensors"},
      {"llama3.2-1b", "configuration_files", {"config.4.0.0.json"}},
      {"gpt2", "is_causal", nullptr},
      {"gpt2", "activation_function", "relu"},
      {"gpt2", "scale_attn_by_inverse_layer_idx", true},
      {"gpt2", "resid_pdrop", 1.5},
      {"gpt2", "n_head", 7}};
  for (const auto& c : cases) {
    auto json = config_of(c.preset);
    json[c.key] = c.value;
    const std::string part = c.key == std::string("n_head")     ? "heads"
                             : c.key == std::string("head_dim") ? "long_factor has 48 numbers, 24 pairs"
                                                                : c.key;
    EXPECT_TRUE(
        contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }), part));
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
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}};
  EXPECT_TRUE(read().rope.truncate);
  json["rope_scaling"]["truncate"] = nullptr;
  EXPECT_FALSE(read().rope.truncate);
  json = {{"model_type", "gpt2"}};
  EXPECT_EQ(decoder_config_json(read()), decoder_config_json(decoder_preset("gpt2")));
  EXPECT_EQ(read().intermediate_size, 3072);
  // As transformers, which prefers the common names.
  json.update({{"hidden_size", 64},
               {"n_embd", 96},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 4},
               {"max_position_embeddings", 32}});
  const DecoderConfig config = read();
  EXPECT_EQ(std::tuple(config.hidden_size, config.num_hidden_layers, config.head_dim, config.max_position_embeddings),
            std::tuple(64, 2, 16, 32));
}

TEST_F(DecoderConfigFile, LearnedPositionsBoundTheSequence) {
  const DecoderConfig config = decoder_preset("gpt2");
  check_sequence_length(config, 1024, "data.seq_length");
  EXPECT_TRUE(contains(failure(ExitCode::kConfig, [&] { check_sequence_length(config, 1025, "data.seq_length"); }),
                       "learned positions for 1024 tokens"));
  check_sequence_length(decoder_preset("mistral-7b-v0.1"), 100'000, "data.seq_length");
}

std::string windows_of(const DecoderConfig& config) {
  std::string text;
  const BlockTable block = decoder_block(config);
  for (int64_t b = 0; b < config.num_hidden_layers; ++b) {
    const BlockAttention& own = block.attention_of(b);
    text += std::to_string(own.window) + (own.rope < 0 ? "n" : own.rope > 0 ? "w" : "") + " ";
  }
  return text;
}

TEST_F(DecoderConfigFile, WindowsAndRotaryPositionsOfEachBlock) {
  const auto read = [&](const nlohmann::json& json) {
    const DecoderConfig config = read_decoder_config(write("config.json", json.dump()));
    const DecoderConfig again = read_decoder_config(write("again.json", decoder_config_json(config)));
    EXPECT_EQ(windows_of(config), windows_of(again)) << json;
    return windows_of(config);
  };
  auto json = config_of("mistral-7b-v0.1");
  json["num_hidden_layers"] = 2;
  EXPECT_EQ(read(json), "4096 4096 ");
  json["sliding_window"] = nullptr;
  EXPECT_EQ(read(json), "0 0 ");
  json = config_of("qwen2-7b");
  json["num_hidden_layers"] = 3;
  json["sliding_window"] = 64;
  json["max_window_layers"] = 1;
  EXPECT_EQ(read(json), "0 0 0 ") << "use_sliding_window is false";
  json["use_sliding_window"] = true;
  EXPECT_EQ(read(json), "0 64 64 ");
  json["sliding_window"] = nullptr;
  EXPECT_EQ(read(json), "0 0 0 ") << "transformers reads null as no window";
  json["sliding_window"] = 64;
  json["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(read(json), "0 64 64 ");
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(read(json), "64 0 64 ");
  json = config_of("smollm3-3b");
  json["num_hidden_layers"] = 4;
  for (const char* key : {"no_rope_layers", "layer_types"}) json.erase(key);
  EXPECT_EQ(read(json), "0 0 0 0n ");
  json["no_rope_layer_interval"] = 2;
  json["use_sliding_window"] = true;
  json["sliding_window"] = 9;
  EXPECT_EQ(read(json), "0 9n 0 9n ");
  json["no_rope_layers"] = {0, 1, 1, 1, 0, 0};
  json["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(read(json), "0n 9 0 0 ");
  json = config_of("gemma3-1b");
  json["num_hidden_layers"] = 7;
  json.erase("layer_types");
  EXPECT_EQ(read(json), "512w 512w 512w 512w 512w 0 512w ");
  json["sliding_window_pattern"] = 2;
  EXPECT_EQ(read(json), "512w 0 512w 0 512w 0 512w ");
}

TEST_F(DecoderConfigFile, OtherNumbersOfBlocksContinueThePattern) {
  DecoderConfig config = decoder_preset("gemma3-1b");
  set_layers(config, 3);
  EXPECT_EQ(windows_of(config), "512w 512w 512w ");
  config = decoder_preset("gemma3-1b");
  set_layers(config, 31);
  EXPECT_EQ(config.windowed.size(), 31u);
  for (int64_t b = 0; b < 31; ++b) EXPECT_EQ(config.has_window(b), (b + 1) % 6 != 0) << b;
}

TEST_F(DecoderConfigFile, RopeOfGemma3InTheWordsOfBothVersions) {
  auto flat = config_of("gemma3-4b"), nested = flat;
  flat.erase("rope_parameters");
  for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling"}) nested.erase(key);
  flat["rope_theta"] = 5e5;
  flat["rope_local_base_freq"] = 2e4;
  nested["rope_parameters"]["full_attention"]["rope_theta"] = 5e5;
  nested["rope_parameters"]["sliding_attention"] = {{"rope_theta", 2e4}};
  for (const auto& json : {flat, nested}) {
    const DecoderConfig config = read_decoder_config(write("config.json", json.dump()));
    EXPECT_EQ(config.rope.theta, 5e5);
    EXPECT_EQ(config.rope.scaling, RopeFrequencies::Scaling::kLinear);
    EXPECT_EQ(config.rope.factor, 8);
    EXPECT_EQ(config.window_rope->theta, 2e4);
    EXPECT_EQ(config.window_rope->scaling, RopeFrequencies::Scaling::kNone);
    EXPECT_DOUBLE_EQ(config.attention_multiplier, 1.0 / 16);
  }
  flat["rope_scaling"] = {{"type", "linear"}, {"factor", 8.0}};
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", flat.dump())); }),
                       "rope_scaling.type without rope_type"));
}

TEST_F(DecoderConfigFile, ScaledRotaryPositions) {
  const auto read = [&](const nlohmann::json& json) {
    const DecoderConfig config = read_decoder_config(write("config.json", json.dump()));
    const DecoderConfig again = read_decoder_config(write("again.json", decoder_config_json(config)));
    EXPECT_EQ(decoder_config_json(again), decoder_config_json(config));
    EXPECT_EQ(rope_attention_factor(again.rope), rope_attention_factor(config.rope));
    return config;
  };
  auto json = llama2();
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  DecoderConfig config = read(json);
  EXPECT_EQ(config.rope.original_max_position, 4096) << "max_position_embeddings";
  EXPECT_DOUBLE_EQ(rope_attention_factor(config.rope), 0.1 * std::log(4.0) + 1);
  json["rope_scaling"].update({{"mscale", 0.7}, {"mscale_all_dim", 0}});
  EXPECT_DOUBLE_EQ(rope_attention_factor(read(json).rope), 0.1 * std::log(4.0) + 1) << "0: absent";
  json["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 4.0}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  EXPECT_EQ(read(json).rope.original_max_position, 4096);
  json["max_position_embeddings"] = 32768;
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 4096}};
  config = read(json);
  EXPECT_EQ(config.rope.factor, 8) << "the ratio";
  // What is trained on longer sequences keeps its frequencies.
  EXPECT_TRUE(extend_positions(config, 65536));
  EXPECT_EQ(config.max_position_embeddings, 65536);
  EXPECT_EQ(read_decoder_config(write("config.json", decoder_config_json(config))).rope.factor, 8);
  json["rope_theta"] = 1.0;
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                       "no finite frequencies"));
  json.erase("rope_theta");
  json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  config = read(json);
  EXPECT_EQ(config.rope.original_max_position, 32768);
  EXPECT_FALSE(extend_positions(config, 65536)) << "it is made for longer sequences";
  EXPECT_EQ(config.max_position_embeddings, 32768);
  json = config_of("phi4-mini");
  EXPECT_EQ(json["rope_scaling"].size(), 3) << "transformers 4 takes three fields";
  json["rope_scaling"]["type"] = "su";
  config = read(json);
  EXPECT_EQ(config.rope.factor, 32);
  EXPECT_EQ(config.rope.rotated(config.head_dim), 96);
  EXPECT_DOUBLE_EQ(rope_attention_factor(config.rope), std::sqrt(1 + std::log(32.0) / std::log(4096.0)));
  EXPECT_TRUE(extend_positions(config, 200'000));
  EXPECT_EQ(read_decoder_config(write("config.json", decoder_config_json(config))).rope.factor, 32);
}

TEST_F(DecoderConfigFile, ScaledRotaryPositionsInTheWordsOfTransformers4) {
  const auto written = [&](const nlohmann::json& json) {
    return nlohmann::json::parse(decoder_config_json(read_decoder_config(write("config.json", json.dump()))));
  };
  for (const char* type : {"linear", "dynamic"}) {
    auto json = config_of("olmo2-7b");
    json["rope_scaling"] = {{"rope_type", type}, {"factor", 2.0}};
    EXPECT_EQ(written(json)["rope_scaling"], nlohmann::json({{"type", type}, {"factor", 2.0}}));
    for (const char* preset : {"gemma3-1b", "granite3.3-2b"}) {
      json = config_of(preset);
      json["rope_scaling"] = {{"rope_type", type}, {"factor", 2.0}};
      EXPECT_EQ(written(json)["rope_scaling"], json["rope_scaling"]) << preset << ": a version reads no `type` of it";
    }
  }
  auto json = llama2();
  json["original_max_position_embeddings"] = 1024;
  json["rope_scaling"] = {{"rope_type", "longrope"}};
  for (const char* name : {"short_factor", "long_factor"}) json["rope_scaling"][name] = std::vector<double>(64, 1.5);
  EXPECT_EQ(written(json)["original_max_position_embeddings"], 1024);
  EXPECT_FALSE(written(json)["rope_scaling"].contains("attention_factor"));
  json["rope_scaling"]["factor"] = 8.0;  // not 4096 / 1024
  EXPECT_DOUBLE_EQ(written(json)["rope_scaling"]["attention_factor"].get<double>(),
                   std::sqrt(1 + std::log(8.0) / std::log(1024.0)));
}

TEST_F(DecoderConfigFile, Qwen3HasItsOwnHeadSize) {
  nlohmann::json json = config_of("qwen3-0.6b");
  json.erase("head_dim");
  json["hidden_size"] = 1000;  // no multiple of 16 heads
  EXPECT_EQ(read_decoder_config(write("config.json", json.dump())).head_dim, 128);
}

}  // namespace
}  // namespace trireme
