// What the tasks of all families do alike: batches after the rows per pass are known and never before, the split of a
// global batch over ranks and passes, evaluation over a rank's share.
#include "task_testing.h"
#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/fsdp/sharded_units.h"

#include <cmath>

namespace trireme {
namespace {

void check_order(TrainingTask& task) {
  EXPECT_THROW(task.prefetch(0), InternalError);
  EXPECT_THROW(task.batch(0), InternalError);
  EXPECT_THROW(task.synthetic_batch(), InternalError);
  task.set_rows_per_pass(2);
  task.prefetch(0);
  EXPECT_EQ(task.batch(0).micro_batches.size(), 4U);
  // What is being read has its rows already: they do not change under it.
  task.prefetch(1);
  EXPECT_THROW(task.set_rows_per_pass(4), InternalError);
  EXPECT_EQ(task.batch(1).micro_batches.size(), 4U);
}

class Task : public TaskTest {
 protected:
  static std::unique_ptr<TrainingTask> make(const char* name, const Config& config, const RankInfo& rank = {}) {
    const TrainingProgram& program = training_program(name);
    return program.make_task(config, rank, program.keys);
  }
};

TEST_F(Task, OfADecoderKnowsItsRowsPerPassBeforeABatch) {
  write_decoder();
  check_order(*make("train_llama", load({}, {})));
}

TEST_F(Task, CountsTheFlopsOfItsRows) {
  write_decoder();
  const auto task = make("train_llama", load({}, {}));
  task->set_rows_per_pass(4);
  EXPECT_NEAR(task->batch(0).row_flops / task->flops_per_row(), 1, 1e-12);
}

TEST_F(Task, OfBertKnowsItsRowsPerPassBeforeABatch) {
  write_bert();
  check_order(*make("train_bert", load({}, {})));
}

/// Sums of a whole evaluation on `ranks` ranks, one after the other in this process.
EvalSums evaluate_on(const char* name, const Config& config, int ranks, int rows_per_pass, int* passes) {
  EvalSums all;
  for (int rank = 0; rank < ranks; ++rank) {
    const TrainingProgram& program = training_program(name);
    const auto task = program.make_task(config, {RankGrid(rank, {.world = ranks}), at::kCPU, at::kFloat}, program.keys);
    task->set_rows_per_pass(rows_per_pass);
    const auto world = World::join(Launch{}, /*use_gpu=*/false, nullptr);
    ShardedUnits units(task->units(), world->communicator(), RankGrid(), at::kCPU, {});
    task->load_weights(units);
    int64_t done_passes = 0;
    const EvalSums sums = task->evaluate(units, [&](int64_t, int64_t total) { done_passes = total; });
    // The second time reads the same, from the device or again.
    EXPECT_EQ(task->evaluate(units, {}), sums);
    if (rank > 0) {
      EXPECT_EQ(done_passes, *passes) << "every rank has as many passes";
    }
    *passes = static_cast<int>(done_passes);
    all.resize(sums.size());
    for (size_t i = 0; i < sums.size(); ++i) all[i] += sums[i];
  }
  return all;
}

/// Whatever the ranks and the split, every row counts once: fillers count nowhere.
void check_evaluation(const char* name, const Config& config) {
  int passes = 0;
  const EvalSums whole = evaluate_on(name, config, 1, 4, &passes);
  EXPECT_EQ(passes, 2);
  const EvalSums cut = evaluate_on(name, config, 3, 2, &passes);
  EXPECT_EQ(passes, 2);
  ASSERT_EQ(cut.size(), whole.size());
  for (size_t i = 0; i < cut.size(); ++i) EXPECT_NEAR(cut[i], whole[i], 1e-5 * std::abs(whole[i])) << "sum " << i;
}

TEST_F(Task, OfADecoderEvaluatesEveryRowOnce) {
  write_decoder();
  const Config config = load({}, {"data.valid=rows", "train.loss=token_mean"});
  check_evaluation("train_llama", config);
  int passes = 0;
  EXPECT_EQ(evaluate_on("train_llama", config, 3, 2, &passes).back(), kRows * (kLength - 1)) << "targets";
}
TEST_F(Task, OfBertEvaluatesEveryRowOnce) {
  write_bert();
  const Config config = load({}, {"data.valid=rows"});
  check_evaluation("train_bert", config);
  int passes = 0;
  const EvalSums sums = evaluate_on("train_bert", config, 3, 2, &passes);
  EXPECT_EQ(sums.at(3), kRows) << "masked words";
  EXPECT_EQ(sums.at(4), kRows) << "sequences";
}

TEST_F(Task, SharesTheGlobalBatchInTheRunsOrder) {
  write_decoder();
  const Config config = load({}, {"data.shuffle=false"});
  for (int rank = 0; rank < 2; ++rank) {
    const auto task = make("train_llama", config, {RankGrid(rank, {.world = 2}), at::kCPU, at::kFloat});
    task->set_rows_per_pass(3);
    const StepBatch batch = task->batch(1);
    EXPECT_EQ(batch.samples, 4);
    EXPECT_EQ(batch.denominator, 4);
    EXPECT_EQ(batch.micro_batches.size(), 2U) << "three rows and one";
  }
}

TEST_F(Task, SharesAGrowingBatchWithoutGapsOrRepeats) {
  write_decoder();
  // Steps of 4, 4, 6, 6 and 8 rows.
  const Config config = load({}, {"data.shuffle=false", "batch.rampup=[4, 2, 16]", "batch.micro_batch_size=1"});
  for (int rank = 0; rank < 2; ++rank) {
    const auto task = make("train_llama", config, {RankGrid(rank, {.world = 2}), at::kCPU, at::kFloat});
    task->set_rows_per_pass(1);
    for (const auto& [step, rows] : {std::pair(0, 2), {1, 2}, {2, 3}, {3, 3}, {4, 4}}) {
      const StepBatch batch = task->batch(step);
      EXPECT_EQ(batch.samples, rows) << "step " << step;
      EXPECT_EQ(batch.micro_batches.size(), static_cast<size_t>(rows));
    }
  }
}

}  // namespace
}  // namespace trireme
