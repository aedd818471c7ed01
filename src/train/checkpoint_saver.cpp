#include "checkpoint_saver.h"

#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/collective_check.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>

namespace trireme {

CheckpointSaver::CheckpointSaver(const CheckpointFolder& folder, const CheckpointRun& run, Communicator& comm,
                                 std::function<void(const std::string&)> event, bool in_place)
    : folder_(folder), run_(run), comm_(comm), event_(std::move(event)), writer_(in_place) {}

CheckpointSaver::~CheckpointSaver() {
  if (committer_.joinable()) committer_.join();
}

void CheckpointSaver::await_state() {
  if (phase_ != Phase::kWriting || !writer_.in_place() || writer_.finished()) return;
  const ProgressSection section("save", kStorageAllowance);
  const double begin = steady_seconds();
  writer_.wait();
  pause_ += steady_seconds() - begin;
}

double CheckpointSaver::ready() const {
  if (phase_ == Phase::kWriting) return writer_.finished() ? 1 : 0;
  if (phase_ == Phase::kCommitting) return comm_.rank() != 0 || commit_done_ ? 1 : 0;
  return 0;
}

double CheckpointSaver::seconds_to_save() const {
  return phase_ == Phase::kIdle ? longest_ : 2 * std::max(longest_, steady_seconds() - started_);
}

void CheckpointSaver::start(const std::vector<StateTensor>& state, const LoopState& loop) {
  const int64_t step = loop.progress.completed;
  if (phase_ != Phase::kIdle) {
    const double begin = steady_seconds();
    const int64_t previous = loop_.progress.completed;
    complete();
    log_info(fmt::format("step {} waited {} for the save of step {} to end", step,
                         format_duration(steady_seconds() - begin), previous));
    give_up_after_failures();
  }
  started_ = steady_seconds();
  loop_ = loop;
  std::string problem;
  if (comm_.rank() == 0) {
    try {
      fault_point("save:begin", 0, step);
      folder_.begin(step);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  // This collective also makes every rank wait until the directory exists.
  if (failed_anywhere(problem)) return give_up_after_failures();
  try {
    fault_point("save:copy", comm_.rank(), step);
    writer_.snapshot(pieces_to_save(state, comm_.rank()));
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    problem = fmt::format("rank {}: the state could not be copied to host memory: {}", comm_.rank(),
                          text.substr(0, text.find('\n')));
  }
  if (failed_anywhere(problem)) return give_up_after_failures();
  writer_.start(folder_.unfinished(step) / fmt::format("rank-{:05}.safetensors", comm_.rank()), comm_.rank(), step);
  phase_ = Phase::kWriting;
  ignore_through_ = step;
  pause_ = steady_seconds() - started_;
}

void CheckpointSaver::advance_if_ready(int64_t step, int64_t last_begun, double sum) {
  // Sums of steps that began before this phase count the phase before.
  if (phase_ == Phase::kIdle || step <= ignore_through_ || sum < comm_.size()) return;
  advance();
  ignore_through_ = last_begun;
  give_up_after_failures();
}

void CheckpointSaver::give_up_after_failures() const {
  if (failures_ >= kMaxFailures)
    throw CollectiveError(ExitCode::kCannotWrite,
                          fmt::format("{} saves in a row failed in {} (the reason stands above): free some space or "
                                      "repair the storage, then run "
                                      "the same command again; it goes on from the newest whole checkpoint",
                                      failures_, folder_.path().string()));
}

void CheckpointSaver::complete() {
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

bool CheckpointSaver::holds(int64_t step) {
  return comm_.all_reduce_host({comm_.rank() == 0 && folder_.holds(step) ? 1.0 : 0.0}, ReduceOp::kMax)[0] > 0;
}

void CheckpointSaver::advance() {
  if (phase_ == Phase::kWriting)
    start_commit();
  else
    end_commit();
}

void CheckpointSaver::start_commit() {
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
}

/// On the committer's thread.
void CheckpointSaver::commit(const std::vector<std::string>& descriptions) {
  CheckpointManifest manifest = run_.manifest;
  manifest.step = loop_.progress.completed;
  manifest.samples = run_.samples_after(manifest.step);
  manifest.tokens = manifest.samples * run_.tokens_per_sample;
  manifest.evaluations = loop_.progress.evaluations;
  manifest.numbers = loop_.numbers();
  write_seconds_ = 0;
  for (const std::string& text : descriptions) {
    double seconds = 0;
    CheckpointFile file = file_from_text(text, seconds);
    write_seconds_ = std::max(write_seconds_, seconds);
    if (!file.name.empty()) manifest.files.push_back(std::move(file));
  }
  folder_.commit(manifest);
  committed_bytes_ = manifest.total_bytes();
}

void CheckpointSaver::end_commit() {
  if (committer_.joinable()) committer_.join();
  if (failed_anywhere(comm_.rank() == 0 ? commit_error_ : "")) return;
  phase_ = Phase::kIdle;
  failures_ = 0;
  committed_step_ = loop_.progress.completed;
  const double seconds = steady_seconds() - started_;
  longest_ = std::max(longest_, seconds);
  if (comm_.rank() != 0) return;
  log_info(fmt::format("saved checkpoints/{}: {}, written in {}, complete after {}; training waited {}",
                       checkpoint_name(committed_step_), format_bytes(committed_bytes_),
                       format_duration(write_seconds_), format_duration(seconds), format_duration(pause_)));
  event_(nlohmann::json({{"event", "save"},
                         {"step", committed_step_},
                         {"bytes", committed_bytes_},
                         {"seconds", seconds},
                         {"write_s", write_seconds_},
                         {"pause_s", pause_}})
             .dump());
}

/// Collective. Whether a rank has a problem; the save has failed then, with the first rank's reason.
bool CheckpointSaver::failed_anywhere(const std::string& problem) {
  const std::vector<std::string> problems = problems_of_ranks(comm_, problem);
  if (!problems.empty()) failed(problems.front());
  return !problems.empty();
}

void CheckpointSaver::failed(const std::string& reason) {
  phase_ = Phase::kIdle;
  ++failures_;
  if (comm_.rank() != 0) return;
  folder_.discard(loop_.progress.completed);
  log_warn(
      fmt::format("the checkpoint of step {} could not be saved ({} in a row, the run ends after "
                  "{}): {}. Older checkpoints are as "
                  "they were",
                  loop_.progress.completed, failures_, kMaxFailures, reason));
  event_(nlohmann::json({{"event", "save_failed"},
                         {"step", loop_.progress.completed},
                         {"failures_in_a_row", failures_},
                         {"reason", reason}})
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace trireme
