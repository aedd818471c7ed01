#include "trireme/ops/dispatch.h"

#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/nn/scalar_type.h"

#include <fmt/format.h>
#ifdef TRIREME_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

namespace trireme {

namespace {

bool logs_choices() {
  static const bool logs = environment("TRIREME_LOG").find("dispatch") != std::string::npos;
  return logs;
}

const char* name_of(Runs who) {
  switch (who) {
    case Runs::kKernel: return "kernel";
    case Runs::kLibrary: return "library";
    case Runs::kComposition: break;
  }
  return "composition";
}

bool kernel_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kFloat8_e4m3fn ||
         type == at::kFloat8_e5m2;
}

void log_once(std::string_view operation, const at::Tensor& x, const Choice& choice) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::string key = fmt::format("{} {} {}", operation, name_of(choice.who), choice.reason);
  {
    const std::lock_guard lock(mutex);
    if (!logged.insert(key).second) return;
  }
  std::ostringstream shape;
  shape << x.sizes() << " on " << x.device();
  log_info(fmt::format("dispatch: {} of {} {}: {}{}{}", operation, type_name(x.scalar_type()), shape.str(),
                       name_of(choice.who), choice.reason.empty() ? "" : ", because ", choice.reason));
}

}  // namespace

Dispatch::Dispatch(std::string_view operation, const at::Tensor& x) : operation_(operation), x_(x) {
  if (!x.is_cuda()) {
    reason_ = "the tensor is on the CPU";
  } else if (!has_kernels(x.device())) {
    reason_ = "the GPU's compute capability is not 9.0";
  } else if (!kernel_type(x.scalar_type())) {
    reason_ = "the kernels support fp32, fp16, bf16 and FP8 only";
  }
}

Dispatch& Dispatch::needs(bool condition, std::string_view otherwise_because) {
  if (reason_.empty() && !condition) reason_ = otherwise_because;
  return *this;
}

Choice Dispatch::choice(Runs otherwise) const {
  const Choice result{reason_.empty() ? Runs::kKernel : otherwise, reason_};
  if (logs_choices()) log_once(operation_, x_, result);
  return result;
}

#ifdef TRIREME_WITH_CUDA
/// Kernels are built for sm_90a, which runs on compute capability 9.0 only.
bool has_kernels(at::Device device) {
  if (!device.is_cuda()) return false;
  enum : int { kUnknown, kNo, kYes };
  static std::array<std::atomic<int>, 64> known{};
  std::atomic<int>& answer = known.at(static_cast<size_t>(device.index()));
  int value = answer.load(std::memory_order_relaxed);
  if (value == kUnknown) {
    int major = 0, minor = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index());
    value = major == 9 && minor == 0 ? kYes : kNo;
    answer.store(value, std::memory_order_relaxed);
  }
  return value == kYes;
}
#else
bool has_kernels(at::Device) { return false; }
#endif

}  // namespace trireme
