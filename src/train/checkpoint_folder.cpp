#include "checkpoint_folder.h"

#include "checkpoint_writer.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/fsdp/layout.h"
#include "trireme/optim/optimizer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
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

/// The run of a checkpoint's manifest; empty where that is not whole.
std::string owner_of(const std::filesystem::path& checkpoint) {
  try {
    return read_manifest(checkpoint).run_id;
  } catch (const StorageError&) {
    throw;
  } catch (const Error&) {
    return "";
  }
}

/// Of one checkpoint: the masters and moments of what is trained, and what describes them.
uint64_t checkpoint_bytes(const Config& config, const std::vector<UnitSpec>& units, int world_size) {
  const OptimizerTraits& optimizer = traits_of(config.optimizer.name);
  const int64_t moments = optimizer.moment_bytes(config.optimizer),
                saved = moments - optimizer.moment_bytes(config.optimizer, /*matrix=*/true),
                masters = OptimizerTraits::master_bytes(config.optimizer),
                pieces = (1 + optimizer.moments) * kBytesPerPiece * world_size;
  int64_t bytes = 1 << 16;
  for (const UnitSpec& unit : units)
    if (unit.trained) bytes += make_layout(unit, 1).numel * (masters + moments) - unit.matrix_numel() * saved + pieces;
  return static_cast<uint64_t>(bytes);
}

/// The number of checkpoints of a run of this length, including the checkpoint of a stop. By time their number is not
/// known: a keep_last beyond the number of steps, which stands for all of them, then counts as the least.
int64_t most_saves(const Config& config) {
  const OutputSection& output = config.output;
  if (output.save_every_minutes) return config.train.max_steps < output.keep_last ? 3 : output.keep_last + 1;
  return BatchSizes(config.batch).before(config.train.max_steps) / *output.save_every_samples + 1;
}

/// Free bytes of the file system where `directory` is or will be; nullopt: not known, the first write fails where there
/// is no room.
std::optional<uint64_t> free_space(std::filesystem::path directory) {
  while (!std::filesystem::exists(directory) && directory.has_parent_path() && directory != directory.parent_path())
    directory = directory.parent_path();
  struct statvfs disk{};
  if (statvfs(directory.c_str(), &disk) != 0 || disk.f_blocks == 0) return std::nullopt;  // ramfs reports zeros
  if (const auto forced = fault_value("disk-free")) return static_cast<uint64_t>(*forced);
  return static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
}

}  // namespace

std::filesystem::path CheckpointFolder::unfinished(int64_t step) const {
  return path_ / fmt::format("{}.tmp-{}", checkpoint_name(step), run_id_);
}

void CheckpointFolder::begin(int64_t step) const {
  // Its parents are not created: where they are missing, the run has been removed, with metrics and run.json.
  const std::filesystem::path directory = unfinished(step);
  std::error_code ignored, error;
  std::filesystem::remove_all(directory, ignored);
  if (!std::filesystem::create_directory(directory, error))
    throw WriteError(fmt::format("cannot create directory {}: {}", directory.string(),
                                 error ? error.message() : "a file of that name exists"));
}

void CheckpointFolder::discard(int64_t step) const {
  std::error_code ignored;
  std::filesystem::remove_all(unfinished(step), ignored);
}

void CheckpointFolder::open() const {
  make_directories(path_);
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
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

void CheckpointFolder::commit(const CheckpointManifest& manifest) const {
  const int64_t step = manifest.step;
  const std::filesystem::path working = unfinished(step), target = path_ / checkpoint_name(step);
  fault_point("save:after_shards", 0, step);
  write_file_atomic(working / kManifestName, manifest_json(manifest));
  fault_point("save:after_manifest", 0, step);

  if (std::error_code error; std::filesystem::exists(target, error)) {
    if (!may_move(target))
      throw WriteError(fmt::format("{} belongs to run {}, this is run {}: move it away", target.string(),
                                   owner_of(target), run_id_));
    move_aside(target);
  }
  rename_directory(working, target);
  sync_directory(path_);
  fault_point("save:after_rename", 0, step);

  if (const auto differences = check_checkpoint_layout(target, read_manifest(target)); !differences.empty()) {
    move_aside(target);
    throw WriteError(fmt::format("{} does not read back as it was written: {}", target.string(),
                                 summarise_differences(differences)));
  }
  // The checkpoint is whole: a failure from here on is only a warning.
  try {
    write_file_atomic(path_ / "LATEST", checkpoint_name(step) + "\n");
    fault_point("save:after_latest", 0, step);
    remove_old(step);
  } catch (const Error& failure) {
    log_warn(fmt::format("{} is saved, but: {}", target.string(), failure.what()));
  }
}

void CheckpointFolder::remove_old(int64_t committed) const {
  int64_t kept = 0;
  for (const auto& [step, directory] : list_checkpoints(path_)) {
    if (step > committed) continue;
    try {
      const CheckpointManifest manifest = read_manifest(directory);
      if (manifest.version != 1 && manifest.run_id != run_id_) continue;
    } catch (const Error&) {
      continue;  // not whole: neither counted nor touched
    }
    if (++kept <= keep_last_) continue;
    // Renamed first: a kill in the middle leaves a temporary directory, not half a checkpoint.
    rename_directory(directory, unfinished(step));
    fault_point("save:retention", 0, committed);
    std::error_code error;
    std::filesystem::remove_all(unfinished(step), error);
    if (error)
      log_warn(fmt::format("cannot remove the old checkpoint {}: {}", unfinished(step).string(), error.message()));
  }
}

void CheckpointFolder::move_aside(const std::filesystem::path& checkpoint) const {
  std::filesystem::path aside = checkpoint;
  aside += ".damaged";
  std::error_code error;
  std::filesystem::remove_all(aside, error);
  rename_directory(checkpoint, aside);
  log_warn(fmt::format("{} is moved aside to {}", checkpoint.string(), aside.filename().string()));
}

bool CheckpointFolder::may_move(const std::filesystem::path& checkpoint) const {
  const std::string owner = owner_of(checkpoint);
  return owner == run_id_ || owner.empty();
}

bool CheckpointFolder::holds(int64_t step) const {
  const std::filesystem::path checkpoint = path_ / checkpoint_name(step);
  try {
    const CheckpointManifest manifest = read_manifest(checkpoint);
    return (manifest.version == 1 || manifest.run_id == run_id_) &&
           check_checkpoint_layout(checkpoint, manifest).empty();
  } catch (const Error&) {
    return false;
  }
}

std::string check_checkpoint_space(const Config& config, const std::filesystem::path& directory,
                                   const std::string& run_id, const std::vector<UnitSpec>& units, int world_size) {
  const bool periodic = config.output.save_every_samples || config.output.save_every_minutes;
  if (!periodic && !config.output.save_on_stop) return "";
  const uint64_t bytes_of_one = checkpoint_bytes(config, units, world_size);
  // While a checkpoint is written, keep_last older checkpoints are still on the disk.
  const auto wanted = static_cast<uint64_t>(periodic ? std::min(config.output.keep_last + 1, most_saves(config)) : 1);
  uint64_t kept = 0, present = 0;
  int64_t newest = 0;
  for (const auto& [step, path] : list_checkpoints(directory)) {
    try {
      const CheckpointManifest manifest = read_manifest(path);
      if (manifest.run_id != run_id) continue;
      newest = std::max(newest, step);
      if (kept >= wanted - 1) continue;
      ++kept;
      present += manifest.total_bytes();
    } catch (const Error&) {
      continue;  // not whole: resume() names it
    }
  }
  const auto free = free_space(directory);
  const uint64_t needed = bytes_of_one * wanted - std::min(present, bytes_of_one * wanted);
  if (!free || needed <= *free) return "";
  const uint64_t available = *free;
  if (!periodic)
    return fmt::format(
        "the checkpoint that a stop by a signal saves does not fit: {} has {} free and it needs {}; a stop would lose "
        "everything since {}. Free {} there, choose another output.dir, or set output.save_on_stop: false for a run "
        "that wants none",
        directory.string(), format_bytes(available), format_bytes(needed),
        newest > 0 ? fmt::format("step {}", newest) : "the beginning", format_bytes(needed - available));
  throw WriteError(
      fmt::format("the checkpoints of this run do not fit: {} has {} free; {} of {} each need {}{}. Free "
                  "{} there, choose another output.dir{}",
                  directory.string(), format_bytes(available), wanted, format_bytes(bytes_of_one), format_bytes(needed),
                  present > 0 ? " beside those already there" : "", format_bytes(needed - available),
                  config.output.keep_last > 2 ? ", or lower output.keep_last" : ""));
}

void check_result_space(const Config& config, uint64_t bytes) {
  const std::filesystem::path run = config.output.dir, artefact = config.lora ? "adapter" : "model";
  const uint64_t needed =
      config.output.keep_best && !std::filesystem::exists(run / "best" / artefact) ? 2 * bytes : bytes;
  if (const auto free = free_space(run / artefact); free && needed > *free)
    throw WriteError(
        fmt::format("what this run writes at its end does not fit: {} has {} free and it needs {}{}. Free {} there, or "
                    "choose another output.dir",
                    (run / artefact).string(), format_bytes(*free), format_bytes(needed),
                    needed > bytes ? " with the best" : "", format_bytes(needed - *free)));
}

}  // namespace trireme
