#pragma once
// Private to train/: how a run gets its weights: from the model's files, drawn, or from a checkpoint, on any number of
// ranks.

#include "checkpoint_saver.h"
#include "train_step.h"

#include <optional>
#include <vector>

namespace trireme {

struct ResumedRun {
  LoopState loop;
  std::optional<Config> config;        // of the run that saved it; none: format version 1
  std::string evaluation_change = {};  // what evaluations read now and did not before; empty: the same
};

/// Collective. Fills the tensors from the newest whole checkpoint of this run. Each newer one is skipped with a warning
/// that says why, and moved aside to step-N.damaged. No checkpoint: nullopt. None whole: ModelError, or nullopt where
/// `choices` allow to start afresh; other training data: DataError unless `choices` allow them.
std::optional<ResumedRun> resume_newest(const CheckpointFolder& folder, const CheckpointRun& run, Communicator& comm,
                                        const ResumeChoices& choices, const std::vector<StateTensor>& state);

/// Collective. Opens the folder of checkpoints, loads the weights or resumes from the newest whole checkpoint, which
/// gives `progress`, the guard, the position in the data and the FP8 scales. ModelError, DataError, WriteError where
/// regular checkpoints do not fit on the disk.
void load_or_resume(const RunParts& run, const CheckpointFolder& folder, const CheckpointRun& description,
                    CheckpointSaver& saver, TrainStep& step, RunProgress& progress);

}  // namespace trireme
