#pragma once
// Private to train/: how the rows of a data set become the batches of a run, for any kind of row. A family says how a
// row is read, how rows are collated on the host, and what of that goes to the device; the order of the rows, reading
// ahead, the split into passes and evaluation over a rank's share are the same for all.

#include "data/stream/stream_loader.h"
#include "task_base.h"
#include "trireme/base/log.h"
#include "trireme/config/batch_sizes.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace trireme {

/// Rows of the type Row, and how some of them are collated to a Pack. The functions own what they read.
template <class Row, class Pack>
struct RowSource {
  /// Row at place `position` (from 0) of the run's order. Called by one thread at a time, for the rows of a step in
  /// ascending order.
  std::function<Row(int64_t position)> train;
  /// What train() reads from where rows are packed from documents, whose places do not follow from the position; else
  /// null.
  std::shared_ptr<StreamLoader> stream;
  /// Row `index` of data.valid; empty: there is none. Thread-safe.
  std::function<Row(int64_t index)> valid;
  int64_t valid_rows = 0;  // that are evaluated: the first of data.valid
  /// The same of data.test.
  std::function<Row(int64_t index)> test;
  int64_t test_rows = 0;
  std::vector<RowSet> sets;  // to check before training
  /// `positions[i]`: place of row i in the run's order or in data.valid; -1: a filler, which counts nowhere.
  /// Thread-safe.
  std::function<Pack(const std::vector<Row>& rows, const std::vector<int64_t>& positions, bool train)> collate;
  std::function<bool(const Row&)> has_target;
  const char* without_target = "";  // why a row has none: "every loss_mask is 0"
  Row filler, pattern;              // fills up a pass; stands for any row where only time counts
  bool whole_passes = false;        // an evaluation's last pass is filled up to the rows of the others
  bool keep_evaluation = false;     // its batches stay on the device
};

template <class Row, class Pack>
class RowTask : public TaskBase {
 public:
  std::vector<RowSet> row_sets() const final { return rows_->sets; }

  void prefetch(int64_t step) final {
    const auto per_pass = static_cast<size_t>(rows_per_pass());
    ahead_.start(step, [source = rows_, per_pass, readers = rank_.grid.data, batches = batches_](int64_t due) {
      return read_step(*source, due, batches, readers, per_pass);
    });
  }
  StepBatch batch(int64_t step) final {
    prefetch(step);
    return to_device(ahead_.take());
  }
  std::vector<double> data_state(int64_t completed) const final {
    // Ranks that share rows stand at the same place: one of them says where.
    const bool tells = rows_->stream && rank_.grid.context.rank == 0;
    return tells ? rows_->stream->state(completed) : std::vector<double>();
  }
  void restore_data_state(int64_t completed, const std::vector<double>& numbers) final {
    if (!rows_->stream) return;
    ahead_.drop();
    if (!numbers.empty() && rows_->stream->restore(completed, numbers)) return;
    rows_->stream->start_anew(completed);
    log_warn(fmt::format("the checkpoint of step {} has no place in these documents: they are read from the beginning",
                         completed));
  }
  StepBatch synthetic_batch() final {
    const auto count = static_cast<size_t>(rows_per_pass());
    std::vector<Pack> passes;
    passes.push_back(rows_->collate(std::vector<Row>(count, rows_->pattern), std::vector<int64_t>(count, 0), true));
    return to_device(passes);
  }

  /// The sums of score(), then those of counts().
  EvalSums evaluate(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) final {
    TRIREME_CHECK(rows_->valid && rows_->valid_rows > 0, "evaluation without data.valid");
    return evaluate_rows(units, {rows_->valid, rows_->valid_rows, rows_->keep_evaluation}, progress);
  }
  EvalSums test(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) final {
    TRIREME_CHECK(rows_->test && rows_->test_rows > 0, "a test without data.test");
    return evaluate_rows(units, {rows_->test, rows_->test_rows, /*keep=*/false}, progress);
  }

 protected:
  RowTask(const Config& config, const RankInfo& rank) : TaskBase(config, rank), batches_(config.batch) {}

  /// In the constructor of a family. DataError where data.valid or data.test has no target. An MLPerf run reads no row
  /// before its clock runs: there the first evaluation finds out.
  void set_rows(RowSource<Row, Pack> rows) {
    rows_ = std::make_shared<const RowSource<Row, Pack>>(std::move(rows));
    if (config_.logging.mlperf) return;
    if (rows_->valid) require_targets(rows_->valid, rows_->valid_rows, config_.data.valid);
    if (rows_->test) require_targets(rows_->test, rows_->test_rows, config_.data.test);
  }
  const RowSource<Row, Pack>& rows() const { return *rows_; }

  /// A micro-batch of each pass, and what their losses are divided by.
  virtual StepBatch to_device(const std::vector<Pack>& passes) const = 0;
  /// Sums over the micro-batch that an evaluation adds up: [K] on the device.
  virtual at::Tensor score(UnitStore& units, const MicroBatch& batch) = 0;
  /// What counts in the pack, such as targets and samples: the sums of score() are divided by it in eval_result().
  virtual EvalSums counts(const Pack& pack) const = 0;

 private:
  struct EvalPass {
    std::unique_ptr<MicroBatch> batch;
    EvalSums counts;
  };
  struct EvalRows {
    const std::function<Row(int64_t)>& read;
    int64_t count = 0;
    bool keep = false;  // the batches stay on the device, in kept_
  };

  EvalSums evaluate_rows(ShardedUnits& units, const EvalRows& source,
                         const std::function<void(int64_t, int64_t)>& progress) {
    at::NoGradGuard no_grad;
    // As many samples at a time as a packed micro-batch has.
    const auto rows =
        static_cast<int64_t>(std::ceil(static_cast<double>(rows_per_pass()) * config_.batch.packing_rate));
    const int64_t per_rank = (source.count + rank_.grid.data.size - 1) / rank_.grid.data.size;
    const int64_t passes = (per_rank + rows - 1) / rows;
    at::Tensor sums;
    EvalSums counted;
    for (int64_t pass = 0; pass < passes; ++pass) {
      EvalPass read;
      if (!source.keep || static_cast<size_t>(pass) >= kept_.size()) {
        read = read_evaluation_pass(source, pass, rows);
        if (source.keep) kept_.push_back(std::move(read));
      }
      const EvalPass& now = source.keep ? kept_[static_cast<size_t>(pass)] : read;
      const at::Tensor scores = score(units, *now.batch);
      if (!sums.defined()) sums = at::zeros(scores.sizes(), scores.options().dtype(at::kDouble));
      sums.add_(scores);
      counted.resize(now.counts.size());
      for (size_t i = 0; i < counted.size(); ++i) counted[i] += now.counts[i];
      units.release();
      if (progress) progress(pass + 1, passes);
    }
    const at::Tensor host = sums.to(at::kCPU);
    EvalSums all(host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel());
    all.insert(all.end(), counted.begin(), counted.end());
    return all;
  }

  /// Reader r of n has every n-th row of the global batch, in the run's order.
  static std::vector<Pack> read_step(const RowSource<Row, Pack>& source, int64_t step, const BatchSizes& batches,
                                     const GridAxis& readers, size_t per_pass) {
    const int64_t first = batches.before(step), size = batches.of(step);
    std::vector<Pack> passes;
    std::vector<Row> rows;
    std::vector<int64_t> positions;
    if (source.stream) source.stream->begin_step(step);
    for (int64_t i = readers.rank; i < size; i += readers.size) {
      positions.push_back(first + i);
      rows.push_back(source.train(positions.back()));
      if (rows.size() < per_pass && i + readers.size < size) continue;
      passes.push_back(source.collate(rows, positions, /*train=*/true));
      rows.clear();
      positions.clear();
    }
    if (source.stream) source.stream->end_step(step);
    return passes;
  }

  EvalPass read_evaluation_pass(const EvalRows& source, int64_t pass, int64_t count) const {
    std::vector<Row> rows;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = (pass * count + i) * rank_.grid.data.size + rank_.grid.data.rank;
      const bool there = index < source.count;
      if (!there && !rows_->whole_passes && !rows.empty()) break;
      rows.push_back(there ? source.read(index) : rows_->filler);
      positions.push_back(there ? index : -1);
    }
    std::vector<Pack> packs;
    packs.push_back(rows_->collate(rows, positions, /*train=*/false));
    return {std::move(to_device(packs).micro_batches.front()), counts(packs.front())};
  }

  void require_targets(const std::function<Row(int64_t)>& read, int64_t count,
                       const std::vector<std::string>& files) const {
    for (int64_t row = 0; row < count; ++row)
      if (rows_->has_target(read(row))) return;
    throw without_targets(files, rows_->without_target);
  }

  const BatchSizes batches_;
  std::shared_ptr<const RowSource<Row, Pack>> rows_;
  std::vector<EvalPass> kept_;
  ReadAhead<std::vector<Pack>> ahead_;
};

}  // namespace trireme
