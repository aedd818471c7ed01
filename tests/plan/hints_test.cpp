// What is said of a run that does not fit, and what comes of doing it.
#include "trireme/plan/hints.h"
#include "../base/base_testing.h"
#include "models/decoder/family.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/config/config.h"
#include "trireme/plan/search.h"
#include "trireme/train/training_program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {
namespace {

const TrainingProgram& kLlama = training_program("train_llama");
constexpr const char* kLora = "lora.r=16";

struct Case {
  const char* model;
  int ranks;
  double memory_gib;
  int64_t seq_length;
  std::vector<std::string> settings;
};

const std::vector<Case> kCases = {
    {"llama2-7b", 1, 80, 4096, {"batch.global_batch_size=1"}},
    {"llama2-13b", 8, 80, 4096, {"batch.global_batch_size=128", "parallel.policy=optimizer"}},
    {"llama2-70b", 16, 141, 4096, {"batch.global_batch_size=64", "parallel.policy=gradients"}},
    {"llama2-70b", 8, 80, 4096, {"batch.global_batch_size=8"}},
    {"llama2-70b", 1, 80, 8192, {kLora, "batch.global_batch_size=8"}},
    {"llama2-70b", 1, 141, 8192, {kLora, "batch.global_batch_size=8"}},
    {"llama2-70b", 1, 80, 32768, {kLora, "precision.linear=fp8"}},
    {"llama2-7b", 1, 40, 8192, {kLora, "parallel.recompute=none", "batch.micro_batch_size=8"}},
    {"llama2-13b", 8, 80, 4096, {"parallel.shard_size=1", "batch.global_batch_size=8"}},
    {"llama2-7b", 4, 38, 4096, {"precision.compute=fp32", "batch.global_batch_size=32"}},
    {"llama2-7b", 1, 12, 4096, {kLora}},
    {"llama2-70b", 1, 24, 8192, {kLora}},
    {"llama2-7b", 2, 40, 131072, {kLora, "parallel.context_size=1", "batch.global_batch_size=8"}},
    {"llama2-7b", 1, 80, 262144, {kLora, "batch.global_batch_size=1"}},
};

class Hints : public DirectoryTest {
 protected:
  /// The configuration of a case and its model's shape.
  std::filesystem::path write(const Case& c) const {
    std::filesystem::create_directories(root_ / c.model);
    write_file_atomic(root_ / c.model / "config.json", decoder_config_json(decoder_preset(c.model)));
    write_file_atomic(
        root_ / "run.yaml",
        fmt::format("model: {{path: {}}}\ndata: {{train: none.npy, seq_length: {}}}\noutput: {{dir: out}}\n", c.model,
                    c.seq_length));
    return root_ / "run.yaml";
  }
};

/// "the run needs …; try X (saves A: fits), or Y (…)": the settings of X, and whether X is said to fit or what lacks.
struct Advice {
  std::vector<std::string> overrides;
  int ranks = 0;  // 0: as many as before
  std::string lacking;
};

Advice first_advice(const std::string& message) {
  const size_t begin = message.find("; try ") + 6, end = message.find(" (saves ", begin);
  Advice advice;
  std::string settings = message.substr(begin, end - begin);
  for (const char* word : {" with ", " and "})
    for (size_t at; (at = settings.find(word)) != std::string::npos;)
      settings.replace(at, std::string(word).size(), "|");
  for (const std::string& setting : split(settings, '|')) {
    if (setting.ends_with(" ranks")) {
      advice.ranks = std::stoi(setting);
      continue;
    }
    const size_t colon = setting.find(": ");
    EXPECT_NE(colon, std::string::npos) << setting;
    advice.overrides.push_back(setting.substr(0, colon) + "=" + setting.substr(colon + 2));
  }
  const std::string outcome = message.substr(end, message.find(')', end) - end);
  if (!outcome.ends_with(": fits")) {
    const size_t comma = outcome.find(", ");
    advice.lacking = outcome.substr(comma + 2, outcome.find(" still lack") - comma - 2);
  }
  return advice;
}

TEST_F(Hints, TheFirstOneFollowedFitsOrLacksWhatItSays) {
  int fitting = 0;
  for (const Case& c : kCases) {
    const auto file = write(c);
    const Config config = load_config(file, c.settings, kLlama.keys, c.ranks);
    const auto model = model_to_plan(config, kLlama);
    const auto memory = static_cast<int64_t>(c.memory_gib * (1 << 30));
    const std::string message =
        message_of<ConfigError>([&] { return plan_run({config, *model, c.ranks, /*gpu=*/true, memory}); });
    ASSERT_NE(message, "") << c.model << " fits";
    fmt::print("{} on {} x {} GiB: {}\n", c.model, c.ranks, c.memory_gib, message);
    EXPECT_FALSE(contains(message, "saves 0 B"));
    EXPECT_FALSE(contains(message, "saves -"));
    const Advice advice = first_advice(message);
    std::vector<std::string> settings = c.settings;
    settings.insert(settings.end(), advice.overrides.begin(), advice.overrides.end());
    const int ranks = advice.ranks > 0 ? advice.ranks : c.ranks;
    // What the user would do: the rules of the configuration hold for the advice, too.
    const Config followed = load_config(file, settings, kLlama.keys, ranks);
    const PlanInput input = plan_input({followed, *model, ranks, /*gpu=*/true, memory});
    if (advice.lacking.empty()) {
      ++fitting;
      EXPECT_TRUE(find_plan(input)) << message;
    } else {
      EXPECT_FALSE(find_plan(input)) << message;
      EXPECT_EQ(format_bytes(static_cast<double>(least_plan(input).lacking())), advice.lacking) << message;
    }
  }
  EXPECT_GE(fitting, 10);
}

/// Llama-2-7B with adapters: 32 query heads.
constexpr double kGiB = 1 << 30;

TEST_F(Hints, RowsThatDoNotFitAreShared) {
  const auto size = [&](int64_t length, int ranks, double gib, std::vector<std::string> settings = {}) {
    settings.insert(settings.end(), {kLora, "batch.global_batch_size=8"});
    const Config config = load_config(write({"llama2-7b", 1, 0, length, {}}), settings, kLlama.keys, ranks);
    const auto model = model_to_plan(config, kLlama);
    return choose_context_size({config, *model, ranks, /*gpu=*/true, static_cast<int64_t>(gib * kGiB), 0, 8});
  };
  EXPECT_EQ(size(4096, 8, 80), 1);
  EXPECT_EQ(size(262144, 8, 80), 2);
  EXPECT_EQ(size(524288, 8, 80), 4);
  EXPECT_EQ(size(131072, 8, 80, {"parallel.context_size=8"}), 8) << "as configured";
  EXPECT_EQ(size(131072, 8, 80, {"parallel.context_size=1"}), 1);
  EXPECT_EQ(size(4096, 16, 80), 2) << "more ranks than rows";
  const auto refusal = [&](int64_t length, int ranks, const char* setting) {
    return message_of<ConfigError>([&] { return size(length, ranks, 80, {setting}); });
  };
  EXPECT_TRUE(contains(refusal(4096, 64, "parallel.context_size=64"), "the model's 32 query heads"));
  EXPECT_TRUE(contains(refusal(4096, 16, "parallel.context_size=16"), "reaches over hosts of 8 ranks"));
  EXPECT_EQ(size(4096, 64, 80), 8);
  EXPECT_TRUE(
      contains(refusal(4096, 128, "parallel.context_size=auto"), "parallel.context_size 16 reaches over hosts of 8"));
}

TEST_F(Hints, AContextDividesActivationsAndKeepsTheStep) {
  const Config config = load_config(write({"llama2-7b", 1, 0, 65536, {}}),
                                    {kLora, "batch.global_batch_size=8", "parallel.recompute=full"}, kLlama.keys, 8);
  const auto model = model_to_plan(config, kLlama);
  PlanQuestion question{config, *model, 8, /*gpu=*/true, static_cast<int64_t>(1000 * kGiB)};
  std::vector<TrainingPlan> plans;
  for (const int size : {1, 2, 4}) {
    question.context_size = size;
    plans.push_back(plan_run(question));
    EXPECT_EQ(plans.back().context_size, size);
  }
  for (size_t i = 1; i < plans.size(); ++i) {
    const double memory = static_cast<double>(plans[i].activations) / static_cast<double>(plans[i - 1].activations),
                 step = plans[i].cost.total() / plans[i - 1].cost.total();
    EXPECT_GT(memory, 0.45);
    EXPECT_LT(memory, 0.6);
    // Twice as many passes of half as many tokens, and the exchanges.
    EXPECT_GT(step, 1.0);
    EXPECT_LT(step, 1.08);
  }
}

TEST_F(Hints, AccumulationIsNamedAndItsEndOffered) {
  const Case& c = kCases[1];
  const Config config = load_config(write(c), c.settings, kLlama.keys, c.ranks);
  const auto model = model_to_plan(config, kLlama);
  const std::string message =
      message_of<ConfigError>([&] { return plan_run({config, *model, c.ranks, /*gpu=*/true, int64_t{80} << 30}); });
  EXPECT_TRUE(contains(message, "whole on every rank because the gradients of 16 forward passes are summed"));
  EXPECT_TRUE(contains(message, "batch."));
}

/// What a run that does not fit is told; "" if it fits.
std::string refusal(const Config& config, const PlannedModel& model, double memory_gib, int64_t host_memory = 0) {
  return message_of<ConfigError>([&] {
    return plan_run({config, model, 1, /*gpu=*/true, static_cast<int64_t>(memory_gib * (1 << 30)), host_memory});
  });
}

TEST_F(Hints, NameTheModulesOfTheModelAndFp8WhereItIsPossible) {
  const auto file = write({"gpt3-126m", 1, 1, 2048, {}});
  const auto with = [&](const std::vector<std::string>& settings) {
    return load_config(file, settings, kLlama.keys, 1);
  };
  const Config plain = with({}), fp8 = with({"precision.linear=fp8", "precision.fp8_recipe=delayed"});
  const auto model = model_to_plan(plain, kLlama);
  const auto all = [&](const Config& config) {
    std::string text;
    for (const PlanHint& hint : plan_hints({config, *model, 1, /*gpu=*/true, int64_t{4} << 30}))
      text += hint.text() + '\n';
    return text;
  };
  EXPECT_TRUE(contains(all(plain), "lora.r: 16 with lora.target_modules: [c_attn, c_proj]"));
  EXPECT_TRUE(contains(all(plain), "precision.linear: fp8"));
  EXPECT_TRUE(contains(all(fp8), "precision.fp8_recipe: rowwise"));
  EXPECT_FALSE(contains(all(fp8), "lora")) << "recipes are for trained matrices";
  EXPECT_TRUE(contains(refusal(plain, *model, 2), "; try "));
}

TEST_F(Hints, ALongRowIsSaidToBeOnOneRank) {
  const Case c = {"llama2-7b", 1, 80, 262144, {kLora}};
  const Config config = load_config(write(c), c.settings, kLlama.keys, 1);
  const auto model = model_to_plan(config, kLlama);
  EXPECT_TRUE(contains(refusal(config, *model, c.memory_gib), "a row of 262144 tokens is on one rank"));
}

TEST_F(Hints, ALongRowIsToldOfTilesAndOfTheHost) {
  const Case c = {"llama2-7b", 1, 80, 262144, {kLora}};
  const auto file = write(c);
  const auto told = [&](const std::vector<std::string>& settings, int64_t host_gib, double device_gib = 80) {
    std::vector<std::string> all = c.settings;
    all.insert(all.end(), settings.begin(), settings.end());
    const Config config = load_config(file, all, kLlama.keys, 1);
    return refusal(config, *model_to_plan(config, kLlama), device_gib, host_gib << 30);
  };
  EXPECT_EQ(told({}, 100), "");
  EXPECT_EQ(told({}, 100, 50), "");
  const std::string none = told({"parallel.offload=none"}, 100), large = told({"parallel.tile_tokens=131072"}, 100, 50);
  EXPECT_TRUE(contains(none, "try parallel.offload: auto (saves"));
  EXPECT_TRUE(contains(large, "parallel.tile_tokens: auto (saves"));
  const std::string host = told({"parallel.offload=activations"}, 20);
  EXPECT_TRUE(contains(host, "of pinned memory for each rank, and its host has 20.0 GiB for it"));
  EXPECT_TRUE(contains(
      told({"lora=null", "precision.linear=fp8", "precision.fp8_recipe=tensorwise", "parallel.tile_tokens=1024"}, 0),
      "take precision.fp8_recipe: rowwise"));
}

TEST_F(Hints, AModelWithoutRoomForItsStateIsToldOfTheHost) {
  const Case c = {"llama2-13b", 1, 139.8, 2048, {"batch.global_batch_size=64", "batch.micro_batch_size=2"}};
  const auto file = write(c);
  const auto told = [&](std::vector<std::string> settings, int64_t host_gib) {
    settings.insert(settings.end(), c.settings.begin(), c.settings.end());
    const Config config = load_config(file, settings, kLlama.keys, 1);
    return refusal(config, *model_to_plan(config, kLlama), c.memory_gib, host_gib << 30);
  };
  const std::string narrow = "optimizer.moments=bf16";
  EXPECT_EQ(told({narrow}, 106), "");
  EXPECT_EQ(told({narrow, "parallel.offload=optimizer"}, 106), "");
  const std::string none = told({narrow, "parallel.offload=none"}, 106), few = told({}, 20);
  EXPECT_TRUE(contains(none, "parallel.offload: auto"));
  EXPECT_TRUE(contains(few, "20.0 GiB of its host hold the state of "));
  EXPECT_TRUE(contains(few, "master weights and moments on the host"));
  const std::string all = told({narrow, "parallel.offload=activations"}, 106);
  EXPECT_TRUE(contains(all, "parallel.offload: all"));
  EXPECT_TRUE(contains(told({narrow, "parallel.offload=optimizer"}, 0), "a rank's host has 0 B for it"));
  EXPECT_NE(told({"optimizer.name=muon"}, 106), "") << "whole matrices stay on the GPU";
}

TEST_F(Hints, PassesOfFp8ProductsHaveAMultipleOf16Tokens) {
  const Case c = {"llama2-7b", 1, 80, 1000, {"batch.global_batch_size=16", "batch.micro_batch_size=16"}};
  const auto file = write(c);
  int split = 0;
  for (const double gib : {100.0, 90.0, 80.0, 70.0, 60.0, 50.0})
    for (const char* linear : {"precision.linear=fp8", "precision.linear=compute"}) {
      std::vector<std::string> settings = c.settings;
      settings.insert(settings.end(), {linear, "optimizer.moments=bf16"});
      const Config config = load_config(file, settings, kLlama.keys, 1);
      const auto model = model_to_plan(config, kLlama);
      const PlanInput input = plan_input({config, *model, 1, /*gpu=*/true, static_cast<int64_t>(gib * (1 << 30))});
      for (const auto& plan : {find_plan(input), std::optional(least_plan(input))}) {
        if (!plan) continue;
        split += plan->rows_per_pass < 16 ? 1 : 0;
        EXPECT_TRUE(config.precision.linear != PrecisionSection::Linear::kFp8 || plan->rows_per_pass * 1000 % 16 == 0)
            << plan->rows_per_pass;
      }
    }
  EXPECT_GT(split, 0) << "no micro-batch was split";
}

}  // namespace
}  // namespace trireme
