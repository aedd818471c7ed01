#pragma once
// Private to apps/: what the parts of `trireme checkpoint` share.

#include "trireme/formats/checkpoint/training_checkpoint.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace trireme {

bool is_checkpoint(const std::filesystem::path& path);
/// The directory with the checkpoints of a run's output.dir, or the path itself. ModelError if there is no directory.
std::filesystem::path checkpoint_collection(const std::filesystem::path& path);
/// Where the run of the checkpoints that `path` means may lie, a run's output.dir or its checkpoints: beside them, and
/// beside what is named, because output.dir/checkpoints may be a link.
std::set<std::filesystem::path> runs_of_checkpoints(const std::filesystem::path& path);
/// The checkpoints meant by a path (a run's output.dir, its checkpoints, or one checkpoint), newest first. ModelError
/// if there is no checkpoint.
std::vector<std::filesystem::path> selected_checkpoints(const std::filesystem::path& path);

/// Problems of sizes and headers; empty if there are none. StorageError. Fills the manifest.
std::string checkpoint_layout_problem(const std::filesystem::path& directory, CheckpointManifest& manifest);
/// The same with those of bytes.
std::string checkpoint_problem(const std::filesystem::path& directory, CheckpointManifest& manifest);

}  // namespace trireme
