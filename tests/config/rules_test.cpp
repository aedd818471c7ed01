#include "config_testing.h"

namespace trireme {
namespace {

Config with_batch(int64_t global, int64_t micro) {
  Config config;
  config.batch = {global, micro};
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
            std::vector<std::string>{
                "parallel.shard_size 3 does not divide the 8 ranks: nearest are 2 and 4"});
  config.parallel.shard_size = "16";
  EXPECT_EQ(check_against_world(config, 8),
            std::vector<std::string>{
                "parallel.shard_size 16 does not divide the 8 ranks: the nearest is 8"});
  config.parallel.shard_size = "2";
  EXPECT_EQ(check_against_world(config, 1),
            std::vector<std::string>{
                "parallel.shard_size 2 does not divide the 1 rank: the nearest is 1"});
}

TEST(World, ReportsEverythingAtOnce) {
  Config config = with_batch(10, 1);
  config.parallel.shard_size = "3";
  EXPECT_EQ(check_against_world(config, 4).size(), 2U);
}

TEST(Rules, LimitsThemselvesAreAllowed) {
  const Config config = load_text(
      std::string(kMinimal) +
      "schedule: {warmup_steps: 10, min_lr: 1e-4}\ntrain: {max_steps: 10, seed: 4294967295}\n"
      "optimizer: {lr: 1e-4, betas: [0, 0.9999], weight_decay: 0, grad_clip: 0}\n"
      "lora: {dropout: 0, target_modules: [qkv_proj, o_proj]}\nprecision: {frozen: fp8}\n"
      "eval: {skip_first: 0}\n");
  EXPECT_EQ(config.train.seed, 4294967295);
  EXPECT_EQ(config.eval.skip_first, "0");
}

TEST(Rules, NoRuleSpeaksOfAValueThatCouldNotBeRead) {
  const TemporaryFile file(std::string(kMinimal) +
                           "batch: {global_batch_size: x, micro_batch_size: 3}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U) << join(lines, "\n");
  EXPECT_NE(lines[0].find("must be an integer"), std::string::npos);
}

TEST(Rules, TokensOfARunMustBeCountable) {
  const TemporaryFile file(
      std::string(kMinimal) +
      "train: {max_steps: 2147483647}\nbatch: {global_batch_size: 2147483647}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("more tokens than can be counted"), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace trireme
