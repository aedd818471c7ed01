// NeMo's training configurations: what every key becomes.
#include "../base/base_testing.h"
#include "trireme/base/text.h"
#include "trireme/config/config.h"
#include "trireme/config_import/import.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace trireme {

namespace {

const std::filesystem::path kConf = std::filesystem::path(TRIREME_SOURCE_DIR) / "scripts" / "launch" / "conf";

ConfNode training(std::vector<std::string> overrides) {
  setenv("PWD", "/site", 1);
  ConfProblems problems;
  const Composition composition = compose(kConf / "config.yaml", overrides, problems);
  const auto node = ConfResolver(composition, problems).at("training");
  problems.throw_if_any("the test");
  return *node;
}

ImportedConfig imported(std::vector<std::string> overrides, const NemoImport& options = {}) {
  if (overrides.empty() || !overrides.front().starts_with("training="))
    overrides.insert(overrides.begin(), "training=gpt3/126m");
  return import_nemo(training(overrides), "test.yaml", options);
}

Config config(const ImportedConfig& from) { return parse_config(from.yaml, "the import"); }

std::string import_refusal(const std::vector<std::string>& overrides, const NemoImport& options = {}) {
  return message_of<ConfigError>([&] { return imported(overrides, options); });
}

/// The line of an option in the report.
std::string line_of(const ImportedConfig& from, const std::string& option) {
  for (const auto& [name, became] : from.report)
    if (name == option || name.starts_with(option + " ")) return became;
  return "no line";
}

void collect(const ConfNode& node, const std::string& prefix, std::vector<std::string>& names) {
  for (const ConfEntry& entry : node.entries) {
    const std::string name = prefix.empty() ? entry.key : prefix + "." + entry.key;
    if (entry.value.is(ConfNode::Kind::kMap))
      collect(entry.value, name, names);
    else
      names.push_back(name);
  }
}

const std::vector<std::string> kMock = {"training.model.data.data_impl=mock", "training.model.data.data_prefix=[]",
                                        "training.trainer.limit_val_batches=0.0", "training.trainer.num_nodes=2"};

std::vector<std::string> with_mock(std::vector<std::string> more) {
  more.insert(more.begin(), kMock.begin(), kMock.end());
  return more;
}

}  // namespace

TEST(NemoImport, EverySizeIsAConfiguration) {
  for (const char* size : {"126m", "350m", "760m", "1.3b", "2.7b", "5b", "6.7b", "13b", "20b"}) {
    const ImportedConfig from = imported({std::string("training=gpt3/") + size});
    EXPECT_EQ(from.program, "train_gpt");
    ASSERT_TRUE(from.model && from.model->gpt);
    const ImportedModel& m = *from.model;
    // Embedding and positions, blocks with their biases, the last norm.
    const double width = static_cast<double>(m.hidden_size);
    const double parameters =
        (50304.0 + 2048) * width + static_cast<double>(m.layers) * (12 * width * width + 13 * width) + 2 * width;
    const double named = std::atof(size) * (std::string(size).ends_with("m") ? 1e6 : 1e9);
    EXPECT_NEAR(parameters / named, 1, 0.06) << size;
    EXPECT_NO_THROW(config(from));
  }
  EXPECT_EQ(imported({"training=gpt3/5b"}).model->heads, 32);
}

TEST(NemoImport, EveryKeyHasALine) {
  const ImportedConfig from = imported({});
  std::vector<std::string> names;
  collect(training({"training=gpt3/126m"}), "", names);
  EXPECT_GT(names.size(), 80u);
  for (const std::string& name : names) {
    EXPECT_NE(line_of(from, name), "no line") << name;
    EXPECT_FALSE(line_of(from, name).empty()) << name;
  }
}

TEST(NemoImport, The126m) {
  const ImportedConfig from = imported({});
  const Config c = config(from);
  EXPECT_EQ(c.model.pad_vocab_to, 128);
  EXPECT_EQ(c.data.seq_length, 2048);
  EXPECT_EQ(c.batch.global_batch_size, 256);
  EXPECT_EQ(c.batch.micro_batch_size, 4);
  EXPECT_EQ(c.optimizer.lr, 6e-4);
  EXPECT_EQ(c.optimizer.betas, (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(c.optimizer.weight_decay, 0.1);
  EXPECT_EQ(c.optimizer.grad_clip, 1);
  EXPECT_FALSE(c.optimizer.decay_norms);
  EXPECT_EQ(c.schedule.warmup_steps, 636);
  EXPECT_EQ(c.schedule.min_lr, 6e-5);
  EXPECT_EQ(c.train.max_steps, 600000);
  EXPECT_EQ(c.train.seed, 1234);
  EXPECT_EQ(c.train.loss, TrainSection::Loss::kTokenMean);
  EXPECT_EQ(c.precision.compute, PrecisionSection::Compute::kBf16);
  EXPECT_EQ(c.parallel.policy, ParallelSection::Policy::kGradients);
  EXPECT_EQ(c.logging.every_steps, 10);
  EXPECT_EQ(c.output.dir, "/site/results/gpt3_126m/results");
  EXPECT_EQ(c.output.save_every_samples, 512000);
  const ImportedModel& m = *from.model;
  EXPECT_EQ(m.vocab_size, 50257);
  EXPECT_EQ(m.intermediate_size, 3072);
  EXPECT_EQ(m.initializer_range, 0.023);
  EXPECT_EQ(m.hidden_dropout, 0.1);
  EXPECT_EQ(m.attention_dropout, 0.1);
  // Live, or waiting as comments for a version that has the keys.
  for (const char* line : {"splits: \"99990,8,2\"", "constant_steps: 100000", "max_time: \"00:23:30:00\"",
                           "every_samples: 512000", "samples: 12800", "style: nemo"})
    EXPECT_TRUE(contains(from.yaml, line));
}

TEST(NemoImport, TheBenchmarksOfAws) {
  const ImportedConfig from = imported(with_mock(
      {"training=gpt3/5b", "training.trainer.max_steps=30", "training.trainer.val_check_interval=30",
       "training.exp_manager.create_checkpoint_callback=False", "training.exp_manager.resume_if_exists=False",
       "training.model.micro_batch_size=2", "training.model.activations_checkpoint_granularity=full",
       "training.model.activations_checkpoint_method=block", "training.model.activations_checkpoint_num_layers=1"}));
  const Config c = config(from);
  EXPECT_EQ(c.train.max_steps, 30);
  EXPECT_TRUE(c.data.valid.empty());
  EXPECT_FALSE(c.eval.every_samples || c.output.save_every_samples);
  EXPECT_FALSE(c.output.save_on_stop);
  EXPECT_EQ(c.parallel.recompute.share, "1/24");
  EXPECT_EQ(c.parallel.policy, ParallelSection::Policy::kOptimizer) << "64 micro-batches a step";
  EXPECT_TRUE(contains(from.yaml, "  train: mock\n"));
}

TEST(NemoImport, Choices) {
  EXPECT_EQ(config(imported({"training.model.fsdp=True"})).parallel.policy, ParallelSection::Policy::kFull);
  EXPECT_EQ(config(imported({"training.model.fsdp=True"})).parallel.shard_size, ParallelSection::kWorldSize);
  EXPECT_EQ(config(imported({"training.model.fsdp=True", "training.model.fsdp_sharding_strategy=hybrid"}))
                .parallel.shard_size,
            ParallelSection::kAutoSize);
  EXPECT_EQ(
      config(imported({"training.model.fsdp=True", "training.model.fsdp_sharding_strategy=grad"})).parallel.policy,
      ParallelSection::Policy::kGradients);
  EXPECT_EQ(config(imported({"training.model.optim.name=fused_adam"})).parallel.policy, ParallelSection::Policy::kNone);
  EXPECT_EQ(config(imported({"+training.model.optim.grad_sync_dtype=bf16"})).parallel.reduce_dtype,
            ParallelSection::ReduceDtype::kCompute);
  const Config shared = config(imported({"training.model.context_parallel_size=4"}));
  EXPECT_EQ(shared.parallel.context_size, 4);
  EXPECT_EQ(shared.parallel.policy, ParallelSection::Policy::kOptimizer) << "256 / 4 / 16: four micro-batches a step";
  const Config fp8 = config(imported({"training.model.fp8=True"}));
  EXPECT_EQ(fp8.precision.linear, PrecisionSection::Linear::kFp8);
  EXPECT_EQ(fp8.precision.fp8_recipe, Recipe::kFp8Delayed);
  EXPECT_EQ(fp8.precision.attention, PrecisionSection::Attention::kCompute);
  const Config attention =
      config(imported({"training.model.fp8=True", "+training.model.fp8_dot_product_attention=True"}));
  EXPECT_EQ(attention.precision.attention, PrecisionSection::Attention::kFp8);
  const Config fp16 = config(imported({"training.trainer.precision=16"}));
  EXPECT_EQ(fp16.precision.compute, PrecisionSection::Compute::kFp16);
  EXPECT_EQ(fp16.precision.loss_scale, 16777216);
  EXPECT_EQ(config(imported({"training.trainer.precision=32"})).precision.compute, PrecisionSection::Compute::kFp32);
  EXPECT_EQ(config(imported({"training.model.activations_checkpoint_granularity=full",
                             "training.model.activations_checkpoint_method=uniform",
                             "training.model.activations_checkpoint_num_layers=1"}))
                .parallel.recompute.word,
            ParallelSection::Recompute::kFull);
  EXPECT_EQ(config(imported({"training.model.activations_checkpoint_granularity=selective"})).parallel.recompute.word,
            ParallelSection::Recompute::kNone);
  const auto profile =
      config(imported({"training.model.nsys_profile.enabled=True", "training.model.nsys_profile.end_step=12",
                       "training.model.nsys_profile.ranks=[0,8]"}))
          .profile;
  ASSERT_TRUE(profile);
  EXPECT_EQ(profile->wait + profile->warmup, 10);
  EXPECT_EQ(profile->active, 3);
  EXPECT_EQ(profile->ranks, (std::vector<int64_t>{0, 8}));
  EXPECT_TRUE(imported({"+training.model.bias_activation_fusion=False"}).model->gelu_erf);
  const Config blend =
      config(imported({"training.model.data.data_prefix=[0.3,a,0.7,/b]"}, {false, "/base", std::nullopt}));
  EXPECT_EQ(blend.data.train, (std::vector<std::string>{"/base/a", "/b"}));
  EXPECT_EQ(blend.data.weights, (std::vector<double>{0.3, 0.7}));
  EXPECT_TRUE(contains(
      imported({"training.model.rampup_batch_size=[64,64,1000]", "training.trainer.val_check_interval=null"}).yaml,
      "rampup: [64, 64, 1000]"));
}

TEST(NemoImport, Llama) {
  const std::vector<std::string> llama = {"+training.model.normalization=rmsnorm",
                                          "+training.model.activation=fast-swiglu",
                                          "+training.model.position_embedding_type=rope",
                                          "+training.model.bias=False",
                                          "+training.model.share_embeddings_and_output_weights=False",
                                          "training.model.hidden_dropout=0",
                                          "training.model.attention_dropout=0",
                                          "training.model.tokenizer.library=sentencepiece",
                                          "training.model.tokenizer.type=null",
                                          "+training.model.num_query_groups=4",
                                          "training.model.ffn_hidden_size=2048"};
  EXPECT_TRUE(contains(import_refusal(llama), "add --vocab-size N"));
  const ImportedConfig from = imported(llama, {false, {}, 32000});
  EXPECT_EQ(from.program, "train_llama");
  EXPECT_FALSE(from.model->gpt);
  EXPECT_EQ(from.model->kv_heads, 4);
  EXPECT_EQ(from.model->vocab_size, 32000);
  EXPECT_EQ(from.model->rope_theta, 10000);
  EXPECT_FALSE(from.model->llama3_rope);
  std::vector<std::string> later = llama;
  later.insert(later.end(),
               {"+training.model.rotary_base=500000.0", "+training.model.scale_positional_embedding=True"});
  EXPECT_EQ(imported(later, {false, {}, 128256}).model->rope_theta, 5e5);
  EXPECT_TRUE(imported(later, {false, {}, 128256}).model->llama3_rope);
  EXPECT_EQ(imported(llama, {false, {}, 128256}).model->vocab_size, 128256);
  std::vector<std::string> half = llama;
  half.front() = "+training.model.normalization=layernorm1p";
  EXPECT_TRUE(contains(import_refusal(half), "neither a GPT-3"));
}

TEST(NemoImport, LightningsNumbersOfBatches) {
  const Config all = config(imported({"training.trainer.limit_val_batches=1.0"}));
  EXPECT_FALSE(all.eval.samples);
  EXPECT_EQ(all.eval.every_samples, 512000);
  EXPECT_EQ(config(imported({"training.trainer.limit_val_batches=1"})).eval.samples, 256);
  const Config end = config(imported({"training.trainer.val_check_interval=1.0"}));
  EXPECT_FALSE(end.eval.every_samples);
  EXPECT_EQ(end.output.save_every_samples, 600000 * 256) << "NeMo saves at the end of the run";
  const Config mock = config(imported(with_mock({"training.trainer.limit_val_batches=3"})));
  EXPECT_EQ(mock.data.valid, (std::vector<std::string>{"mock"}));
  EXPECT_EQ(mock.data.test, (std::vector<std::string>{"mock"}));
  EXPECT_EQ(mock.eval.samples, 768);
  EXPECT_EQ(mock.eval.test_samples, 50 * 256);
  EXPECT_TRUE(contains(import_refusal(with_mock({"training.trainer.limit_val_batches=1.0"})), "mock data has no end"));
}

TEST(NemoImport, Checkpoints) {
  const std::string params = "+training.exp_manager.checkpoint_callback_params.";
  const auto with = [&](std::vector<std::string> names) {
    for (std::string& name : names)
      if (!name.starts_with("training.")) name = params + name;
    return names;
  };
  const ImportedConfig steps = imported(with({"every_n_train_steps=100", "every_n_epochs=0"}));
  EXPECT_EQ(config(steps).output.save_every_samples, 25600);
  EXPECT_EQ(config(steps).eval.every_samples, 512000);
  EXPECT_TRUE(contains(line_of(steps, "exp_manager.checkpoint_callback_params.every_n_train_steps"), "100 steps"));
  EXPECT_EQ(config(imported(with({"every_n_train_steps=100", "training.trainer.val_check_interval=null"})))
                .output.save_every_samples,
            25600);
  EXPECT_EQ(config(imported(with({"every_n_epochs=1"}))).output.save_every_samples, 512000);
  EXPECT_EQ(config(imported({"training.trainer.limit_val_batches=0"})).output.save_every_samples, 600000 * 256)
      << "validations save, and there is none";
  EXPECT_TRUE(config(imported(with({"save_best_model=True"}))).output.keep_best);
  EXPECT_FALSE(config(imported({})).output.keep_best);
  const ImportedConfig newest = imported(with({"save_best_model=True", "monitor=step", "mode=max"}));
  EXPECT_FALSE(config(newest).output.keep_best);
  EXPECT_TRUE(contains(line_of(newest, "exp_manager.checkpoint_callback_params.save_best_model"), "model/"));
  EXPECT_EQ(line_of(newest, "exp_manager.checkpoint_callback_params.save_top_k"), "output.keep_last: 10; the newest");
  EXPECT_TRUE(contains(line_of(imported({}), "exp_manager.checkpoint_callback_params.save_top_k"), "best by val_loss"));
  EXPECT_EQ(config(imported({"~training.exp_manager.checkpoint_callback_params.save_top_k"})).output.keep_last, 3);
  const ImportedConfig off =
      imported(with({"every_n_train_steps=100", "training.exp_manager.create_checkpoint_callback=False"}));
  EXPECT_FALSE(config(off).output.save_every_samples || config(off).output.save_on_stop);
}

TEST(NemoImport, TheFolderOfARun) {
  const std::string none = "training.exp_manager.explicit_log_dir=null", base = "+training.exp_manager.exp_dir=/exp";
  EXPECT_EQ(config(imported({none, base, "+training.exp_manager.name=mine"})).output.dir, "/exp/mine");
  EXPECT_EQ(config(imported({none, base, "+training.exp_manager.name='a\nb'"})).output.dir, "/exp/a\nb");
  const ImportedConfig fresh = imported({none, base, "training.exp_manager.resume_if_exists=False"});
  EXPECT_EQ(config(fresh).output.dir, "/exp/default");
  EXPECT_TRUE(contains(line_of(fresh, "exp_manager.exp_dir"), "date and time"));
  EXPECT_TRUE(contains(imported({none}).yaml, "dir: \"results\""));
  EXPECT_EQ(config(imported({base})).output.dir, "/site/results/gpt3_126m/results");
  EXPECT_TRUE(
      contains(import_refusal({"training.exp_manager.explicit_log_dir=s3://runs/1"}), "the address of a service"));
}

TEST(NemoImport, StepsOfARampAreNoSamples) {
  const std::string ramp = "training.model.rampup_batch_size=[64,64,1000]";
  const std::string both = import_refusal({ramp});
  for (const char* text : {"trainer.val_check_interval = 2000: with rampup_batch_size", "eval.every_samples in the",
                           "output.save_every_samples in the"})
    EXPECT_TRUE(contains(both, text));
  const std::string none = "training.trainer.val_check_interval=null";
  EXPECT_TRUE(
      contains(import_refusal({ramp, none, "+training.exp_manager.checkpoint_callback_params.every_n_train_steps=10"}),
               "every_n_train_steps = 10: with rampup_batch_size"));
  const Config c = config(imported({ramp, none}));
  EXPECT_FALSE(c.eval.every_samples);
  EXPECT_EQ(c.output.save_every_samples, 600000 * 256) << "the last step saves";
}

TEST(NemoImport, TheTokenizerOfTheUser) {
  NemoImport import;
  import.base = "/site";
  std::vector<std::filesystem::path> asked;
  import.tokenizer = [&](const std::filesystem::path& path) -> std::optional<ImportedTokenizer> {
    asked.push_back(path);
    if (path.filename() == "absent.json") return std::nullopt;
    return ImportedTokenizer{1000, 7, 7, {{path, "tokenizer.json"}}};
  };
  const ImportedConfig from =
      imported({"training.model.tokenizer.library=huggingface", "training.model.tokenizer.type=tokenizers/mine",
                "training.model.data.eod_mask_loss=True"},
               import);
  EXPECT_EQ(asked.back(), "/site/tokenizers/mine");
  EXPECT_EQ(from.model->vocab_size, 1000);
  EXPECT_EQ(config(from).data.eos_token, 7);
  ASSERT_TRUE(from.tokenizer);
  EXPECT_EQ(from.tokenizer->files.front().second, "tokenizer.json");
  EXPECT_EQ(imported({"training.model.tokenizer.vocab_file=absent.json"}, import).model->vocab_size, 50257);
  EXPECT_FALSE(imported({"training.model.tokenizer.vocab_file=absent.json"}, import).tokenizer);
}

TEST(NemoImport, Refusals) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"training.model.tensor_model_parallel_size=2", "tensor parallelism is not there; parallel.policy"},
      {"training.model.pipeline_model_parallel_size=2", "pipeline parallelism is not there"},
      {"training.model.context_parallel_size=3", "does not divide the 64 ranks"},
      {"training.model.context_parallel_size=0", "model.context_parallel_size = 0"},
      {"training.model.global_batch_size=100", "must be a multiple of micro_batch_size 4 x 64 ranks"},
      {"training.trainer.accumulate_grad_batches=2", "must be 1"},
      {"training.trainer.devices=auto", "must be an integer"},
      {"training.trainer.precision=fp8", "one of bf16, 16, 32"},
      {"training.trainer.limit_val_batches=0.5", "a share of the batches is not available"},
      {"training.trainer.limit_val_batches=50.0", "a number of batches is an integer"},
      {"training.trainer.limit_val_batches=-1", "a number of batches from 0 to 2147483647"},
      {"training.trainer.val_check_interval=0.25", "must be a number of steps"},
      {"training.trainer.max_time=tomorrow",
       "override 'training.trainer.max_time=tomorrow': trainer.max_time = tomorrow: becomes train.max_time"},
      {"+training.trainer.limit_train_batches=5", "the run would read the same rows again"},
      {"+training.model.fp32_residual_connection=True", "the residual is in the compute type"},
      {"+training.model.data.legacy_dataset=False", "data.index_rules"},

      {"training.model.optim.name=distributed_fused_adan", "Did you mean 'distributed_fused_adam'?"},
      {"training.model.optim.sched.name=WarmupAnnealing", "one of CosineAnnealing"},
      {"training.model.hidden_size=770", "does not divide the width 770"},
      {"training.model.kv_channels=32", "a head has 64 elements"},
      {"+training.model.num_query_groups=4", "as many key/value heads"},
      {"training.model.data.data_prefix=[]", "names no data"},
      {"training.model.data.data_prefix=[0.5,a,b]", "weights and paths must follow each other"},
      {"training.model.data.data_impl=lazy", "one of mmap, mock"},
      {"training.model.data.dataloader_type=cyclic", "only single"},
      {"training.model.data.seq_length=1024", "model.encoder_seq_length = 2048"},
      {"training.model.tokenizer.type=Unknown", "--vocab-size"},
      {"+training.model.restore_from_path=/x", "NeMo's checkpoints are not read"},
      {"+training.model.hiden_size=3", "unknown key 'model.hiden_size'. Did you mean 'model.hidden_size'?"},
      {"+training.modle.x=3", "unknown section [modle]"},
      {"training.trainer.max_steps=ten", "trainer.max_steps = ten: must be an integer"},
      {"training.trainer.max_steps=null", "how long is the run?"},
      {"+training.model.optim.dtype=bf16", "model.optim.dtype = bf16: moments and master weights are fp32"},
      {"+training.model.optim.dtype=int8", "one of 32, bf16, 16"},
      {"+training.model.optim.master_weights=False", "the optimizer updates fp32 master weights"},
      {"+training.model.optim.grad_sync_dtype=16", "in fp32 or in the type of trainer.precision"},
      {"+training.exp_manager.resume_from_checkpoint=/x", "NeMo's checkpoints are not read"},
      {"+training.restore_from_path=/x", "NeMo's checkpoints are not read"},
      {"+training.exp_manager.checkpoint_callback_params.every_n_epochs=2", "a run is one epoch"},
      {"+training.exp_manager.checkpoint_callback_params.train_time_interval=01:00:00", "output.save_every_minutes"},
  };
  for (const auto& [one, text] : cases) EXPECT_TRUE(contains(import_refusal({one}), text)) << one;
  const std::vector<std::pair<std::vector<std::string>, std::string>> together = {
      {{"training.model.rampup_batch_size=[64,100,1000]", "training.trainer.val_check_interval=1.0"},
       "override 'training.model.rampup_batch_size=[64,100,1000]': model.rampup_batch_size"},
      {{"training.model.rampup_batch_size=[512,64,1000]", "training.trainer.val_check_interval=1.0"},
       "which is not below batch.global_batch_size 256"},
      {{"training.model.fp8=True", "+training.model.fp8_wgrad=False"}, "wgrad products are in FP8 too"},
      {{"training.model.fp8=True", "+training.model.fp8_margin=1"}, "scales have no margin"},
      {{"+training.exp_manager.checkpoint_callback_params.every_n_train_steps=10",
        "+training.exp_manager.checkpoint_callback_params.every_n_epochs=1"},
       "excludes every_n_train_steps"},
      {{"+training.exp_manager.checkpoint_callback_params.save_best_model=True",
        "+training.exp_manager.checkpoint_callback_params.mode=max"},
       "set monitor to val_loss and mode to min"},
  };
  for (const auto& [some, text] : together) EXPECT_TRUE(contains(import_refusal(some), text)) << some.front();
  for (const char* name : {"fp32", "torch.float32", "32"})
    EXPECT_TRUE(contains(line_of(imported({std::string("+training.model.optim.dtype=") + name}), "model.optim.dtype"),
                         "fp32, the default"));
  const std::string two = import_refusal({"training.trainer.max_steps=ten", "+training.model.hiden_size=3"});
  EXPECT_TRUE(contains(two, "override 'training.trainer.max_steps=ten': "));
  EXPECT_TRUE(contains(two, "2 problems in test.yaml"));
  const ImportedConfig ignored = imported({"+training.model.hiden_size=3"}, {true, {}, std::nullopt});
  EXPECT_NE(line_of(ignored, "model.hiden_size"), "no line");
}

}  // namespace trireme
