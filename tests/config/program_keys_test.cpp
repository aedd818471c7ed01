// What a program's features do to its keys: refused where they stand, not offered, not in --help.
#include <regex>

#include "config_testing.h"
#include "trireme/config/keys.h"

namespace trireme {
namespace {

const ProgramKeys kPlain{.name = "train_plain", .features = FeatureSet()};
const ProgramKeys kRich{.name = "train_rich"};

std::vector<std::string> problems(const std::string& text, const ProgramKeys& program,
                                  const std::vector<std::string>& overrides = {}) {
  const TextFile file(std::string(kMinimal) + text);
  std::vector<std::string> lines = problems_of(file.path(), overrides, program);
  if (!lines.empty()) lines.pop_back();
  for (std::string& line : lines)
    if (line.starts_with(file.path().string())) line = line.substr(file.path().string().size() + 1);
  return lines;
}

TEST(Family, KeysWordsAndSectionsOfOtherProgramsAreRefusedWhereTheyStand) {
  const std::string all =
      "lora: {r: 4}\nbatch: {packing_rate: 2}\noptimizer: {clip: local}\ntrain: {loss: rank_mean}\n"
      "eval: {skip_first: mlperf}\nparallel: {recompute: mlp}\n";
  EXPECT_TRUE(problems(all, kRich).empty());
  EXPECT_TRUE(problems(all, {}).empty()) << "a file of any program";
  const std::vector<std::string> expected = {
      "4:1: section 'lora' is not for train_plain, which trains all parameters: leave 'lora' out",
      "5:23: batch.packing_rate is not for train_plain, which reads rows of one sample each",
      "6:19: optimizer.clip is not for train_plain, which averages and clips over all ranks",
      "7:15: train.loss rank_mean is not for train_plain, which averages and clips over all ranks: use sample_mean or "
      "token_mean",
      "8:20: eval.skip_first mlperf is not for train_plain, which has no rule of MLPerf for it: use an integer from 0 "
      "to 2147483647, or null",
      "9:23: parallel.recompute mlp is not for train_plain, which recomputes whole blocks: use auto, none, attention, "
      "full or a share from 0 to 1 such as 1/3"};
  EXPECT_EQ(problems(all, kPlain), expected);
  EXPECT_EQ(problems("", kPlain, {"eval.target_accuracy=0.7"}),
            std::vector<std::string>{"--set eval.target_accuracy=0.7: eval.target_accuracy is not for train_plain, "
                                     "which measures no accuracy: use eval.target_loss"});
}

TEST(Family, AValueLikeTheDefaultIsNoKeyOfAnotherProgram) {
  // What a resolved configuration prints, defaults included, is every program's.
  const Config plain = load_text(kMinimal);
  const TextFile printed(print_config(plain));
  EXPECT_EQ(load_config(printed.path(), {}, kPlain), plain);
  EXPECT_EQ(load_config(printed.path(), {}, kRich), plain);
}

TEST(Family, ItsKeysAloneAreOffered) {
  EXPECT_EQ(problems("eval: {target_accuracyy: 1}\n", kRich),
            std::vector<std::string>{
                "4:8: unknown key 'target_accuracyy' in section 'eval'. Did you mean 'target_accuracy'?"});
  EXPECT_EQ(problems("eval: {target_accuracyy: 1}\n", kPlain),
            std::vector<std::string>{"4:8: unknown key 'target_accuracyy' in section 'eval'."});
  EXPECT_EQ(problems("train: {loss: rank_man}\n", kPlain),
            std::vector<std::string>{"4:15: train.loss must be sample_mean or token_mean, not 'rank_man'"});
}

TEST(Family, HelpListsItsKeysWordsAndDefaults) {
  ProgramKeys program = kPlain;
  program.vocab_multiple = 48;
  program.defaults.optimizer.betas = {0.9, 0.95};
  const std::string help = describe_config(program), all = describe_config(kRich);
  for (const char* key : {"\nlora:", "\n  vocab_size", "\n  packing_rate", "\n  clip ", "rank_mean", "mlperf or",
                          "\n  target_accuracy", "--set lora", "Megatron", "norms, mlp,"}) {
    EXPECT_TRUE(contains(all, key));
    EXPECT_FALSE(contains(help, key));
  }
  // Lines are wrapped anywhere between two words.
  EXPECT_TRUE(std::regex_search(help, std::regex("null =\\s+48"))) << help;
  EXPECT_TRUE(contains(help, "default [0.9, 0.95]"));
  EXPECT_FALSE(contains(help, "train_")) << "a program's name in a key's text";
  EXPECT_EQ(all.find("{"), all.find("{}")) << "a placeholder that nobody filled";
}

TEST(Family, ItsDefaultsHoldWhereAFileSaysNothing) {
  ProgramKeys program = kRich;
  program.defaults.optimizer.grad_clip = 1;
  program.defaults.train.loss = TrainSection::Loss::kTokenMean;
  const TextFile file(std::string(kMinimal) + "train: {seed: 3}\n");
  const Config config = load_config(file.path(), {}, program);
  EXPECT_EQ(config.optimizer.grad_clip, 1);
  EXPECT_EQ(config.train.loss, TrainSection::Loss::kTokenMean);
  // A resolved configuration means the same without them.
  EXPECT_EQ(parse_config(print_config(config), "x"), config);
}

TEST(RetiredKeys, AreNamedWithWhatToWriteInstead) {
  EXPECT_EQ(problems("precision: {encoder: compute}\n", kRich),
            std::vector<std::string>{"4:13: precision.encoder is now precision.linear: write 'linear: compute'"});
  EXPECT_EQ(problems("precision: {encoder: [1]}\n", kRich),
            std::vector<std::string>{"4:13: precision.encoder is now precision.linear"});
}

TEST(RetiredKeys, OfASavedConfigurationMeanWhatTheyMeant) {
  const auto fp8 = [](const std::string& precision) {
    return parse_config(std::string(kMinimal) + "precision:" + precision, "saved").precision.linear ==
           PrecisionSection::Linear::kFp8;
  };
  EXPECT_FALSE(fp8("\n  compute: bf16\n  frozen: bf16\n  encoder: compute\n  loss_scale: null\n"));
  EXPECT_TRUE(fp8("\n  frozen: fp8\n  encoder: compute\n"));
  EXPECT_TRUE(fp8("\n  frozen: bf16\n  encoder: fp8\n"));
  EXPECT_TRUE(fp8("\n  encoder: fp8\n"));
  // The name is a key again, beside the one that took its place.
  EXPECT_FALSE(fp8("\n  linear: compute\n  frozen: auto\n"));
  EXPECT_FALSE(
      parse_config(std::string(kMinimal) + "lora: {r: 2}\nprecision:\n  linear: compute\n  frozen: fp8\n", "saved")
          .precision.linear == PrecisionSection::Linear::kFp8);
  EXPECT_THROW(fp8("\n  frozen: fp7\n"), ConfigError);
}

}  // namespace
}  // namespace trireme
