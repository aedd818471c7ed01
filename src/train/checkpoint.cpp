// A save over all ranks: copy, write, commit; or fail, and the run goes on.
#include "checkpoint.h"

#include "collective_check.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/scalar_type.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>

namespace trireme {

namespace {

/// "exp_avg.layers.0" -> kind and unit; a scalar has no unit.
std::pair<std::string, std::string> split_name(const std::string& name) {
  const size_t dot = name.find('.');
  return {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)};
}

}  // namespace

Checkpoints::Checkpoints(std::filesystem::path directory, Communicator& comm, const std::vector<UnitSpec>& units,
                         CheckpointOptions options, std::function<void(const std::string&)> event)
    : directory_(std::move(directory)),
      comm_(comm),
      units_(units),
      options_(std::move(options)),
      event_(std::move(event)) {
  for (const UnitSpec& unit : units_) {
    if (!unit.trained) continue;
    const GridSlice slice = options_.grid.slice_of_unit(!unit.replicated);
    const UnitLayout layout = make_layout(unit, slice.count);
    placements_[unit.name] = {layout.shard_numel * slice.index, make_layout(unit, 1).numel, layout.shard_numel,
                              slice.copy, slice.copies};
  }
}

Checkpoints::~Checkpoints() {
  if (committer_.joinable()) committer_.join();
}

std::filesystem::path Checkpoints::temporary(int64_t step) const {
  return directory_ / fmt::format("{}.tmp-{}", checkpoint_name(step), options_.run_id);
}

std::vector<CheckpointUnit> Checkpoints::described_units() const {
  std::vector<CheckpointUnit> described;
  for (const UnitSpec& unit : units_) {
    if (!unit.trained) continue;
    const UnitLayout layout = make_layout(unit, 1);
    CheckpointUnit entry{unit.name, layout.numel, {}};
    for (const LayoutPiece& piece : pieces_in_range(unit, layout, 0, layout.numel)) {
      const ParameterSpec& parameter = unit.parameters[piece.parameter];
      std::vector<int64_t> shape = parameter.shape;
      shape[0] = parameter.parts[piece.part].rows;
      entry.tensors.push_back({parameter.parts[piece.part].name, shape, piece.flat_begin});
    }
    described.push_back(std::move(entry));
  }
  return described;
}

std::vector<PieceSource> Checkpoints::pieces(const NamedTensors& state) const {
  constexpr int64_t kGrain = UnitLayout::kAlignment;
  std::vector<PieceSource> pieces;
  for (const auto& [name, tensor] : state) {
    const auto [kind, unit] = split_name(name);
    if (unit.empty()) {
      TRIREME_CHECK(tensor.numel() == 1, name, " has ", tensor.numel(), " elements, a scalar of the loop has one");
      if (comm_.rank() == 0) pieces.push_back({{kind, "", to_file_dtype(tensor.scalar_type()), 0, 1, 0}, tensor});
      continue;
    }
    const Placement& place = placements_.at(unit);
    TRIREME_CHECK(tensor.numel() == place.shard_numel, name, " has ", tensor.numel(), " elements, the shard has ",
                  place.shard_numel);
    // Ranks that hold the same shard share the writing.
    const int64_t length = std::clamp<int64_t>(place.numel - place.begin, 0, place.shard_numel);
    const int64_t grains = (length + kGrain - 1) / kGrain;
    const int64_t from = grains * place.copy / place.copies * kGrain;
    const int64_t to = std::min(length, grains * (place.copy + 1) / place.copies * kGrain);
    if (from < to)
      pieces.push_back({{kind, unit, to_file_dtype(tensor.scalar_type()), place.begin + from, to - from, 0},
                        tensor.narrow(0, from, to - from)});
  }
  return pieces;
}

void Checkpoints::open() {
  collective_check(comm_, [&] {
    if (comm_.rank() != 0) return;
    make_directories(directory_);
    remove_leftovers();
  });
}

double Checkpoints::ready() const {
  if (phase_ == Phase::kWriting) return writer_.finished() ? 1 : 0;
  if (phase_ == Phase::kCommitting) return comm_.rank() != 0 || commit_done_ ? 1 : 0;
  return 0;
}

void Checkpoints::start(const NamedTensors& state, const LoopState& loop) {
  if (phase_ != Phase::kIdle) {
    const double begin = steady_seconds();
    const int64_t previous = loop_.completed_steps;
    complete();
    log_info(fmt::format("step {} waited {} for the save of step {} to end", loop.completed_steps,
                         format_duration(steady_seconds() - begin), previous));
    give_up_after_failures();
  }
  started_ = steady_seconds();
  loop_ = loop;
  std::string problem;
  if (comm_.rank() == 0) {
    try {
      fault_point("save:begin", 0, loop.completed_steps);
      // Its parents are not created: where they are missing, the run has been removed, with metrics and run.json.
      const std::filesystem::path path = temporary(loop.completed_steps);
      std::error_code ignored, error;
      std::filesystem::remove_all(path, ignored);
      if (!std::filesystem::create_directory(path, error))
        throw WriteError(fmt::format("cannot create directory {}: {}", path.string(),
                                     error ? error.message() : "a file of that name exists"));
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  // This collective also makes every rank wait until the directory exists.
  if (failed_anywhere(problem)) return give_up_after_failures();
  try {
    fault_point("save:copy", comm_.rank(), loop.completed_steps);
    writer_.snapshot(pieces(state));
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    problem = fmt::format("rank {}: the state could not be copied to host memory: {}", comm_.rank(),
                          text.substr(0, text.find('\n')));
  }
  if (failed_anywhere(problem)) return give_up_after_failures();
  writer_.start(temporary(loop.completed_steps) / fmt::format("rank-{:05}.safetensors", comm_.rank()), comm_.rank(),
                loop.completed_steps);
  phase_ = Phase::kWriting;
  ignore_through_ = loop.completed_steps;
  pause_ = steady_seconds() - started_;
}

void Checkpoints::advance_if_ready(int64_t step, int64_t last_begun, double sum) {
  // Sums of steps that began before this phase count the phase before.
  if (phase_ == Phase::kIdle || step <= ignore_through_ || sum < comm_.size()) return;
  advance();
  ignore_through_ = last_begun;
  give_up_after_failures();
}

void Checkpoints::give_up_after_failures() const {
  if (failures_ >= kMaxFailures)
    throw CollectiveError(ExitCode::kCannotWrite,
                          fmt::format("{} saves in a row failed in {} (the reason stands above): free some space or "
                                      "repair the storage, then run "
                                      "the same command again; it goes on from the newest whole checkpoint",
                                      failures_, directory_.string()));
}

void Checkpoints::complete() {
  for (int wait_ms = 1; phase_ != Phase::kIdle; wait_ms = std::min(2 * wait_ms, 200)) {
    // Short collectives: one that waits for a slow disk would look like a hang to the watchdog.
    if (comm_.all_reduce_host({ready()})[0] >= comm_.size()) {
      advance();
      wait_ms = 1;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    }
  }
}

bool Checkpoints::holds(int64_t step) {
  double whole = 0;
  if (comm_.rank() == 0) {
    for (const auto& [found, directory] : list_checkpoints(directory_)) {
      if (found != step) continue;
      try {
        const CheckpointManifest manifest = read_manifest(directory);
        const bool ours = manifest.version == 1 || manifest.run_id == options_.run_id;
        whole = ours && check_checkpoint_layout(directory, manifest).empty() ? 1 : 0;
      } catch (const Error&) {
        // damaged: not held
      }
    }
  }
  return comm_.all_reduce_host({whole}, ReduceOp::kMax)[0] > 0;
}

void Checkpoints::advance() {
  if (phase_ == Phase::kWriting) {
    std::string error;
    const CheckpointFile file = writer_.take(error);
    // The copies of GPU tensors are only queued, and the next step's kernels wait behind them.
    pause_ = std::max(pause_, writer_.copied_at() - started_);
    if (failed_anywhere(error.empty() ? "" : fmt::format("rank {}: {}", comm_.rank(), error))) return;
    // Ranks times units pieces: only rank 0 needs them, for the manifest.
    const auto texts = comm_.gather_host(file_to_text(file, writer_.write_seconds()));
    phase_ = Phase::kCommitting;
    if (comm_.rank() != 0) return;
    commit_done_ = false;
    commit_error_.clear();
    committer_ = std::thread([this, texts] {
      try {
        commit(texts);
      } catch (const std::exception& failure) {
        commit_error_ = failure.what();
      }
      commit_done_ = true;
    });
    return;
  }
  if (committer_.joinable()) committer_.join();
  if (failed_anywhere(comm_.rank() == 0 ? commit_error_ : "")) return;
  phase_ = Phase::kIdle;
  failures_ = 0;
  committed_step_ = loop_.completed_steps;
  if (comm_.rank() != 0) return;
  const double seconds = steady_seconds() - started_;
  log_info(fmt::format("saved checkpoints/{}: {}, written in {}, complete after {}; training waited {}",
                       checkpoint_name(loop_.completed_steps), format_bytes(static_cast<double>(committed_bytes_)),
                       format_duration(write_seconds_), format_duration(seconds), format_duration(pause_)));
  event_(nlohmann::json({{"event", "save"},
                         {"step", loop_.completed_steps},
                         {"bytes", committed_bytes_},
                         {"seconds", seconds},
                         {"write_s", write_seconds_},
                         {"pause_s", pause_}})
             .dump());
}

/// Collective. Whether a rank has a problem; the save has failed then, with the first rank's reason.
bool Checkpoints::failed_anywhere(const std::string& problem) {
  if (comm_.all_reduce_host({problem.empty() ? 0.0 : 1.0}, ReduceOp::kMax)[0] == 0) return false;
  const auto problems = comm_.gather_host(problem);
  const auto first =
      std::find_if(problems.begin(), problems.end(), [](const std::string& text) { return !text.empty(); });
  failed(first == problems.end() ? "" : *first);
  return true;
}

void Checkpoints::failed(const std::string& reason) {
  phase_ = Phase::kIdle;
  ++failures_;
  if (comm_.rank() != 0) return;
  std::error_code ignored;
  std::filesystem::remove_all(temporary(loop_.completed_steps), ignored);
  log_warn(
      fmt::format("the checkpoint of step {} could not be saved ({} in a row, the run ends after "
                  "{}): {}. Older checkpoints are as "
                  "they were",
                  loop_.completed_steps, failures_, kMaxFailures, reason));
  event_(nlohmann::json({{"event", "save_failed"},
                         {"step", loop_.completed_steps},
                         {"failures_in_a_row", failures_},
                         {"reason", reason}})
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace trireme
