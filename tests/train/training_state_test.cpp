// The state of a run by the names that checkpoints have had from the first version on.
#include "training_state.h"

#include "../base/base_testing.h"
#include "data/rows.h"
#include "trireme/comm/rank_grid.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace trireme {
namespace {

TEST(TrainingState, TensorsHaveTheNamesOfOlderCheckpoints) {
  TrainedShard shard;
  shard.name = "layers.0";
  const auto name = [&](StateKind kind, bool scalar) { return stored_name({kind, scalar ? nullptr : &shard, {}}); };
  EXPECT_EQ(name(StateKind::kMaster, false), "master.layers.0");
  EXPECT_EQ(name(StateKind::kFirstMoment, false), "exp_avg.layers.0");
  EXPECT_EQ(name(StateKind::kSecondMoment, false), "exp_avg_sq.layers.0");
  EXPECT_EQ(name(StateKind::kOptimizerSteps, true), "step");
  EXPECT_EQ(name(StateKind::kLossScale, true), "loss_scale");
  EXPECT_EQ(name(StateKind::kGrowthTracker, true), "growth_tracker");
}

CheckpointManifest manifest_of(const LoopState& loop) {
  CheckpointManifest manifest;
  manifest.step = loop.progress.completed;
  manifest.evaluations = loop.progress.evaluations;
  manifest.numbers = loop.numbers();
  return manifest;
}

TEST(TrainingState, NumbersHaveTheNamesOfOlderCheckpointsAndComeBack) {
  LoopState loop;
  loop.progress = {.completed = 12,
                   .reported = 12,
                   .samples = 96,
                   .evaluations = 3,
                   .evaluated_step = 10,
                   .evaluation_open = true,
                   .best_score = -2.5,
                   .best_step = 8,
                   .evaluations_since_best = 1};
  loop.guard = {2, 7, {2.5, 2.25, -1}};
  loop.fp8_scales = {};
  loop.fp8_scales.emplace({0.5, 4.0});
  loop.data_position = {3, 1, 4};
  EXPECT_EQ(loop.numbers(), (std::map<std::string, std::vector<double>>{{"samples", {96}},
                                                                        {"evaluated_step", {10}},
                                                                        {"evaluation_left", {1}},
                                                                        {"reached_target", {0}},
                                                                        {"consecutive_skips", {2}},
                                                                        {"left_out", {7}},
                                                                        {"best_evaluation", {-2.5, 8, 1, 0}},
                                                                        {"loss_window", {2.5, 2.25, -1}},
                                                                        {"task", {0.5, 4}},
                                                                        {"data", {3, 1, 4}}}));
  const LoopState again = loop_state(manifest_of(loop));
  EXPECT_TRUE(again.has_samples);
  EXPECT_EQ(again.progress.completed, 12);
  EXPECT_EQ(again.progress.evaluations, 3);
  EXPECT_EQ(again.numbers(), loop.numbers());
}

TEST(TrainingState, OlderCheckpointsLackNumbers) {
  CheckpointManifest first;
  first.step = 5;
  LoopState loop = loop_state(first);
  EXPECT_FALSE(loop.has_samples) << "they follow from the number of steps";
  EXPECT_EQ(loop.progress.completed, 5);
  EXPECT_EQ(loop.progress.reported, 5);
  EXPECT_EQ(loop.progress.evaluated_step, -1);
  EXPECT_FALSE(loop.fp8_scales) << "no scales to restore";
  EXPECT_TRUE(loop.data_position.empty());
  EXPECT_EQ(loop.guard, GuardState());
  first.numbers = {{"loss_window", {}}, {"left_out", {}}, {"task", {}}};
  loop = loop_state(first);
  EXPECT_EQ(loop.guard, GuardState());
  ASSERT_TRUE(loop.fp8_scales) << "a run without scales has an empty list";
  EXPECT_TRUE(loop.fp8_scales->empty());
}

/// What a checkpoint says of the files that a run was made from.
class RunInputs : public DirectoryTest {
 protected:
  RunInputs() {
    write("config.json", "{}");
    write("model.safetensors", "base");
    write("adapter/adapter_model.safetensors", "adapter");
    write("tokenizer.model", "tokenizer");
    write("train.npy", "rows");
    write("texts.jsonl", "{\"text\": \"a\"}\n");
    config_.model.path = root_.string();
    config_.data.train = {(root_ / "train.npy").string()};
  }
  CheckpointRun described() const {
    return describe_run(
        config_, "run", RankGrid(0, {.world = 1}), {}, at::kFloat,
        RunFiles{to_paths(row_files(config_.data.train)), root_ / "config.json", row_tokenizer(config_)});
  }
  std::vector<std::string> hashes() const {
    std::vector<std::string> all;
    for (const Fingerprint& file : described().manifest.inputs) all.push_back(file.hash);
    return all;
  }
  /// Whether another content of the file makes other inputs.
  bool depends_on(const std::string& name) {
    const auto before = hashes();
    write(name, "{\"other\": " + std::to_string(++contents_) + "}");
    return hashes() != before;
  }

  Config config_;
  int contents_ = 0;
};

TEST_F(RunInputs, OfAllParametersAreTheModelsConfiguration) {
  EXPECT_FALSE(depends_on("model.safetensors")) << "the checkpoint has what became of the weights";
  EXPECT_TRUE(depends_on("config.json"));
  const auto before = hashes();
  write("config.json", "{\"other\":" + std::to_string(contents_) + ",\n \"transformers_version\": \"5\"}");
  EXPECT_EQ(hashes(), before) << "the same configuration, written otherwise";
}

TEST_F(RunInputs, OfAPreferenceRunAreTheAdapterThatItComparesWithInEachStep) {
  config_.train.objective = TrainSection::Objective::kDpo;
  config_.lora.emplace();
  config_.lora->adapter = (root_ / "adapter").string();
  EXPECT_TRUE(depends_on("adapter/adapter_model.safetensors"));
  config_.preference.emplace().precompute_ref_log_probs = true;
  EXPECT_FALSE(depends_on("adapter/adapter_model.safetensors")) << "log-probabilities are in a file of the run";
  config_.preference.reset();
  config_.train.objective = TrainSection::Objective::kSft;
  EXPECT_FALSE(depends_on("adapter/adapter_model.safetensors")) << "the checkpoint has what became of the adapter";
}

TEST_F(RunInputs, OfNemoCheckpointsAreTheirDescriptionsAndChunks) {
  for (const char* name : {"config.json", "model.safetensors"}) std::filesystem::remove(root_ / name);
  for (const char* name : {"context/model.yaml", "weights/a/.zarray", "weights/a/0.0", "weights/a/0.1"})
    write(name, name);
  EXPECT_TRUE(depends_on("context/model.yaml"));
  EXPECT_TRUE(depends_on("weights/a/.zarray"));
  EXPECT_FALSE(depends_on("weights/a/0.0")) << "the checkpoint has what became of the weights";
  const auto base = [&] { return fingerprint_model(root_, /*with_weights=*/true); };
  const auto before = base();
  ASSERT_EQ(before.size(), 3U);
  write("weights/a/0.0", "other");
  EXPECT_NE(base().back().hash, before.back().hash);
}

TEST_F(RunInputs, OfTextsAreTheTokenizer) {
  EXPECT_FALSE(depends_on("tokenizer.model")) << "rows are tokens";
  config_.data.train = {(root_ / "texts.jsonl").string()};
  EXPECT_TRUE(depends_on("tokenizer.model"));
  write("tokenizer_config.json", R"({"legacy": true})");
  const auto before = hashes();
  write("tokenizer_config.json", R"({"chat_template": "", "legacy": true})");
  EXPECT_EQ(hashes(), before) << "a template makes no tokens of these texts";
  write("tokenizer_config.json", R"({"chat_template": "", "legacy": false})");
  EXPECT_NE(hashes(), before);
  write("tokenizer_config.json", R"({"legacy": true, "extra_special_tokens": {}})");
  EXPECT_EQ(hashes(), before);
  for (const char* named :
       {R"("extra_special_tokens": ["<x>"])", R"("additional_special_tokens": ["<x>"])", R"("unk_token": "<x>")"}) {
    write("tokenizer_config.json", std::string(R"({"legacy": true, )") + named + "}");
    EXPECT_NE(hashes(), before) << named << " is one token of a text";
    const std::string now = hashes().back();
    EXPECT_TRUE(Fingerprint({}, now).same_content({"", now.substr(0, now.find('+'))})) << "of an earlier version";
    EXPECT_FALSE(Fingerprint({}, now).same_content({"", before.back()}));
  }
  std::filesystem::remove(root_ / "tokenizer.model");
  write("vocab.json", "{}");
  write("merges.txt", "");
  EXPECT_TRUE(depends_on("merges.txt"));
  write("tokenizer.json", "{}");
  EXPECT_FALSE(depends_on("merges.txt")) << "tokenizer.json has its own";
}

TEST_F(RunInputs, OfADirectoryAreTheFilesThatTheRunReads) {
  std::filesystem::create_directories(root_ / "data");
  write("data/a.jsonl", "{\"text\": \"a\"}\n");
  config_.data.train = {(root_ / "data").string()};
  const CheckpointRun before = described();
  ASSERT_EQ(before.manifest.data.size(), 1U);
  EXPECT_EQ(before.former_data(),
            (std::vector<Fingerprint>{{config_.data.train[0], fingerprint_names(root_ / "data")}}));
  write("data/README.md", "about it");
  EXPECT_EQ(described().manifest.data, before.manifest.data);
  write("data/a.jsonl", "{\"text\": \"b\"}\n");
  EXPECT_NE(described().manifest.data, before.manifest.data) << "the same size";
}

}  // namespace
}  // namespace trireme
