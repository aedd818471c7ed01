#include "trireme/train/run_directory.h"

#include "agree.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/formats/finished_run.h"
#include "trireme/formats/training_checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <string_view>

namespace trireme {

namespace {

bool decides(std::string_view key) {
  for (const std::string_view free : {"logging.", "output.", "parallel.", "eval.", "batch.micro_batch_size",
                                      "data.train", "data.valid", "model.path", "train.on_nonfinite", "train.on_spike"})
    if (key.starts_with(free)) return false;
  return true;
}

struct ConfigurationChanges {
  std::vector<std::string> deciding, free;  // "optimizer.lr was 0.001, is 0.002"
};

ConfigurationChanges changes(const Config& before, const Config& now) {
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const auto& [key, value] : flatten_config(before)) values[key].first = value;
  for (const auto& [key, value] : flatten_config(now)) values[key].second = value;
  ConfigurationChanges result;
  for (const auto& [key, pair] : values) {
    if (pair.first == pair.second || key == "output.dir") continue;
    const auto shown = [](const std::string& value) { return value.empty() ? std::string("not there") : value; };
    // More steps are an extension: the steps that are done stay as they are.
    const bool extension = key == "train.max_steps" && now.train.max_steps > before.train.max_steps;
    (decides(key) && !extension ? result.deciding : result.free)
        .push_back(fmt::format("{} was {}, is {}", key, shown(pair.first), shown(pair.second)));
  }
  return result;
}

std::string host_name() {
  char name[256] = "?";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string new_run_id() {
  std::random_device entropy;
  const std::string text = fmt::format("{} {} {} {} {}", host_name(), getpid(), utc_timestamp(), entropy(), entropy());
  return hex64(xxh3_64(text.data(), text.size()));
}

}  // namespace

std::string configuration_hash(const Config& config) {
  std::string text;
  for (const auto& [key, value] : flatten_config(config))
    if (decides(key)) text += key + "=" + value + "\n";
  return hex64(xxh3_64(text.data(), text.size()));
}

std::vector<std::string> deciding_changes(const Config& before, const Config& now) {
  return changes(before, now).deciding;
}

RunDirectory::RunDirectory(const Config& config, World& world, ResumeChoices choices)
    : path_(config.output.dir), choices_(choices) {
  agree(world.communicator(), [&] {
    if (world.communicator().rank() == 0) open_as_rank_zero(config);
  });
  run_id_ = world.communicator().all_gather_host(run_id_)[0];
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) close(lock_);
}

void RunDirectory::take_lock(const std::string& run_id) {
  const std::filesystem::path lock_path = path_ / ".lock";
  lock_ = open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock_ < 0)
    throw WriteError(fmt::format("cannot write in output.dir {}: {}", path_.string(), std::strerror(errno)));
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error != EWOULDBLOCK)
      throw WriteError(fmt::format("cannot lock {}: {}; choose an output.dir on a file system with locks",
                                   lock_path.string(), std::strerror(error)));
    std::string owner = read_text_file(lock_path, ExitCode::kCannotWrite, 4096);
    while (owner.ends_with('\n')) owner.pop_back();
    throw WriteError(
        fmt::format("output.dir {} is in use by another run ({}): wait for it or choose another output.dir",
                    path_.string(), owner.empty() ? "just starting" : owner));
  }
  const std::string owner =
      fmt::format("run {} on host {}, process {}, since {}\n", run_id, host_name(), getpid(), utc_timestamp());
  if (ftruncate(lock_, 0) != 0 || pwrite(lock_, owner.data(), owner.size(), 0) != static_cast<ssize_t>(owner.size()))
    throw WriteError(fmt::format("cannot write to {}: {}", lock_path.string(), std::strerror(errno)));
}

void RunDirectory::accept_configuration(const Config& config) const {
  const std::filesystem::path config_path = path_ / "config.yaml";
  const std::string ours = print_config(config);
  if (read_text_file(config_path, ExitCode::kCannotWrite) == ours) return;
  Config before;
  try {
    before = load_config(config_path, {});
  } catch (const Error& error) {
    throw WriteError(
        fmt::format("{}\noutput.dir {} belongs to a run whose config.yaml cannot be read: choose "
                    "another output.dir",
                    error.what(), path_.string()));
  }
  const ConfigurationChanges changed = changes(before, config);
  if (!changed.deciding.empty()) {
    std::vector<std::string> shown(
        changed.deciding.begin(),
        changed.deciding.begin() + std::min<long>(5, static_cast<long>(changed.deciding.size())));
    if (changed.deciding.size() > shown.size())
      shown.push_back(fmt::format("and {} more", changed.deciding.size() - shown.size()));
    throw WriteError(
        fmt::format("output.dir {} belongs to another run: {}. Set the key{} back, or choose "
                    "another output.dir",
                    path_.string(), join(shown, "; "), changed.deciding.size() > 1 ? "s" : ""));
  }
  for (const std::string& change : changed.free) log_info(fmt::format("going on with another setting: {}", change));
  write_file_atomic(config_path, ours);
}

/// A finished run may go on when it has more steps to do and a checkpoint to go on from.
void RunDirectory::check_extension(const Config& config, const char* artefact) const {
  const auto finished = finished_run(path_);
  if (!finished || finished->max_steps >= config.train.max_steps)
    throw WriteError(fmt::format(
        "output.dir {} holds this run, finished{} ({}): raise train.max_steps to go on from there, or choose "
        "another output.dir to run it again",
        path_.string(), finished ? fmt::format(" after step {}", finished->step) : "", artefact));
  if (list_checkpoints(checkpoints()).empty())
    throw WriteError(
        fmt::format("output.dir {} holds this run, finished after step {}, and no checkpoint to go on from "
                    "(output.save_every_samples makes the last step one): choose another output.dir",
                    path_.string(), finished->step));
}

void RunDirectory::open_as_rank_zero(const Config& config) {
  try {
    make_directories(path_);
  } catch (const Error& error) {
    throw WriteError(fmt::format("{}: choose another output.dir", error.what()));
  }
  const std::filesystem::path identity_path = path_ / "run.json";
  run_id_ = new_run_id();
  bool known = false;
  if (std::filesystem::exists(identity_path)) {
    const auto identity = nlohmann::json::parse(read_text_file(identity_path, ExitCode::kCannotWrite), nullptr,
                                                /*allow_exceptions=*/false);
    if (!identity.is_object() || !identity.contains("run_id") || !identity["run_id"].is_string() ||
        identity["run_id"].get<std::string>().find_first_not_of("0123456789abcdef") != std::string::npos)
      throw WriteError(fmt::format("{} is damaged: it should name the run by a run_id of hexadecimal digits",
                                   identity_path.string()));
    run_id_ = identity["run_id"].get<std::string>();
    known = true;
  }
  take_lock(run_id_);

  const std::filesystem::path config_path = path_ / "config.yaml";
  if (std::filesystem::exists(config_path)) {
    const char* artefact = config.lora ? "adapter/adapter_config.json" : "model/config.json";
    accept_configuration(config);
    if (std::filesystem::exists(path_ / artefact)) check_extension(config, artefact);
  } else {
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      if (entry.path().filename() != ".lock" && entry.path().filename() != "run.json")
        throw WriteError(
            fmt::format("output.dir {} is not empty and holds no run of ours (found {}): choose "
                        "another output.dir",
                        path_.string(), entry.path().filename().string()));
    write_file_atomic(config_path, print_config(config));
  }
  if (!known)
    write_file_atomic(
        identity_path,
        nlohmann::json({{"run_id", run_id_}, {"host", host_name()}, {"started", utc_timestamp()}}).dump(2) + "\n");
}

}  // namespace trireme
