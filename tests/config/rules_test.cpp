#include "config_testing.h"

namespace trireme {
namespace {

/// The problems of a configuration on so many ranks, without file and place of each, nor the closing line.
std::vector<std::string> on_ranks(const std::string& text, int64_t ranks) {
  const TextFile file(std::string(kMinimal) + text);
  try {
    load_config(file.path(), {}, {}, ranks);
    return {};
  } catch (const ConfigError& error) {
    std::vector<std::string> lines = split(error.what(), '\n');
    lines.pop_back();
    for (std::string& line : lines) line = line.substr(line.find(": ") + 2);
    return lines;
  }
}

std::vector<std::string> with_batch(int64_t global, int64_t micro, int64_t ranks) {
  return on_ranks(
      "batch: {global_batch_size: " + std::to_string(global) + ", micro_batch_size: " + std::to_string(micro) + "}\n",
      ranks);
}

std::vector<std::string> with_shard_size(const std::string& size, int64_t ranks) {
  return on_ranks("batch: {global_batch_size: 24}\nparallel: {shard_size: " + size + "}\n", ranks);
}

TEST(World, BatchMustDivideOverTheRanks) {
  EXPECT_TRUE(with_batch(8, 1, 8).empty());
  EXPECT_TRUE(with_batch(8, 2, 4).empty());
  EXPECT_EQ(with_batch(10, 1, 4), std::vector<std::string>{"batch.global_batch_size 10 does not divide over 4 ranks x "
                                                           "batch.micro_batch_size 1: nearest are 8 and 12"});
  EXPECT_EQ(with_batch(4, 1, 8), std::vector<std::string>{"batch.global_batch_size 4 does not divide over 8 ranks x "
                                                          "batch.micro_batch_size 1: the nearest is 8"});
  EXPECT_EQ(with_batch(9, 2, 1),
            std::vector<std::string>{"batch.global_batch_size 9 is not a multiple of batch.micro_batch_size 2: nearest "
                                     "are 8 and 10"});
  EXPECT_EQ(with_batch(9, 2, 4).size(), 1U) << "one problem, said once";
}

TEST(World, ShardSizeMustDivideTheRanks) {
  for (const char* fine : {"auto", "world", "1", "2", "4", "8"}) EXPECT_TRUE(with_shard_size(fine, 8).empty()) << fine;
  EXPECT_EQ(with_shard_size("3", 8),
            std::vector<std::string>{"parallel.shard_size 3 does not divide the 8 ranks: nearest are 2 and 4"});
  EXPECT_EQ(with_shard_size("16", 8),
            std::vector<std::string>{"parallel.shard_size 16 does not divide the 8 ranks: the nearest is 8"});
  EXPECT_EQ(with_shard_size("2", 1),
            std::vector<std::string>{"parallel.shard_size 2 does not divide the 1 rank: the nearest is 1"});
}

TEST(World, StandsWithItsPlaceAmongTheOtherProblems) {
  const TextFile file(std::string(kMinimal) +
                      "batch: {global_batch_size: 10}\nparallel: {shard_size: 3}\ntrain: {loss: none}\n");
  try {
    load_config(file.path(), {"optimizer.lr=-1"}, {}, 4);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const auto lines = split(error.what(), '\n');
    ASSERT_EQ(lines.size(), 5U) << error.what();
    EXPECT_NE(lines[0].find(":4:28: batch.global_batch_size 10 does not divide over 4 ranks"), std::string::npos);
    EXPECT_NE(lines[1].find(":5:24: parallel.shard_size 3 does not divide the 4 ranks"), std::string::npos);
    EXPECT_NE(lines[2].find(":6:15: train.loss"), std::string::npos);
    EXPECT_NE(lines[3].find("--set optimizer.lr=-1"), std::string::npos);
  }
}

TEST(Rules, LimitsThemselvesAreAllowed) {
  const Config config =
      load_text(std::string(kMinimal) +
                "schedule: {warmup_steps: 10, min_lr: 1e-4}\ntrain: {max_steps: 10, seed: 4294967295}\n"
                "optimizer: {lr: 1e-4, betas: [0, 0.9999], weight_decay: 0, grad_clip: 0}\n"
                "lora: {dropout: 0, target_modules: [qkv_proj, o_proj]}\nprecision: {linear: fp8}\n"
                "eval: {skip_first: 0}\n");
  EXPECT_EQ(config.train.seed, 4294967295);
  EXPECT_EQ(config.eval.skip_first, "0");
}

TEST(Rules, NoRuleSpeaksOfAValueThatCouldNotBeRead) {
  const TextFile file(std::string(kMinimal) + "batch: {global_batch_size: x, micro_batch_size: 3}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U) << join(lines, "\n");
  EXPECT_NE(lines[0].find("must be an integer"), std::string::npos);
}

TEST(Rules, TokensOfARunMustBeCountable) {
  const TextFile file(std::string(kMinimal) +
                      "train: {max_steps: 2147483647}\nbatch: {global_batch_size: 2147483647}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("more tokens than can be counted"), std::string::npos) << lines[0];
}

/// The problems of a file that a program refuses; empty: it takes it.
std::string refused(const std::string& text, const ConfigFamily& family = {}) {
  const TextFile file(std::string(kMinimal) + text);
  try {
    load_config(file.path(), {}, family);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Rules, ADropoutThatWouldDropNothingIsRefused) {
  const std::string problem = refused("lora: {dropout: 7e-06}\n");
  EXPECT_NE(problem.find(":4:17: lora.dropout 7e-06 is less than half a step of 1/65536 and would drop nothing: "
                         "nearest are 0 and 1.52587890625e-05"),
            std::string::npos)
      << problem;
  EXPECT_NE(refused("lora: {dropout: 0.999995}\n").find("would drop everything"), std::string::npos);
  EXPECT_EQ(refused("lora: {dropout: 8e-06}\n"), "");
}

TEST(Rules, AProfiledStepIsOneOfTheRun) {
  EXPECT_NE(refused("train: {max_steps: 10}\nlogging: {profile_step: 11}\n")
                .find(":5:25: logging.profile_step 11 comes after the last step, train.max_steps 10"),
            std::string::npos);
  EXPECT_EQ(refused("train: {max_steps: 10}\nlogging: {profile_step: 10}\n"), "");
}

TEST(Rules, WhatThisVersionLacksIsRefusedWhereItStands) {
  EXPECT_NE(refused("logging: {tensorboard: true}\n", {.program = "train_x"}).find(":4:24: logging.tensorboard"),
            std::string::npos);
}

TEST(Rules, ALossScaleNeedsFp16) {
  EXPECT_NE(refused("precision: {loss_scale: 1024}\n").find("precision.loss_scale"), std::string::npos);
  EXPECT_EQ(refused("precision: {loss_scale: 1024, compute: fp16}\n"), "");
}

TEST(Rules, AnFp8RecipeNeedsMatricesThatAreTrainedInFp8) {
  EXPECT_EQ(refused("precision: {linear: fp8}\n"), "");
  EXPECT_EQ(refused("precision: {linear: fp8, fp8_recipe: delayed}\n"), "");
  EXPECT_EQ(refused("precision: {linear: fp8}\nlora: {r: 4}\n"), "");
  const auto expect = [](const std::string& text, const std::string& problem) {
    EXPECT_NE(refused(text).find(problem), std::string::npos) << text << refused(text);
  };
  expect("precision: {fp8_recipe: rowwise}\n", ":4:25: precision.fp8_recipe rowwise needs precision.linear: fp8");
  for (const std::string recipe : {"rowwise", "tensorwise"})
    EXPECT_EQ(refused("precision: {linear: fp8, fp8_skip_first: 1, fp8_skip_last: 2, fp8_recipe: " + recipe + "}\n"),
              "");
  expect("precision: {fp8_skip_first: 1}\n", ":4:29: precision.fp8_skip_first 1 needs precision.linear: fp8");
  expect("precision: {linear: fp8, fp8_skip_last: 3}\nlora: {r: 4}\n",
         ":4:41: precision.fp8_skip_last 3 is for trained matrices");
  expect("precision: {linear: fp8, fp8_recipe: delayed}\nlora: {r: 4}\n",
         ":4:38: precision.fp8_recipe delayed is for trained matrices");
  // A program that trains in the compute type only.
  const ConfigFamily plain{.program = "train_x", .features = FeatureSet(Feature::kAdapters)};
  EXPECT_NE(refused("precision: {linear: fp8}\n", plain)
                .find(":4:21: precision.linear fp8 without a 'lora' section is not for train_x"),
            std::string::npos);
  EXPECT_EQ(refused("precision: {linear: fp8}\nlora: {r: 4}\n", plain), "");
}

}  // namespace
}  // namespace trireme
