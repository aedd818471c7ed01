#include "run_directory.h"

#include "data/rows.h"
#include "data/stream/documents.h"
#include "log_styles.h"
#include "models/decoder/config.h"
#include "models/decoder/decoder.h"
#include "models/decoder/vocabulary.h"
#include "step_guard.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/temporary_file.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/collective_check.h"
#include "trireme/config/keys.h"
#include "trireme/formats/checkpoint/finished_run.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/optim/optimizer.h"
#include "trireme/plan/precision.h"
#include "trireme/watchdog/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

namespace trireme {

namespace {

/// Whether both warm-ups can be one schedule.warmup_ratio of their runs' steps. Loading replaces the ratio by steps.
bool same_warmup_ratio(const Config& a, const Config& b) {
  const int64_t a_steps = a.schedule.warmup_steps, b_steps = b.schedule.warmup_steps;
  return (a_steps - 1) * b.train.max_steps <= b_steps * a.train.max_steps &&
         (b_steps - 1) * a.train.max_steps <= a_steps * b.train.max_steps;
}

struct ConfigurationChanges {
  std::vector<std::string> deciding, free;  // "optimizer.lr was 0.001, is 0.002"
};

/// The run's with what it has where the file leaves a list or a number to a default, and with its sets in one order.
Config with_defaults(Config config) {
  // Entries with names are parts of their own: without weights the parts have equal weights.
  if (config.data.weights.empty() && config.data.names.size() > 1)
    config.data.weights.assign(config.data.names.size(), 1);
  if (config.data.train.size() == 1) config.data.weights.clear();
  if (config.data.splits) std::erase(*config.data.splits, ' ');
  config.schedule.min_lr_factor = min_lr_factor(config.schedule);
  if (config.train.objective != TrainSection::Objective::kSft && !config.preference) config.preference.emplace();
  if (config.preference && !config.preference->precompute_ref_log_probs)
    config.preference->precompute_ref_log_probs = !config.lora;
  const auto sort = [](auto&... sets) { (std::ranges::sort(sets), ...); };
  std::vector<int64_t>& stripped = config.data.strip_tokens;
  sort(stripped);
  stripped.erase(std::ranges::unique(stripped).begin(), stripped.end());
  if (config.lora) {
    LoraSection& lora = *config.lora;
    for (auto& [module, ids] : lora.trainable_token_indices) {
      if (module == "embed_tokens" || module == "wte") module = "";
      sort(ids);
    }
    for (ModuleSelector* modules : {&lora.target_modules, &lora.exclude_modules})
      if (lower(modules->pattern) == ModuleSelector::kAllLinear) modules->pattern = ModuleSelector::kAllLinear;
    sort(lora.target_modules.names, lora.exclude_modules.names, lora.layers_to_transform, lora.rank_pattern,
         lora.alpha_pattern, lora.modules_to_save, lora.trainable_token_indices);
  }
  return config;
}

/// Whether both lists give every part the same share, to the bit. From eight numbers on the kinds of data sum them in
/// different orders: only a power of two keeps all shares then.
bool same_shares(std::vector<double> a, std::vector<double> b) {
  constexpr size_t kSummedInOrder = 8;
  for (std::vector<double>* weights : {&a, &b}) {
    double by = std::accumulate(weights->begin(), weights->end(), 0.0);
    if (weights->size() >= kSummedInOrder) by = std::exp2(std::ilogb(weights->front()));
    for (double& weight : *weights) weight /= by;
  }
  return a == b;
}

/// Every key with the value that the run has.
std::map<std::string, std::string> resolved_values(const Config& config, const NullValues& nulls) {
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : flatten_config(config)) {
    const auto null = nulls.find(key);
    values[key] = value == "null" && null != nulls.end() ? null->second : value;
  }
  return values;
}

/// Whether both configurations give the model of this run the same adapters.
bool same_adapters(const Config& before, const Config& now) {
  if (!before.lora || !now.lora) return false;
  try {
    const DecoderConfig shape = read_model_shape(now.model.path);
    const DecoderModel a(shape, before.lora), b(shape, now.lora);
    return a.targets() == b.targets() && a.embedding_adapter() == b.embedding_adapter();
  } catch (const Error&) {
    return false;  // the task says what is wrong with the model
  }
}

/// Whether both configurations give the model of this run as many rows of the vocabulary.
bool same_rows(const Config& before, const Config& now, const NullValues& nulls) {
  if (!nulls.contains("model.vocab_size")) return false;
  const auto rows = [&](const ModelSection& model) {
    const auto or_null = [&](const std::optional<int64_t>& value, const char* key) {
      return value ? value : parse_whole<int64_t>(nulls.at(key));
    };
    return resized_vocab(or_null(model.vocab_size, "model.vocab_size").value(), std::nullopt,
                         or_null(model.pad_vocab_to, "model.pad_vocab_to"));
  };
  return rows(before.model) == rows(now.model);
}

/// Whether a key whose values differ has one meaning in both. DataError for data that cannot be read.
bool means_the_same(const std::string& key, const Config& before, const Config& now, const NullValues& nulls) {
  for (const char* name : {"r", "alpha", "use_rslora", "target_modules", "exclude_modules", "layers_to_transform",
                           "rank_pattern", "alpha_pattern"})
    if (key == std::string("lora.") + name) return same_adapters(before, now);
  if (key == "model.pad_vocab_to") return same_rows(before, now, nulls);
  if (key == "data.weights") return same_shares(before.data.weights, now.data.weights);
  if (key == "data.column") {
    const std::optional<std::string>&then = before.data.column, &column = now.data.column;
    if (then.has_value() == column.has_value()) return false;
    return std::ranges::all_of(std::array{&now.data.train, &now.data.valid, &now.data.test}, [&](const auto* files) {
      return is_chosen_column(to_paths(*files), column ? *column : *then);
    });
  }
  const auto rate = [](const OptimizerSection& of) { return of.matrix_lr.value_or(of.lr); };
  if (key == "optimizer.matrix_lr") return rate(before.optimizer) == rate(now.optimizer);
  const bool of_frozen = key == "precision.frozen" || (key == "precision.linear" && before.lora && now.lora);
  return of_frozen && frozen_recipe(before) == frozen_recipe(now) && frozen_nf4(before) == frozen_nf4(now);
}

ConfigurationChanges changes(const Config& saved, const Config& given, const NullValues& nulls) {
  const Config before = with_defaults(saved), now = with_defaults(given);
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const auto& [key, value] : resolved_values(before, nulls)) values[key].first = value;
  for (const auto& [key, value] : resolved_values(now, nulls)) values[key].second = value;
  ConfigurationChanges result;
  for (const auto& [key, pair] : values) {
    if (pair.first == pair.second || key == "output.dir" || means_the_same(key, before, now, nulls)) continue;
    const auto shown = [](const std::string& value) { return value.empty() ? std::string("not there") : value; };
    // Of these keys only the steps that they come to are kept.
    const std::string also = key == "schedule.warmup_steps" ? " (schedule.warmup_ratio counts as its steps)"
                             : key == "train.max_steps"     ? " (train.epochs counts as its steps)"
                                                            : "";
    // More steps are an extension: the steps that are done stay as they are.
    const bool extension =
        now.train.max_steps > before.train.max_steps &&
        (key == "train.max_steps" || (key == "schedule.warmup_steps" && same_warmup_ratio(before, now)));
    // A run starts from an adapter or it does not; where the adapter lies may change.
    const bool adapter = key == "lora.adapter" && (pair.first == "null" || pair.second == "null");
    (adapter || (!key_traits(key).may_change && !extension) ? result.deciding : result.free)
        .push_back(fmt::format("{} was {}, is {}{}", key, shown(pair.first), shown(pair.second), also));
  }
  return result;
}

std::string new_run_id() {
  std::random_device entropy;
  const std::string text = fmt::format("{} {} {} {} {}", host_name(), getpid(), utc_timestamp(), entropy(), entropy());
  return hex64(xxh3_64(text.data(), text.size()));
}

/// What a new file system has at its mount point.
constexpr const char* kLostAndFound = "lost+found";

/// An empty directory, also one that is a mount point.
bool holds_nothing(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  if (!entry.is_directory(error)) return false;
  for (const auto& inside : std::filesystem::directory_iterator(entry.path(), error))
    if (inside.path().filename() != kLostAndFound) return false;
  return !error;
}

/// Whether a start leaves this in output.dir before its first step has ended. Without a config.yaml it may be removed.
bool is_leftover(const std::filesystem::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  if (name == "tensorboard" || name == "profile") return entry.is_directory();
  if (is_temporary(name)) return entry.is_regular_file();
  return name == "metrics.jsonl" || name == "mllog.log" || is_results_file(name);
}

/// WriteError where `path` is not a writable directory and cannot be created. Changes nothing.
void check_can_be_made(const std::filesystem::path& path) {
  const auto fail = [&](const char* why) {
    throw WriteError(fmt::format("cannot create directory {}: {}: choose another output.dir", path.string(), why));
  };
  for (std::filesystem::path at = path; !at.empty(); at = at.parent_path()) {
    struct stat status{};
    if (stat(at.c_str(), &status) == 0) {
      if (!S_ISDIR(status.st_mode)) fail(at == path ? "a file of that name exists" : std::strerror(ENOTDIR));
      if (access(at.c_str(), W_OK | X_OK) != 0) {
        const std::string why = std::strerror(errno);
        if (at != path) fail(why.c_str());
        throw WriteError(fmt::format(
            "cannot write in output.dir {}: {}: make it writable, or choose another output.dir", path.string(), why));
      }
      struct statfs system{};
      const bool known = statfs(at.c_str(), &system) == 0;
      if (known && (system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC))
        fail("it is on a file system of the kernel");
      return;
    }
    if (errno != ENOENT) fail(std::strerror(errno));
    if (lstat(at.c_str(), &status) == 0) fail("a dangling link of that name exists");
  }
}

/// The same of output.dir and of the folders in it that the run cannot do without.
void check_can_be_made(const Config& config) {
  const std::filesystem::path path = config.output.dir;
  check_can_be_made(path);
  for (const char* folder : {"checkpoints", config.lora ? "adapter" : "model"}) check_can_be_made(path / folder);
}

/// Who holds the lock of the directory, as its file says; "just starting" where it does not say.
std::string lock_owner(const std::filesystem::path& lock_path) {
  std::string owner = read_text_file(lock_path, ExitCode::kCannotWrite, 4096);
  while (owner.ends_with('\n')) owner.pop_back();
  return owner.empty() ? "just starting" : owner;
}

[[noreturn]] void refuse_locked(const std::filesystem::path& path) {
  throw WriteError(fmt::format("output.dir {} is in use by another run ({}): wait for it or choose another output.dir",
                               path.string(), lock_owner(path / kLockName)));
}

[[noreturn]] void refuse_foreign(const std::filesystem::path& path, const std::string& name) {
  throw WriteError(
      fmt::format("output.dir {} is not empty and holds no run of ours (found {}): choose another output.dir",
                  path.string(), name));
}

/// Whether an earlier start, which was not refused, has left its lock file. A start that is under way writes to the
/// file only once it is accepted.
bool started_before(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path / kLockName)) return false;
  const std::string text = read_text_file(path / kLockName, ExitCode::kCannotWrite, 4096);
  if (!text.empty() && !text.starts_with("run ")) refuse_foreign(path, kLockName);
  return !text.empty();
}

/// The content of output.dir at a start.
struct DirectoryState {
  std::string run_id;      // of the run that the directory belongs to, or empty
  bool same_text = false;  // its config.yaml is what this run would write
  std::vector<std::filesystem::path> leftovers;
  std::vector<std::string> changes;  // of keys that may change
  bool nothing_left = false;         // Slurm queued the job again after its run had finished
};

/// The changed keys that may differ when a run goes on; WriteError that names the others.
std::vector<std::string> accept_configuration(const std::filesystem::path& path, const Config& config,
                                              const NullValues& nulls) {
  Config before;
  try {
    before =
        parse_config(read_text_file(path / "config.yaml", ExitCode::kCannotWrite), (path / "config.yaml").string());
  } catch (const Error& error) {
    throw WriteError(
        fmt::format("{}\noutput.dir {} belongs to a run whose config.yaml cannot be read: choose "
                    "another output.dir",
                    error.what(), path.string()));
  }
  ConfigurationChanges changed = changes(before, config, nulls);
  if (changed.deciding.empty()) return std::move(changed.free);
  std::vector<std::string> shown(
      changed.deciding.begin(),
      changed.deciding.begin() + std::min<long>(5, static_cast<long>(changed.deciding.size())));
  if (changed.deciding.size() > shown.size())
    shown.push_back(fmt::format("and {} more", changed.deciding.size() - shown.size()));
  throw WriteError(
      fmt::format("output.dir {} belongs to another run: {}. Set the key{} back, or choose "
                  "another output.dir",
                  path.string(), join(shown, "; "), changed.deciding.size() > 1 ? "s" : ""));
}

/// Whether Slurm started this job before: it has lost a node as the job ended, or was told to.
bool queued_again() { return std::atoi(environment("SLURM_RESTART_COUNT").c_str()) > 0; }

bool holds_checkpoints(const std::filesystem::path& path) {
  try {
    return !list_checkpoints(path / "checkpoints").empty();
  } catch (const StorageError& error) {
    throw Error(error.code(), fmt::format("{}: nothing is changed; start again when it can be read", error.what()));
  }
}

/// Of a directory that holds what the run trained: WriteError unless the run has more to do and a checkpoint to go on
/// from, or false where it has finished in this job, which Slurm queued again. A run that was killed before its record
/// was written has its end to do.
bool check_extension(const std::filesystem::path& path, const Config& config, const char* artefact) {
  const auto finished = finished_run(path);
  const bool done = finished && finished->max_steps >= config.train.max_steps;
  if (done && queued_again() && !finished->job.empty() && finished->job == slurm_job()) {
    log_info(
        fmt::format("output.dir {} holds this run, finished after step {} in this job ({}): the job was queued again, "
                    "and nothing is left to do",
                    path.string(), finished->step, finished->job));
    return false;
  }
  if (done)
    throw WriteError(fmt::format(
        "output.dir {} holds this run, finished after step {} ({}): raise train.max_steps{} to go on from there, or "
        "choose another output.dir to run it again",
        path.string(), finished->step, artefact,
        finished->step < config.train.max_steps ? " and what ended it before that (train.patience, eval.target_loss)"
                                                : ""));
  if (!holds_checkpoints(path))
    throw WriteError(fmt::format(
        "output.dir {} holds this run, {}, and no checkpoint to go on from{}: choose another output.dir", path.string(),
        finished ? fmt::format("finished after step {}", finished->step)
                 : fmt::format("ended after it wrote {}", artefact),
        config.output.save_every_samples || config.output.save_every_minutes
            ? ""
            : " (output.save_every_samples makes the last step one)"));
  return true;
}

/// For a run without checkpoints. ModelError where metrics.jsonl names a save: what holds them may not be mounted.
void check_lost_checkpoints(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path / "metrics.jsonl")) return;
  std::istringstream metrics(read_text_file(path / "metrics.jsonl", ExitCode::kCannotWrite, SIZE_MAX));
  for (std::string line; std::getline(metrics, line);)
    if (line.find(R"("event":"save",)") != std::string::npos)
      throw ModelError(
          fmt::format("{} holds no checkpoint, and metrics.jsonl says that this run saved some: mount or restore it, "
                      "or add --allow-fresh to start afresh",
                      (path / "checkpoints").string()));
}

/// Reads an existing directory. `ours`: it was started_before(). WriteError, ModelError.
DirectoryState inspect(const std::filesystem::path& path, const Config& config, const ResumeChoices& choices,
                       bool ours) {
  DirectoryState state;
  state.run_id = known_run_id(path);
  const bool has_checkpoints = holds_checkpoints(path);
  const bool known = ours || !state.run_id.empty() || has_checkpoints;
  if (known && std::filesystem::exists(path / "config.yaml")) {
    state.same_text = read_text_file(path / "config.yaml", ExitCode::kCannotWrite) == print_config(config);
    if (!state.same_text) state.changes = accept_configuration(path, config, choices.nulls);
    const char* artefact = config.lora ? "adapter/adapter_config.json" : "model/config.json";
    if (std::filesystem::exists(path / artefact)) state.nothing_left = !check_extension(path, config, artefact);
    if (!has_checkpoints && !state.nothing_left && !choices.allow_fresh) check_lost_checkpoints(path);
    if (!has_checkpoints && !state.nothing_left && !state.run_id.empty() &&
        !std::filesystem::exists(path / "metrics.jsonl"))
      log_warn(fmt::format(
          "output.dir {} holds an earlier start of this run, and neither its metrics.jsonl nor a checkpoint: "
          "the run starts again",
          path.string()));
    return state;
  }
  if (has_checkpoints && (ours || !state.run_id.empty()))
    throw WriteError(
        fmt::format("output.dir {} has checkpoints and no config.yaml: restore it, also from the text in {} of a "
                    "checkpoint, or choose "
                    "another output.dir",
                    path.string(), kManifestName));
  if (known && !has_checkpoints && !choices.allow_fresh) check_lost_checkpoints(path);
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    // profile_logs: nsys writes there from before the start on (`trireme launch`).
    if (name == kLockName || name == "run.json" || name == "profile_logs" || name == kLostAndFound) continue;
    if (name == "checkpoints" && holds_nothing(entry)) continue;  // a mount point, or a link to a faster file system
    if (!ours || !is_leftover(entry)) refuse_foreign(path, name);
    state.leftovers.push_back(entry.path());
  }
  return state;
}

}  // namespace

std::string slurm_job() { return environment("SLURM_JOB_ID"); }

std::string configuration_hash(const Config& config) {
  std::string text;
  for (const auto& [key, value] : flatten_config(config))
    if (!key_traits(key).may_change) text += key + "=" + value + "\n";
  return hex64(xxh3_64(text.data(), text.size()));
}

NullValues null_values(const Config& config, const ProgramKeys& program, bool gpu) {
  Config without_type = config;
  without_type.precision.compute.reset();
  NullValues nulls = {
      {"precision.compute", type_name(compute_dtype(without_type, gpu))},
      {"precision.loss_scale", format_exact(StepGuard::kInitialLossScale)},
      {"model.pad_vocab_to", std::to_string(program.vocab_multiple)},
      {"preference.loss_type", config.train.objective == TrainSection::Objective::kKto ? "kto" : "sigmoid"}};
  if (!program.features.has(Feature::kVocabularySize)) return nulls;
  try {
    const DecoderConfig shape = read_model_shape(config.model.path);
    nulls["model.vocab_size"] = std::to_string(shape.vocab_size);
    nulls["model.scaled_residual_init"] = shape.scaled_residual_init ? "true" : "false";
  } catch (const Error&) {
    // The task says what is wrong with the model.
  }
  return nulls;
}

std::vector<std::string> deciding_changes(const Config& before, const Config& now, const NullValues& nulls) {
  return changes(before, now, nulls).deciding;
}

std::string known_run_id(const std::filesystem::path& path) {
  const std::filesystem::path identity_path = path / "run.json";
  if (!std::filesystem::exists(identity_path)) return "";
  const auto identity = nlohmann::json::parse(read_text_file(identity_path, ExitCode::kCannotWrite), nullptr,
                                              /*allow_exceptions=*/false);
  if (!identity.is_object() || !identity.contains("run_id") || !identity["run_id"].is_string() ||
      identity["run_id"].get<std::string>().find_first_not_of("0123456789abcdef") != std::string::npos)
    throw WriteError(fmt::format(
        "{} is damaged: it should name the run by a run_id of hexadecimal digits, which {} of its checkpoints "
        "hold too: restore it, or choose another output.dir",
        identity_path.string(), kManifestName));
  return identity["run_id"].get<std::string>();
}

RunDirectory::RunDirectory(const Config& config, World& world, ResumeChoices choices)
    : path_(config.output.dir), choices_(std::move(choices)) {
  const bool first = world.communicator().rank() == 0;
  std::string owner;
  collective_check(world.communicator(), [&] {
    if (!first) return;
    open_as_rank_zero(config);
    owner = lock_owner(path_ / kLockName);
  });
  const std::string mine =
      fmt::format("{}{}{}\n{}", has_checkpoints_ ? '+' : '-', nothing_left_ ? '+' : '-', run_id_, owner);
  const std::string from_rank_zero = world.communicator().all_gather_host(mine)[0];
  const size_t newline = from_rank_zero.find('\n');
  has_checkpoints_ = from_rank_zero[0] == '+';
  nothing_left_ = from_rank_zero[1] == '+';
  run_id_ = from_rank_zero.substr(2, newline - 2);
  collective_check(world.communicator(), [&] {
    if (!first) look_from_another_rank(from_rank_zero.substr(newline + 1));
  });
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) close(lock_);
}

bool RunDirectory::take_lock() {
  const std::filesystem::path lock_path = path_ / kLockName;
  bool made = false;
  for (int attempt = 0;; ++attempt) {
    lock_ = open(lock_path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
    made = lock_ >= 0;
    if (!made) lock_ = open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (lock_ < 0) write_failed("open", lock_path.string());
    // A dry run that tests the lock, and a start that is refused, hold it for an instant.
    const bool held = flock(lock_, LOCK_EX | LOCK_NB) == 0;
    if (const int error = errno; !held && error != EWOULDBLOCK)
      throw WriteError(fmt::format("cannot lock {}: {}; choose an output.dir on a file system with locks",
                                   lock_path.string(), std::strerror(error)));
    // A refused start has removed its lock file, perhaps between open() and flock() here.
    struct stat ours{}, named{};
    if (held && fstat(lock_, &ours) == 0 && stat(lock_path.c_str(), &named) == 0 && ours.st_ino == named.st_ino)
      return made;
    if (attempt == 3) refuse_locked(path_);
    close(lock_);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void RunDirectory::sign_lock() const {
  const std::filesystem::path lock_path = path_ / kLockName;
  const std::string owner =
      fmt::format("run {} on host {}, process {}, since {}\n", run_id_, host_name(), getpid(), utc_timestamp());
  // Synced for the clients of a network file system. Never empty, which would be the lock of no accepted start.
  if (pwrite(lock_, owner.data(), owner.size(), 0) != static_cast<ssize_t>(owner.size()) ||
      ftruncate(lock_, static_cast<off_t>(owner.size())) != 0 ||
      (fsync(lock_) != 0 && errno != EINVAL && errno != ENOSYS && errno != ENOTSUP))
    throw WriteError(fmt::format("cannot write to {}: {}", lock_path.string(), std::strerror(errno)));
}

void RunDirectory::open_as_rank_zero(const Config& config) {
  check_can_be_made(config);
  try {
    make_directories(path_);
  } catch (const Error& error) {
    throw WriteError(fmt::format("{}: choose another output.dir", error.what()));
  }
  const bool made_lock = take_lock();
  DirectoryState state;
  try {
    state = inspect(path_, config, choices_, started_before(path_));
  } catch (const Error&) {
    if (made_lock) unlink((path_ / kLockName).c_str());
    throw;
  }
  run_id_ = state.run_id.empty() ? new_run_id() : state.run_id;
  sign_lock();
  nothing_left_ = state.nothing_left;
  for (const std::filesystem::path& leftover : state.leftovers) {
    std::error_code error;
    std::filesystem::remove_all(leftover, error);
    if (error && !std::filesystem::is_directory(leftover))  // an empty directory may stay: a mount point
      throw WriteError(fmt::format("cannot remove {}, which an earlier start left: {}; choose another output.dir",
                                   leftover.string(), error.message()));
  }
  for (const std::string& change : state.changes)
    log_info(fmt::format("continuing with a changed setting: {}", change));
  config_text_ = print_config(config);
  write_config_ = !state.same_text;
  write_identity_ = state.run_id.empty();
  has_checkpoints_ = holds_checkpoints(path_);
}

void RunDirectory::look_from_another_rank(const std::string& owner) const {
  // The lock names this start: a copy of the directory has the line of an earlier one. A client of a network file
  // system may remember for a while that the directory was not there; opening its parent asks the server again.
  constexpr int kLooks = 25;
  const std::filesystem::path parent = std::filesystem::absolute(path_).parent_path();
  std::string seen;
  for (int look = 0; look < kLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (const int fd = open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); fd >= 0) close(fd);
    std::error_code error;
    if (std::filesystem::exists(path_ / kLockName, error)) seen = lock_owner(path_ / kLockName);
    if (seen != owner) continue;
    if (access(path_.c_str(), W_OK | X_OK) == 0) return;
    throw WriteError(fmt::format("output.dir {} cannot be written here ({}): choose one that every host can write",
                                 path_.string(), std::strerror(errno)));
  }
  throw WriteError(
      fmt::format("output.dir {} is not the directory that rank 0 has opened for run {}: {}; choose an output.dir on a "
                  "file system that all hosts share, under the same path",
                  path_.string(), run_id_, seen.empty() ? "it is not there" : "another one is there"));
}

void RunDirectory::claim() {
  if (claimed_) return;
  const ProgressSection section("output.dir", kStorageAllowance);
  if (std::exchange(write_config_, false)) write_file_atomic(path_ / "config.yaml", config_text_);
  if (std::exchange(write_identity_, false))
    write_file_atomic(
        path_ / "run.json",
        nlohmann::json({{"run_id", run_id_}, {"host", host_name()}, {"started", utc_timestamp()}}).dump(2) + "\n");
  std::error_code ignored;
  if (lock_ >= 0)
    for (const char* name : {"summary.json", "finished.json"}) std::filesystem::remove(path_ / name, ignored);
  claimed_ = true;
}

void check_run_directory(const Config& config, const ResumeChoices& choices) {
  const std::filesystem::path path = config.output.dir, lock_path = path / kLockName;
  check_can_be_made(config);
  if (!std::filesystem::exists(path)) return;
  const int lock = open(lock_path.c_str(), O_RDONLY | O_CLOEXEC);
  if (lock >= 0) {
    const bool taken = flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(lock);
    if (taken) refuse_locked(path);
  }
  (void)inspect(path, config, choices, started_before(path));
}

}  // namespace trireme
