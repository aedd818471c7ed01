#pragma once
// Private to train/: the stage of a start that opens what is trained on.

#include "data/row_scan.h"
#include "task.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/config/config.h"
#include "trireme/train/training_program.h"

#include <ATen/core/Tensor.h>

#include <memory>

namespace trireme {

/// Rows of `epochs` passes over `rows` rows, rounded up to a whole number, which may exceed int64. A product that
/// misses a whole number only by the rounding of doubles is that number: 1.1 passes over 100 rows are 110 rows.
double rows_of_epochs(double epochs, int64_t rows);

/// `config` without train.epochs: with the number of steps that reach the last row of the last pass over data.train,
/// said in the log. Steps run on from one pass into the next, so only the run's last step can have rows of a further
/// pass. Opens the files of data.train, loads no weights. ConfigError for data whose rows are not counted: streams of
/// documents and Megatron's files. Without train.epochs `config` as it is.
Config resolve_epochs(const Config& config, const TrainingProgram& program, int ranks);

/// For a dry run: looks at rows for ten seconds at most. DataError for a bad row.
RowScanReport scan_rows(const TrainingTask& task);

/// The task of a run with its data. The methods are collective.
class RunRows {
 public:
  /// Writes the index maps of Megatron's files that are not there, and opens the data. `context_size`: ranks that share
  /// a row. CollectiveError.
  RunRows(const Config& config, World& world, const TrainingProgram& program, int context_size,
          at::ScalarType compute_dtype);
  /// With shard groups of one rank.
  const RankGrid& grid() const { return grid_; }
  TrainingTask& task() { return *task_; }

  /// Reads the rows of the first step, and looks at others for bad ones, while the weights load. An MLPerf run does
  /// neither: it touches no data before its clock runs.
  void start_reading(int rows_per_pass);
  /// When the weights are there: ends the look at the rows of all ranks, after a second at least if it is not through
  /// by then, and says how many were looked at. CollectiveError (kData) for a bad row.
  void finish_scan();

 private:
  const Config& config_;
  World& world_;
  RankGrid grid_;
  std::unique_ptr<SequenceExchange> exchange_;  // null: no rank shares its rows
  std::unique_ptr<TrainingTask> task_;
  std::unique_ptr<RowScan> scan_;
};

}  // namespace trireme
