#include "config_testing.h"

namespace trireme {
namespace {

/// The problems of a configuration on so many ranks, without file and place of each, nor the closing line.
std::vector<std::string> on_ranks(const std::string& text, int64_t ranks) {
  const ConfigFile file(std::string(kMinimal) + text);
  try {
    load_config(file.path(), {}, Program::kAny, ranks);
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
  const ConfigFile file(std::string(kMinimal) +
                           "batch: {global_batch_size: 10}\nparallel: {shard_size: 3}\ntrain: {loss: none}\n");
  try {
    load_config(file.path(), {"optimizer.lr=-1"}, Program::kAny, 4);
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
                "lora: {dropout: 0, target_modules: [qkv_proj, o_proj]}\nprecision: {frozen: fp8}\n"
                "eval: {skip_first: 0}\n");
  EXPECT_EQ(config.train.seed, 4294967295);
  EXPECT_EQ(config.eval.skip_first, "0");
}

TEST(Rules, NoRuleSpeaksOfAValueThatCouldNotBeRead) {
  const ConfigFile file(std::string(kMinimal) + "batch: {global_batch_size: x, micro_batch_size: 3}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U) << join(lines, "\n");
  EXPECT_NE(lines[0].find("must be an integer"), std::string::npos);
}

TEST(Rules, TokensOfARunMustBeCountable) {
  const ConfigFile file(std::string(kMinimal) +
                           "train: {max_steps: 2147483647}\nbatch: {global_batch_size: 2147483647}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("more tokens than can be counted"), std::string::npos) << lines[0];
}

/// Keys named by the problems of a file that a program refuses.
std::string refused(const std::string& text, Program program) {
  const ConfigFile file(std::string(kMinimal) + text);
  try {
    load_config(file.path(), {}, program);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Rules, KeysOfTheOtherProgramAreRefusedWhereTheyStand) {
  const std::string bert =
      "batch: {packing_rate: 2}\noptimizer: {clip: local}\ntrain: {loss: rank_mean}\n"
      "eval: {skip_first: 1}\n";
  EXPECT_EQ(refused(bert, Program::kBert), "");
  EXPECT_EQ(refused(bert, Program::kAny), "");
  const std::string problems = refused(bert, Program::kLlama);
  for (const char* part : {":4:23: batch.packing_rate", ":5:19: optimizer.clip", ":6:15: train.loss", "3 problems"})
    EXPECT_NE(problems.find(part), std::string::npos) << part << " in " << problems;
  const std::string llama = "lora: {r: 4}\nparallel: {recompute: mlp}\n";
  EXPECT_EQ(refused(llama, Program::kLlama), "");
  EXPECT_NE(refused(llama, Program::kBert).find("parallel.recompute mlp"), std::string::npos);
  EXPECT_NE(refused(llama, Program::kBert).find("train_bert trains all parameters"), std::string::npos);
  const ConfigFile minimal(kMinimal);
  const std::vector<std::string> resized = {"model.vocab_size=32008", "model.pad_vocab_to=64"};
  EXPECT_EQ(load_config(minimal.path(), resized, Program::kLlama).model.vocab_size, 32008);
  EXPECT_THROW(load_config(minimal.path(), resized, Program::kBert), ConfigError);
  EXPECT_EQ(load_config(minimal.path(), {resized[1]}, Program::kBert).model.pad_vocab_to, 64);
  // What a resolved configuration prints, defaults included, is every program's.
  const Config plain = load_text(kMinimal);
  const ConfigFile printed(print_config(plain));
  EXPECT_EQ(load_config(printed.path(), {}, Program::kLlama), plain);
  EXPECT_EQ(load_config(printed.path(), {}, Program::kBert), plain);
}

TEST(Rules, ADropoutThatWouldDropNothingIsRefused) {
  const std::string problem = refused("lora: {dropout: 7e-06}\n", Program::kLlama);
  EXPECT_NE(problem.find(":4:17: lora.dropout 7e-06 is less than half a step of 1/65536 and would drop nothing: "
                         "nearest are 0 and 1.52587890625e-05"),
            std::string::npos)
      << problem;
  EXPECT_NE(refused("lora: {dropout: 0.999995}\n", Program::kLlama).find("would drop everything"), std::string::npos);
  EXPECT_EQ(refused("lora: {dropout: 8e-06}\n", Program::kLlama), "");
}

TEST(Rules, AProfiledStepIsOneOfTheRun) {
  EXPECT_NE(refused("train: {max_steps: 10}\nlogging: {profile_step: 11}\n", Program::kAny)
                .find(":5:25: logging.profile_step 11 comes after the last step, train.max_steps 10"),
            std::string::npos);
  EXPECT_EQ(refused("train: {max_steps: 10}\nlogging: {profile_step: 10}\n", Program::kAny), "");
}

TEST(Rules, WhatThisVersionLacksIsRefusedWhereItStands) {
  EXPECT_NE(refused("logging: {tensorboard: true}\n", Program::kLlama).find(":4:24: logging.tensorboard"),
            std::string::npos);
}

TEST(Rules, ALossScaleNeedsFp16) {
  EXPECT_NE(refused("precision: {loss_scale: 1024}\n", Program::kAny).find("precision.loss_scale"), std::string::npos);
  EXPECT_EQ(refused("precision: {loss_scale: 1024, compute: fp16}\n", Program::kAny), "");
}

}  // namespace
}  // namespace trireme
