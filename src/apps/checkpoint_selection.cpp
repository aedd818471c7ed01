#include "checkpoint_selection.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>

namespace trireme {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& path) {
  return checkpoint_step(path).has_value() || fs::exists(path / kManifestName);
}

fs::path checkpoint_collection(const fs::path& path) {
  if (fs::is_directory(path / "checkpoints")) return path / "checkpoints";
  if (!fs::is_directory(path))
    throw ModelError(
        fmt::format("{} is no directory: give a run's output.dir, its checkpoints or one checkpoint", path.string()));
  return path;
}

std::set<fs::path> runs_of_checkpoints(const fs::path& path) {
  const fs::path collection = checkpoint_collection(path), named = fs::absolute(collection).lexically_normal();
  return {fs::weakly_canonical(collection).parent_path(),
          fs::weakly_canonical((named.has_filename() ? named : named.parent_path()).parent_path())};
}

std::vector<fs::path> selected_checkpoints(const fs::path& given) {
  const fs::path path = given.has_filename() ? given : given.parent_path();  // "DIR/"
  if (is_checkpoint(path)) return {path};
  std::vector<fs::path> found;
  for (const auto& [step, directory] : list_checkpoints(checkpoint_collection(path))) found.push_back(directory);
  if (found.empty()) throw ModelError(fmt::format("there is no checkpoint in {}", path.string()));
  return found;
}

std::string checkpoint_layout_problem(const fs::path& directory, CheckpointManifest& manifest) {
  try {
    manifest = read_manifest(directory);
    return summarise_differences(check_checkpoint_layout(directory, manifest));
  } catch (const StorageError&) {
    throw;
  } catch (const Error& error) {
    return error.what();
  }
}

std::string checkpoint_problem(const fs::path& directory, CheckpointManifest& manifest) {
  if (std::string problem = checkpoint_layout_problem(directory, manifest); !problem.empty()) return problem;
  std::vector<std::string> differences;
  try {
    for (size_t file = 0; file < manifest.files.size(); ++file)
      for (std::string& difference : check_checkpoint_hashes(directory, manifest, file))
        differences.push_back(std::move(difference));
  } catch (const StorageError&) {
    throw;
  } catch (const Error& error) {
    differences.emplace_back(error.what());
  }
  return summarise_differences(differences);
}

}  // namespace trireme
