// The registry of programs: what an entry says is what its program takes, and a program more is an entry more.
#include "trireme/train/training_program.h"
#include "run_directory.h"
#include "task_testing.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/config/features.h"
#include "trireme/config/keys.h"
#include "trireme/train/command_line.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// The program that a preset is for: its head has a line "#   PROGRAM --config FILE".
std::string program_of(const fs::path& preset) {
  const std::string text = read_text_file(preset, ExitCode::kConfig);
  const size_t end = text.find(" --config ");
  const size_t begin = text.rfind(' ', end - 1) + 1;
  return text.substr(begin, end - begin);
}

std::string help_of(const TrainingProgram& program) {
  std::string name = program.keys.name, option = "--help";
  char* arguments[] = {name.data(), option.data()};
  testing::internal::CaptureStdout();
  EXPECT_TRUE(parse_command_line(2, arguments, program).handled);
  return testing::internal::GetCapturedStdout();
}

TEST(TrainingPrograms, EachProgramHasOneEntryWithPresetsThatItTakes) {
  std::set<std::string> programs;
  for (const TrainingProgram& program : training_programs()) {
    EXPECT_TRUE(programs.insert(program.keys.name).second) << program.keys.name;
    EXPECT_EQ(&training_program(program.keys.name), &program);
    int presets = 0;
    for (const auto& file : fs::directory_iterator(fs::path(TRIREME_SOURCE_DIR) / program.presets)) {
      if (file.path().extension() != ".yaml" || program_of(file.path()) != program.keys.name) continue;
      EXPECT_NO_THROW(load_config(file.path(), {}, program.keys)) << file.path();
      ++presets;
    }
    EXPECT_GE(presets, 1) << program.keys.name;
  }
  EXPECT_EQ(programs, (std::set<std::string>{"train_bert", "train_gpt", "train_llama"}));
  EXPECT_THROW(training_program("train_gtp"), InternalError);
}

TEST(TrainingPrograms, HelpIsOfTheProgramsOwnKeys) {
  const std::string llama = help_of(training_program("train_llama")), bert = help_of(training_program("train_bert"));
  for (const char* key : {"\nlora:", "\n  vocab_size ", "norms, mlp,"}) {
    EXPECT_TRUE(contains(llama, key));
    EXPECT_FALSE(contains(bert, key));
  }
  for (const char* key : {"\n  packing_rate ", "\n  target_accuracy ", "rank_mean"}) {
    EXPECT_TRUE(contains(bert, key));
    EXPECT_FALSE(contains(llama, key));
  }
  // Lines are wrapped anywhere between two words.
  const std::regex padding("null =\\s+8");
  EXPECT_TRUE(std::regex_search(bert, padding));
  EXPECT_FALSE(std::regex_search(llama, padding));
  EXPECT_FALSE(contains(llama, "train_bert"));
  EXPECT_FALSE(contains(bert, "train_llama"));
}

class Gpt : public TaskTest {};

TEST_F(Gpt, IsOneEntryOverTheDecodersTask) {
  const TrainingProgram& gpt = training_program("train_gpt");
  write_decoder();
  const Config config = load(gpt.keys, {});
  EXPECT_EQ(config.train.loss, TrainSection::Loss::kTokenMean);
  const auto task = gpt.make_task(config, {}, gpt.keys);
  EXPECT_EQ(task->facts().train_rows, kRows);
  EXPECT_EQ(task->nominal_denominator(), 8.0 * (kLength - 1)) << "the loss is the program's default";
  EXPECT_TRUE(task->facts().adapter_targets.empty());
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  EXPECT_EQ(config.optimizer.grad_clip, 1.0);
  const auto embedding = task->units().front().parameters.front();
  EXPECT_EQ(embedding.shape[0] % 128, 0) << "the vocabulary is padded by the program's default";
  task->set_rows_per_pass(4);
  EXPECT_EQ(task->batch(0).micro_batches.size(), 2U);
  // Another program's defaults are another run.
  const TrainingProgram& llama = training_program("train_llama");
  EXPECT_EQ(llama.make_task(load(llama.keys, {}), {}, llama.keys)->nominal_denominator(), 8.0);

  const std::string help = help_of(gpt);
  EXPECT_TRUE(help.starts_with("train_gpt trains GPT-3 family models, all parameters")) << help.substr(0, 100);
  EXPECT_TRUE(contains(help, "default [0.9, 0.95]"));
  EXPECT_FALSE(contains(help, "\nlora:"));
  EXPECT_FALSE(contains(help, "MLLOG"));
  for (const auto& [setting, why] :
       {std::pair("lora.r=4", "trains all parameters"), {"logging.mlperf=true", "is of no benchmark of MLPerf"}})
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { return load(gpt.keys, {setting}); }),
                         std::string("is not for train_gpt, which ") + why));
}

/// Opening a pipe that nobody writes to would block.
TEST_F(Gpt, PlansWithoutOpeningItsData) {
  write_decoder();
  std::filesystem::remove(root_ / "rows");
  ASSERT_EQ(mkfifo((root_ / "rows").c_str(), 0600), 0);
  const TrainingProgram& gpt = training_program("train_gpt");
  EXPECT_NE(model_to_plan(load(gpt.keys, {}), gpt), nullptr);
}

TEST(SavedConfiguration, OfAnEarlierVersionIsTheSameRunInItsNewWords) {
  const std::string rest = "model: {path: /m}\nlora: {r: 4}\ndata: {train: /t, seq_length: 8}\noutput: {dir: /o}\n";
  const auto saved = [&](const char* precision) { return parse_config(rest + "precision: " + precision, "saved"); };
  const Config before = saved("{frozen: fp8, encoder: compute}"), now = saved("{linear: fp8, fp8_recipe: auto}");
  EXPECT_TRUE(deciding_changes(before, now).empty());
  EXPECT_EQ(deciding_changes(saved("{frozen: bf16, encoder: compute}"), now),
            std::vector<std::string>{"precision.linear was compute, is fp8"});
}

Config changed(const std::vector<std::string>& settings) {
  ProgramKeys every;
  every.features = FeatureSet::all();
  const std::string text =
      "model: {path: /m}\nlora: {r: 4, adapter: /a}\ndata: {train: /t, seq_length: 8}\nbatch: {global_batch_size: 4}\n"
      "schedule: {warmup_steps: 0}\ntrain: {max_steps: 100}\noutput: {dir: /o}\n";
  return load_config(TemporaryDirectory().write("changed.yaml", text), settings, every);
}

TEST(SavedConfiguration, PlacesAndReportsDoNotDecideWhatIsComputed) {
  const Config before = changed({});
  for (const char* free : {"model.path=/x", "lora.adapter=/x", "data.train=/x", "data.valid=/x", "data.test=/x",
                           "data.index_cache=/x", "parallel.rates=/x", "output.dir=/x", "output.keep_last=7",
                           "eval.samples=null", "logging.every_steps=3", "profile.active=1", "model.read=per_host",
                           "train.max_time=\"00:01:00:00\"", "train.on_spike=skip", "batch.micro_batch_size=2"}) {
    EXPECT_TRUE(deciding_changes(before, changed({free})).empty()) << free;
    const std::string key = std::string(free).substr(0, std::string(free).find('='));
    EXPECT_TRUE(key_traits(key).may_change) << key;
    EXPECT_EQ(key_traits(key).path, std::string(free).ends_with("=/x")) << key;
  }
  for (const char* deciding :
       {"lora.adapter=null", "lora=null", "optimizer.lr=1", "data.seq_length=9", "train.seed=1", "train.max_steps=99",
        "batch.global_batch_size=8", "data.splits=\"9,1,0\"", "schedule.name=linear", "model.init=random"}) {
    const auto changes = deciding_changes(before, changed({deciding}));
    ASSERT_FALSE(changes.empty()) << deciding;
  }
}

TEST(SavedConfiguration, ADefaultThatIsWrittenOutIsNoChange) {
  const ProgramKeys& llama = training_program("train_llama").keys;
  const auto changed_by = [&](const std::vector<std::string>& first, std::vector<std::string> added, bool gpu = false) {
    added.insert(added.begin(), first.begin(), first.end());
    const NullValues nulls = null_values(changed(first), llama, gpu);
    const size_t back = deciding_changes(changed(added), changed(first), nulls).size();
    EXPECT_EQ(deciding_changes(changed(first), changed(added), nulls).size(), back);
    return back > 0;
  };
  EXPECT_FALSE(changed_by({}, {"precision.compute=fp32"}));
  EXPECT_FALSE(changed_by({}, {"precision.compute=bf16"}, /*gpu=*/true));
  EXPECT_TRUE(changed_by({}, {"precision.compute=bf16"}));
  EXPECT_FALSE(changed_by({"precision.compute=fp16"}, {"precision.loss_scale=65536"}));
  EXPECT_TRUE(changed_by({"precision.compute=fp16"}, {"precision.loss_scale=1024"}));
  EXPECT_FALSE(changed_by({}, {"model.pad_vocab_to=1"}));
  EXPECT_TRUE(changed_by({}, {"model.pad_vocab_to=64"}));
  EXPECT_FALSE(changed_by({"schedule.name=wsd"}, {"schedule.min_lr_factor=0"}));
  EXPECT_FALSE(changed_by({"schedule.name=fms_cosine"}, {"schedule.min_lr_factor=0.1"}));
  EXPECT_TRUE(changed_by({"schedule.name=fms_cosine"}, {"schedule.min_lr_factor=0.2"}));
  // Names of parts only name them.
  const std::string parts = "data.train=[{path: /a}, {path: /b}]",
                    named = "data.train=[{path: /a, name: x}, {path: /b}]";
  EXPECT_FALSE(changed_by({parts}, {named}));
  EXPECT_TRUE(changed_by({parts}, {"data.train=[{path: /a, weight: 2}, {path: /b}]"}));
  // Weights are shares.
  const auto weighted = [](const char* weights) {
    return std::vector<std::string>{"data.train=[/a, /b, /c]", fmt::format("data.weights=[{}]", weights)};
  };
  EXPECT_FALSE(changed_by(weighted("1, 1, 1"), weighted("3, 3, 3")));
  EXPECT_FALSE(changed_by(weighted("0.1, 0.2, 0.5"), weighted("0.2, 0.4, 1")));
  EXPECT_TRUE(changed_by(weighted("1, 1, 1"), weighted("1, 1, 1.0000000001")));
  EXPECT_FALSE(changed_by({"optimizer.name=muon", "optimizer.lr=0.02"}, {"optimizer.matrix_lr=0.02"}));
  EXPECT_TRUE(changed_by({"optimizer.name=muon", "optimizer.lr=0.02"}, {"optimizer.matrix_lr=0.01"}));
  EXPECT_FALSE(changed_by({}, {"precision.frozen=compute"}));
  EXPECT_FALSE(changed_by({"precision.linear=fp8"}, {"precision.frozen=fp8"}));
  EXPECT_TRUE(changed_by({}, {"precision.frozen=fp8"}));
  // Instead of, not beside: changed_by() adds to the first.
  const auto instead = [&](std::vector<std::string> first, std::vector<std::string> second) {
    return !deciding_changes(changed(first), changed(second), null_values(changed(first), llama, /*gpu=*/false))
                .empty();
  };
  EXPECT_FALSE(instead({"precision.linear=fp8"}, {"precision.frozen=fp8"}));
  EXPECT_FALSE(instead({"precision.frozen=fp8"}, {"precision.linear=fp8"}));
  EXPECT_TRUE(instead({"precision.frozen=nf4"}, {"precision.linear=fp8"}));
  EXPECT_FALSE(instead({"data.train=/a"}, {"data.train=[{path: /a, weight: 3}]"}));
  EXPECT_FALSE(instead({"data.splits='9, 1,0'"}, {"data.splits='9,1,0'"}));
  EXPECT_FALSE(instead({"lora.target_modules=all-linear"}, {"lora.target_modules=All-Linear"}));
  EXPECT_FALSE(
      instead({"lora.trainable_token_indices=[7, 5]"}, {"lora.trainable_token_indices={embed_tokens: [5, 7]}"}));
  for (const auto& [value, changes] : {std::pair("false", false), {"true", true}})
    EXPECT_EQ(instead({"train.objective=dpo"},
                      {"train.objective=dpo", fmt::format("preference.precompute_ref_log_probs={}", value)}),
              changes);
  // Lists and mappings whose order changes nothing.
  const std::pair<const char*, std::vector<const char*>> sets[] = {
      {"data.strip_tokens", {"[5, 3]", "[3, 5, 3]", "[3]"}},
      {"lora.target_modules", {"[v_proj, q_proj]", "[q_proj, v_proj]", "[q_proj, k_proj]", "'.*q_proj'", "all-linear"}},
      {"lora.exclude_modules", {"[layers.1.mlp.up_proj, k_proj]", "[k_proj, layers.1.mlp.up_proj]", "null"}},
      {"lora.layers_to_transform", {"[10, 9]", "[9, 10]", "null"}},
      {"lora.modules_to_save", {"[lm_head, embed_tokens]", "[embed_tokens, lm_head]", "[lm_head]"}},
      {"lora.rank_pattern", {"{v_proj: 2, q_proj: 8}", "{q_proj: 8, v_proj: 2}", "{q_proj: 2, v_proj: 8}"}},
      {"lora.alpha_pattern", {"{v_proj: 2, q_proj: 8}", "{q_proj: 8, v_proj: 2}", "{q_proj: 2, v_proj: 8}"}},
      {"lora.trainable_token_indices",
       {"{lm_head: [5, 3], embed_tokens: [7]}", "{embed_tokens: [7], lm_head: [3, 5]}",
        "{embed_tokens: [7], lm_head: [3]}"}}};
  for (const auto& [key, values] : sets)
    for (size_t i = 1; i < values.size(); ++i)
      EXPECT_EQ(changed_by({fmt::format("{}={}", key, values[0])}, {fmt::format("{}={}", key, values[i])}), i > 1)
          << key << " " << values[i];
  EXPECT_TRUE(changed_by({"data.train=[/a, /b]"}, {"data.train=[/a, /b]", "optimizer.betas=[0.999, 0.9]"}));
  // The column that is read where none is named.
  const std::string fixtures = std::string(TRIREME_SOURCE_DIR) + "/tests/data/fixtures/stream/";
  for (const auto& [files, column, chosen] : {std::tuple("lists.arrow", "input_ids", true),
                                              {"lists.arrow", "tokens", false},
                                              {"saved", "input_ids", true},
                                              {"texts.arrow", "text", true},
                                              {"fms", "tokens", true},
                                              {"fms", "text", false}})
    EXPECT_EQ(changed_by({"data.train=" + fixtures + files}, {fmt::format("data.column={}", column)}), !chosen)
        << files << " " << column;
  EXPECT_TRUE(changed_by({fmt::format("data.train=[{0}lists.arrow, {0}fms]", fixtures)}, {"data.column=input_ids"}));
  EXPECT_TRUE(changed_by({"data.train=" + fixtures + "lists.arrow", "data.column=input_ids"}, {"data.column=tokens"}));
  // What the model's config.json decides.
  const TemporaryDirectory model;
  model.write("config.json", R"({"model_type": "llama", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64,
                                 "num_hidden_layers": 2, "num_attention_heads": 4, "rms_norm_eps": 1e-5})");
  const std::vector<std::string> at_model = {"model.path=" + model.root().string()};
  EXPECT_FALSE(changed_by(at_model, {"model.vocab_size=320"}));
  EXPECT_TRUE(changed_by(at_model, {"model.vocab_size=328"}));
  EXPECT_FALSE(changed_by(at_model, {"model.scaled_residual_init=false"}));
  EXPECT_TRUE(changed_by(at_model, {"model.scaled_residual_init=true"}));
  EXPECT_FALSE(changed_by(at_model, {"model.pad_vocab_to=64"}));
  EXPECT_TRUE(changed_by(at_model, {"model.pad_vocab_to=256"}));
  // The adapters that it has.
  for (const auto& [setting, changes] : {std::pair("lora.layers_to_transform=[1, 0]", false),
                                         {"lora.layers_to_transform=[1]", true},
                                         {"lora.rank_pattern={q_proj: 4}", false},
                                         {"lora.rank_pattern={q_proj: 8}", true},
                                         {"lora.target_modules='.*[qkvo]_proj'", false},
                                         {"lora.target_modules=[q_proj, v_proj]", true},
                                         {"lora.target_modules=[qkv_proj, o_proj]", true},
                                         {"lora.exclude_modules=[up_proj]", false},
                                         {"lora.use_rslora=true", true},
                                         {"lora.r=8", true}})
    EXPECT_EQ(changed_by(at_model, {setting}), changes) << setting;
}

TEST(SavedConfiguration, MoreStepsOfOneWarmUpRatioAreAnExtension) {
  const auto run = [](const char* ratio, int steps) {
    return changed({fmt::format("schedule.warmup_ratio={}", ratio), fmt::format("train.max_steps={}", steps)});
  };
  for (const char* ratio : {"0", "0.001", "0.07", "0.1", "0.333", "1"})
    for (const int before : {1, 3, 10, 99, 100, 101})
      for (const int now : {102, 110, 200, 700, 1300, 99999})
        EXPECT_TRUE(deciding_changes(run(ratio, before), run(ratio, now)).empty()) << ratio << before << " " << now;
  const std::vector<std::string> warmup = {
      "schedule.warmup_steps was 10, is 40 (schedule.warmup_ratio counts as its steps)"};
  EXPECT_EQ(deciding_changes(run("0.1", 100), run("0.2", 200)), warmup);
  EXPECT_EQ(deciding_changes(run("0.1", 100), changed({"schedule.warmup_steps=40"})), warmup) << "no more steps";
}

}  // namespace
}  // namespace trireme
