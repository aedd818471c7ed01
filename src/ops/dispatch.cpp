#include "trireme/ops/dispatch.h"

#include "trireme/base/error.h"
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

// What our kernels are built for, as in TRIREME_CUDA_ARCHITECTURES.
#ifdef TRIREME_ARCHITECTURES
constexpr std::string_view kArchitectures = TRIREME_ARCHITECTURES;
#else
constexpr std::string_view kArchitectures = "";
#endif

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

bool logs_choices() {
  static const bool logs = environment("TRIREME_LOG").find("dispatch") != std::string::npos;
  return logs;
}

Dispatch::Dispatch(std::string_view operation, const at::Tensor& x, KernelClass least) : operation_(operation), x_(x) {
  if (!x.is_cuda()) {
    reason_ = "the tensor is on the CPU";
  } else if (const KernelClass has = kernel_class(x.device()); has < least) {
    reason_ = has == KernelClass::kNone ? "this build has no kernels for the GPU, or TRIREME_KERNELS is none"
                                        : "this kernel is for compute capability 9.0, or TRIREME_KERNELS is portable";
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

const char* name_of(KernelClass kernels) {
  return kernels == KernelClass::kNone ? "none" : kernels == KernelClass::kPortable ? "portable" : "hopper";
}

std::optional<KernelClass> parse_kernel_class(std::string_view value) {
  if (value.empty()) return std::nullopt;
  for (const KernelClass one : {KernelClass::kNone, KernelClass::kPortable, KernelClass::kHopper})
    if (value == name_of(one)) return one;
  throw ConfigError(fmt::format("TRIREME_KERNELS is '{}'; use hopper, portable or none, or unset it", value));
}

KernelClass choose_kernel_class(std::string_view architectures, int capability, std::optional<KernelClass> wanted) {
  bool hopper = false, portable = false;
  std::istringstream all{std::string(architectures)};
  for (std::string one; all >> one;) {
    const bool code = !one.ends_with("-virtual"), ptx = !one.ends_with("-real");
    char* rest = nullptr;
    const auto number = static_cast<int>(std::strtol(one.c_str(), &rest, 10));
    if (*rest == 'a') {  // for this capability only
      hopper = hopper || (code && number == 90 && capability == 90);
      portable = portable || (number != 90 && capability == number);
    } else {
      const bool family = number / 10 == capability / 10 && number <= capability;
      portable = portable || (code && family) || (ptx && *rest != 'f' && number <= capability);
    }
  }
  const KernelClass best = hopper ? KernelClass::kHopper : portable ? KernelClass::kPortable : KernelClass::kNone;
  if (!wanted || *wanted == best || *wanted == KernelClass::kNone) return wanted.value_or(best);
  const std::string gpu = fmt::format("TRIREME_KERNELS={}: on a GPU of compute capability {}.{}", name_of(*wanted),
                                      capability / 10, capability % 10);
  if (*wanted == KernelClass::kHopper)
    throw ConfigError(fmt::format(
        "{} this build (for {}) has no kernels for Hopper: they need 9.0 and 90a in TRIREME_CUDA_ARCHITECTURES; use "
        "portable or none, or unset it",
        gpu, architectures));
  throw ConfigError(
      hopper ? fmt::format("{} CUDA takes the kernels for Hopper of this build (for {}): a build with "
                           "-DTRIREME_CUDA_ARCHITECTURES=80 (preset portable) runs the portable ones",
                           gpu, architectures)
             : fmt::format("{} this build (for {}) has no kernels: add {} to TRIREME_CUDA_ARCHITECTURES, or unset it",
                           gpu, architectures, capability));
}

KernelClass planned_kernel_class(at::Device device) {
  return device.is_cuda() ? kernel_class(device) : planned_kernel_class(90);
}

KernelClass planned_kernel_class(int capability) {
  const KernelClass most = capability == 90   ? KernelClass::kHopper
                           : capability >= 80 ? KernelClass::kPortable
                                              : KernelClass::kNone;
  const KernelClass wanted = parse_kernel_class(environment("TRIREME_KERNELS")).value_or(most);
  if (wanted > most)
    throw ConfigError(fmt::format("TRIREME_KERNELS={}: GPUs of compute capability {}.{} run {} kernels at most",
                                  name_of(wanted), capability / 10, capability % 10, name_of(most)));
  return wanted;
}

KernelClass kernel_class_of(int capability) {
  return choose_kernel_class(kArchitectures, capability, parse_kernel_class(environment("TRIREME_KERNELS")));
}

std::string describe_kernels(KernelClass kernels) {
  return fmt::format("kernels: {}{}{}", name_of(kernels),
                     environment("TRIREME_KERNELS").empty() ? "" : " (TRIREME_KERNELS)",
                     kernels == KernelClass::kHopper     ? ""
                     : kernels == KernelClass::kPortable ? ", attention by the library"
                                                         : ", operations are composed of the library's");
}

std::string missing_kernels(std::string_view architectures, int capability) {
  if (capability < 80)
    return fmt::format("the kernels are for GPUs of compute capability 8.0 and later, this one has {}.{}",
                       capability / 10, capability % 10);
  return fmt::format(
      "this build (for {}) has no kernels for compute capability {}.{}: configure it with "
      "-DTRIREME_CUDA_ARCHITECTURES={}",
      architectures, capability / 10, capability % 10, capability == 90 ? "90a" : std::to_string(capability));
}

std::string missing_kernels(KernelClass kernels, int capability) {
  if (kernels != KernelClass::kNone || !environment("TRIREME_KERNELS").empty()) return "";
  return missing_kernels(kArchitectures, capability);
}

bool multiplies_fp8(int capability, bool by_rows) { return by_rows ? capability == 90 : capability >= 89; }

#ifdef TRIREME_WITH_CUDA
namespace {

/// value(device), asked once for each GPU.
template <class F>
int once_per_gpu(std::array<std::atomic<int>, 64>& known, at::Device device, const F& value) {
  std::atomic<int>& answer = known.at(static_cast<size_t>(device.index()));
  int plus_one = answer.load(std::memory_order_relaxed);
  if (plus_one == 0) answer.store(plus_one = 1 + value(), std::memory_order_relaxed);
  return plus_one - 1;
}

}  // namespace

int compute_capability(at::Device device) {
  if (!device.is_cuda()) return 0;
  static std::array<std::atomic<int>, 64> known{};
  return once_per_gpu(known, device, [&] {
    int major = 0, minor = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index());
    return 10 * major + minor;
  });
}

KernelClass kernel_class(at::Device device) {
  if (!device.is_cuda()) return KernelClass::kNone;
  static std::array<std::atomic<int>, 64> known{};
  return static_cast<KernelClass>(
      once_per_gpu(known, device, [&] { return static_cast<int>(kernel_class_of(compute_capability(device))); }));
}
#else
int compute_capability(at::Device) { return 0; }
KernelClass kernel_class(at::Device) { return KernelClass::kNone; }
#endif

}  // namespace trireme
