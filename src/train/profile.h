#pragma once
// The timeline of one step as LibTorch's profiler records it.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace trireme {

/// Records from construction to finish(): kernels, copies and the host calls that started them (on CPUs: operations).
class StepProfile {
 public:
  explicit StepProfile(bool gpu);
  ~StepProfile();
  /// Writes a Chrome trace (ui.perfetto.dev, chrome://tracing) and returns a table of the device's time: a line for
  /// each class of kernels with its time and share of the step, the largest first, and the time in which no kernel ran.
  /// The device must be idle.
  std::string finish(const std::filesystem::path& trace);

 private:
  bool gpu_;
  bool running_ = true;
};

}  // namespace trireme
