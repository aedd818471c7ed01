// What the choices of the families add to a decoder: biases, layer norms, learned positions, dropout.
#include "small_models.h"

#include "../base/base_testing.h"
#include "models/decoder/family.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

DecoderConfig small_gpt2(double dropout) {
  DecoderConfig config = decoder_preset("gpt2");
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 3;
  config.num_attention_heads = config.num_key_value_heads = 4;
  config.head_dim = 8;
  config.vocab_size = 61;
  config.max_position_embeddings = 16;
  config.initializer_range = 0.2;
  config.embedding_dropout = config.attention_dropout = config.residual_dropout = dropout;
  return config;
}

DecoderConfig small_qwen2() {
  DecoderConfig config = small_config();
  config.family = "qwen2";
  config.attention_dropout = 0.25;
  return config;
}

DecoderConfig small_qwen3() {
  DecoderConfig config = small_config();
  config.family = "qwen3";
  return config;
}

/// With windows shorter than the sequences, and dropout of attention.
DecoderConfig small_gemma3() {
  DecoderConfig config = decoder_preset("gemma3-1b"), small = small_config();
  set_layers(config, 3);
  config.pad_token_id.reset();  // the preset's, 0, has a row without a gradient from the lookup
  config.windowed = {true, false, true};
  config.sliding_window = 3;
  config.hidden_size = small.hidden_size;
  config.intermediate_size = small.intermediate_size;
  config.num_attention_heads = small.num_attention_heads;
  config.num_key_value_heads = small.num_key_value_heads;
  config.head_dim = small.head_dim;
  config.vocab_size = small.vocab_size;
  config.initializer_range = 0.2;
  config.attention_dropout = 0.25;
  return config;
}

DecoderConfig small_granite() {
  DecoderConfig config = small_config();
  config.family = "granite";
  config.embedding_multiplier = 3;
  config.residual_multiplier = 0.22;
  config.attention_multiplier = 0.3;
  config.logits_divisor = 1.7;
  config.residual_dropout = 0.25;
  return config;
}

/// Biases start as zeros, norms as ones: moved, so that an exchange of two would be seen.
std::vector<std::vector<at::Tensor>> moved_units(const DecoderModel& model, at::ScalarType dtype) {
  auto units = units_of(model, dtype);
  at::NoGradGuard no_grad;
  uint64_t seed = 500;
  for (const auto& unit : units)
    for (const at::Tensor& tensor : unit)
      if (tensor.dim() == 1) tensor.add_(random(tensor.sizes(), ++seed) * 0.2);
  return units;
}

TEST(FamilyUnits, PublishedParameterCounts) {
  const std::pair<const char*, int64_t> counts[] = {{"mistral-7b-v0.1", 7241732096}, {"mistral-7b-v0.3", 7248023552},
                                                    {"qwen2-0.5b", 494032768},       {"qwen2-7b", 7615616512},
                                                    {"qwen3-0.6b", 596049920},       {"qwen3-8b", 8190735360},
                                                    {"llama3.1-70b", 70553706496},   {"llama3.2-3b", 3212749824},
                                                    {"phi3-mini-4k", 3821079552},    {"phi4", 14659507200},
                                                    {"phi4-mini", 3836021760},       {"olmo2-1b", 1484916736},
                                                    {"olmo2-7b", 7298617344},        {"olmo2-32b", 32234279936},
                                                    {"smollm3-3b", 3075098624},      {"granite3.3-2b", 2533539840},
                                                    {"granite3.3-8b", 8170864640},   {"gemma3-270m", 268098176},
                                                    {"gemma3-1b", 999885952},        {"gemma3-12b", 11766034176},
                                                    {"gemma3-27b", 27009346304},     {"gpt2", 124439808},
                                                    {"gpt2-xl", 1557611200}};
  for (const auto& [name, count] : counts) EXPECT_EQ(DecoderModel(decoder_preset(name), {}).num_parameters(), count);
  // NeMo counts with the vocabulary filled up to a multiple of 128.
  for (const auto& [name, count] : {std::pair("gpt3-126m", 125262336L), {"gpt3-5b", 5047558144L}}) {
    DecoderConfig config = decoder_preset(name);
    EXPECT_EQ(config.vocab_size, 50257);
    config.vocab_size = 50304;
    EXPECT_EQ(DecoderModel(config, {}).num_parameters(), count);
  }
}

TEST(FamilyUnits, NamesOfAGpt2Block) {
  const DecoderModel model(small_gpt2(0), {});
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : model.units()[2].parameters) {
    ASSERT_EQ(parameter.parts.size(), 1u);
    EXPECT_EQ(parameter.parts[0].rows, parameter.shape[0]);
    EXPECT_EQ(parameter.decay, parameter.shape.size() == 2) << parameter.name;
    EXPECT_EQ(parameter.linear, parameter.shape.size() == 2) << parameter.name;
    names.push_back(parameter.parts[0].name.substr(std::string("transformer.h.1.").size()));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"ln_1.weight", "attn.c_attn.weight", "attn.c_proj.weight", "ln_2.weight",
                                             "mlp.c_fc.weight", "mlp.c_proj.weight", "ln_1.bias", "attn.c_attn.bias",
                                             "attn.c_proj.bias", "ln_2.bias", "mlp.c_fc.bias", "mlp.c_proj.bias"}));
  EXPECT_EQ(model.units().front().parameters[1].parts[0].name, "transformer.wpe.weight");
  EXPECT_EQ(model.units().back().parameters.back().parts[0].name, "transformer.ln_f.bias");
  // GPT-2 starts what is added to the residual smaller: 3 blocks add 6 times.
  EXPECT_NEAR(model.units()[2].parameters[2].init_scale, 0.2 / std::sqrt(6.0), 1e-12);
  EXPECT_NEAR(model.units()[2].parameters[4].init_scale, 0.2, 1e-12);
}

TEST(FamilyUnits, TargetsOfLora) {
  const DecoderModel model(small_gpt2(0), LoraOptions{2, 4, 0, {{"c_proj", "c_attn"}}});
  std::vector<std::string> names;
  for (size_t i = 0; i < 6; ++i) names.push_back(model.units().back().parameters[i].parts[0].name);
  EXPECT_EQ(names[0], "transformer.h.0.attn.c_attn.lora_A.weight");
  EXPECT_EQ(names[2], "transformer.h.0.attn.c_proj.lora_A.weight");
  EXPECT_EQ(names[4], "transformer.h.0.mlp.c_proj.lora_A.weight");
  EXPECT_EQ(model.units().back().parameters.size(), 18u);
  const auto refusal = [](const LoraOptions& lora) {
    return message_of<ConfigError>([&] { DecoderModel(small_gpt2(0), lora); });
  };
  EXPECT_TRUE(contains(refusal({2, 4, 0, {{"q_proj"}}}), "a gpt2 has no module 'q_proj'"));
  EXPECT_TRUE(contains(refusal({}), "has 'q_proj', and a gpt2 has no such module: choose from"));
}

TEST(FamilyModel, GradientEqualsDifferencesInTheWeightsWithDropout) {
  for (const DecoderConfig& config :
       {small_gpt2(0.25), small_qwen2(), small_qwen3(), small_gemma3(), small_granite()}) {
    const DecoderModel model(config, {});
    const TokenBatch batch = batch_of(2, 6, 1);
    const ForwardOptions options{true, 3, {}};
    const auto units = moved_units(model, at::kDouble);
    WholeUnitStore store(units);
    model.loss(store, batch, options).backward();
    at::NoGradGuard no_grad;
    for (size_t u = 0; u < units.size(); ++u) {
      for (size_t p = 0; p < units[u].size(); ++p) {
        const at::Tensor& tensor = units[u][p];
        const at::Tensor direction = random(tensor.sizes(), 7);
        const double want = (tensor.grad() * direction).sum().item<double>(), step = 1e-6;
        double value[2];
        for (int side = 0; side < 2; ++side) {
          tensor.add_(direction, side == 0 ? -step : step);
          value[side] = model.loss(store, batch, options).item<double>();
          tensor.sub_(direction, side == 0 ? -step : step);
        }
        EXPECT_NEAR((value[1] - value[0]) / (2 * step), want, 1e-5 * std::max(1.0, std::abs(want)))
            << config.family << " " << model.units()[u].parameters[p].name;
      }
    }
  }
}

TEST(FamilyModel, RecomputationGivesTheSameBitsWithDropout) {
  const DecoderModel model(small_gpt2(0.2), {});
  const TokenBatch batch = batch_of(2, 9, 1);
  const Result kept = run(model, batch, {true, 5, {}}, at::kFloat);
  for (const Recompute recompute : {Recompute::kNorms, Recompute::kMlp, Recompute::kAttention, Recompute::kFull}) {
    const Result again = run(model, batch, {true, 5, {std::vector<Recompute>(3, recompute)}}, at::kFloat);
    EXPECT_EQ(kept.loss, again.loss);
    for (size_t i = 0; i < kept.gradients.size(); ++i)
      EXPECT_EQ(max_difference(kept.gradients[i], again.gradients[i]), 0) << i;
  }
}

TEST(FamilyModel, TilesAndOffloadGiveTheSameGradients) {
  using enum Recompute;
  for (const double dropout : {0.0, 0.2}) {
    for (const DecoderModel& model : {DecoderModel(small_gpt2(dropout), {}), DecoderModel(small_config(), {}),
                                      DecoderModel(small_config(), seven(dropout))}) {
      TokenBatch batch = batch_of(2, 9, 1);
      if (dropout == 0) batch.cu_seqlens = {0, 3, 9, 10, 18};
      const auto with = [&](const Recomputation& recomputation, at::ScalarType dtype) {
        return run(model, batch, {true, 5, recomputation}, dtype);
      };
      const Result exact = with({}, at::kDouble), plain = with({}, at::kFloat);
      for (const auto& blocks : {std::vector(3, kFull), std::vector(3, kAttention), {kAttention, kFull, kNone}}) {
        const Result tiled = with({blocks, 4}, at::kDouble), one_tile = with({blocks, 18}, at::kFloat);
        EXPECT_NEAR(tiled.loss, exact.loss, 1e-11 * exact.loss);
        EXPECT_EQ(one_tile.loss, plain.loss);
        for (size_t i = 0; i < exact.gradients.size(); ++i) {
          EXPECT_LT(relative_difference(tiled.gradients[i], exact.gradients[i]), 1e-11) << i;
          EXPECT_EQ(max_difference(one_tile.gradients[i], plain.gradients[i]), 0) << i;
        }
        for (const int64_t offloaded : {1, 2, 3}) {
          OffloadStore store({.blocks = offloaded, .chunk_bytes = 1024, .least_bytes = 1, .copies_on_cpu = true});
          const Result away = with({blocks, 4, &store}, at::kDouble);
          EXPECT_EQ(away.loss, tiled.loss);
          for (size_t i = 0; i < tiled.gradients.size(); ++i)
            EXPECT_EQ(max_difference(away.gradients[i], tiled.gradients[i]), 0) << i;
          EXPECT_EQ(store.host_bytes() > 0, offloaded > 1);
        }
      }
      for (const int64_t offloaded : {1, 2, 3}) {
        OffloadStore store({.blocks = offloaded, .chunk_bytes = 1024, .least_bytes = 1, .copies_on_cpu = true});
        const Result away = with({{kMlp, kMlp, offloaded == 3 ? kMlp : kNone}, 0, &store}, at::kFloat);
        EXPECT_EQ(away.loss, plain.loss);
        for (size_t i = 0; i < plain.gradients.size(); ++i)
          EXPECT_EQ(max_difference(away.gradients[i], plain.gradients[i]), 0) << i;
        EXPECT_EQ(store.host_bytes() > 0, offloaded > 1);
      }
    }
  }
}

TEST(FamilyModel, EveryDropoutIsOnInTrainingOnlyAndFollowsTheSeed) {
  const TokenBatch batch = batch_of(2, 7, 1);
  const auto units = moved_units(DecoderModel(small_gpt2(0), {}), at::kDouble);
  WholeUnitStore store(units);
  const auto loss = [&](const DecoderConfig& config, bool train, uint64_t seed) {
    return DecoderModel(config, {}).loss(store, batch, {train, seed, {}}).item<double>();
  };
  const DecoderConfig plain = small_gpt2(0);
  std::vector<double> losses = {loss(plain, true, 1)};
  for (double DecoderConfig::* place :
       {&DecoderConfig::embedding_dropout, &DecoderConfig::attention_dropout, &DecoderConfig::residual_dropout}) {
    DecoderConfig config = plain;
    config.*place = 0.25;
    EXPECT_EQ(loss(config, false, 1), losses[0]);
    EXPECT_EQ(loss(config, true, 1), loss(config, true, 1));
    for (const double before : losses) EXPECT_GT(std::abs(loss(config, true, 1) - before), 1e-6);
    EXPECT_GT(std::abs(loss(config, true, 1) - loss(config, true, 2)), 1e-6);
    losses.push_back(loss(config, true, 1));
  }
}

TEST(FamilyModel, DropoutDoesNotDependOnTheMicroBatchSplit) {
  expect_the_same_of_parts(DecoderModel(small_gpt2(0.25), {}), batch_of(4, 7, 1));
}

TEST(FamilyModel, ReadsWeightsOnlyBetweenTheHooks) {
  for (const DecoderConfig& config : {small_gpt2(0.25), small_qwen2(), small_qwen3()}) {
    const DecoderModel model(config, {});
    const ForwardOptions options{true, 1, {std::vector<Recompute>(3, Recompute::kFull)}};
    const TokenBatch batch = batch_of(2, 5, 1);
    expect_reads_between_the_hooks(model, batch, options);
  }
}

TEST(Presets, UnknownNameHasASuggestion) {
  EXPECT_TRUE(
      contains(message_of<ConfigError>([] { return decoder_preset("llama2-7B"); }), "Did you mean 'llama2-7b'?"));
}

}  // namespace
}  // namespace trireme
