#include "trireme/formats/bert_config.h"
#include "trireme/formats/decoder_config.h"
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
  const DecoderConfig config = read_decoder_config(write("config.json", llama2().dump()));
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
    const DecoderConfig config = read_decoder_config(write("config.json", json.dump()));
    EXPECT_EQ(config.rope_theta, 5e5);
    EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kLlama3);
    EXPECT_EQ(config.rope_scaling.factor, 8.0);
    const DecoderConfig again = read_decoder_config(write("again.json", decoder_config_json(config)));
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

TEST_F(HuggingFace, RopeScalingTakesThePlaceOfRopeParameters) {
  auto json = llama2();
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  DecoderConfig config = read_decoder_config(write("config.json", json.dump()));
  EXPECT_EQ(config.rope_scaling.type, RopeScaling::Type::kLinear);
  EXPECT_EQ(config.rope_theta, 10000.0) << "rope_parameters is ignored then";
  json["rope_scaling"] = nlohmann::json::object();
  EXPECT_EQ(read_decoder_config(write("config.json", json.dump())).rope_theta, 5e5);
  json["rope_scaling"] = {{"rope_type", nullptr}, {"factor", 2.0}};
  expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                  "rope_scaling.rope_type");
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}}}};
  expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }),
                  "rope_parameters.full_attention");
}

TEST_F(HuggingFace, SpecialTokensAreListsNullOrAbsent) {
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
  // generate() takes the list of generation_config.json.
  const DecoderConfig config = read({{"eos_token_id", 4}});
  EXPECT_EQ(end_of_text_ids(root_, config), Ids{4});
  write("generation_config.json", R"({"eos_token_id": [8, 9]})");
  EXPECT_EQ(end_of_text_ids(root_, config), (Ids{8, 9}));
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
    expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", json.dump())); }), key);
  }
}

TEST_F(HuggingFace, AllMissingFieldsComeAtOnce) {
  const std::string message =
      failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", R"({"model_type": "llama"})")); });
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    expect_contains(message, std::string(key) + " is missing");
  expect_contains(failure(ExitCode::kModel, [&] { read_decoder_config(write("config.json", R"({"a": 1, "a": 2})")); }),
                  "appears twice");
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
       std::vector<nlohmann::json>{{7}, {9, 7}, {{"lm_head", {1}}}, {{"k_proj", {1}}}, "all"}) {
    json["trainable_token_indices"] = indices;
    write("adapter_config.json", json.dump());
    expect_contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "trainable_token");
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
  expect_contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "exclude_modules");
  with("target_modules", {"proj"});
  expect_contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "target_modules");
  with("target_modules", {"self_attn.q_proj", "lm_head"});
  EXPECT_EQ(read_adapter(root_).modules.size(), 1u);
  // Fields that only affect the values before training; and an unknown field with an empty value.
  for (const nlohmann::json& init : std::vector<nlohmann::json>{true, false, "gaussian", "eva", "orthogonal", "mica"}) {
    with("init_lora_weights", init);
    EXPECT_NO_THROW(read_adapter(root_)) << init;
  }
  for (const char* init : {"pissa", "pissa_niter_16", "OLoRA", "corda", "loftq", "lora_ga", "of_tomorrow"}) {
    with("init_lora_weights", init);
    expect_contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "init_lora_weights");
  }
  with("of_tomorrow", nullptr);
  EXPECT_NO_THROW(read_adapter(root_));
  with("of_tomorrow", 0.5);
  expect_contains(failure(ExitCode::kModel, [&] { read_adapter(root_); }), "of_tomorrow");
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
