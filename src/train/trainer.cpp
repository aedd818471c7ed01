// The loop.
#include "trainer.h"

#include "checkpoint.h"
#include "metrics_reader.h"
#include "profiler.h"
#include "run_clock.h"
#include "signals.h"
#include "step_guard.h"
#include "stop_vote.h"
#include "straggler.h"
#include "tensorboard_log.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/profile_range.h"
#include "trireme/base/time.h"
#include "trireme/watchdog/progress.h"

#include <cstring>
#include <utility>

namespace trireme {

namespace {

/// On rank 0 the numbers of all ranks, one rank after the other; on the others none. Collective.
std::vector<double> gather_numbers(Communicator& comm, const std::vector<double>& mine) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double));
  std::vector<double> all;
  for (const std::string& part : comm.gather_host(bytes)) {
    const size_t before = all.size();
    all.resize(before + part.size() / sizeof(double));
    std::memcpy(all.data() + before, part.data(), part.size());
  }
  return all;
}

}  // namespace

bool Trainer::asked_to_stop() const { return stop_signal() != 0 || (comm_.rank() == 0 && clock_->time_is_up()); }

ExitCode Trainer::train() {
  start();
  if (std::exchange(progress_.evaluation_open, false)) evaluate();
  while (!finished() && !stop_vote_->stopping() && !progress_.reached_target) {
    if (profiler_)
      profiled_step();
    else
      train_step(progress_.completed);
    while (in_flight_->size() > 1) collect_metrics();
    if (progress_.reported > clock_->first_step()) directory_.claim();
    if (const auto steps = clock_->take_straggler_interval(progress_.completed)) report_stragglers(*steps);
    if (evaluation_due()) {
      flush_metrics();
      evaluate();
    }
    if (!clock_->save_due(progress_.completed)) continue;
    flush_metrics();
    // A step with non-finite numbers postpones the save to the next sound one, which shows that the weights are finite.
    if (guard_->consecutive_skips() > 0) continue;
    save_checkpoint();
    stop_vote_->decide(asked_to_stop());
  }
  flush_metrics();
  if (profiler_) profiler_->finish();
  if (last_evaluation_missing()) evaluate();
  if (!progress_.reached_target && (!finished() || last_evaluation_missing())) return stop();
  if (!run_test()) return stop();
  finish();
  return ExitCode::kDone;
}

void Trainer::report_stragglers(int64_t steps) {
  const auto all = comm_.gather_host(encode_section_times(take_section_times()));
  if (comm_.size() == 1 || comm_.rank() != 0 || clock_->timed_steps() == 0) return;
  for (const std::string& line : find_stragglers(all, world_.hosts(), steps, clock_->mean_step_seconds()))
    log_info("warning: " + line);
}

std::vector<std::pair<std::string, at::Tensor>> Trainer::state() {
  auto tensors = optimizer_->state();
  for (TrainedShard& shard : units_->trained()) tensors.emplace_back("master." + shard.name, shard.master);
  for (auto& tensor : guard_->tensors()) tensors.push_back(std::move(tensor));
  return tensors;
}

std::map<std::string, std::vector<double>> Trainer::Progress::numbers() const {
  return {{"samples", {static_cast<double>(samples)}},
          {"evaluated_step", {static_cast<double>(evaluated_step)}},
          {"evaluation_left", {evaluation_open ? 1.0 : 0.0}},
          {"reached_target", {reached_target ? 1.0 : 0.0}}};
}

void Trainer::save_checkpoint() {
  directory_.claim();
  const ProgressSection section("save", kStorageAllowance);
  const ProfileRange range("checkpoint");
  const double begin = steady_seconds();
  fault_point("save", comm_.rank(), progress_.completed);
  LoopState loop{progress_.completed, progress_.evaluations, progress_.numbers()};
  loop.numbers.merge(guard_->numbers());
  loop.numbers["task"] = units_->scale_state();
  if (const auto data = task_.data_state(progress_.completed); !data.empty())
    loop.numbers["data"] = gather_numbers(comm_, data);
  checkpoints_->start(state(), loop);
  if (tensorboard_) tensorboard_->flush();
  clock_->saved(progress_.completed, steady_seconds() - begin);
  clock_->start_step();
}

void Trainer::write_event(const std::string& json_object) {
  if (metrics_file_) metrics_file_->write_run(json_object);
}

}  // namespace trireme
