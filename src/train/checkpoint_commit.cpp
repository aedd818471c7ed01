// Rank 0's part of a save: manifest, rename, reading back, LATEST, retention. Runs beside the steps, on a thread of its
// own.
#include "checkpoint.h"

#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme {

namespace {

void sync_directory(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int result = fd < 0 ? -1 : fsync(fd);
  const int error = errno;
  if (fd >= 0) close(fd);
  if (result != 0 && error != EINVAL && error != ENOTSUP)
    throw WriteError(fmt::format("cannot sync {}: {}", path.string(), std::strerror(error)));
}

void rename_directory(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    throw WriteError(
        fmt::format("cannot rename {} to {}: {}", from.string(), to.filename().string(), std::strerror(errno)));
}

}  // namespace

void Checkpoints::commit(const std::vector<std::string>& descriptions) {
  const int64_t step = loop_.completed_steps;
  CheckpointManifest manifest;
  manifest.run_id = options_.run_id;
  manifest.step = step;
  manifest.samples = options_.samples_after(step);
  manifest.tokens = manifest.samples * options_.tokens_per_sample;
  manifest.evaluations = loop_.evaluations;
  manifest.world_size = options_.grid.world.size;
  manifest.shard_size = options_.grid.shard.size;
  manifest.compute_dtype = options_.compute_dtype;
  manifest.config = options_.config;
  manifest.config_hash = options_.config_hash;
  manifest.seed = options_.seed;
  manifest.numbers = loop_.numbers;
  manifest.data = options_.data;
  manifest.base = options_.base;
  manifest.units = described_units();
  write_seconds_ = 0;
  for (const std::string& text : descriptions) {
    double seconds = 0;
    CheckpointFile file = file_from_text(text, seconds);
    write_seconds_ = std::max(write_seconds_, seconds);
    if (!file.name.empty()) manifest.files.push_back(std::move(file));
  }
  const std::filesystem::path working = temporary(step), target = directory_ / checkpoint_name(step);
  fault_point("save:after_shards", 0, step);
  write_file_atomic(working / kManifestName, manifest_json(manifest));
  fault_point("save:after_manifest", 0, step);

  std::error_code error;
  if (std::filesystem::exists(target, error)) {
    std::string owner;
    try {
      owner = read_manifest(target).run_id;
    } catch (const Error&) {
      owner = options_.run_id;  // not whole: it may be replaced
    }
    if (owner != options_.run_id)
      throw WriteError(
          fmt::format("{} belongs to run {}, this is run {}: move it away", target.string(), owner, options_.run_id));
    move_aside(target);
  }
  rename_directory(working, target);
  sync_directory(directory_);
  fault_point("save:after_rename", 0, step);

  if (const auto differences = check_checkpoint_layout(target, read_manifest(target)); !differences.empty()) {
    move_aside(target);
    throw WriteError(fmt::format("{} does not read back as it was written: {}", target.string(),
                                 summarise_differences(differences)));
  }
  committed_bytes_ = manifest.total_bytes();
  // The checkpoint is whole: a failure from here on is only a warning.
  try {
    write_file_atomic(directory_ / "LATEST", checkpoint_name(step) + "\n");
    fault_point("save:after_latest", 0, step);
    retain(step);
  } catch (const Error& failure) {
    log_warn(fmt::format("{} is saved, but: {}", target.string(), failure.what()));
  }
}

void Checkpoints::retain(int64_t committed) {
  int64_t kept = 0;
  for (const auto& [step, directory] : list_checkpoints(directory_)) {
    if (step > committed) continue;
    try {
      const CheckpointManifest manifest = read_manifest(directory);
      if (manifest.version != 1 && manifest.run_id != options_.run_id) continue;
    } catch (const Error&) {
      continue;  // not whole: neither counted nor touched
    }
    if (++kept <= options_.keep_last) continue;
    // Renamed first: a kill in the middle leaves a temporary directory, not half a checkpoint.
    rename_directory(directory, temporary(step));
    fault_point("save:retention", 0, committed);
    std::error_code error;
    std::filesystem::remove_all(temporary(step), error);
    if (error)
      log_warn(fmt::format("cannot remove the old checkpoint {}: {}", temporary(step).string(), error.message()));
  }
}

void Checkpoints::move_aside(const std::filesystem::path& directory) const {
  std::filesystem::path aside = directory;
  aside += ".damaged";
  std::error_code error;
  std::filesystem::remove_all(aside, error);
  rename_directory(directory, aside);
  log_warn(fmt::format("{} is moved aside to {}", directory.string(), aside.filename().string()));
}

void Checkpoints::remove_leftovers() const {
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  for (std::filesystem::directory_iterator entry(directory_, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("step-") && (name.find(".tmp-") != std::string::npos || name.ends_with(".tmp")) &&
        entry->is_directory())
      leftovers.push_back(entry->path());
  }
  for (const auto& leftover : leftovers) {
    std::filesystem::remove_all(leftover, error);
    if (error)
      log_warn(fmt::format("cannot remove {}, which a dead run left: {}", leftover.string(), error.message()));
    else
      log_info(fmt::format("removed {}, which a dead run left unfinished", leftover.string()));
  }
}

}  // namespace trireme
