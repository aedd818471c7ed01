#include "profiler.h"

#include "memory_snapshot.h"
#include "range_recorder.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/kineto/gzip.h"
#include "trireme/formats/kineto/trace_summary.h"
#include "trireme/ops/device.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <set>
#include <utility>

namespace torch::autograd::profiler {
// Of torch/csrc/profiler/kineto_shim.h, which needs Kineto's own headers.
TORCH_API void addMetadataJson(const std::string& key, const std::string& value);
}  // namespace torch::autograd::profiler

namespace trireme {

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

/// TensorBoard's plugin and HTA hold a whole trace in memory several times over.
constexpr uint64_t kLargeTrace = uint64_t{500} << 20;

std::set<ActivityType> activities(bool gpu) {
  std::set<ActivityType> all = {ActivityType::CPU};
  if (gpu) all.insert(ActivityType::CUDA);
  return all;
}

ProfilerConfig profiler_config(const ProfileSection& settings) {
  return ProfilerConfig(ProfilerState::KINETO, settings.shapes, settings.memory);
}

bool has_kernels(const profiler::ProfilerResult& result) {
  const std::vector<profiler::KinetoEvent>& events = result.events();
  return std::any_of(events.begin(), events.end(), [](const profiler::KinetoEvent& event) {
    return event.activityType() == static_cast<uint8_t>(libkineto::ActivityType::CONCURRENT_KERNEL);
  });
}

bool contains_rank(const std::vector<int64_t>& ranks, int rank) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int64_t one) { return one == ProfileSection::kAllRanks || one == rank; });
}

}  // namespace

ProfileSchedule::Phase ProfileSchedule::phase(int64_t step) const {
  if (step < 1 || (repeat > 0 && cycle(step) > repeat)) return Phase::kOff;
  const int64_t position = (step - 1) % (wait + warmup + active);
  return position < wait ? Phase::kOff : position < wait + warmup ? Phase::kWarmup : Phase::kActive;
}

std::optional<ProfileSchedule> profile_schedule(const Config& config, int64_t completed) {
  if (config.profile) {
    const ProfileSection& section = *config.profile;
    if (completed + section.wait + section.warmup >= config.train.max_steps) return std::nullopt;
    return ProfileSchedule{section.wait, section.warmup, section.active, section.repeat};
  }
  const auto step = config.logging.profile_step;
  if (!step || *step <= completed) return std::nullopt;
  const int64_t before = *step - completed - 1, warmup = std::min<int64_t>(before, 1);
  return ProfileSchedule{before - warmup, warmup, 1, 1};
}

std::unique_ptr<Profiler> Profiler::make(const Config& config, World& world, const std::filesystem::path& folder,
                                         int64_t completed) {
  const auto schedule = profile_schedule(config, completed);
  if (!schedule && config.profile)
    log_info(fmt::format("profile: nothing is recorded, its first active step would be {}, the last step is {}",
                         completed + config.profile->wait + config.profile->warmup + 1, config.train.max_steps));
  if (!schedule) return nullptr;
  return std::unique_ptr<Profiler>(new Profiler(config, world, folder, completed, *schedule));
}

Profiler::Profiler(const Config& config, World& world, std::filesystem::path folder, int64_t completed,
                   const ProfileSchedule& schedule)
    : world_(world),
      folder_(std::move(folder)),
      completed_(completed),
      schedule_(schedule),
      settings_(config.profile.value_or(ProfileSection{})),
      exceptions_(std::uncaught_exceptions()) {
  records_here_ = contains_rank(settings_.ranks, world_.communicator().rank());
  external_ = std::getenv("NSYS_PROFILING_SESSION_ID") != nullptr;
  const bool gpu = world_.device().is_cuda();
  if (external_)
    log_info(
        "profile: Nsight Systems traces this process, so LibTorch's profiler stays off and no trace file is written; "
        "NVTX ranges and cudaProfilerStart/Stop mark the active steps");
  if (records_here_ && gpu && schedule_.warmup == 0)
    log_info("profile: without a warm-up step the first kernels of a trace may be missing; set profile.warmup");
  if (records_here_ && gpu && settings_.memory) {
    // The history begins here, so that it reaches back when memory runs out in any step; its entries have ranges.
    record_memory_history();
    set_range_sink(&RangeRecorder::instance());
  }
}

Profiler::~Profiler() {
  if (!recording_ && !settings_.memory) return;
  const bool failing = std::uncaught_exceptions() > exceptions_;
  try {
    if (recording_) stop();
    if (failing && settings_.memory && records_here_) write_memory_state();
  } catch (const std::exception& error) {
    log_warn(fmt::format("the profile of the steps before the failure was not written: {}", error.what()));
  }
}

bool Profiler::begins_at(int64_t step) const {
  return phase(step) == ProfileSchedule::Phase::kActive &&
         (phase(step - 1) != ProfileSchedule::Phase::kActive ||
          schedule_.cycle(step - completed_) != schedule_.cycle(step - 1 - completed_));
}

bool Profiler::ends_after(int64_t step) const {
  return phase(step) == ProfileSchedule::Phase::kActive &&
         (phase(step + 1) != ProfileSchedule::Phase::kActive || begins_at(step + 1));
}

void Profiler::before_step(int64_t step) {
  if (!records_here_ || phase(step) == ProfileSchedule::Phase::kOff) return;
  if (!prepared_ && !recording_) prepare();
  if (phase(step) != ProfileSchedule::Phase::kActive) return;
  if (begins_at(step)) {
    cycle_ = schedule_.cycle(step - completed_);
    first_ = step;
    start();
  }
  close_step();
  last_ = step;
  open_step(step);
}

void Profiler::after_step(int64_t step) {
  if (recording_ && ends_after(step)) stop();
}

void Profiler::finish() {
  if (!recording_) return;
  log_info(fmt::format("profile: the run ends after step {}, before the last active step of cycle {}", last_, cycle_));
  stop();
}

void Profiler::open_step(int64_t step) {
  // The name that trace tools expect, and a readable name.
  RangeRecorder::instance().begin(fmt::format("ProfilerStep#{}", step), fmt::format("step {}", step));
  step_open_ = true;
}

void Profiler::close_step() {
  if (std::exchange(step_open_, false)) RangeRecorder::instance().end();
}

void Profiler::prepare() {
  prepared_ = true;
  if (external_) return;
  const Communicator& comm = world_.communicator();
  // Allocates CUPTI's buffers; kernels are seen from some time after this on.
  profiler::prepareProfiler(profiler_config(settings_), activities(world_.device().is_cuda()));
  // HTA looks for "rank": with a blank after the colon.
  profiler::addMetadataJson("distributedInfo", fmt::format(R"({{"backend": "{}", "rank": {}, "world_size": {}}})",
                                                           comm.backend(), comm.rank(), comm.size()));
}

void Profiler::start() {
  const bool gpu = world_.device().is_cuda();
  prepared_ = false;
  if (gpu) start_device_capture();
  // The thread's state goes along with autograd to the threads of backward, so that these record, too.
  if (!external_) profiler::enableProfiler(profiler_config(settings_), activities(gpu));
  recording_ = true;
  RangeRecorder::instance().annotate(true);
  set_range_sink(&RangeRecorder::instance());
}

void Profiler::stop() {
  const ProgressSection section("profile", kStorageAllowance);
  close_step();
  RangeRecorder::instance().annotate(false);
  const bool gpu = world_.device().is_cuda(), history = gpu && settings_.memory;
  if (!history) set_range_sink(nullptr);
  recording_ = false;
  if (gpu) stop_device_capture();
  const auto result = external_ ? nullptr : profiler::disableProfiler();
  const auto plain = folder_ / fmt::format(".rank{}.{}.json", world_.communicator().rank(), cycle_);
  const auto not_written = [&](const std::exception& error) {
    log_warn(fmt::format("the profile of {} is not written: {}. The run goes on", steps_text(), error.what()));
    std::error_code ignored;
    for (const char* end : {"", ".tmp"}) std::filesystem::remove(plain.string() + end, ignored);  // .tmp: Kineto's
  };
  try {
    if (history) {
      const auto snapshot = folder_ / fmt::format("rank{}.{}.memory.pickle", world_.communicator().rank(), cycle_);
      write_memory_snapshot(snapshot);
      log_info(fmt::format("allocator's snapshot: {} (pytorch.org/memory_viz)", snapshot.string()));
    }
    if (!result) return;
    make_directories(folder_);
    result->save(plain.string());
    if (!std::filesystem::exists(plain))
      throw WriteError(fmt::format("the profiler wrote no trace to {}", plain.string()));
    write_trace(plain, has_kernels(*result));
  } catch (const WriteError& error) {
    not_written(error);
  } catch (const std::filesystem::filesystem_error& error) {
    not_written(error);
  }
}

void Profiler::write_trace(const std::filesystem::path& plain, bool kernels) {
  const auto trace = folder_ / fmt::format("rank{}.{}.pt.trace.json.gz", world_.communicator().rank(), cycle_);
  const uint64_t bytes = std::filesystem::file_size(plain);
  gzip_file(plain, trace);
  if (world_.device().is_cuda() && !kernels)
    log_warn(fmt::format(
        "error: the trace {} has no kernel of the GPU: LibTorch's profiler got none from CUPTI. Another profiler may "
        "hold it (ncu, nsys, DCGM), or the driver restricts it (NVreg_RestrictProfilingToAdminUsers)",
        trace.string()));
  if (bytes > kLargeTrace)
    log_warn(fmt::format(
        "the trace {} unpacks to {}, which TensorBoard and HTA may not load: record fewer steps (profile.active) and "
        "no shapes",
        trace.string(), format_bytes(bytes)));
  else
    describe(plain);
  std::filesystem::remove(plain);
  log_info(fmt::format("timeline of {}: {}", steps_text(), trace.string()));
}

std::string Profiler::steps_text() const {
  return first_ == last_ ? fmt::format("step {}", last_) : fmt::format("steps {} to {}", first_, last_);
}

void Profiler::describe(const std::filesystem::path& plain) const {
  const Trace trace = read_trace(plain);
  if (settings_.memory) {
    const auto timeline = folder_ / fmt::format("rank{}.{}.memory.tsv", world_.communicator().rank(), cycle_);
    write_file_atomic(timeline, memory_timeline(trace));
    write_file_atomic(folder_ / fmt::format("rank{}.{}.memory.txt", world_.communicator().rank(), cycle_),
                      memory_table(trace));
  }
  for (const std::string& line : split(summary_table(summarise(trace)), '\n'))
    if (!line.empty()) log_info(line);
}

void Profiler::write_memory_state() const {
  make_directories(folder_);
  const auto file = folder_ / fmt::format("rank{}.failure.memory.txt", world_.communicator().rank());
  write_file_atomic(file, memory_state(world_.device()));
  log_warn("memory at the failure: " + file.string());
}

}  // namespace trireme
