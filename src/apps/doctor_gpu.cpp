// GPUs as the driver's management library (NVML) reports them: no CUDA context is made.
#include "doctor_checks.h"
#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/ops/device.h"
#include "trireme/ops/dispatch.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace trireme {

namespace {

using State = DoctorCheck::State;

/// Functions of libnvidia-ml.so.1, declared as in NVIDIA's nvml.h; each returns 0 for success.
class Nvml {
 public:
  using Device = void*;
  struct Memory {
    unsigned long long total = 0, free = 0, used = 0;
  };

  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    const auto init = function<int()>("nvmlInit_v2");
    if (init == nullptr) return;
    error_ = init();
    ready_ = error_ == 0;
  }
  ~Nvml() {
    if (!ready_) return;
    if (const auto shutdown = function<int()>("nvmlShutdown")) shutdown();
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool loaded() const { return library_ != nullptr; }
  bool ready() const { return ready_; }
  int error() const { return error_; }

  /// The value that a function writes to its last argument; nullopt if the library or the GPU does not support it.
  template <class Value, class... Arguments>
  std::optional<Value> get(const char* name, Arguments... arguments) const {
    const auto call = function<int(Arguments..., Value*)>(name);
    Value value{};
    if (call == nullptr || call(arguments..., &value) != 0) return std::nullopt;
    return value;
  }
  /// The same for two values.
  std::optional<std::pair<int, int>> pair(const char* name, Device device) const {
    const auto call = function<int(Device, int*, int*)>(name);
    int first = 0, second = 0;
    if (call == nullptr || call(device, &first, &second) != 0) return std::nullopt;
    return std::pair{first, second};
  }
  template <class... Arguments>
  std::string text(const char* name, Arguments... arguments) const {
    const auto call = function<int(Arguments..., char*, unsigned)>(name);
    char buffer[128] = "";
    if (call == nullptr || call(arguments..., buffer, sizeof buffer) != 0) return "not known";
    return buffer;
  }

 private:
  template <class Signature>
  Signature* function(const char* name) const {
    return reinterpret_cast<Signature*>(dlsym(library_, name));
  }

  void* library_;
  bool ready_ = false;
  int error_ = 0;
};

/// The facts of a GPU in its line; equal GPUs share a line.
struct GpuFacts {
  std::string text;
  std::vector<std::string> advice;
  bool operator<(const GpuFacts& other) const { return std::tie(text, advice) < std::tie(other.text, other.advice); }
};

GpuFacts describe_gpu(const Nvml& nvml, Nvml::Device device) {
  constexpr int kSmClock = 1;
  constexpr double kUsedByOthers = 2.0 * (1 << 30);  // the driver takes up to a gigabyte itself
  GpuFacts facts;
  facts.text = nvml.text("nvmlDeviceGetName", device);
  if (const auto memory = nvml.get<Nvml::Memory>("nvmlDeviceGetMemoryInfo", device)) {
    facts.text += fmt::format(", {}", format_bytes(memory->total));
    if (static_cast<double>(memory->used) > kUsedByOthers)
      facts.advice.push_back(fmt::format("{} are used by others: see nvidia-smi", format_bytes(memory->used)));
  }
  if (const auto clock = nvml.get<unsigned>("nvmlDeviceGetMaxClockInfo", device, kSmClock)) {
    const auto now = nvml.get<unsigned>("nvmlDeviceGetClockInfo", device, kSmClock);
    facts.text += fmt::format(", up to {} MHz (now {})", *clock, now ? std::to_string(*now) : "not known");
  }
  if (const auto limit = nvml.get<unsigned>("nvmlDeviceGetPowerManagementLimit", device)) {
    facts.text += fmt::format(", {} W", *limit / 1000);
    const auto usual = nvml.get<unsigned>("nvmlDeviceGetPowerManagementDefaultLimit", device);
    if (usual && *limit < *usual)
      facts.advice.push_back(
          fmt::format("the power limit is below its default of {} W: nvidia-smi -pl {}", *usual / 1000, *usual / 1000));
  }
  if (const auto capability = nvml.pair("nvmlDeviceGetCudaComputeCapability", device); capability) {
    facts.text += fmt::format(", compute capability {}.{}", capability->first, capability->second);
    if constexpr (kCudaBuild) {
      try {
        const int number = 10 * capability->first + capability->second;
        const KernelClass kernels = kernel_class_of(number);
        facts.text += fmt::format(", {}", describe_kernels(kernels));
        if (std::string why = missing_kernels(kernels, number); !why.empty())
          facts.advice.push_back(why + "; until then LibTorch's take their place, slower");
      } catch (const ConfigError& error) {
        facts.advice.emplace_back(error.what());
      }
    }
  }
  if (const auto ecc = nvml.pair("nvmlDeviceGetEccMode", device)) {
    facts.text += ecc->first == 1 ? ", ECC on" : ", ECC off";
    if (ecc->first != 1) facts.advice.emplace_back("memory errors are not corrected: nvidia-smi -e 1, then restart");
  }
  if (const auto persistence = nvml.get<int>("nvmlDeviceGetPersistenceMode", device)) {
    facts.text += *persistence == 1 ? ", persistence on" : ", persistence off";
    if (*persistence != 1)
      facts.advice.emplace_back("every start waits for the driver to initialise: nvidia-smi -pm 1");
  }
  return facts;
}

DoctorCheck peer_check(const Nvml& nvml, const std::vector<Nvml::Device>& devices) {
  constexpr int kRead = 0;
  std::vector<std::string> without;
  for (size_t i = 0; i < devices.size(); ++i)
    for (size_t j = i + 1; j < devices.size(); ++j) {
      const auto status = nvml.get<int>("nvmlDeviceGetP2PStatus", devices[i], devices[j], kRead);
      if (status.value_or(1) != 0) without.push_back(fmt::format("{}-{}", i, j));
    }
  DoctorCheck check{State::kOk, "peer access", "every GPU reads the memory of every other", "", 0};
  if (without.empty()) return check;
  const size_t count = without.size();
  if (count > 6) without.resize(6);
  check.state = State::kWarning;
  check.value = fmt::format("{} without: {}{}", counted(count, "pair"), join(without, ", "), count > 6 ? ", …" : "");
  check.advice = "weights are gathered by NCCL through the host's memory, slower: see nvidia-smi topo -p2p r";
  return check;
}

void add_gpus(const Nvml& nvml, unsigned count, std::vector<DoctorCheck>& checks) {
  std::vector<Nvml::Device> devices;
  std::map<GpuFacts, std::vector<std::string>> kinds;
  for (unsigned i = 0; i < count; ++i) {
    const auto device = nvml.get<Nvml::Device>("nvmlDeviceGetHandleByIndex_v2", i);
    if (!device) {
      checks.push_back({State::kWarning, "GPU " + std::to_string(i), "does not answer",
                        "see nvidia-smi and dmesg: it may need a restart of the host", 0});
      continue;
    }
    devices.push_back(*device);
    kinds[describe_gpu(nvml, *device)].push_back(std::to_string(i));
  }
  for (const auto& [facts, indices] : kinds)
    checks.push_back({facts.advice.empty() ? State::kOk : State::kWarning,
                      (indices.size() == 1 ? "GPU " : "GPUs ") + join(indices, ","), facts.text,
                      join(facts.advice, "; "), 0});
  if (devices.size() > 1) checks.push_back(peer_check(nvml, devices));
}

}  // namespace

const char* state_name(DoctorCheck::State state) {
  return state == State::kOk ? "ok" : state == State::kWarning ? "warning" : "missing";
}

std::vector<std::pair<std::string, std::string>> gpu_description() {
  constexpr int kSmClock = 1;
  const Nvml nvml;
  const unsigned count = nvml.ready() ? nvml.get<unsigned>("nvmlDeviceGetCount_v2").value_or(0) : 0;
  std::vector<std::pair<std::string, std::string>> fields = {{"accelerators_per_node", std::to_string(count)}};
  std::string stack = gpu_library_versions();
  if (count == 0) return fields;
  if (!stack.empty()) stack += ", ";
  fields.emplace_back("other_software_stack", stack + "driver " + nvml.text("nvmlSystemGetDriverVersion"));
  const auto device = nvml.get<Nvml::Device>("nvmlDeviceGetHandleByIndex_v2", 0U);
  if (!device) return fields;
  fields.emplace_back("accelerator_model_name", nvml.text("nvmlDeviceGetName", *device));
  if (const auto clock = nvml.get<unsigned>("nvmlDeviceGetMaxClockInfo", *device, kSmClock))
    fields.emplace_back("accelerator_frequency", fmt::format("{} MHz", *clock));
  if (const auto memory = nvml.get<Nvml::Memory>("nvmlDeviceGetMemoryInfo", *device))
    fields.emplace_back("accelerator_memory_capacity", format_bytes(memory->total));
  const auto generation = nvml.get<unsigned>("nvmlDeviceGetMaxPcieLinkGeneration", *device);
  const auto width = nvml.get<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", *device);
  if (generation && width)
    fields.emplace_back("accelerator_host_interconnect", fmt::format("PCIe Gen{} x{}", *generation, *width));
  return fields;
}

std::vector<DoctorCheck> gpu_checks() {
  std::vector<DoctorCheck> checks;
  const Nvml nvml;
  unsigned count = 0;
  if (!nvml.loaded()) {
    checks.push_back({State::kMissing, "driver", "no libnvidia-ml.so.1",
                      "without NVIDIA's driver (580 or later) training uses the CPU", 0});
  } else if (!nvml.ready()) {
    checks.push_back({State::kMissing, "driver", fmt::format("installed, does not start (NVML error {})", nvml.error()),
                      "see what nvidia-smi says; a container needs the GPUs passed to it", 0});
  } else {
    const auto cuda = nvml.get<int>("nvmlSystemGetCudaDriverVersion_v2");
    count = nvml.get<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
    checks.push_back({State::kOk, "driver",
                      fmt::format("{}, for CUDA up to {}", nvml.text("nvmlSystemGetDriverVersion"),
                                  cuda ? fmt::format("{}.{}", *cuda / 1000, *cuda % 1000 / 10) : "not known"),
                      "", 0});
  }
  const std::string libraries = gpu_library_versions();
  checks.push_back({libraries.empty() ? State::kMissing : State::kOk, "CUDA",
                    libraries.empty() ? "this build has no CUDA code" : libraries,
                    libraries.empty() ? "training uses the CPU; configure with -DTRIREME_CUDA=ON for GPUs" : "", 0});
  add_gpus(nvml, count, checks);
  try {
    const int visible = visible_gpus();
    if (visible == 0) (void)planned_kernel_class(at::kCPU);  // as a run's start
    const auto wanted = static_cast<int>(count);
    DoctorCheck check{State::kOk, "training uses", visible == 0 ? "the CPU" : counted(visible, "GPU"), "", 0};
    if (visible < wanted) {
      check.state = State::kWarning;
      check.advice =
          fmt::format("the machine has {}: see CUDA_VISIBLE_DEVICES and TRIREME_DEVICE", counted(wanted, "GPU"));
    }
    checks.push_back(check);
  } catch (const Error& error) {
    checks.push_back({State::kMissing, "training uses", "nothing", error.what(), static_cast<int>(error.code())});
  }
  return checks;
}

}  // namespace trireme
