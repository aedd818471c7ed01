#pragma once
// Private to train/: traces of some steps of a run by LibTorch's profiler, on some ranks.

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

namespace trireme {

/// Which steps a profile records. Steps count from 1 at the start of the process: a resumed run has its own.
struct ProfileSchedule {
  int64_t wait = 0, warmup = 0, active = 1, repeat = 1;  // repeat 0: cycles until the run ends
  enum class Phase { kOff, kWarmup, kActive };
  Phase phase(int64_t step) const;
  /// The cycle that the step belongs to, from 1.
  int64_t cycle(int64_t step) const { return (step - 1) / (wait + warmup + active) + 1; }
};

/// The schedule of section `profile`, or of its short form logging.profile_step, for a process that goes on after step
/// `completed` of the run; nothing where no step of it is to be recorded.
std::optional<ProfileSchedule> profile_schedule(const Config& config, int64_t completed);

/// Records the active steps of a schedule. Each rank that records writes one file a cycle,
/// <folder>/rank<r>.<cycle>.pt.trace.json.gz, which Perfetto, TensorBoard's plugin and HTA read. On GPUs
/// cudaProfilerStart() and cudaProfilerStop() enclose the active steps, and NVTX has the ranges. If Nsight Systems
/// traces the process (it sets NSYS_PROFILING_SESSION_ID), LibTorch's profiler stays off: both need CUPTI.
class Profiler {
 public:
  /// Null where nothing is to be recorded by any rank. `completed`: steps of the run that are done.
  static std::unique_ptr<Profiler> make(const Config& config, World& world, const std::filesystem::path& folder,
                                        int64_t completed);
  /// While an exception unwinds: writes what was recorded, and with profile.memory the allocator's state.
  ~Profiler();

  /// Whether recording begins before, or ends after step `step` of the run: the same on all ranks. The metrics of the
  /// steps before must have been read then.
  bool begins_at(int64_t step) const;
  bool ends_after(int64_t step) const;
  /// Around every step.
  void before_step(int64_t step);
  void after_step(int64_t step);
  /// The run ends: writes what a cycle recorded that the end cuts short.
  void finish();

 private:
  Profiler(const Config& config, World& world, std::filesystem::path folder, int64_t completed,
           const ProfileSchedule& schedule);
  ProfileSchedule::Phase phase(int64_t step) const { return schedule_.phase(step - completed_); }
  void prepare();
  void start();
  void stop();
  void open_step(int64_t step);
  void close_step();
  void write_trace(const std::filesystem::path& plain, bool kernels);
  void describe(const std::filesystem::path& plain) const;
  void write_memory_state() const;
  std::string steps_text() const;  // "steps 4 to 6", those of the recording

  World& world_;
  std::filesystem::path folder_;
  int64_t completed_;
  ProfileSchedule schedule_;
  ProfileSection settings_;
  bool records_here_ = false, external_ = false;
  bool prepared_ = false, recording_ = false;
  int64_t cycle_ = 0, first_ = 0, last_ = 0;  // of the recording: its steps
  bool step_open_ = false;
  int exceptions_;
};

}  // namespace trireme
