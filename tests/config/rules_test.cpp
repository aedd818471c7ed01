#include "config_testing.h"

namespace trireme {
namespace {

Config with_batch(int64_t global, int64_t micro) {
  Config config;
  config.batch.global_batch_size = global;
  config.batch.micro_batch_size = micro;
  return config;
}

TEST(World, BatchMustDivideOverTheRanks) {
  EXPECT_TRUE(check_against_world(with_batch(8, 1), 8).empty());
  EXPECT_TRUE(check_against_world(with_batch(8, 2), 4).empty());
  EXPECT_EQ(check_against_world(with_batch(10, 1), 4),
            std::vector<std::string>{"batch.global_batch_size 10 does not divide over 4 ranks x "
                                     "batch.micro_batch_size 1: nearest are 8 and 12"});
  EXPECT_EQ(check_against_world(with_batch(4, 1), 8),
            std::vector<std::string>{"batch.global_batch_size 4 does not divide over 8 ranks x "
                                     "batch.micro_batch_size 1: the nearest is 8"});
}

TEST(World, ShardSizeMustDivideTheRanks) {
  Config config = with_batch(24, 1);
  for (const char* fine : {"auto", "world", "1", "2", "4", "8"}) {
    config.parallel.shard_size = fine;
    EXPECT_TRUE(check_against_world(config, 8).empty()) << fine;
  }
  config.parallel.shard_size = "3";
  EXPECT_EQ(check_against_world(config, 8),
            std::vector<std::string>{"parallel.shard_size 3 does not divide the 8 ranks: nearest are 2 and 4"});
  config.parallel.shard_size = "16";
  EXPECT_EQ(check_against_world(config, 8),
            std::vector<std::string>{"parallel.shard_size 16 does not divide the 8 ranks: the nearest is 8"});
  config.parallel.shard_size = "2";
  EXPECT_EQ(check_against_world(config, 1),
            std::vector<std::string>{"parallel.shard_size 2 does not divide the 1 rank: the nearest is 1"});
}

TEST(World, ReportsEverythingAtOnce) {
  Config config = with_batch(10, 1);
  config.parallel.shard_size = "3";
  EXPECT_EQ(check_against_world(config, 4).size(), 2U);
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
  const TemporaryFile file(std::string(kMinimal) + "batch: {global_batch_size: x, micro_batch_size: 3}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U) << join(lines, "\n");
  EXPECT_NE(lines[0].find("must be an integer"), std::string::npos);
}

TEST(Rules, TokensOfARunMustBeCountable) {
  const TemporaryFile file(std::string(kMinimal) +
                           "train: {max_steps: 2147483647}\nbatch: {global_batch_size: 2147483647}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("more tokens than can be counted"), std::string::npos) << lines[0];
}

/// Keys named by the problems of a file that a program refuses.
std::string refused(const std::string& text, Program program) {
  const TemporaryFile file(std::string(kMinimal) + text);
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
  const TemporaryFile minimal(kMinimal);
  const std::vector<std::string> resized = {"model.vocab_size=32008", "model.pad_vocab_to=64"};
  EXPECT_EQ(load_config(minimal.path(), resized, Program::kLlama).model.vocab_size, 32008);
  EXPECT_THROW(load_config(minimal.path(), resized, Program::kBert), ConfigError);
  EXPECT_EQ(load_config(minimal.path(), {resized[1]}, Program::kBert).model.pad_vocab_to, 64);
  // What a resolved configuration prints, defaults included, is every program's.
  const Config plain = load_text(kMinimal);
  const TemporaryFile printed(print_config(plain));
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

TEST(Rules, ALossScaleNeedsFp16) {
  EXPECT_NE(refused("precision: {loss_scale: 1024}\n", Program::kAny).find("precision.loss_scale"), std::string::npos);
  EXPECT_EQ(refused("precision: {loss_scale: 1024, compute: fp16}\n", Program::kAny), "");
}

}  // namespace
}  // namespace trireme
