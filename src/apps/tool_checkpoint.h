#pragma once
// What the subcommands of `trireme checkpoint` share.

#include "trireme/formats/training_checkpoint.h"

#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

/// The checkpoints meant by a path (a run's output.dir, its checkpoints, or one checkpoint), newest first. ModelError where there is none.
std::vector<std::filesystem::path> selected_checkpoints(const std::filesystem::path& path);

/// What is wrong with a checkpoint, every byte read; empty when it is whole. Throws nothing. Fills the manifest.
std::string checkpoint_problem(const std::filesystem::path& directory, CheckpointManifest& manifest);

struct CheckpointExport {
  std::string checkpoint, output, dtype, model;  // the last two may be empty: the run's own
};
/// The PEFT adapter or Hugging Face model of the newest whole one of the checkpoints that are meant.
void export_checkpoint(const CheckpointExport& options);

}  // namespace trireme
