#pragma once
// Private to train/: makes the batches of a run from the rows of a data set, for any kind of row. A subclass reads a
// row, collates rows on the host and copies the result to the device. The order of the rows, reading ahead, the split
// into passes and evaluation over a rank's share are common.

#include "data/rows.h"
#include "task.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/ops/device.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// A step's data, read in the background. One step is under way at a time; its reading is waited for before another
/// starts or this ends.
template <class T>
class ReadAhead {
 public:
  ~ReadAhead() {
    if (next_.valid()) next_.wait();
  }
  void start(int64_t step, const std::function<T(int64_t)>& read) {
    if (step_ == step && next_.valid()) return;
    if (next_.valid()) next_.wait();
    step_ = step;
    next_ = std::async(std::launch::async, read, step);
  }
  T take() { return next_.get(); }
  /// Waits for what is under way and forgets it.
  void drop() {
    if (next_.valid()) next_.wait();
    next_ = {};
  }

 private:
  std::future<T> next_;
  int64_t step_ = -1;
};

/// For a split (`files`) without any target: its evaluation would be 0 / 0, training on it changes nothing. `why`:
/// "every loss_mask is 0".
inline DataError without_targets(const std::vector<std::string>& files, const char* why, Split split = Split::kValid) {
  return DataError(fmt::format("{}: no row has a target ({}), so there is nothing to {}: prepare the rows again{}",
                               join(files, ", "), why, split == Split::kTrain ? "learn" : "evaluate",
                               split == Split::kTrain ? "" : ", or leave data.valid (or data.test) out"));
}

/// The same of the rows that the split takes.
inline DataError without_targets(const Config& config, Split split, const char* why) {
  const SplitKeys keys = split_keys(config, split);
  if (!keys.samples) return without_targets(keys.files, why, split);
  return DataError(
      fmt::format("{}: none of the {} rows that {} takes has a target ({}), so there is nothing to "
                  "evaluate: raise it, or prepare the rows again",
                  join(keys.files, ", "), *keys.samples, keys.samples_key, why));
}

/// Reads rows of type Row and collates several of them to a Pack. The functions own their sources.
template <class Row, class Pack>
struct RowSource {
  SplitRows<Row> train, valid, test;
  /// `positions[i]`: place of row i in the run's order or in data.valid; -1: a filler, which is not counted.
  /// Thread-safe.
  std::function<Pack(const std::vector<Row>& rows, const std::vector<int64_t>& positions, bool train)> collate;
  std::function<bool(const Row&)> has_target;
  const char* without_target = "";  // why a row has no target: "every loss_mask is 0"
  std::function<bool(const Row&)> all_starts = [](const Row&) { return false; };  // every token starts a sequence
  Row filler, pattern;                                                            // completes a pass; a row for timing
  bool whole_passes = false;     // an evaluation's last pass is filled up to full size
  bool keep_evaluation = false;  // batches of evaluations stay on the device
};

template <class Row, class Pack>
class RowTask : public TrainingTask {
 public:
  std::vector<RowSet> row_sets() const final {
    std::vector<RowSet> sets;
    for (const auto* split : {&rows_->train, &rows_->valid, &rows_->test})
      sets.insert(sets.end(), split->sets.begin(), split->sets.end());
    return sets;
  }

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
    // Ranks that share rows have the same state: one of them returns it.
    const bool tells = rows_->train.stream && rank_.grid.context.rank == 0;
    return tells ? rows_->train.stream->state(completed) : std::vector<double>();
  }
  void restore_data_state(int64_t completed, const std::vector<double>& numbers) final {
    if (!rows_->train.stream) return;
    ahead_.drop();
    if (!numbers.empty() && rows_->train.stream->restore(completed, numbers)) return;
    rows_->train.stream->start_anew(completed);
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
    return evaluate_rows(units, rows_->valid, rows_->keep_evaluation, progress);
  }
  EvalSums test(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) final {
    return evaluate_rows(units, rows_->test, /*keep=*/false, progress);
  }

 protected:
  RowTask(const Config& config, const RankInfo& rank) : TrainingTask(config, rank), batches_(config.batch) {}

  /// In the constructor of a family. DataError where a split has no target; of documents, which are read in turn, that
  /// is not asked. An MLPerf run reads no row before its clock runs: there the first evaluation reports it.
  void set_rows(RowSource<Row, Pack> rows) {
    rows_ = std::make_shared<const RowSource<Row, Pack>>(std::move(rows));
    facts_.train_rows = rows_->train.rows;
    facts_.train_samples = rows_->train.samples;
    facts_.eval_samples = rows_->valid.rows;
    facts_.test_samples = rows_->test.rows;
    const SplitRows<Row>* splits[] = {&rows_->train, &rows_->valid, &rows_->test};
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      const SplitRows<Row>& opened = *splits[static_cast<int>(split)];
      if (!opened.read) continue;
      facts_.description.push_back(fmt::format("{}: {}", split_name(split), opened.description));
      if (!opened.stream && !config_.logging.mlperf) require_targets(opened, split);
    }
  }
  const RowSource<Row, Pack>& rows() const { return *rows_; }
  /// Forward passes of `count` rows over this rank's share of a split that is read by number; as many on every rank.
  int64_t passes_over(const SplitRows<Row>& source, int64_t count) const {
    return ceil_div(ceil_div(source.rows, rank_.grid.data.size), count);
  }
  /// The rows of one of these passes. Where a rank has fewer rows than others, there are fillers.
  Pack rows_of_pass(const SplitRows<Row>& source, int64_t pass, int64_t count) const {
    std::vector<Row> rows;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = (pass * count + i) * rank_.grid.data.size + rank_.grid.data.rank;
      const bool there = index < source.rows;
      if (!there && !rows_->whole_passes && !rows.empty()) break;
      rows.push_back(there ? source.read(index) : rows_->filler);
      positions.push_back(there ? index : -1);
    }
    return rows_->collate(rows, positions, /*train=*/false);
  }

  /// The micro-batches of a step's passes, and the divisor of their losses.
  virtual StepBatch to_device(const std::vector<Pack>& passes) const = 0;
  /// The sums of an evaluation over the micro-batch: [K] on the device.
  virtual at::Tensor score(UnitStore& units, const MicroBatch& batch) = 0;
  /// Counts of the pack, such as targets and samples, by which eval_result() divides the sums of score().
  virtual EvalSums counts(const Pack& pack) const = 0;

 private:
  struct EvalPass {
    std::unique_ptr<MicroBatch> batch;
    EvalSums counts;
  };

  /// `keep`: the batches stay on the device, in kept_.
  EvalSums evaluate_rows(ShardedUnits& units, const SplitRows<Row>& source, bool keep,
                         const std::function<void(int64_t, int64_t)>& progress) {
    TRIREME_CHECK(source.read && source.rows > 0, "an evaluation of ", source.rows, " rows");
    at::NoGradGuard no_grad;
    // As many samples at a time as a packed micro-batch has.
    const auto rows =
        static_cast<int64_t>(std::ceil(static_cast<double>(rows_per_pass()) * config_.batch.packing_rate));
    const int64_t passes = passes_over(source, rows);
    at::Tensor sums;
    EvalSums counted;
    for (int64_t pass = 0; pass < passes; ++pass) {
      EvalPass read;
      if (!keep || static_cast<size_t>(pass) >= kept_.size()) {
        read = read_evaluation_pass(source, pass, rows);
        if (keep) kept_.push_back(std::move(read));
      }
      const EvalPass& now = keep ? kept_[static_cast<size_t>(pass)] : read;
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
    if (source.train.stream) source.train.stream->begin_step(step);
    for (int64_t i = readers.rank; i < size; i += readers.size) {
      positions.push_back(first + i);
      rows.push_back(source.train.read(positions.back()));
      if (rows.size() < per_pass && i + readers.size < size) continue;
      passes.push_back(source.collate(rows, positions, /*train=*/true));
      rows.clear();
      positions.clear();
    }
    if (source.train.stream) source.train.stream->end_step(step);
    return passes;
  }

  EvalPass read_evaluation_pass(const SplitRows<Row>& source, int64_t pass, int64_t count) const {
    std::vector<Pack> packs;
    packs.push_back(rows_of_pass(source, pass, count));
    return {std::move(to_device(packs).micro_batches.front()), counts(packs.front())};
  }

  void require_targets(const SplitRows<Row>& source, Split split) const {
    try {
      for (int64_t row = 0; row < source.rows; ++row)
        if (rows_->has_target(source.read(row))) return;
    } catch (const DataError&) {
      // The check of all rows names the first bad row of data.train.
      if (split == Split::kTrain) return;
      throw;
    }
    const bool all_starts = source.rows > 0 && rows_->all_starts(source.read(0));
    throw without_targets(config_, split, all_starts ? "every token starts a sequence" : rows_->without_target);
  }

  const BatchSizes batches_;
  std::shared_ptr<const RowSource<Row, Pack>> rows_;
  std::vector<EvalPass> kept_;
  ReadAhead<std::vector<Pack>> ahead_;
};

}  // namespace trireme
