// `trireme checkpoint ls|verify|prune`: the checkpoints of a run.
#include "checkpoint_selection.h"
#include "tools.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/formats/checkpoint/finished_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <memory>

namespace trireme {

namespace fs = std::filesystem;

namespace {

void list(const fs::path& path) {
  const std::vector<fs::path> directories = selected_checkpoints(path);
  fmt::print("{:<16}{:>12}{:>10}{:>7}{:>12}  {:<18}{}\n", "checkpoint", "samples", "ranks", "shard", "size", "run",
             "state");
  int64_t whole = 0, all = 0;
  for (const fs::path& directory : directories) {
    CheckpointManifest m;
    std::string problem;
    try {
      problem = checkpoint_layout_problem(directory, m);
    } catch (const StorageError& error) {
      problem = error.what();
    }
    ++all;
    whole += problem.empty();
    fmt::print("{:<16}{:>12}{:>10}{:>7}{:>12}  {:<18}{}\n", directory.filename().string(), m.samples, m.world_size,
               m.shard_size, format_bytes(m.total_bytes()), m.run_id.empty() ? "-" : m.run_id,
               problem.empty() ? "whole" : problem);
  }
  fmt::print("{} of {} whole by sizes and headers; `trireme checkpoint verify` reads every byte\n", whole, all);
}

void verify(const fs::path& path) {
  std::vector<std::string> damaged;
  std::string unread;  // of the newest that the storage does not give
  for (const fs::path& directory : selected_checkpoints(path)) {
    CheckpointManifest manifest;
    const double begin = steady_seconds();
    std::string problem;
    try {
      problem = checkpoint_problem(directory, manifest);
    } catch (const StorageError& error) {
      fmt::print("{}: not read: {}\n", directory.filename().string(), error.what());
      if (unread.empty()) unread = error.what();
      continue;
    }
    const double seconds = steady_seconds() - begin, bytes = static_cast<double>(manifest.total_bytes());
    if (problem.empty()) {
      fmt::print("{}: whole, {} in {}, read at {}/s\n", directory.filename().string(), format_bytes(bytes),
                 counted(manifest.files.size(), "file"), format_bytes(bytes / seconds));
    } else {
      fmt::print("{}: damaged: {}\n", directory.filename().string(), problem);
      damaged.push_back(directory.filename().string());
    }
  }
  if (!damaged.empty())
    throw ModelError(fmt::format("{} in {}: a restarted run resumes from the newest whole one",
                                 damaged.size() == 1 ? fmt::format("{} is damaged", damaged[0])
                                                     : fmt::format("{} checkpoints are damaged", damaged.size()),
                                 path.string()));
  if (!unread.empty())
    throw ModelError(
        fmt::format("{}: this says nothing of the checkpoint; try again when the storage answers", unread));
}

// --- prune ---------------------------------------------------------------------------------------

/// Refuses while a run trains there: the run removes old checkpoints itself.
class IdleRun {
 public:
  explicit IdleRun(const fs::path& run) {
    const fs::path lock = run / kLockName;
    if (!fs::exists(lock)) return;
    // To be read: another user's may not be written.
    fd_ = open(lock.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ >= 0 && flock(fd_, LOCK_SH | LOCK_NB) == 0) return;
    const int error = errno;
    if (fd_ >= 0) close(fd_);
    if (error != EWOULDBLOCK)
      throw WriteError(fmt::format("a run may be training in {}: cannot lock {}: {}", run.string(), lock.string(),
                                   std::strerror(error)));
    throw WriteError(fmt::format(
        "a run is training in {}: wait for its end (it keeps the newest output.keep_last checkpoints itself)",
        run.string()));
  }
  ~IdleRun() {
    if (fd_ >= 0) close(fd_);
  }
  IdleRun(const IdleRun&) = delete;
  IdleRun& operator=(const IdleRun&) = delete;

 private:
  int fd_ = -1;
};

void prune(const fs::path& path, int64_t keep, bool dry_run) {
  if (is_checkpoint(path))
    throw ConfigError(
        fmt::format("{} is one checkpoint: prune takes a run's output.dir or its checkpoints", path.string()));
  const fs::path checkpoints = checkpoint_collection(path);
  const std::set<fs::path> runs = runs_of_checkpoints(path);
  std::list<IdleRun> idle;
  for (const fs::path& run : runs) idle.emplace_back(run);
  std::vector<fs::path> removed;
  std::map<std::string, int64_t> kept;  // by run: each run keeps its own newest checkpoints
  int64_t whole = 0;
  for (const auto& [step, directory] : list_checkpoints(checkpoints)) {
    CheckpointManifest manifest;
    // Verifies every byte of the checkpoints to keep: a damaged checkpoint must not replace an older intact one.
    if (const std::string problem = checkpoint_layout_problem(directory, manifest);
        problem.empty() && kept[manifest.run_id] >= keep) {
      removed.push_back(directory);
    } else if (const std::string damage = checkpoint_problem(directory, manifest); damage.empty()) {
      ++kept[manifest.run_id];
      ++whole;
    } else {
      log_warn(fmt::format("{} is damaged and stays: {}", directory.string(), damage));
    }
  }
  if (whole == 0)
    throw ModelError(fmt::format("no checkpoint in {} is whole: nothing is removed", checkpoints.string()));
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.starts_with("step-") &&
        (name.find(".tmp-") != std::string::npos || name.ends_with(".damaged")))
      removed.push_back(entry.path());
  }
  for (const fs::path& directory : removed) {
    fmt::print("{} {}\n", dry_run ? "would remove" : "removing", directory.string());
    std::error_code error;
    if (!dry_run) fs::remove_all(directory, error);
    if (error) throw WriteError(fmt::format("cannot remove {}: {}", directory.string(), error.message()));
  }
  fmt::print("{} whole kept, {} director{} {}\n", whole, removed.size(), removed.size() == 1 ? "y" : "ies",
             dry_run ? "to remove" : "removed");
  size_t files = 0;
  for (const fs::path& run : runs)
    if (!dry_run && fs::exists(run / kLockName))
      for (const fs::path& folder : {run, run / "adapter", run / "model"}) files += remove_dead_temporaries(folder);
  if (files > 0) fmt::print("removed {} of interrupted writes\n", counted(files, "file"));
}

}  // namespace

void add_checkpoint_tool(CLI::App& app) {
  CLI::App* tool = app.add_subcommand("checkpoint", "Checkpoints of a run: ls, verify, export, prune");
  tool->require_subcommand(1);

  auto directory = std::make_shared<std::string>();
  CLI::App* ls = tool->add_subcommand("ls", "List the checkpoints, newest first");
  ls->add_option("dir", *directory, "A run's output.dir, its checkpoints, or one checkpoint")->required();
  ls->callback([directory] { list(*directory); });

  CLI::App* verify_tool =
      tool->add_subcommand("verify", "Read every byte and compare the hashes; exit 4 when something is damaged");
  verify_tool->add_option("dir", *directory, "A run's output.dir, its checkpoints, or one checkpoint")->required();
  verify_tool->callback([directory] { verify(*directory); });

  add_checkpoint_export(*tool);

  auto keep = std::make_shared<int64_t>(2);
  auto dry_run = std::make_shared<bool>(false);
  CLI::App* prune_tool =
      tool->add_subcommand("prune", "Remove all but the newest whole checkpoints, and temporary files of dead runs");
  prune_tool->add_option("dir", *directory, "A run's output.dir or its checkpoints")->required();
  prune_tool->add_option("--keep", *keep, "Number of whole checkpoints to keep")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  prune_tool->add_flag("--dry-run", *dry_run, "Only list what would be removed");
  prune_tool->callback([directory, keep, dry_run] { prune(*directory, *keep, *dry_run); });
}

}  // namespace trireme
