// Predicted steps on many hosts.
#include "trireme/plan/simulate.h"

#include "../base/base_testing.h"
#include "models/decoder/config.h"
#include "models/decoder/family.h"
#include "trireme/base/file.h"
#include "trireme/train/training_program.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme {
namespace {

class Simulated : public DirectoryTest {
 protected:
  Simulated() {
    write_file_atomic(root_ / "config.json", decoder_config_json(decoder_preset("llama2-7b")));
    // Neither weights nor data are there.
    write_file_atomic(root_ / "run.yaml",
                      "model: {path: .}\ndata: {train: nowhere.npy, seq_length: 4096}\n"
                      "batch: {global_batch_size: 1024, micro_batch_size: 1}\noutput: {dir: out}\n");
  }

  static SimulationOptions options(std::vector<int> gpus, bool weak = false) {
    SimulationOptions options;
    options.gpus = std::move(gpus);
    options.rates = machine_rates("NVIDIA H200");
    options.weak = weak;
    return options;
  }
  Simulation run_as(const char* name, const char* file, const SimulationOptions& options,
                    const std::vector<std::string>& overrides = {}) const {
    const TrainingProgram& program = training_program(name);
    return simulate(
        root_ / file, overrides, program.keys, [&](const Config& config) { return model_to_plan(config, program); },
        options);
  }
  Simulation run(const SimulationOptions& options, const std::vector<std::string>& overrides = {}) const {
    return run_as("train_llama", "run.yaml", options, overrides);
  }
  std::string failure(const SimulationOptions& options, const std::vector<std::string>& overrides = {}) const {
    return message_of<ConfigError>([&] { return run(options, overrides); });
  }
};

TEST_F(Simulated, StrongScalingKeepsTheBatchAndWeakScalingTheWorkOfAGpu) {
  const Simulation strong = run(options({8, 64, 1024}));
  ASSERT_EQ(strong.sizes.size(), 3U);
  EXPECT_EQ(strong.sizes[2].hosts, 128);
  EXPECT_EQ(strong.sizes[0].plans[0].micro_batches, 128);
  EXPECT_EQ(strong.sizes[2].plans[0].micro_batches, 1);
  const Simulation weak = run(options({8, 64, 1024}, /*weak=*/true), {"batch.global_batch_size=8"});
  EXPECT_EQ(weak.sizes[2].global_batch_size, 1024);
  for (const Simulation* simulation : {&strong, &weak})
    for (const SimulatedSize& size : simulation->sizes) {
      ASSERT_EQ(size.plans.size(), 5U);
      double best = 0;
      for (const SimulatedPlan& one : size.plans) {
        EXPECT_EQ(one.fits, one.plan.fits());
        if (!one.fits) continue;
        best = std::max(best, one.tokens_per_s);
        EXPECT_GT(one.plan.cost.total(), 0);
        EXPECT_LE(*one.efficiency, 1.1) << size.gpus << " " << one.policy;
        // tokens/s x seconds x GPUs is the batch.
        EXPECT_NEAR(one.tokens_per_s * one.plan.cost.total() * size.gpus,
                    static_cast<double>(size.global_batch_size) * 4096, 1);
        if (one.policy != "auto") {
          EXPECT_STREQ(policy_name(one.plan.policy), one.policy.c_str());
        }
      }
      // auto is the best of them, but for the margin of groups over hosts.
      EXPECT_GE(size.plans[0].tokens_per_s, 0.95 * best) << size.gpus;
    }
  // A thousandth of the work of a step cannot hide what a step over 128 hosts sends.
  EXPECT_LT(*strong.sizes[2].plans[0].efficiency, 0.9);
  EXPECT_EQ(*strong.sizes[0].plans[0].efficiency, 1.0);
}

TEST_F(Simulated, ASlowerNetworkAndSmallerGpusShow) {
  SimulationOptions slow = options({8, 64});
  const double fast = run(slow).sizes[1].plans[0].tokens_per_s;
  slow.rates.network_bytes = 1e9;
  const Simulation there = run(slow);
  EXPECT_LT(there.sizes[1].plans[0].tokens_per_s, 0.9 * fast);
  EXPECT_EQ(there.sizes[0].plans[0].tokens_per_s, run(options({8})).sizes[0].plans[0].tokens_per_s)
      << "one host has no network";
  SimulationOptions small = options({8});
  small.rates.memory_gib = 40;
  const auto plans = run(small).sizes[0].plans;
  EXPECT_FALSE(plans[1].fits) << "7 billion parameters whole";
  EXPECT_FALSE(plans[1].efficiency);
  EXPECT_TRUE(plans[4].fits);
  EXPECT_LE(static_cast<double>(plans[4].plan.total()), 0.98 * 40 * (1 << 30));
}

TEST_F(Simulated, OneHostIsWhatADryRunPlans) {
  SimulationOptions one = options({2});
  const TrainingPlan plan = run(one, {"batch.global_batch_size=2"}).sizes[0].plans[0].plan;
  // 2 of 8 GPUs of a host: no network is in the plan.
  one.gpus_per_host = 2;
  one.rates.network_bytes = 1;
  EXPECT_EQ(run(one, {"batch.global_batch_size=2"}).sizes[0].plans[0].plan.cost.total(), plan.cost.total());
}

TEST_F(Simulated, MuonsMatricesHaveOneMomentAndTakeTime) {
  SimulationOptions all = options({1, 8});
  all.policies = {"optimizer"};
  const std::vector<std::string> batch = {"batch.global_batch_size=128", "optimizer.name=adamw"};
  const Simulation adamw = run(all, batch), muon = run(all, {batch[0], "optimizer.name=muon"});
  const auto plan = [](const Simulation& of, size_t i) { return of.sizes[i].plans[0].plan; };
  // 6.476 billion elements of the blocks' matrices save 4 bytes each.
  const double matrices = 32.0 * 4096 * (4 * 4096 + 3 * 11008);
  for (const size_t i : {0, 1}) {
    const auto saved = static_cast<double>(plan(adamw, i).moments - plan(muon, i).moments);
    EXPECT_NEAR(saved * (i == 0 ? 1 : 8) / (4 * matrices), 1, 1e-3);
  }
  // 524,288 tokens a step: at most 3 % of a GPU's step, and an eighth of the products on each of 8.
  const double alone = plan(muon, 0).cost.optimizer - plan(adamw, 0).cost.optimizer,
               eight = plan(muon, 1).cost.optimizer - plan(adamw, 1).cost.optimizer;
  EXPECT_GT(alone, 0.5);
  EXPECT_LT(alone, 0.03 * plan(adamw, 0).cost.total());
  EXPECT_NEAR(alone / eight, 8, 0.1);
  EXPECT_GT(plan(muon, 1).cost.exposed, plan(adamw, 1).cost.exposed) << "updates travel";
}

TEST_F(Simulated, AdaptersHaveNoPolicy) {
  const Simulation simulation = run(options({8}), {"lora.r=16"});
  EXPECT_TRUE(simulation.policy_free);
  ASSERT_EQ(simulation.sizes[0].plans.size(), 1U);
  EXPECT_EQ(simulation.sizes[0].plans[0].policy, "auto");
}

TEST_F(Simulated, EveryTrainerNeedsNeitherDataNorWeights) {
  write_file_atomic(root_ / "bert.json",
                    R"({"architectures": ["BertForPreTraining"], "model_type": "bert", "hidden_size": 64,
                        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 1000,
                        "max_position_embeddings": 64, "type_vocab_size": 2, "hidden_act": "gelu"})");
  write_file_atomic(root_ / "bert.yaml",
                    "model: {path: bert.json, init: random}\ndata: {train: packed, seq_length: 64}\n"
                    "batch: {global_batch_size: 16, micro_batch_size: 1, packing_rate: 2}\n"
                    "optimizer: {name: lamb}\noutput: {dir: out}\n");
  const Simulation bert = run_as("train_bert", "bert.yaml", options({1, 16}));
  EXPECT_GT(bert.sizes[1].plans[0].plan.cost.total(), 0);
  const Simulation gpt = run_as("train_gpt", "run.yaml", options({8}));
  EXPECT_GT(gpt.sizes[0].plans[0].plan.cost.total(), 0);
}

TEST_F(Simulated, WhatDoesNotDivideIsSaidWithWhatWould) {
  EXPECT_TRUE(contains(failure(options({4, 8, 12, 20})), "--gpus 12, 20 do not fill hosts of 8 GPUs"));
  EXPECT_TRUE(contains(failure(options({8, 12})), "--gpus 12 does not fill"));
  const std::string batch = failure(options({8, 24, 2048}), {"parallel.context_size=1"});
  EXPECT_TRUE(contains(batch, "1024 does not divide over 24, 2048 GPUs"));
  EXPECT_TRUE(contains(batch, "--set batch.global_batch_size=6144"));
  EXPECT_TRUE(contains(batch, "--weak"));
  (void)run(options({8, 24, 2048}), {"batch.global_batch_size=6144"});
  const std::string weak = failure(options({24, 48}, /*weak=*/true));
  EXPECT_TRUE(contains(weak, "does not divide over 24, 48 GPUs"));
  EXPECT_TRUE(contains(weak, "--set batch.global_batch_size=1032"));
  (void)run(options({24, 48}, /*weak=*/true), {"batch.global_batch_size=1032"});
  EXPECT_TRUE(contains(failure(options({8}), {"parallel.shard_size=3"}), "parallel.shard_size 3 does not divide"));
}

TEST_F(Simulated, ContextsSideBySide) {
  SimulationOptions asked = options({8, 16});
  asked.policies = {"auto", "full"};
  asked.contexts = {1, 2, 4};
  const Simulation simulation = run(asked);
  for (const SimulatedSize& size : simulation.sizes) {
    ASSERT_EQ(size.plans.size(), 6u);
    for (size_t i = 0; i < size.plans.size(); ++i) {
      EXPECT_EQ(size.plans[i].policy, i < 3 ? "auto" : "full");
      EXPECT_EQ(size.plans[i].plan.context_size, asked.contexts[i % 3]);
      EXPECT_EQ(size.plans[i].micro_batches, 1024 / (size.gpus / asked.contexts[i % 3]));
    }
    EXPECT_GT(size.plans[0].tokens_per_s, size.plans[1].tokens_per_s) << "short rows gain nothing";
  }
  // A batch of fewer rows than GPUs.
  EXPECT_EQ(run(options({32}), {"batch.global_batch_size=8"}).sizes[0].plans[0].plan.context_size, 4);
  asked.contexts = {3};
  EXPECT_TRUE(contains(failure(asked), "parallel.context_size 3 does not divide the 8 ranks"));
  asked.contexts = {16};
  asked.gpus = {16};
  EXPECT_TRUE(contains(failure(asked), "reaches over hosts of 8 ranks"));
}

}  // namespace
}  // namespace trireme
