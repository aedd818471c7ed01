#pragma once
// Private to train/: the state from which a run resumes, with its names and description in a checkpoint. The names in
// files are those of the first version: checkpoints of all versions are read.

#include "step_guard.h"
#include "task.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/config/config.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/nn/trained_shard.h"
#include "trireme/nn/unit.h"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// "exp_avg"; the vectors of units are stored as "exp_avg.layers.0".
const char* stored_kind(StateKind kind);
std::string stored_name(const StateTensor& state);

/// How far a run is.
struct RunProgress {
  int64_t completed = 0;         // optimizer steps done
  int64_t reported = 0;          // steps whose results were read; at most one less than completed in the loop
  int64_t samples = 0;           // of the reported steps, over all ranks
  double last_loss = 0;          // of the last step reported; not kept
  int64_t evaluations = 0;       // begun and not interrupted
  int64_t evaluated_step = -1;   // the last evaluation was after this step
  bool evaluation_open = false;  // a signal interrupted the evaluation after `completed`: it is repeated
  bool reached_target = false;
  double best_score = -std::numeric_limits<double>::infinity();  // of the best evaluation: EvalMetrics::score()
  int64_t best_step = -1;                                        // that it came after
  int64_t evaluations_since_best = 0;
  bool out_of_patience = false;   // train.patience
  bool other_evaluation = false;  // evaluations before this start were of other rows; not kept

  /// An evaluation ends the run before its last step.
  bool ends_early() const { return reached_target || out_of_patience; }
};

/// The numbers of the loop that a checkpoint keeps. Checkpoints of earlier versions lack some of them.
struct LoopState {
  RunProgress progress = {};
  bool has_samples = true;  // progress.samples is known
  GuardState guard = {};
  std::optional<std::vector<double>> fp8_scales = {};  // of ShardedUnits::scale_state()
  std::vector<double> data_position = {};              // of TrainingTask::data_state(), of all ranks

  std::map<std::string, std::vector<double>> numbers() const;
};
LoopState loop_state(const CheckpointManifest& manifest);

/// Facts in all checkpoints of a run, with which a checkpoint is compared before a resume.
struct CheckpointRun {
  CheckpointManifest manifest;                               // without step, numbers and files
  std::function<int64_t(int64_t steps)> samples_after = {};  // samples of the first so many steps
  int64_t tokens_per_sample = 1, evaluation_rows = 0;
  /// The rows as manifests of earlier versions name them: directories by their files' names and sizes.
  std::function<std::vector<Fingerprint>()> former_data = [] { return std::vector<Fingerprint>(); };
};
/// The files that every rank reads: of rows 4 blocks of a file, of weights 16. `from_start`: it may go on from no
/// checkpoint, and reads the base and lora.adapter.
std::vector<Fingerprint> files_of_all_ranks(const Config& config, const RunFiles& files, bool from_start);
/// `grid`: with shard groups as the trained state is divided. `files`: the inputs, TrainingTask::files(), on rank 0,
/// which compares them.
CheckpointRun describe_run(const Config& config, const std::string& run_id, const RankGrid& grid,
                           const std::vector<UnitSpec>& units, at::ScalarType compute_dtype,
                           const std::optional<RunFiles>& files);

}  // namespace trireme
