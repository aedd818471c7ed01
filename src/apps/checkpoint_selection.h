#pragma once
// Which checkpoints a path means, and what is wrong with one.

#include "trireme/formats/checkpoint/training_checkpoint.h"

#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

bool is_checkpoint(const std::filesystem::path& path);
/// The directory with the checkpoints of a run's output.dir, or the path itself. ModelError where there is no
/// directory.
std::filesystem::path checkpoint_collection(const std::filesystem::path& path);
/// The checkpoints meant by a path (a run's output.dir, its checkpoints, or one checkpoint), newest first. ModelError
/// where there is none.
std::vector<std::filesystem::path> selected_checkpoints(const std::filesystem::path& path);

/// What is wrong as far as sizes and headers tell; empty when nothing is. Throws nothing. Fills the manifest.
std::string checkpoint_layout_problem(const std::filesystem::path& directory, CheckpointManifest& manifest);
/// The same with every byte read.
std::string checkpoint_problem(const std::filesystem::path& directory, CheckpointManifest& manifest);

}  // namespace trireme
