#include "trireme/train/run_directory.h"

#include "agree.h"
#include "checkpoint.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

namespace trireme {

namespace {

/// Top-level keys and their blocks differ: the first few lines that are not the same, for people.
std::string differing_lines(const std::string& ours, const std::string& theirs) {
  const auto a = split(ours, '\n'), b = split(theirs, '\n');
  const std::set<std::string> mine(a.begin(), a.end());
  std::vector<std::string> different;
  for (const std::string& line : b)
    if (!mine.contains(line) && different.size() < 3) different.push_back(line.substr(line.find_first_not_of(' ') == std::string::npos ? 0 : line.find_first_not_of(' ')));
  return join(different, ", ");
}

}  // namespace

RunDirectory::RunDirectory(const Config& config, World& world) : path_(config.output.dir) {
  agree(world.communicator(), [&] {
    if (world.communicator().rank() == 0) open_as_rank_zero(config);
  });
  const auto steps = world.communicator().all_gather_host(std::to_string(resume_step_.value_or(-1)));
  if (const int64_t step = std::stoll(steps[0]); step >= 0) resume_step_ = step;
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) close(lock_);
}

void RunDirectory::open_as_rank_zero(const Config& config) {
  make_directories(path_);
  const std::filesystem::path lock_path = path_ / ".lock";
  lock_ = open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock_ < 0) throw WriteError(fmt::format("cannot write in output.dir {}: {}", path_.string(), std::strerror(errno)));
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0)
    throw WriteError(fmt::format("output.dir {} is in use by another run: wait for it or choose another output.dir", path_.string()));

  const std::string ours = print_config(config);
  const std::filesystem::path config_path = path_ / "config.yaml";
  if (std::filesystem::exists(config_path)) {
    const std::string theirs = read_text_file(config_path, ExitCode::kCannotWrite);
    if (theirs != ours)
      throw WriteError(fmt::format("output.dir {} belongs to another run (its config.yaml has {}): choose another output.dir or remove it",
                                   path_.string(), differing_lines(ours, theirs)));
    const char* artefact = config.lora ? "adapter/adapter_config.json" : "model/config.json";
    if (std::filesystem::exists(path_ / artefact))
      throw WriteError(fmt::format("output.dir {} holds this run, finished ({}): choose another output.dir to run it again", path_.string(),
                                   artefact));
    resume_step_ = newest_checkpoint(path_ / "checkpoints");
    return;
  }
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    if (entry.path().filename() != ".lock")
      throw WriteError(fmt::format("output.dir {} is not empty and holds no run of ours (found {}): choose another output.dir",
                                   path_.string(), entry.path().filename().string()));
  write_file_atomic(config_path, ours);
}

std::filesystem::path RunDirectory::checkpoint_path(int64_t step) const {
  return path_ / "checkpoints" / fmt::format("step-{:08}", step);
}

}  // namespace trireme
