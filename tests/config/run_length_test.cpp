// train.epochs and schedule.warmup_ratio: other ways to say train.max_steps and schedule.warmup_steps.
#include "config_testing.h"

namespace trireme {
namespace {

TEST(RunLength, AWarmUpRatioIsAShareOfTheStepsRoundedUp) {
  const auto steps = [](const std::string& ratio, int max_steps) {
    const Config config = load_text(std::string(kMinimal) + "schedule: {warmup_ratio: " + ratio +
                                    "}\ntrain: {max_steps: " + std::to_string(max_steps) + "}\n");
    EXPECT_FALSE(config.schedule.warmup_ratio);
    return config.schedule.warmup_steps;
  };
  EXPECT_EQ(steps("0", 100), 0);
  EXPECT_EQ(steps("0.03", 100), 3);
  EXPECT_EQ(steps("0.031", 100), 4);
  EXPECT_EQ(steps("1", 7), 7);
}

TEST(RunLength, TwoWaysToSayItAreRefused) {
  const auto only = [](const std::string& text) {
    const TextFile file(std::string(kMinimal) + text);
    const auto lines = problems_of(file.path());
    return lines.size() == 2 ? lines[0].substr(lines[0].find(": ") + 2) : std::to_string(lines.size()) + " lines";
  };
  EXPECT_EQ(only("train: {epochs: 2, max_steps: 1024}\n"),
            "train.epochs and train.max_steps both say how long the run is: leave one of them out");
  EXPECT_EQ(only("schedule: {warmup_ratio: 0.1, warmup_steps: 3}\n"),
            "schedule.warmup_ratio and schedule.warmup_steps both say how long the warm-up is: leave one of them out");
  EXPECT_TRUE(contains(only("train: {epochs: 0}\n"), "train.epochs"));
  EXPECT_TRUE(contains(only("schedule: {warmup_ratio: 1.5}\n"), "schedule.warmup_ratio"));
  EXPECT_EQ(only("train: {epochs: 2}\nlogging: {mlperf: true}\n"),
            "train.epochs is not for logging.mlperf, whose log has steps: give train.max_steps");
}

TEST(RunLength, RulesThatCountStepsWaitForThem) {
  const Config config = load_text(std::string(kMinimal) +
                                  "schedule: {warmup_ratio: 0.1}\ntrain: {epochs: 2.5}\nlogging: {profile_step: 30}\n");
  EXPECT_EQ(config.train.epochs, 2.5);
  EXPECT_EQ(config.schedule.warmup_ratio, 0.1);
  const Config counted = with_steps(config, 31, {}, 1);
  EXPECT_EQ(counted.train.max_steps, 31);
  EXPECT_FALSE(counted.train.epochs);
  EXPECT_EQ(counted.schedule.warmup_steps, 4);
  EXPECT_EQ(message_of<ConfigError>([&] { return with_steps(config, 12, {}, 1); }),
            "train.epochs 2.5 is train.max_steps 12; logging.profile_step 30 comes after the last step, "
            "train.max_steps 12");
}

TEST(RunLength, ThePrintedConfigurationHasOneOfTheTwo) {
  const Config epochs = load_text(std::string(kMinimal) + "train: {epochs: 2}\nschedule: {warmup_ratio: 0.5}\n");
  EXPECT_FALSE(contains(print_config(epochs), "max_steps"));
  EXPECT_EQ(load_text(print_config(epochs)), epochs);
  const Config steps = with_steps(epochs, 10, {}, 1);
  EXPECT_EQ(load_text(print_config(steps)), steps);
}

}  // namespace
}  // namespace trireme
