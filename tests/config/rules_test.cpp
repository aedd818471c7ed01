#include "config_testing.h"
#include "trireme/config/keys.h"
#include "trireme/config/mlperf_rules.h"

namespace trireme {
namespace {

/// The problems of a configuration on so many ranks, without file and place of each, nor the closing line.
std::vector<std::string> on_ranks(const std::string& text, int64_t ranks) {
  const TextFile file(std::string(kMinimal) + text);
  std::vector<std::string> lines = problems_of(file.path(), {}, {}, ranks);
  if (!lines.empty()) lines.pop_back();
  for (std::string& line : lines) line = line.substr(line.find(": ") + 2);
  return lines;
}

std::vector<std::string> with_batch(int64_t global, int64_t micro, int64_t ranks) {
  return on_ranks(
      "batch: {global_batch_size: " + std::to_string(global) + ", micro_batch_size: " + std::to_string(micro) + "}\n",
      ranks);
}

std::vector<std::string> with_shard_size(const std::string& size, int64_t ranks) {
  return on_ranks("batch: {global_batch_size: 24}\nparallel: {shard_size: " + size + "}\n", ranks);
}

TEST(Rules, KeysOfOneOptimizer) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(on_ranks("optimizer: {name: lamb, moments: bf16}\n", 1),
            Lines{"optimizer.moments bf16 is for adamw and muon, not for lamb"});
  EXPECT_TRUE(on_ranks("optimizer: {name: adamw, moments: bf16}\n", 1).empty());
  EXPECT_EQ(on_ranks("optimizer: {name: muon, masters: bf16}\n", 1),
            Lines{"optimizer.masters bf16 is for adamw, which rounds its updates stochastically, not for muon"});
  EXPECT_EQ(on_ranks("optimizer: {masters: bf16}\nlora: {r: 4}\n", 1),
            Lines{"optimizer.masters bf16 is for training all parameters: master weights of adapters are fp32"});
  EXPECT_EQ(on_ranks("optimizer: {gradients: bf16, masters: bf16}\nprecision: {compute: fp16}\n", 1),
            (Lines{"optimizer.gradients bf16 needs products in bf16, and precision.compute is fp16",
                   "optimizer.masters bf16 needs products in bf16, and precision.compute is fp16"}));
  EXPECT_TRUE(on_ranks("optimizer: {masters: bf16}\n", 1).empty()) << "bf16 on a GPU";
  EXPECT_EQ(on_ranks("optimizer: {trust_ratio: all, momentum: 0.9, adjust_lr_fn: original, matrix_lr: 0.02}\n", 1),
            (Lines{"optimizer.trust_ratio is for optimizer.name: lamb, not for adamw",
                   "optimizer.momentum is for optimizer.name: muon, not for adamw",
                   "optimizer.adjust_lr_fn is for optimizer.name: muon, not for adamw",
                   "optimizer.matrix_lr is for optimizer.name: muon, not for adamw"}));
  EXPECT_TRUE(on_ranks("optimizer: {name: muon, momentum: 0.9, adjust_lr_fn: original, matrix_lr: 0.02}\n", 1).empty());
  EXPECT_EQ(on_ranks("optimizer: {name: muon, lr: 0, matrix_lr: 0.02}\n", 1).size(), 1u);
  for (const char* compute : {"fp32", "fp16"})
    EXPECT_EQ(
        on_ranks(std::string("optimizer: {gradients: bf16}\nprecision: {compute: ") + compute + "}\n", 1),
        Lines{std::string("optimizer.gradients bf16 needs products in bf16, and precision.compute is ") + compute});
  EXPECT_TRUE(on_ranks("optimizer: {gradients: bf16}\nprecision: {compute: bf16}\n", 1).empty());
  EXPECT_TRUE(on_ranks("optimizer: {gradients: bf16}\n", 1).empty()) << "bf16 where a GPU is";
}

TEST(Rules, APolicyNeedsSomethingToDivide) {
  const auto lines = [](const std::string& text) { return on_ranks(text, 4); };
  EXPECT_EQ(lines("lora: {r: 4}\nparallel: {policy: full}\n").size(), 1u);
  EXPECT_EQ(
      lines("parallel: {policy: gradients, shard_size: 1}\n"),
      std::vector<std::string>{"parallel.policy gradients with parallel.shard_size 1 divides nothing: take policy "
                               "none or a larger shard_size"});
  for (const char* fine : {"{policy: none, shard_size: 1}", "{policy: full}", "{policy: optimizer, shard_size: 2}"})
    EXPECT_TRUE(lines(std::string("parallel: ") + fine + "\n").empty()) << fine;
}

TEST(Rules, TilesAndOffloadAreOfBlocksThatAreRecomputedWhole) {
  const auto lines = [](const std::string& text) { return on_ranks("parallel: {" + text + "}\n", 1); };
  for (const char* fine : {"tile_tokens: 128", "tile_tokens: auto, recompute: none",
                           "recompute: full, tile_tokens: 8192", "recompute: attention, offload: activations",
                           "offload: none, recompute: mlp", "offload: activations, recompute: mlp"})
    EXPECT_TRUE(lines(fine).empty()) << fine;
  EXPECT_EQ(lines("tile_tokens: 1000"),
            std::vector<std::string>{"parallel.tile_tokens 1000 is not a multiple of 128: nearest are 896 and 1024"});
  EXPECT_EQ(lines("tile_tokens: 0").size(), 1U);
  EXPECT_EQ(lines("tile_tokens: 1024, offload: activations, recompute: norms").size(), 2U);
  EXPECT_EQ(lines("tile_tokens: 1024, recompute: 1/3").size(), 1U);
  EXPECT_EQ(
      lines("recompute: none, offload: activations"),
      std::vector<std::string>{"parallel.offload activations takes what blocks keep in place of what they recompute: "
                               "take parallel.recompute auto, mlp, attention or full"});
}

TEST(World, BatchMustDivideOverTheRanks) {
  EXPECT_TRUE(with_batch(8, 1, 8).empty());
  EXPECT_TRUE(with_batch(8, 2, 4).empty());
  EXPECT_EQ(with_batch(10, 1, 4), std::vector<std::string>{"batch.global_batch_size 10 does not divide over 4 ranks x "
                                                           "batch.micro_batch_size 1: nearest are 8 and 12"});
  EXPECT_EQ(with_batch(4, 3, 8), std::vector<std::string>{"batch.global_batch_size 4 does not divide over 8 ranks x "
                                                          "batch.micro_batch_size 3: the nearest is 24"});
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

TEST(World, MoreRanksThanRowsShareThem) {
  for (const auto& [global, micro, ranks] : {std::tuple{4, 1, 8}, {8, 1, 16}, {4, 2, 8}, {1, 1, 128}})
    EXPECT_TRUE(with_batch(global, micro, ranks).empty()) << global << " on " << ranks;
  EXPECT_EQ(with_batch(8, 1, 12), std::vector<std::string>{"batch.global_batch_size 8 does not divide over 12 ranks x "
                                                           "batch.micro_batch_size 1: the nearest is 12"})
      << "128 tokens do not divide by 3";
}

TEST(World, ContextSizeMustDivideRanksRowsAndShards) {
  const auto lines = [](const std::string& parallel, int64_t ranks, const std::string& more = "") {
    return on_ranks("batch: {global_batch_size: 8}\nparallel: {" + parallel + "}\n" + more, ranks);
  };
  for (const char* fine :
       {"context_size: 1", "context_size: auto", "context_size: 2", "context_size: 4", "context_size: 2, shard_size: 4",
        "context_size: 4, shard_size: 2", "context_size: 2, shard_size: world", "context_size: 8, shard_size: 1"})
    EXPECT_TRUE(lines(fine, 8).empty()) << fine;
  EXPECT_EQ(lines("context_size: 2", 1),
            std::vector<std::string>{"parallel.context_size 2 does not divide the 1 rank"});
  EXPECT_EQ(lines("context_size: 3", 6),
            std::vector<std::string>{"parallel.context_size 3 does not divide data.seq_length 128: each rank has an "
                                     "equal part of a row's tokens"});
  EXPECT_EQ(on_ranks("batch: {global_batch_size: 12}\nparallel: {context_size: 4, shard_size: 6}\n", 24),
            std::vector<std::string>{"parallel.context_size 4 and parallel.shard_size 6 do not divide each other"});
  EXPECT_EQ(lines("context_size: 2", 12),
            std::vector<std::string>{"batch.global_batch_size 8 does not divide over 6 groups of 2 ranks x "
                                     "batch.micro_batch_size 1: nearest are 6 and 12"});
  EXPECT_EQ(lines("context_size: 2", 2, "optimizer: {clip: local}\n"),
            std::vector<std::string>{"parallel.context_size 2 is not for optimizer.clip local, which clips the "
                                     "gradients of each rank's own rows"});
}

TEST(World, RowsOfPairsStayOnARank) {
  for (const char* objective : {"dpo", "orpo", "kto"}) {
    const std::string train = std::string("train: {objective: ") + objective + "}\n";
    EXPECT_EQ(on_ranks("parallel: {context_size: 2}\n" + train, 2),
              std::vector<std::string>{std::string("parallel.context_size 2 is for train.objective sft: the rows of ") +
                                       objective + " stay whole on a rank: leave it at auto"});
    EXPECT_EQ(on_ranks("batch: {global_batch_size: 1}\n" + train, 2),
              std::vector<std::string>{"batch.global_batch_size 1 does not divide over 2 ranks x "
                                       "batch.micro_batch_size 1: the nearest is 2"});
    EXPECT_TRUE(on_ranks("parallel: {context_size: 1}\n" + train, 2).empty());
  }
}

TEST(Rules, OneOfTheKindsOfJudgedAnswersHasAWeight) {
  const auto lines = [](const std::string& weights) {
    return on_ranks("train: {objective: kto}\npreference: {" + weights + "}\n", 1);
  };
  EXPECT_EQ(lines("desirable_weight: 0, undesirable_weight: 0"),
            std::vector<std::string>{"preference.desirable_weight and preference.undesirable_weight are both 0: "
                                     "nothing is trained"});
  EXPECT_TRUE(lines("desirable_weight: 0").empty());
}

TEST(World, StandsWithItsPlaceAmongTheOtherProblems) {
  const TextFile file(std::string(kMinimal) +
                      "batch: {global_batch_size: 10}\nparallel: {shard_size: 3}\ntrain: {loss: none}\n");
  const auto lines = problems_of(file.path(), {"optimizer.lr=-1"}, {}, 4);
  ASSERT_EQ(lines.size(), 5U) << join(lines, "\n");
  EXPECT_TRUE(contains(lines[0], ":4:28: batch.global_batch_size 10 does not divide over 4 ranks"));
  EXPECT_TRUE(contains(lines[1], ":5:24: parallel.shard_size 3 does not divide the 4 ranks"));
  EXPECT_TRUE(contains(lines[2], ":6:15: train.loss"));
  EXPECT_TRUE(contains(lines[3], "--set optimizer.lr=-1"));
}

std::string with_train(const std::string& train) {
  return "model: {path: /m}\ndata: {train: " + train + ", seq_length: 4}\noutput: {dir: /o}\n";
}

TEST(TrainParts, MappingsAreThreeKeys) {
  const Config config = load_text(with_train("[{path: /a, weight: 2, name: web}, {path: /b/c, weight: 0.5}, /d]"));
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"/a", "/b/c", "/d"}));
  EXPECT_EQ(config.data.weights, (std::vector<double>{2, 0.5, 1}));
  EXPECT_EQ(config.data.names, (std::vector<std::string>{"web", "c", "d"}));
  EXPECT_EQ(load_text(print_config(config)).data, config.data);
  const Config plain = load_text(with_train("[{path: /a}, {path: /b}]"));
  EXPECT_EQ(plain.data.weights, (std::vector<double>{1, 1}));
  EXPECT_TRUE(plain.data.names.empty());
  EXPECT_TRUE(load_text(with_train("[/a, /b]")).data.weights.empty());
}

TEST(TrainParts, ProblemsStandWhereTheyAre) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[{path: /a, wieght: 2}]",
       "2:27: unknown key 'wieght' in an entry of data.train, which has path, weight and "
       "name. Did you mean 'weight'?"},
      {"[{weight: 2}, /b]", "2:16: an entry of data.train has no path"},
      {"[{path: /a, weight: 0}]", "2:35: data.weights must be a number > 0, not '0'"},
      {"[{path: 7, weight: 1}]", "2:23: data.train must be a path, not '7'"},
      {"[{path: /a, name: x}, {path: /b, name: x}]", "data.names has 'x' twice"},
      {"[{path: /a, weight: 1}], weights: [2]", "data.weights and the same in the entries of data.train"},
      {"[/a, /b], weights: [2]", "data.weights has 1 entries for the 2 of data.train"},
      {"/a, bol_token: 1, eol_token: 2, strip_tokens: [1, 2.5]", "data.strip_tokens must be an integer"},
      {"/a, strip_tokens: 3", "data.strip_tokens must be a list of integers from 0 to 2147483647, not '3'"},
  };
  for (const auto& [train, problem] : cases) {
    const TextFile file(with_train(train));
    const std::string all = join(problems_of(file.path()), "\n");
    EXPECT_TRUE(contains(all, problem)) << train;
  }
  const TextFile file(
      "model: {path: /m}\ndata: {train: /a, seq_length: 2, bol_token: 1, eol_token: 2}\noutput: {dir: /o}\n");
  EXPECT_TRUE(contains(join(problems_of(file.path()), "\n"), "2:31: data.seq_length 2 has no room beside"));
}

TEST(Rules, LimitsThemselvesAreAllowed) {
  const Config config =
      load_text(std::string(kMinimal) +
                "schedule: {warmup_steps: 10, min_lr: 1e-4}\ntrain: {max_steps: 10, seed: 4294967295}\n"
                "optimizer: {lr: 1e-4, betas: [0, 0.9999], weight_decay: 0, grad_clip: 0}\n"
                "lora: {dropout: 0, target_modules: [qkv_proj, o_proj]}\nprecision: {linear: fp8}\n"
                "eval: {skip_first: 0}\n");
  EXPECT_EQ(config.train.seed, 4294967295);
  EXPECT_EQ(config.eval.skip_first, 0);
}

TEST(Rules, NoRuleSpeaksOfAValueThatCouldNotBeRead) {
  const TextFile file(std::string(kMinimal) + "batch: {global_batch_size: x, micro_batch_size: 3}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U) << join(lines, "\n");
  EXPECT_TRUE(contains(lines[0], "must be an integer"));
}

TEST(Rules, TokensOfARunMustBeCountable) {
  const TextFile file(std::string(kMinimal) +
                      "train: {max_steps: 2147483647}\nbatch: {global_batch_size: 2147483647}\n");
  const auto lines = problems_of(file.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(contains(lines[0], "more tokens than can be counted"));
}

/// The problems of a file that a program refuses; empty: it takes it.
std::string refused(const std::string& text, const ProgramKeys& program = {}) {
  const TextFile file(std::string(kMinimal) + text);
  return message_of<ConfigError>([&] { load_config(file.path(), {}, program); });
}

TEST(Rules, ADropoutThatWouldDropNothingIsRefused) {
  const std::string problem = refused("lora: {dropout: 7e-06}\n");
  EXPECT_TRUE(contains(problem,
                       ":4:17: lora.dropout 7e-06 is less than half a step of 1/65536 and would drop nothing: "
                       "nearest are 0 and 1.52587890625e-05"));
  EXPECT_TRUE(contains(refused("lora: {dropout: 0.999995}\n"), "would drop everything"));
  EXPECT_EQ(refused("lora: {dropout: 8e-06}\n"), "");
}

TEST(Rules, AProfiledStepIsOneOfTheRun) {
  EXPECT_TRUE(contains(refused("train: {max_steps: 10}\nlogging: {profile_step: 11}\n"),
                       ":5:25: logging.profile_step 11 comes after the last step, train.max_steps 10"));
  EXPECT_EQ(refused("train: {max_steps: 10}\nlogging: {profile_step: 10}\n"), "");
}

TEST(Rules, AProfileRecordsStepsAndRanksOfTheRun) {
  EXPECT_TRUE(contains(refused("train: {max_steps: 10}\nprofile: {wait: 8, warmup: 2}\n"),
                       "its first active step is wait + warmup + 1 = 11"));
  EXPECT_EQ(refused("train: {max_steps: 10}\nprofile: {wait: 8, warmup: 1}\n"), "");
  EXPECT_TRUE(contains(refused("profile: {ranks: [0, all]}\n"), "profile.ranks has 'all' beside single ranks"));
  EXPECT_TRUE(contains(refused("profile: {ranks: first}\n"), "profile.ranks must be all, or a list of integers"));
  EXPECT_TRUE(
      contains(refused("logging: {profile_step: 2}\nprofile: {ranks: all}\n"), "is a short form of section 'profile'"));
  EXPECT_TRUE(
      contains(refused("profile: {stacks: true}\n", {.name = "train_x"}), "profile.stacks: true is not available"));
  EXPECT_EQ(refused("profile: {ranks: 3}\n"), "");
}

TEST(Rules, AMaximumTimeHasFourParts) {
  for (const char* good : {"00:23:30:00", "5:00:00:01", "100:00:00:00"})
    EXPECT_EQ(refused(std::string("train: {max_time: \"") + good + "\"}\n"), "") << good;
  for (const char* bad : {"23:30:00", "00:24:00:00", "00:00:60:00", "00:00:00:60", "00:00:00:00", "0x:00:00:10",
                          "00:00:00:1", "-1:00:00:10", "1234567:00:00:00"})
    EXPECT_TRUE(contains(refused(std::string("train: {max_time: \"") + bad + "\"}\n"), "seconds above 0 such as"))
        << bad;
  EXPECT_TRUE(contains(refused("train: {max_time: 60}\n"), "seconds above 0 such as"));
}

TEST(Rules, ATestNeedsItsRows) {
  EXPECT_TRUE(contains(refused("eval: {test_samples: 8}\n"), "eval.test_samples needs data.test"));
  const TextFile file(std::string(kMinimal) + "eval: {test_samples: 8}\n");
  EXPECT_THROW(load_config(file.path(), {"data.valid=v"}), ConfigError);
  EXPECT_NO_THROW(load_config(file.path(), {"data.valid=v", "data.test=t"}));
}

/// A benchmark of MLPerf: the configuration that its closed division has, changes that it allows, and ones that it does
/// not.
struct ClosedDivision {
  const char* name;
  ProgramKeys program;
  std::string text;
  std::vector<std::string> allowed, refused;
};

const std::vector<ClosedDivision>& closed_divisions() {
  const ProgramKeys llama{
      .name = "train_llama",
      .features = FeatureSet(Feature::kAdapters, Feature::kMlperfLog, Feature::kMlperfSkip, Feature::kMegatronData,
                             Feature::kDocumentStreams, Feature::kVocabularySize)};
  const ProgramKeys bert{
      .name = "train_bert",
      .features = FeatureSet(Feature::kPackedRows, Feature::kRankMeans, Feature::kAccuracy, Feature::kMlperfLog)};
  const std::string start = "output: {dir: o}\nlogging: {mlperf: true}\n";
  static const std::vector<ClosedDivision> all = {
      {"llama31_8b",
       llama,
       start +
           "data: {train: t, valid: v, seq_length: 8192}\nmodel: {path: m, init: random, scaled_residual_init: true}\n"
           "optimizer: {lr: 4.0e-4, betas: [0.9, 0.95], eps: 1.0e-5, weight_decay: 0.1, grad_clip: 1.0}\n"
           "schedule: {warmup_steps: 16, min_lr: 4.0e-5}\ntrain: {max_steps: 1200000, loss: token_mean}\n"
           "eval: {every_samples: 12288, samples: 1024, target_loss: 3.3}\n",
       {"train.seed=5", "batch.global_batch_size=32", "schedule.warmup_steps=128", "eval.skip_first=0",
        "eval.shuffle=false", "optimizer.moments=bf16"},
       {"model.init=checkpoint",
        "model.scaled_residual_init=false",
        "model.scaled_residual_init=null",
        "model.vocab_size=128264",
        "data.seq_length=4096",
        "data.shuffle=false",
        "data.eos_token=2",
        "optimizer.lr=8.0e-4",
        "optimizer.name=lamb",
        "optimizer.betas=[0.9, 0.999]",
        "optimizer.eps=1e-8",
        "optimizer.weight_decay=0.01",
        "optimizer.decay_norms=true",
        "optimizer.grad_clip=0.3",
        "schedule.name=constant",
        "schedule.min_lr=0",
        "schedule.min_lr=1e-5",
        "train.max_steps=10000",
        "train.loss=sample_mean",
        "train.on_spike=skip",
        "eval.samples=1000",
        "eval.samples=null",
        "eval.every_samples=8192",
        "eval.target_loss=3.4",
        "eval.target_loss=null",
        "eval.skip_first=mlperf"}},
      {"llama2_70b_lora",
       llama,
       start + "data: {train: t, valid: v, seq_length: 8192}\nmodel: {path: m}\n"
               "lora: {r: 16, alpha: 32, dropout: 0.1, target_modules: [qkv_proj, o_proj]}\n"
               "optimizer: {lr: 4.0e-4, betas: [0.9, 0.999], eps: 1.0e-8, weight_decay: 1.0e-4, grad_clip: 0.3}\n"
               "eval: {every_samples: 384, skip_first: mlperf, target_loss: 0.925}\n",
       {"train.seed=5", "optimizer.lr=5e-4", "batch.global_batch_size=16", "train.max_steps=800",
        "schedule.warmup_steps=10", "eval.samples=173", "lora.target_modules=[o_proj, qkv_proj]"},
       {"model.init=random",
        "lora.r=8",
        "lora.alpha=16",
        "lora.dropout=0",
        "lora.target_modules=[q_proj, k_proj, v_proj, o_proj]",
        "lora.adapter=a",
        "data.seq_length=2048",
        "data.shuffle=false",
        "optimizer.name=lamb",
        "optimizer.betas=[0.9, 0.95]",
        "optimizer.eps=1e-6",
        "optimizer.weight_decay=0",
        "optimizer.grad_clip=1",
        "schedule.name=linear",
        "schedule.min_lr=1e-5",
        "train.loss=token_mean",
        "train.on_spike=skip",
        "eval.samples=100",
        "eval.every_samples=192",
        "eval.skip_first=null",
        "eval.skip_first=0",
        "eval.target_loss=0.93",
        "eval.target_loss=null"}},
      {"bert",
       bert,
       start + "data: {train: t, valid: v, seq_length: 512}\nmodel: {path: m}\n"
               "batch: {global_batch_size: 384, micro_batch_size: 48, packing_rate: 2}\n"
               "optimizer: {name: lamb, lr: 9.6e-4, betas: [0.6, 0.85], eps: 1.0e-6, weight_decay: 0.1, grad_clip: 1}\n"
               "schedule: {name: linear}\ntrain: {max_steps: 3680, loss: rank_mean}\n"
               "eval: {every_samples: 150000, samples: 10000, target_accuracy: 0.72}\n",
       {"train.seed=5", "optimizer.lr=1e-3", "optimizer.betas=[0.9, 0.999]", "optimizer.eps=1e-8",
        "optimizer.weight_decay=0.01", "train.max_steps=6700", "schedule.warmup_steps=100", "train.loss=token_mean",
        "optimizer.clip=local", "model.pad_vocab_to=1"},
       {"model.init=random",
        "batch.global_batch_size=2304",  // 4608 sequences: every 200,000
        "data.seq_length=128", "data.shuffle=false", "optimizer.name=adamw", "optimizer.grad_clip=0",
        "optimizer.trust_ratio=all", "optimizer.decay_norms=true", "schedule.name=cosine", "schedule.min_lr=1e-5",
        "train.loss=sample_mean", "train.on_spike=skip", "eval.samples=5000", "eval.samples=null",
        "eval.every_samples=100000", "eval.skip_first=2", "eval.target_accuracy=0.7", "eval.target_accuracy=null",
        "eval.target_loss=100"}}};
  return all;
}

TEST(Rules, AnMlperfRunHasTheValuesOfItsClosedDivision) {
  ASSERT_EQ(unsetenv("MLPERF_SUBMISSION_DIVISION"), 0);
  ASSERT_EQ(unsetenv("MLPERF_SUBMISSION_BENCHMARK"), 0);
  for (const ClosedDivision& benchmark : closed_divisions()) {
    const TextFile file(benchmark.text);
    setenv("MLPERF_SUBMISSION_DIVISION", "closed", 1);
    const auto problems = [&](const std::string& change) {
      return message_of<ConfigError>([&] { load_config(file.path(), {change}, benchmark.program); });
    };
    for (const std::string& change : benchmark.allowed) EXPECT_EQ(problems(change), "") << benchmark.name;
    for (const std::string& wrong : benchmark.refused)
      EXPECT_TRUE(contains(problems(wrong), std::string(" is not what MLPerf's ") + benchmark.name + " has"))
          << benchmark.name << ": " << wrong;
    const std::string& wrong = benchmark.refused.front();
    EXPECT_TRUE(contains(problems(wrong), "--set " + wrong + ": " + wrong.substr(0, wrong.find('='))));
    setenv("MLPERF_SUBMISSION_DIVISION", "open", 1);
    for (const std::string& change : benchmark.refused) EXPECT_EQ(problems(change), "") << benchmark.name;
    setenv("MLPERF_SUBMISSION_DIVISION", "Open", 1);
    EXPECT_TRUE(contains(problems("train.seed=5"), "MLPERF_SUBMISSION_DIVISION is 'Open'"));
    EXPECT_EQ(problems("logging.mlperf=false"), "");
    unsetenv("MLPERF_SUBMISSION_DIVISION");
    EXPECT_EQ(problems(wrong).empty(), benchmark.name != std::string("llama31_8b")) << wrong;
    setenv("MLPERF_SUBMISSION_DIVISION", "closed", 1);
    setenv("MLPERF_SUBMISSION_BENCHMARK", "resnet", 1);
    EXPECT_TRUE(contains(problems("train.seed=5"), "MLPERF_SUBMISSION_BENCHMARK is 'resnet'"));
    unsetenv("MLPERF_SUBMISSION_BENCHMARK");
    EXPECT_EQ(problems("logging.mlperf=false"), "");
    unsetenv("MLPERF_SUBMISSION_DIVISION");
  }
}

TEST(Rules, AnMlperfRunHasItsBenchmarksModelAndRows) {
  const ClosedDivision& lora = closed_divisions()[1];
  const Config config = load_config(TextFile(lora.text).path(), {}, lora.program);
  EXPECT_EQ(check_mlperf_model(config, lora.program,
                               {{"num_hidden_layers", "80"}, {"rms_norm_eps", "1e-05"}, {"rows of data.valid", "173"}}),
            "closed");
  const Config wrong = load_config(TextFile(lora.text).path(), {"eval.target_loss=1"}, lora.program);
  EXPECT_EQ(check_mlperf_model(wrong, lora.program, {{"num_hidden_layers", "80"}}), "open");
  EXPECT_EQ(check_mlperf_model(config, lora.program, {{"num_hidden_layers", "80"}}), "closed");
  EXPECT_EQ(check_mlperf_model(config, lora.program, {{"rows of data.valid", "100"}}), "open");
  setenv("MLPERF_SUBMISSION_BENCHMARK", "bert", 1);
  EXPECT_EQ(check_mlperf_model(config, lora.program, {{"num_hidden_layers", "80"}}), "open");
  unsetenv("MLPERF_SUBMISSION_BENCHMARK");
  setenv("MLPERF_SUBMISSION_DIVISION", "closed", 1);
  EXPECT_TRUE(contains(message_of<ConfigError>([&] {
                         check_mlperf_model(config, lora.program,
                                            {{"num_hidden_layers", "2"}, {"rows of data.valid", "100"}});
                       }),
                       "num_hidden_layers 2 is not what MLPerf's llama2_70b_lora has in the closed division: 80; rows "
                       "of data.valid 100 is not"));
  unsetenv("MLPERF_SUBMISSION_DIVISION");
}

TEST(Rules, ALossScaleNeedsFp16) {
  EXPECT_TRUE(contains(refused("precision: {loss_scale: 1024}\n"), "precision.loss_scale"));
  EXPECT_EQ(refused("precision: {loss_scale: 1024, compute: fp16}\n"), "");
}

TEST(Rules, FrozenMatricesAreBeneathAdaptersAndHaveOneFormat) {
  for (const std::string format : {"auto", "compute", "fp8", "nf4"})
    EXPECT_EQ(refused("lora: {r: 4}\nprecision: {frozen: " + format + "}\n"), "");
  EXPECT_EQ(refused("lora: {r: 4}\nprecision: {linear: fp8, frozen: fp8}\n"), "");
  for (const std::string format : {"compute", "nf4"})
    EXPECT_TRUE(contains(refused("lora: {r: 4}\nprecision: {linear: fp8, frozen: " + format + "}\n"),
                         ":5:34: precision.frozen " + format + " contradicts precision.linear fp8"));
  EXPECT_TRUE(
      contains(refused("precision: {frozen: nf4}\n"), ":4:21: precision.frozen nf4 is for matrices beneath adapters"));
  EXPECT_TRUE(contains(refused("lora: {r: 4}\nprecision: {frozen: bf16}\n"), "Did you mean 'compute'"));
  EXPECT_TRUE(contains(refused("lora: {r: 4}\nprecision: {frozen: fp4}\n"), "precision.frozen"));
}

TEST(Rules, AnFp8RecipeNeedsMatricesThatAreTrainedInFp8) {
  EXPECT_EQ(refused("precision: {linear: fp8}\n"), "");
  EXPECT_EQ(refused("precision: {linear: fp8, fp8_recipe: delayed}\n"), "");
  EXPECT_EQ(refused("precision: {linear: fp8}\nlora: {r: 4}\n"), "");
  const auto expect = [](const std::string& text, const std::string& problem) {
    EXPECT_TRUE(contains(refused(text), problem)) << text;
  };
  expect("precision: {fp8_recipe: rowwise}\n", ":4:25: precision.fp8_recipe rowwise needs precision.linear: fp8");
  for (const std::string recipe : {"rowwise", "tensorwise"})
    EXPECT_EQ(refused("precision: {linear: fp8, fp8_skip_first: 1, fp8_skip_last: 2, fp8_recipe: " + recipe + "}\n"),
              "");
  expect("precision: {fp8_skip_first: 1}\n", ":4:29: precision.fp8_skip_first 1 needs precision.linear: fp8");
  EXPECT_EQ(refused("precision: {attention: fp8, fp8_transpose_cache: false}\n"), "");
  expect("precision: {linear: fp8, fp8_skip_last: 3}\nlora: {r: 4}\n",
         ":4:41: precision.fp8_skip_last 3 is for trained matrices");
  expect("precision: {linear: fp8, fp8_recipe: delayed}\nlora: {r: 4}\n",
         ":4:38: precision.fp8_recipe delayed is for trained matrices");
  // A program that trains in the compute type only.
  const ProgramKeys plain{.name = "train_x", .features = FeatureSet(Feature::kAdapters)};
  EXPECT_TRUE(contains(refused("precision: {linear: fp8}\n", plain),
                       ":4:21: precision.linear fp8 without a 'lora' section is not for train_x"));
  EXPECT_TRUE(contains(refused("precision: {attention: fp8}\n", plain),
                       "fp8 is not for train_x, which multiplies attention in the compute type"));
  EXPECT_EQ(refused("precision: {linear: fp8}\nlora: {r: 4}\n", plain), "");
}

TEST(Rules, AScheduleTakesTheKeysOfItsFormulaOnly) {
  const auto says = [](const std::string& schedule, const std::string& what) {
    const std::string text = refused("train: {max_steps: 100}\nschedule: {" + schedule + "}\n");
    if (what.empty())
      EXPECT_EQ(text, "") << schedule;
    else
      EXPECT_TRUE(contains(text, what)) << schedule;
  };
  says("name: wsd, warmup_steps: 10, decay_ratio: 0.5, decay_type: sqrt, min_lr_factor: 0.1", "");
  says("name: fms_cosine, warmup_steps: 5, min_lr_factor: 0", "");
  says("name: annealing", "");
  says("name: wsd, min_lr: 1e-5", "schedule.min_lr is not for schedule.name wsd: give schedule.min_lr_factor");
  says("name: fms_cosine, min_lr: 1e-5", "schedule.min_lr is not for schedule.name fms_cosine");
  says("name: annealing, min_lr: 1e-5", "schedule.min_lr is not for schedule.name annealing, which ends at 0");
  says("min_lr_factor: 0.1",
       "schedule.min_lr_factor is for schedule.name wsd and fms_cosine, not cosine: give "
       "schedule.min_lr");
  says("decay_ratio: 0.1", "schedule.decay_ratio is for schedule.name wsd, not cosine");
  says("name: fms_cosine, decay_type: sqrt", "schedule.decay_type is for schedule.name wsd, not fms_cosine");
  says("name: annealing, warmup_steps: 1", "schedule.warmup_steps is not for schedule.name annealing");
  says("name: wsd, warmup_steps: 60, decay_ratio: 0.5",
       "schedule.warmup_steps 60 and the 50 steps of schedule.decay_ratio 0.5 are more than train.max_steps 100");
  says("name: wsd, decay_ratio: 1.5", "schedule.decay_ratio must be a number from 0 to 1");
}

TEST(Rules, KeysThatChangeNothingAndADefaultForOtherRunsAreNamed) {
  const auto warnings = [](const std::string& text, const std::vector<std::string>& settings = {}) {
    const TextFile file(kMinimal + text);
    return config_warnings(load_config(file.path(), settings, {}, 1), {});
  };
  for (const auto& [text, says] :
       {std::pair("", "as by default, which is for tuning with adapters: try 1e-5 to 5e-5 for all parameters"),
        {"train: {objective: dpo}\nlora: {r: 4}\n", "try 1e-6 for dpo, with adapters 1e-5"}}) {
    ASSERT_EQ(warnings(text).size(), 1U) << text;
    EXPECT_TRUE(contains(warnings(text)[0], says)) << warnings(text)[0];
  }
  const auto idle = [&](const std::string& text) { return warnings(text, {"optimizer.lr=1.0e-5"}); };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(idle(""), Lines());
  EXPECT_EQ(idle("schedule: {name: constant, min_lr: 1.0e-5}\n"),
            Lines{"schedule.min_lr has no effect: schedule.name is constant"});
  EXPECT_EQ(idle("schedule: {name: cosine, min_lr: 1.0e-5}\n"), Lines());
  EXPECT_EQ(
      idle("eval: {skip_first: 3, max_new_tokens: 8, temperature: 0.5}\nprecision: {fp8_transpose_cache: false}\n"),
      (Lines{"eval.skip_first has no effect: without eval.every_samples a run is evaluated at its end alone",
             "eval.max_new_tokens has no effect: there are no eval.prompts",
             "eval.temperature has no effect: there are no eval.prompts",
             "precision.fp8_transpose_cache has no effect: no matrix is in FP8"}));
  EXPECT_EQ(warnings("precision: {fp8_transpose_cache: false, frozen: fp8}\nlora: {r: 4}\n"), Lines());
  EXPECT_EQ(warnings("", {"model.init=random"}), Lines());
}

TEST(Rules, RecomputeIsAWordOrAShare) {
  const auto recompute = [](const std::string& text) {
    return load_text(std::string(kMinimal) + "parallel: {recompute: " + text + "}\n").parallel.recompute;
  };
  using Recompute = ParallelSection::Recompute;
  EXPECT_EQ(recompute("auto"), Recompute{});
  EXPECT_EQ(recompute("mlp"), Recompute{Recompute::kMlp});
  for (const char* fine : {"1/3", "0.25", "0", "1", "2/2"}) EXPECT_EQ(recompute(fine).share, fine);
  for (const char* bad : {"4/3", "1.5", "1/0", "1/", "/", "-1", "1/3/2", "third", "1/-3", "[1/3]"})
    EXPECT_TRUE(
        contains(refused(std::string("parallel: {recompute: ") + bad + "}\n"), "a share from 0 to 1 such as 1/3, not"))
        << bad;
}

}  // namespace
}  // namespace trireme
