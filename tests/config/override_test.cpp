#include "../base/temporary_directory.h"
#include "config_testing.h"

namespace trireme {
namespace {

std::vector<std::string> problems_with(const std::vector<std::string>& overrides) {
  const TextFile file(kMinimal);
  auto lines = problems_of(file.path(), overrides);
  if (!lines.empty()) lines.pop_back();
  return lines;
}

std::string problem_with(const std::string& assignment) {
  const auto lines = problems_with({assignment});
  return lines.size() == 1 ? lines[0] : join(lines, " | ");
}

TEST(LateProblem, StandsBehindThePlaceOfItsKey) {
  const TextFile file(std::string(kMinimal) + "lora: {r: 4, layers_to_transform: [77]}\n");
  const auto placed = [&](const std::string& text, const std::vector<std::string>& overrides = {}) {
    return with_place(file.path(), overrides, {}, text);
  };
  const std::string problem = "lora.layers_to_transform has 77, the model's blocks are 0 to 1";
  EXPECT_EQ(placed(problem), file.path().string() + ":4:35: " + problem);
  EXPECT_EQ(placed("lora.r: too large", {"lora.r=9"}), "--set lora.r=9: lora.r: too large");
  for (const char* text : {"lora.alpha is not given", "data.trains has no such key", "rank 1 is out of memory", ""})
    EXPECT_EQ(placed(text), text);
}

TEST(Override, SetsAddsAndTheLastWins) {
  const Config config =
      load_text(kMinimal, {"optimizer.lr=3e-4", "optimizer.lr=5e-4", "data.seq_length=64", "data.train=[a.npy, b.npy]",
                           "logging.mlperf=true", "optimizer.betas=[0.8, 0.9]", "parallel.shard_size=2"});
  EXPECT_EQ(config.optimizer.lr, 5e-4);
  EXPECT_EQ(config.data.seq_length, 64);
  EXPECT_EQ(config.data.train.size(), 2U);
  EXPECT_TRUE(config.logging.mlperf);
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(config.parallel.shard_size, 2);
}

TEST(Override, TextsStayAsTheyAre) {
  const std::string said = "in double quotes";
  for (const char* text : {"a\nb.npy", "a.npy\n", " a.npy", "a.npy ", "a.npy\t", "'a\nb.npy'", "\"a\nb.npy\"", "--- a",
                           "---", "...", "%x"})
    EXPECT_NE(problem_with(std::string("data.train=") + text).find(said), std::string::npos) << text;
  EXPECT_EQ(load_text(kMinimal, {"data.train=\"/a\\nb \""}).data.train, std::vector<std::string>{"/a\nb "});
  EXPECT_EQ(load_text(kMinimal, {"data.train=[ /a,\n /b ]"}).data.train, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(load_text(kMinimal, {"optimizer.lr= 3e-4\n"}).optimizer.lr, 3e-4);
}

TEST(Override, MakesAndRemovesTheLoraSection) {
  const Config made = load_text(kMinimal, {"lora.r=8"});
  ASSERT_TRUE(made.lora);
  EXPECT_EQ(made.lora->r, 8);
  EXPECT_EQ(made.lora->alpha, LoraSection().alpha);
  const std::string with_lora = std::string(kMinimal) + "lora: {r: 4}\n";
  EXPECT_FALSE(load_text(with_lora, {"lora=null"}).lora);
  EXPECT_EQ(load_text(with_lora, {"lora=null", "lora.alpha=2"}).lora->r, LoraSection().r);
  EXPECT_EQ(load_text(std::string(kMinimal) + "lora:\n", {"lora.r=3"}).lora->r, 3);
}

TEST(Override, NullWhereAKeyMayBeNull) {
  const std::string text = std::string(kMinimal) + "lora: {adapter: a}\nprecision: {compute: fp32}\n";
  const Config config = load_text(text, {"lora.adapter=null", "precision.compute="});
  EXPECT_EQ(config.lora->adapter, std::nullopt);
  EXPECT_EQ(config.precision.compute, std::nullopt);
  EXPECT_EQ(problem_with("optimizer.lr=null"), "--set optimizer.lr=null: optimizer.lr must be a number >= 0, not null");
}

TEST(Override, ACommentIsRefusedAndNotCutOff) {
  EXPECT_EQ(problem_with("output.dir=runs/exp #2"),
            "--set output.dir=runs/exp #2: the value has ' #', which begins a comment in YAML: put a text with ' #' in "
            "quotes");
  EXPECT_EQ(load_text(kMinimal, {"output.dir='/runs/exp #2'"}).output.dir, "/runs/exp #2");
  EXPECT_EQ(load_text(kMinimal, {"data.train=['/a #b', /c#d]"}).data.train,
            (std::vector<std::string>{"/a #b", "/c#d"}));
}

TEST(Override, OfTheLengthReplacesTheFilesLength) {
  const std::string minimal = kMinimal;
  EXPECT_EQ(load_text(minimal + "train: {max_steps: 7}\n", {"train.epochs=2"}).train.epochs, 2);
  const Config steps = load_text(minimal + "train: {epochs: 2}\n", {"train.max_steps=7"});
  EXPECT_EQ(steps.train.max_steps, 7);
  EXPECT_EQ(steps.train.epochs, std::nullopt);
  EXPECT_EQ(problems_with({"train.epochs=2", "train.max_steps=7"}).size(), 1U);
}

TEST(Override, RepairsWhatTheFileHasWrong) {
  const std::string text = "model: {path: 5}\ndata: {train: /t, seq_length: x}\noutput: {dir: /o}\n";
  EXPECT_EQ(load_text(text, {"model.path=m", "data.seq_length=8"}).data.seq_length, 8);
}

TEST(Override, RelativePathsCountFromTheFilesDirectory) {
  const TextFile file(kMinimal);
  const Config config = load_config(file.path(), {"output.dir=../x/./runs/"});
  const auto base = std::filesystem::absolute(file.path()).parent_path();
  EXPECT_EQ(config.output.dir, (base.parent_path() / "x" / "runs").string());
}

TEST(Override, APathWithAShellsVariableIsRefusedWhereNoSuchFolderIs) {
  for (const char* path : {"$SCRATCH/run", "${HOME}/run", "/scratch/$USER", "runs-$(date)"})
    EXPECT_NE(problem_with(std::string("output.dir=") + path).find("holds $, which a shell expands"), std::string::npos)
        << path;
  for (const char* path : {"cost$5", "run$"}) EXPECT_EQ(problem_with(std::string("output.dir=") + path), "") << path;
  const TemporaryDirectory there;
  std::filesystem::create_directory(there.path("$own"));
  EXPECT_EQ(problem_with("output.dir=" + there.path("$own/run").string()), "");
}

TEST(Override, IsReportedWithItsOwnText) {
  EXPECT_EQ(problem_with("optimizer.lrr=3"),
            "--set optimizer.lrr=3: unknown key 'lrr' in section 'optimizer'. Did you mean 'lr'?");
  EXPECT_EQ(problem_with("lr=3"), "--set lr=3: unknown section 'lr'. Did you mean 'optimizer.lr'?");
  EXPECT_EQ(problem_with("output.save_every_samples=9007199254740992"), "");
  EXPECT_EQ(problem_with("output.save_every_samples=9007199254740993"),
            "--set output.save_every_samples=9007199254740993: output.save_every_samples must be an integer from 1 to "
            "9007199254740992, or null, not '9007199254740993'");
  EXPECT_EQ(problem_with("train.max_steps=010"),
            "--set train.max_steps=010: train.max_steps must be an integer from 1 to 2147483647, "
            "not '010'. Leave "
            "the leading zero out.");
  EXPECT_EQ(
      problem_with("lora.target_modules=qkv_proj"),
      "--set lora.target_modules=qkv_proj: lora.target_modules must be a list of q_proj, "
      "k_proj, v_proj, "
      "o_proj, gate_proj, up_proj, down_proj, c_attn, c_proj, c_fc, gate_up_proj, qkv_proj, embed_tokens or wte, a "
      "regular expression, or all-linear, not 'qkv_proj'. Did you mean '[qkv_proj]'?");
  EXPECT_EQ(problem_with("schedule.min_lr=1"),
            "--set schedule.min_lr=1: schedule.min_lr 1 is more than optimizer.lr "
            "0.0004");
  EXPECT_EQ(problem_with("optimizer=3"), "--set optimizer=3: section 'optimizer' must hold keys and values, not '3'");
}

TEST(Override, KeysOfOtherTrainersNameOurs) {
  for (const auto& [override, hint] : std::vector<std::pair<std::string, std::string>>{
           {"optimizer.learning_rate=1", "in section 'optimizer'. Did you mean 'lr'?"},
           {"train.learning_rate=1", "in section 'train'. Did you mean 'optimizer.lr'?"},
           {"learning_rate=1", "unknown section 'learning_rate'. Did you mean 'optimizer.lr'?"},
           {"train.batch_size=2", "Did you mean 'batch.global_batch_size' or 'batch.micro_batch_size'?"},
           {"batch.per_device_train_batch_size=2", "Did you mean 'micro_batch_size'?"},
           {"train.gradient_accumulation_steps=2", "Gradients accumulate over batch.global_batch_size / "},
           {"schedule.warmup=3", "Did you mean 'warmup_steps'?"},
           {"data.max_seq_length=3", "Did you mean 'seq_length'?"},
           {"lora.rank=3", "Did you mean 'r'?"},
           {"lora_alpha=3", "Did you mean 'lora.alpha'?"},
           {"lora.peft_use_dora=true", "Did you mean 'use_dora'?"},
           {"lora_modules_to_save=[lm_head]", "Did you mean 'lora.modules_to_save'?"},
           {"lora.lora_target_linear=true", "lora.target_modules: all-linear"},
           {"lora.init_lora_weights=pissa", "lora.adapter starts from an adapter"}})
    EXPECT_TRUE(contains(problem_with(override), hint));
  EXPECT_TRUE(contains(problem_with("train.num_train_epochs=3"), "Did you mean 'epochs'"));
}

/// What is offered must be there: a suggestion that is followed leads to no second message about the same key.
TEST(Override, ASuggestionThatIsFollowedIsTaken) {
  for (const auto& [setting, offered] :
       std::vector<std::pair<std::string, std::string>>{{"eval.every_steps=4", "every_samples"},
                                                        {"eval.steps=4", "every_samples"},
                                                        {"eval.every=4", "every_samples"},
                                                        {"train.eval_every=4", "eval.every_samples"},
                                                        {"output.every_steps=4", "save_every_samples"},
                                                        {"output.save_every_steps=4", "save_every_samples"},
                                                        {"output.keep=3", "keep_last"},
                                                        {"output.load_best_model_at_end=true", "keep_best"},
                                                        {"train.early_stopping_patience=3", "patience"},
                                                        {"logging.every_samples=3", "every_steps"},
                                                        {"logging.steps=3", "every_steps"},
                                                        {"train.log_every=3", "logging.every_steps"},
                                                        {"data.test_samples=4", "eval.test_samples"},
                                                        {"train.warmup_steps=4", "schedule.warmup_steps"},
                                                        {"lora.target_modules=o_proj", "[o_proj]"},
                                                        {"precision.compute=bfloat16", "bf16"},
                                                        {"precision.compute=float32", "fp32"},
                                                        {"parallel.policy=full_shard", "full"},
                                                        {"schedule.name=cosine_with_min_lr", "cosine"},
                                                        {"optimizer.name=adam", "adamw"}}) {
    const size_t equals = setting.find('='), dot = setting.find('.');
    const std::string said = problem_with(setting), key = setting.substr(0, equals);
    ASSERT_TRUE(contains(said, "Did you mean '" + offered + "'?"));
    const bool unknown = said.find("unknown key") != std::string::npos;
    const std::string name = offered.find('.') == std::string::npos ? key.substr(0, dot + 1) + offered : offered;
    const std::string followed = unknown ? name + setting.substr(equals) : key + "=" + offered;
    for (const std::string& line : problems_with({followed, "data.valid=/v", "data.test=/t"}))
      EXPECT_FALSE(contains(line, followed + ": "));
  }
}

TEST(Override, LoraChoosesModulesAsPeft) {
  const auto with = [](const std::string& setting) { return *load_text(kMinimal, {"lora." + setting}).lora; };
  EXPECT_EQ(with("target_modules=all-linear").target_modules.pattern, "all-linear");
  EXPECT_EQ(with("target_modules='.*\\.(q|v)_proj'").target_modules.pattern, ".*\\.(q|v)_proj");
  EXPECT_EQ(with("target_modules=[self_attn.q_proj, layers.3.mlp.up_proj]").target_modules.names,
            (std::vector<std::string>{"self_attn.q_proj", "layers.3.mlp.up_proj"}));
  EXPECT_EQ(with("layers_to_transform=2").layers_to_transform, (std::vector<int64_t>{2}));
  EXPECT_EQ(with("rank_pattern={q_proj: 4, 'layers.0.*': 8}").rank_pattern,
            (std::vector<std::pair<std::string, int64_t>>{{"q_proj", 4}, {"layers.0.*", 8}}));
  EXPECT_EQ(with("alpha_pattern={q_proj: 0.5}").alpha_pattern,
            (std::vector<std::pair<std::string, double>>{{"q_proj", 0.5}}));
  using Rows = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  EXPECT_EQ(with("trainable_token_indices=[7, 3]").trainable_token_indices, (Rows{{"", {7, 3}}}));
  EXPECT_EQ(with("trainable_token_indices={embed_tokens: [1], lm_head: [2, 3]}").trainable_token_indices,
            (Rows{{"embed_tokens", {1}}, {"lm_head", {2, 3}}}));
  for (const char* setting :
       {"target_modules=all-linear", "target_modules='.*\\.(q|v)_proj'", "rank_pattern={q_proj: 4}",
        "trainable_token_indices=[7, 3]", "trainable_token_indices={lm_head: [2, 3]}", "modules_to_save=[lm_head]",
        "bias=lora_only", "exclude_modules=[o_proj]"}) {
    const Config config = load_text(kMinimal, {std::string("lora.") + setting});
    EXPECT_EQ(parse_config(print_config(config), "x"), config) << setting;
  }
  for (const auto& [setting, said] : std::vector<std::pair<std::string, std::string>>{
           {"target_modules='(q_proj'", "the pattern '(q_proj' is no regular expression"},
           {"target_modules='.*(?<=q)_proj'", "has (?<, which is not supported"},
           {"target_modules='.*\\Aq_proj'", "has \\A, which is not supported"},
           {"target_modules=q_prj", "not 'q_prj'. Did you mean 'q_proj'?"},
           {"rank_pattern={q_proj: 0}", "lora.rank_pattern q_proj must be an integer from 1 to 65536, not '0'"},
           {"rank_pattern=4",
            "lora.rank_pattern must be a mapping of modules to integers from 1 to 65536, or null, not '4'"},
           {"trainable_token_indices={lm_haed: [1]}", "Did you mean 'lm_head'?"},
           {"trainable_token_indices=[3, 3]", "has 3 twice for embed_tokens"},
           {"trainable_token_indices={lm_head: []}", "has no id for lm_head"},
           {"alpha=1e300", "lora.alpha must be a number > 0 and <= 65536, not '1e300'"},
           {"modules_to_save=[norm]", "must be embed_tokens, lm_head or wte, not 'norm'"}})
    EXPECT_TRUE(contains(problems_with({"lora." + setting}).front(), said));
  EXPECT_TRUE(
      contains(problems_with({"lora.modules_to_save=[embed_tokens]", "lora.trainable_token_indices=[3]"}).front(),
               "lora.modules_to_save trains all rows of embed_tokens"));
  EXPECT_TRUE(contains(problems_with({"lora.target_modules=.*q_proj", "lora.layers_to_transform=[0]"}).front(),
                       "target_modules that are a list"));
}

TEST(Override, MalformedOnesAreAllReported) {
  const auto lines = problems_with({"optimizer.lr", "=3", "a.b.c=3", "optimizer.=3", "output.dir=a: b", "data.train=[a",
                                    "train.seed=&a 5", "train.seed=\xff", std::string("train.seed=1\0002", 14),
                                    "schedule={name: linear}"});
  const std::vector<std::string> expected = {
      "--set optimizer.lr: not of the form section.key=value",
      "--set =3: not of the form section.key=value",
      "--set a.b.c=3: not of the form section.key=value",
      "--set optimizer.=3: not of the form section.key=value",
      "--set output.dir=a: b: the value reads as a mapping: set one key at a time, and put a text "
      "with ': ' in quotes",
      "--set data.train=[a: not valid YAML here: end of sequence flow not found",
      "--set train.seed=&a 5: an anchor (&name); aliases are not supported",
      "--set train.seed=…: byte 0xff is not valid UTF-8",
      "--set train.seed=1\\x002: control byte 0x00 (NUL): is this a text file?",
      "--set schedule={name: linear}: the value reads as a mapping: set one key at a time, and put "
      "a text with ': ' in "
      "quotes"};
  EXPECT_EQ(lines, expected);
}

TEST(Override, ProblemsOfTheFileComeFirst) {
  const TextFile file(std::string(kMinimal) + "optimizer: {lr: x}\n");
  const auto lines = problems_of(file.path(), {"train.seed=-1"});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], file.path().string() + ":4:17: optimizer.lr must be a number >= 0, not 'x'");
  EXPECT_TRUE(lines[1].starts_with("--set train.seed=-1: ")) << lines[1];
}

}  // namespace
}  // namespace trireme
