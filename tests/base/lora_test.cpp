// Choices of modules as peft 0.21 makes them; the expected values are those of Python's re and of peft.
#include "trireme/base/lora.h"

#include "trireme/base/error.h"

#include <gtest/gtest.h>

#include <functional>

namespace trireme {
namespace {

const std::string kQ0 = "model.layers.0.self_attn.q_proj", kQ11 = "model.layers.11.self_attn.q_proj",
                  kUp1 = "model.layers.1.mlp.up_proj", kEmbedding = "model.embed_tokens";

TEST(LoraPattern, MatchesWholePaths) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {R"(.*\.(q|v)_proj)", {kQ0, kQ11}},
      {R"(.*)", {kQ0, kQ11, kUp1, kEmbedding}},
      {R"(q_proj)", {}},
      {R"(.*q_proj|.*up_proj)", {kQ0, kQ11, kUp1}},
      {R"(^model\.layers\.\d\.self_attn\.(?:q|k)_proj$)", {kQ0}},
      {R"(model.layers.[\d]+.(mlp|self_attn).(up|q)_proj)", {kQ0, kQ11, kUp1}},
      {R"((?!.*self_attn).*)", {kUp1, kEmbedding}},
      {R"((.+)+x)", {}},  // exponentially many ways to try
      {R"(.*layers\.1.*)", {kQ11, kUp1}},
      {R"(.*layers\.1\..*)", {kUp1}},
      {R"(.*layers\.\d{2}\..*)", {kQ11}},
      {R"(.*layers\.1{1,2}?\.[^.]+\.\w+)", {kQ11, kUp1}},
      {R"(.*\bmlp\b.*)", {kUp1}},
      {R"(model\.[a-e]\w+)", {kEmbedding}},
      {R"(.*\.(q|v)_proj\n)", {}},
  };
  for (const auto& [pattern, matched] : cases) {
    std::vector<std::string> found;
    for (const std::string& module : {kQ0, kQ11, kUp1, kEmbedding})
      if (pattern_problem(pattern).empty() && selects({{}, pattern}, module)) found.push_back(module);
    EXPECT_EQ(found, matched) << pattern;
  }
}

TEST(LoraPattern, WhatPythonReadsInAnotherWayIsRefused) {
  for (const char* pattern : {"",
                              "(",
                              "[",
                              "a**",
                              "*a",
                              "a*+",
                              "a++",
                              "a?+",
                              "a{2}+",
                              "a{2}{3}",
                              "a{,3}",
                              "a{",
                              R"(\Aa)",
                              R"(a\Z)",
                              R"(\1)",
                              R"((a)\1)",
                              R"(\x41)",
                              R"(\u0041)",
                              R"([[:alpha:]])",
                              R"([]a])",
                              R"([^]a])",
                              R"([a\b])",
                              R"((?<=a)b)",
                              R"((?<!a)b)",
                              R"((?P<n>a))",
                              R"((?i)a)",
                              R"((?>a))",
                              "[a--b]",
                              "[a&&b]",
                              "\xc3\xa4",
                              "a\nb",
                              R"(\p{L})",
                              R"(\N{DIGIT ONE})"})
    EXPECT_NE(pattern_problem(pattern), "") << pattern;
  EXPECT_THROW(selects({{}, R"((?<=a)b)"}, kQ0), ConfigError);
  for (const char* pattern :
       {"a*?", "a+?", "a??", "a{2}?", "a{2,}", "[a-z]", "[.+*?]", R"([\w.-])", R"(\.)", R"(a\|b)", "(?:a|b)+"})
    EXPECT_EQ(pattern_problem(pattern), "") << pattern;
}

TEST(LoraTargets, NamesMeanPathsOrTheirEnds) {
  const auto targeted = [](const std::function<void(LoraOptions&)>& change, const std::string& module) {
    LoraOptions lora;
    lora.target_modules = {{"q_proj", "mlp.up_proj"}};
    change(lora);
    return is_targeted(lora, module);
  };
  const auto as_it_is = [](LoraOptions&) {};
  EXPECT_TRUE(targeted(as_it_is, kQ0) && targeted(as_it_is, kUp1));
  EXPECT_FALSE(targeted(as_it_is, "model.layers.0.self_attn.xq_proj") || targeted(as_it_is, kEmbedding));
  const auto blocks = [](LoraOptions& lora) { lora.layers_to_transform = {1, 11}; };
  EXPECT_TRUE(targeted(blocks, kQ11) && targeted(blocks, kUp1));
  EXPECT_FALSE(targeted(blocks, kQ0));
  // A whole path means its module whatever its block; no block, no layer.
  EXPECT_TRUE(targeted([](auto& lora) { lora.target_modules = {{kQ0}}, lora.layers_to_transform = {1}; }, kQ0));
  EXPECT_FALSE(targeted([](auto& lora) { lora.target_modules = {{"embed_tokens"}}, lora.layers_to_transform = {1}; },
                        kEmbedding));
  EXPECT_FALSE(targeted([](auto& lora) { lora.exclude_modules = {{"layers.0.self_attn.q_proj"}}; }, kQ0));
  EXPECT_FALSE(targeted([](auto& lora) { lora.exclude_modules = {{}, ".*self_attn.*"}; }, kQ11));
  EXPECT_FALSE(
      targeted([](auto& lora) { lora.target_modules = {{"embed_tokens"}}, lora.modules_to_save = {"embed_tokens"}; },
               kEmbedding));
  EXPECT_TRUE(targeted([](auto& lora) { lora.target_modules = {{}, "All-Linear"}; }, kUp1));
}

TEST(LoraStrength, IsOfTheKeyThatMatchesThePathsEnd) {
  LoraOptions lora;
  lora.r = 8, lora.alpha = 16;
  lora.rank_pattern = {{"q_proj", 4}, {R"(layers\.1\..*)", 2}, {"^model.layers.11.self_attn.q_proj", 4}};
  EXPECT_EQ(strength_of(lora, kQ0), (LoraStrength{4, 16, 4}));
  EXPECT_EQ(strength_of(lora, kQ11), (LoraStrength{4, 16, 4})) << "two keys of one value";
  EXPECT_EQ(strength_of(lora, kUp1), (LoraStrength{2, 16, 8}));
  EXPECT_EQ(strength_of(lora, "model.layers.0.self_attn.xq_proj").r, 8) << "the end begins after a dot";
  lora.use_rslora = true;
  lora.alpha_pattern = {{R"(.*\.q_proj)", 3}};
  EXPECT_EQ(strength_of(lora, kQ0), (LoraStrength{4, 3, 1.5}));
  lora.alpha_pattern.emplace_back("self_attn.q_proj", 5);
  EXPECT_THROW(strength_of(lora, kQ0), ConfigError);
}

}  // namespace
}  // namespace trireme
