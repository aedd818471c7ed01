#include "profile.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace trireme {

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

std::set<ActivityType> activities(bool gpu) {
  std::set<ActivityType> all = {ActivityType::CPU};
  if (gpu) all.insert(ActivityType::CUDA);
  return all;
}

/// Classes by what appears in a kernel's name; the first that matches.
const char* class_of(const std::string& name) {
  constexpr std::array<std::pair<const char*, const char*>, 27> kClasses = {{
      {"nccl", "NCCL"},
      {"Memcpy PtoP", "peer copies"},
      {"Memcpy", "copies"},
      {"Memset", "copies"},
      {"cudnn_generated_fort_native_sdpa", "attention"},
      {"flash", "attention"},
      {"fmha", "attention"},
      {"kernels::forward::", "attention"},
      {"kernels::backward::", "attention"},
      {"tile::kernel", "quantisation"},
      {"e4m3", "FP8 products"},
      {"gemm", "products"},
      {"nvjet", "products"},
      {"cutlass", "products"},
      {"splitK", "products"},
      {"quantize", "quantisation"},
      {"transpose_bytes", "FP8 weight transposition"},
      {"swiglu", "SwiGLU"},
      {"dropout", "dropout"},
      {"rms_norm", "norms"},
      {"forward_kernel", "norms"},
      {"backward_kernel", "norms"},
      {"rope", "rotary positions"},
      {"rotate", "rotary positions"},
      {"merge", "rotary positions"},
      {"embedding", "embedding"},
      {"elementwise", "LibTorch elementwise"},
  }};
  for (const auto& [part, name_of_class] : kClasses)
    if (name.find(part) != std::string::npos) return name_of_class;
  return "others";
}

bool on_device(const profiler::KinetoEvent& event) { return event.deviceType() == at::kCUDA && event.durationNs() > 0; }

std::string summary(const std::vector<profiler::KinetoEvent>& events) {
  struct Entry {
    double ms = 0;
    int64_t calls = 0;
    std::map<std::string, double> kernels;
  };
  std::map<std::string, Entry> classes;
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  for (const auto& event : events) {
    if (!on_device(event)) continue;
    const double ms = static_cast<double>(event.durationNs()) / 1e6;
    Entry& entry = classes[class_of(event.name())];
    entry.ms += ms;
    ++entry.calls;
    entry.kernels[event.name()] += ms;
    spans.emplace_back(event.startNs(), event.endNs());
  }
  if (spans.empty()) return "no kernel ran on a device\n";
  std::sort(spans.begin(), spans.end());
  uint64_t busy = 0, reach = spans.front().first, last = 0;
  for (const auto& [begin, end] : spans) {
    if (end > reach) busy += end - std::max(begin, reach);
    reach = std::max(reach, end);
    last = reach;
  }
  const double total = static_cast<double>(last - spans.front().first) / 1e6,
               idle = total - static_cast<double>(busy) / 1e6;
  std::vector<std::pair<std::string, Entry>> sorted(classes.begin(), classes.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  std::string text = fmt::format("{:<28}{:>10}{:>8}{:>8}   largest kernel\n", "kernels of", "ms", "share", "calls");
  for (const auto& [name, entry] : sorted) {
    const auto top = std::max_element(entry.kernels.begin(), entry.kernels.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
    text += fmt::format("{:<28}{:>10.2f}{:>7.1f}%{:>8}   {:.1f} ms {:.60}\n", name, entry.ms, 100 * entry.ms / total,
                        entry.calls, top->second, top->first);
  }
  text += fmt::format("{:<28}{:>10.2f}{:>7.1f}%\n{:<28}{:>10.2f}\n", "no kernel running", idle, 100 * idle / total,
                      "first to last kernel", total);
  return text;
}

}  // namespace

StepProfile::StepProfile(bool gpu) : gpu_(gpu) {
  // Kineto was built with CUDA and asks for GPUs whatever is recorded: where no driver answers it prints an error of
  // its highest level. What is printed can only be set through the environment, which it reads when the first profile
  // begins.
  if (!gpu_) setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  const ProfilerConfig config(ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities(gpu_));
  profiler::enableProfiler(config, activities(gpu_));
}

StepProfile::~StepProfile() {
  if (running_) (void)profiler::disableProfiler();
}

std::string StepProfile::finish(const std::filesystem::path& trace) {
  running_ = false;
  const auto result = profiler::disableProfiler();
  make_directories(trace.parent_path());
  result->save(trace.string());
  if (!std::filesystem::exists(trace))
    throw WriteError(fmt::format("the profiler wrote no trace to {}", trace.string()));
  return gpu_ ? summary(result->events()) : std::string();
}

}  // namespace trireme
