#include "trainer.h"

#include "resume.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/profile_range.h"
#include "trireme/base/time.h"
#include "trireme/comm/collective_check.h"
#include "trireme/formats/checkpoint/finished_run.h"
#include "trireme/ops/matmul/measure.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
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
    if (!part.empty()) std::memcpy(all.data() + before, part.data(), part.size());
  }
  return all;
}

/// Measuring products under load takes one to two minutes, and steps become about 0.6 % shorter.
constexpr double kLongRun = 12 * 3600;

/// The file of best/ that says which evaluation it is of.
constexpr const char* kBestStep = "step";

}  // namespace

std::optional<ProductChoice> wanted_products() {
  const std::string wanted = environment("TRIREME_PRODUCTS");
  if (wanted.empty()) return std::nullopt;
  if (wanted == "first") return ProductChoice::kFirst;
  if (wanted == "brief") return ProductChoice::kBrief;
  if (wanted == "sustained") return ProductChoice::kSustained;
  throw ConfigError(fmt::format("TRIREME_PRODUCTS: '{}' is none of first, brief, sustained", wanted));
}

Trainer::Trainer(const RunParts& run)
    : run_(run),
      config_(run.config),
      comm_(run.comm()),
      directory_(run.directory),
      products_(wanted_products()),
      clock_(config_, run.task.nominal_samples_per_step(), run.world.device()),
      stop_vote_(comm_, run.world.device()),
      step_(
          run, clock_, progress_,
          [this] {
            return StepVotes{asked_to_stop(), checkpoints_.ready(), comm_.rank() == 0 && clock_.minutes_passed()};
          },
          [this] { checkpoints_.await_state(); }, [this](const std::string& json) { report_.event(json); }),
      report_(run, clock_, step_, progress_),
      folder_(directory_.checkpoints(), directory_.run_id(), config_.output.keep_last),
      description_(describe_run(config_, directory_.run_id(), run.grid.with_shard_size(run.plan.state_shards()),
                                run.task.units(), run.compute_dtype,
                                comm_.rank() == 0 ? std::optional(run.task.files()) : std::nullopt)),
      checkpoints_(
          folder_, description_, comm_, [this](const std::string& json) { report_.event(json); },
          /*in_place=*/run.plan.host_units > 0),
      evaluation_(run, step_.units(), clock_, report_, stop_vote_, progress_, [this] { return asked_to_stop(); }) {}

Trainer::~Trainer() = default;

void Trainer::start() {
  {
    const ProgressSection section("load", kStorageAllowance);
    fault_point("load", comm_.rank());
    load_or_resume(run_, folder_, description_, checkpoints_, step_, progress_);
    run_.mlperf.decide_earlier_lines(/*afresh=*/progress_.completed == 0);
    run_.weights_loaded();
    check_best();
  }
  report_.open();
  evaluation_.prepare(directory_.path(), [this] { directory_.claim(); });
  if (config_.logging.mlperf) {
    const ProgressSection section("warm-up");
    fault_point("warm-up", comm_.rank());
    step_.warm_up();
    if (measures_products()) choose_products();
  }
  comm_.barrier();
  report_.start_run();
  profiler_ = Profiler::make(config_, run_.world, directory_.path() / "profile", progress_.completed);
  clock_.start_step();
  stop_vote_.decide(asked_to_stop());  // a signal that came during the start ends the run before its first step
}

ExitCode Trainer::run() {
  start();
  if (std::exchange(progress_.evaluation_open, false)) evaluate();
  while (!finished() && !stop_vote_.stopping() && !progress_.ends_early()) {
    if (profiler_)
      profiled_step();
    else
      step_.train_step(progress_.completed);
    // The host reads a step's results while the device computes the next step.
    while (step_.in_flight().size() > 1) collect_step();
    if (progress_.reported > clock_.first_step()) directory_.claim();
    if (!finished() && products_due()) {
      collect_all_steps();
      choose_products();
      clock_.start_step();
    }
    if (const auto steps = clock_.take_straggler_interval(progress_.completed)) report_stragglers(*steps);
    if (evaluation_.due()) {
      collect_all_steps();
      evaluate();
    }
    if (!clock_.save_due(progress_.completed)) continue;
    collect_all_steps();
    // A step with non-finite numbers postpones the save to the next sound one, which shows that the weights are finite.
    if (step_.guard().consecutive_skips() > 0) continue;
    save_checkpoint();
    stop_vote_.decide(asked_to_stop());
  }
  collect_all_steps();
  if (profiler_) profiler_->finish();
  if (evaluation_.last_missing()) evaluate();
  // A stop before the last step, or in the evaluation after it.
  if (!progress_.ends_early() && (!finished() || evaluation_.last_missing())) return stop();
  if (!evaluation_.test()) return stop();
  finish();
  return ExitCode::kDone;
}

void Trainer::evaluate() {
  const int64_t best = progress_.best_step;
  evaluation_.evaluate();
  if (!config_.output.keep_best || progress_.best_step == best) return;
  directory_.claim();
  const ProgressSection section("save", kStorageAllowance);
  const std::filesystem::path of = directory_.path() / kBestFolder / kBestStep, before = of.string() + ".before";
  std::error_code ignored;
  if (comm_.rank() == 0) {
    std::filesystem::remove(before, ignored);
    std::filesystem::rename(of, before, ignored);
  }
  bool replaced = false;
  try {
    collective_check(comm_, [&] {
      run_.task.save_artefact(step_.units(), directory_.path() / kBestFolder);
      replaced = true;
      fault_point("best", comm_.rank(), progress_.completed);
      if (comm_.rank() == 0) write_file_atomic(of, fmt::format("{}\n", progress_.best_step));
    });
    if (comm_.rank() == 0) std::filesystem::remove(before, ignored);
    log_info(
        fmt::format("wrote {}/: the evaluation after step {} is the best so far", kBestFolder, progress_.best_step));
  } catch (const CollectiveError& error) {
    if (error.code() != ExitCode::kCannotWrite) throw;
    if (comm_.rank() == 0) {
      if (!replaced) std::filesystem::rename(before, of, ignored);
      log_warn(fmt::format(
          "{}/ {}: the evaluation after step {} is the best so far, and {} could not be written: {}. The run goes on",
          kBestFolder, replaced ? "has no step" : "is left as it was", progress_.best_step,
          replaced ? "the file that says so" : "its model", error.what()));
    }
  }
  clock_.start_step();
}

void Trainer::check_best() const {
  if (comm_.rank() != 0 || !config_.output.keep_best || progress_.best_step < 0) return;
  int64_t step = 0;
  const std::filesystem::path best = directory_.path() / kBestFolder;
  if (std::error_code error; !std::filesystem::is_directory(best, error)) return;
  if (!(std::ifstream(best / kBestStep) >> step))
    log_warn(fmt::format(
        "{}/ does not say which evaluation it is of, as a start leaves it that is killed while it writes it",
        kBestFolder));
  else if (step != progress_.best_step)
    log_warn(
        fmt::format("{}/ is of the evaluation after step {}, and the best one that this run has is that after step {}",
                    kBestFolder, step, progress_.best_step));
}

bool Trainer::asked_to_stop() const {
  return stop_signal() != 0 || (comm_.rank() == 0 && clock_.time_is_up(checkpoints_.seconds_to_save()));
}

void Trainer::profiled_step() {
  const int64_t step = progress_.completed + 1;
  if (profiler_->begins_at(step)) {
    collect_all_steps();
    clock_.start_step();
  }
  profiler_->before_step(step);
  step_.train_step(progress_.completed);
  if (!profiler_->ends_after(step)) return;
  collect_all_steps();
  profiler_->after_step(step);
  comm_.barrier();  // the time in which ranks write their traces belongs to no step
  clock_.start_step();
}

void Trainer::collect_step() {
  const StepRecord record = step_.in_flight().pop();
  const double seconds = clock_.end_step(record.end);
  progress_.reported = record.step;
  progress_.samples += std::llround(record[kSampleCount]);
  if (record.has_loss()) progress_.last_loss = record[kLoss];
  stop_vote_.record(record[kStop] > 0);
  if (record[kClock] > 0) clock_.request_save();
  checkpoints_.advance_if_ready(record.step, progress_.completed, record[kReady]);
  report_.step(record, seconds);
  guard_numbers(record);
}

void Trainer::collect_all_steps() {
  while (step_.in_flight().size() > 0) collect_step();
}

void Trainer::guard_numbers(const StepRecord& record) {
  const auto problem = step_.guard().inspect(record, step_.units().scaled_tensors(),
                                             [this](int64_t step) { return step_.find_nonfinite(step); });
  if (!problem) return;
  checkpoints_.complete();  // of an earlier step, which was sound
  throw CollectiveError(ExitCode::kInternal, fmt::format("{}; {}", *problem, newest_checkpoint()));
}

void Trainer::report_stragglers(int64_t steps) {
  const auto all = comm_.gather_host(encode_section_times(take_section_times()));
  if (comm_.size() == 1 || comm_.rank() != 0 || clock_.timed_steps() == 0) return;
  for (const std::string& line : find_stragglers(all, run_.world.hosts(), steps, clock_.mean_step_seconds()))
    log_run_warn(line);
}

bool Trainer::measures_products() const { return run_.world.device().is_cuda() && products_ != ProductChoice::kFirst; }

bool Trainer::products_due() const {
  if (!measures_products()) return false;
  // Batches have other numbers of tokens later: again after 8, 32, 128, … steps.
  const auto steps = static_cast<uint64_t>(progress_.completed - clock_.first_step());
  return std::has_single_bit(steps) && std::countr_zero(steps) % 2 == 1;
}

void Trainer::choose_products() {
  bool sustained = products_ == ProductChoice::kSustained && !products_chosen_;
  if (!products_ && !products_chosen_ && !config_.logging.mlperf) {
    const double ends_soon = clock_.goes_on_for(kLongRun, progress_.completed) ? 0 : 1;  // of any rank
    sustained = comm_.all_reduce_host({ends_soon}, ReduceOp::kMax)[0] == 0;
  }
  products_chosen_ = true;
  const ProgressSection section("products", kStorageAllowance);
  if (sustained) log_info("choosing the algorithms of matrix products under load: up to two minutes, once");
  const MeasuredProducts measured =
      measure_products(run_.world.device(), sustained ? ProductLoad::kSustained : ProductLoad::kBrief,
                       /*alone=*/comm_.size() == 1);
  if (sustained) log_info(fmt::format("measured {} matrix products in {:.0f} s", measured.count, measured.seconds));
  comm_.barrier();
}

void Trainer::save_checkpoint() {
  directory_.claim();
  const ProgressSection section("save", kStorageAllowance);
  const ProfileRange range("checkpoint");
  const double begin = steady_seconds();
  fault_point("save", comm_.rank(), progress_.completed);
  LoopState loop{.progress = progress_, .guard = step_.guard().state()};
  loop.fp8_scales = step_.units().scale_state();
  loop.data_position = gather_numbers(comm_, run_.task.data_state(progress_.completed));
  report_.flush();  // before the checkpoint: a start that goes on from it keeps the lines up to its step
  checkpoints_.start(step_.state(), loop);
  clock_.saved(progress_.completed, steady_seconds() - begin);
  clock_.start_step();
}

ExitCode Trainer::stop() {
  const ProgressSection section("save", kStorageAllowance);
  checkpoints_.complete();
  // The same on all ranks; without a signal it was rank 0's clock.
  const int signal = static_cast<int>(comm_.all_reduce_host({static_cast<double>(stop_signal())}, ReduceOp::kMax)[0]);
  const char* why = signal != 0 ? "stopped by a signal" : "stopped by train.max_time";
  if (!checkpoints_.holds(progress_.completed)) {
    if (!config_.output.save_on_stop && signal != 0) return stop_without_saving(signal);
    if (const std::string problem = state_problem(); !problem.empty())
      throw CollectiveError(ExitCode::kInternal,
                            fmt::format("{} after step {}, and its state is not saved, because {}; {}", why,
                                        progress_.completed, problem, newest_checkpoint()));
    save_checkpoint();
    checkpoints_.complete();
    if (!checkpoints_.holds(progress_.completed))
      throw CollectiveError(ExitCode::kCannotWrite,
                            fmt::format("{} after step {}, but its state could not be saved in {}; {}", why,
                                        progress_.completed, directory_.checkpoints().string(), newest_checkpoint()));
  }
  const std::string reason =
      fmt::format("{} after step {}; state saved, the same command goes on from there", why, progress_.completed);
  log_info(reason);
  report_.end_training("aborted");
  const ExitCode code = signal != 0 ? ExitCode::kStopped : ExitCode::kDone;
  report_.end(signal != 0 ? RunEnd::kSignal : RunEnd::kMaxTime, static_cast<int>(code), reason, report_.summary());
  return code;
}

ExitCode Trainer::stop_without_saving(int signal) {
  const int64_t saved = checkpoints_.committed();
  std::string lost = "nothing was computed yet";
  if (saved >= 0)
    lost = fmt::format("steps {} to {} are lost, the same command goes on after step {}", saved + 1,
                       progress_.completed, saved);
  else if (progress_.completed > 0)
    lost = fmt::format("the run's {} steps are lost, the same command starts afresh", progress_.completed);
  const std::string reason = fmt::format(
      "stopped by a signal after step {} without saving (output.save_on_stop: false): {}", progress_.completed, lost);
  log_info(reason);
  report_.end_training("aborted");
  // The exit code of a process that the signal ends, because 75 promises a saved state.
  const int code = 128 + signal;
  if (progress_.completed > 0) report_.end(RunEnd::kSignal, code, reason, report_.summary());
  return static_cast<ExitCode>(code);
}

std::string Trainer::newest_checkpoint() const {
  return checkpoints_.committed() >= 0
             ? fmt::format("the newest checkpoint is of step {}, and the same command goes on from it",
                           checkpoints_.committed())
             : "this run has saved no checkpoint, and the same command starts afresh";
}

std::string Trainer::state_problem() {
  // A skipped step changes no weight, no moment and no count, so the state after it is that of the last sound step. But
  // weights that are not finite make every step a skipped one, and such a state must not be saved.
  return step_.guard().consecutive_skips() == 0 ? "" : find_nonfinite_state(step_.state(), comm_);
}

std::string Trainer::save_last_step() {
  try {
    if (clock_.last_saved_step() == progress_.completed) {
      checkpoints_.complete();
      if (checkpoints_.holds(progress_.completed)) return "";
    }
    if (const std::string problem = state_problem(); !problem.empty()) return problem;
    save_checkpoint();
    checkpoints_.complete();
  } catch (const CollectiveError& error) {
    return error.what();
  }
  return checkpoints_.holds(progress_.completed) ? "" : "its save failed";
}

void Trainer::save_artefact() {
  try {
    collective_check(comm_, [&] { run_.task.save_artefact(step_.units(), directory_.path()); });
  } catch (const CollectiveError& error) {
    const std::string problem = checkpoints_.holds(progress_.completed) ? "" : save_last_step();
    throw CollectiveError(
        error.code(),
        fmt::format(
            "{}; {}", error.what(),
            problem.empty()
                ? fmt::format("the state after step {} is saved, the same command writes what was trained",
                              progress_.completed)
                : fmt::format("the state after step {} has no checkpoint either: {}", progress_.completed, problem)));
  }
  log_info(fmt::format("wrote {}", (directory_.path() / (config_.lora ? "adapter" : "model")).string()));
}

void Trainer::finish() {
  report_.missed_target();
  const bool has_target = config_.eval.target_loss || config_.eval.target_accuracy;
  report_.end_training(!has_target || progress_.reached_target ? "success" : "aborted");
  const ProgressSection section("save", kStorageAllowance);
  directory_.claim();
  const bool saves = config_.output.save_every_samples || config_.output.save_every_minutes;
  if (saves || checkpoints_.committed() >= 0)
    if (const std::string problem = save_last_step(); !problem.empty())
      log_run_warn(
          fmt::format("step {} is the last and has no checkpoint: {}; the run cannot be extended from it. "
                      "What was trained is written all the same",
                      progress_.completed, problem));
  const RunSummary trained = report_.summary();  // the time of the artefact is not training's
  save_artefact();
  check_best();
  report_.prediction();
  collective_check(comm_, [&] { run_.mlperf.check_whole(); });
  report_.end(progress_.reached_target    ? RunEnd::kTarget
              : progress_.out_of_patience ? RunEnd::kPatience
                                          : RunEnd::kDone,
              0, "", trained);
  fault_point("finish", comm_.rank(), progress_.completed);
  if (comm_.rank() != 0) return;
  // Last: a run that ends before goes on from its last checkpoint and writes the rest.
  try {
    record_finish(directory_.path(), {progress_.completed, config_.train.max_steps, slurm_job()});
  } catch (const Error& error) {
    log_warn(error.what());
  }
}

void Trainer::report_failure(const std::exception& failure) noexcept {
  // Until the first step has ended there is no run to sum up, and output.dir may become another's.
  if (comm_.rank() != 0 || !directory_.claimed()) return;
  const auto* own = dynamic_cast<const Error*>(&failure);
  try {
    report_.end(RunEnd::kFailed, static_cast<int>(own != nullptr ? own->code() : ExitCode::kInternal), failure.what(),
                report_.summary());
  } catch (const std::exception& error) {
    // A device that has failed cannot say how much memory was in use; the failure itself is what is reported.
    log_warn(fmt::format("summary.json is not written: {}", error.what()));
  }
}

}  // namespace trireme
