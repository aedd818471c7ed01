#include "trireme/plan/rates.h"

#include "trireme/config/number_file.h"

#include <fmt/format.h>

#include <cmath>

namespace trireme {

namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

constexpr const char* kCapability = "compute_capability";  // in a file: 8.9

}  // namespace

const std::array<RateKey, 18>& rate_keys() {
  using M = MachineRates;
  // The ranges reach from a tenth of a GPU of 2016 to ten times one of 2025: what lies outside has a wrong unit.
  static const std::array<RateKey, 18> keys = {{
      {"bf16_flops", &M::bf16_flops, 1e12, 1e17, "products of a block's matrices in bf16, FLOP/s"},
      {"fp8_flops", &M::fp8_flops, 1e12, 1e17, "the same in FP8"},
      {"attention_flops", &M::attention_flops, 1e11, 1e17,
       "attention, forward and backward, heads of 128, causal half, FLOP/s"},
      {"memory_bytes", &M::memory_bytes, 1e10, 1e14, "device memory, read and written, bytes/s"},
      {"link_bytes", &M::link_bytes, 1e8, 1e14, "received by a GPU from its host's others in a collective, bytes/s"},
      {"network_bytes", &M::network_bytes, 1e6, 1e14, "received by a GPU from other hosts in a collective, bytes/s"},
      {"interference", &M::interference, 0, 5, "part of a collective's time by which it slows products beside it"},
      {"collective_start", &M::collective_start, 0, 1, "start of a collective over several hosts, seconds"},
      {"ring_link_step", &M::ring_link_step, 0, 1, "a ring's step between two GPUs of a host, seconds"},
      {"ring_network_step", &M::ring_network_step, 0, 1, "a ring's step between two hosts, seconds"},
      {"tree_link_step", &M::tree_link_step, 0, 1, "a tree's step between two GPUs of a host, seconds"},
      {"tree_network_step", &M::tree_network_step, 0, 1, "a tree's step between two hosts, seconds"},
      {"step_overhead", &M::step_overhead, 0, 10, "a step's time without a kernel and in small kernels, seconds"},
      {"block_overhead", &M::block_overhead, 0, 1, "the same for each block, seconds"},
      {"waiting", &M::waiting, 0, 1, "part of the computation by which several ranks wait for the slowest"},
      {"memory_gib", &M::memory_gib, 0.5, 1e5, "memory of a device, GiB"},
      {"host_bytes", &M::host_bytes, 1e8, 1e13, "copies between a device and pinned memory of its host, bytes/s"},
      {"host_memory_gib", &M::host_memory_gib, 0.5, 1e5, "memory of a host for each of its devices, GiB"},
  }};
  return keys;
}

bool has_machine_rates(std::string_view device_name) {
  return contains(device_name, "H100") || contains(device_name, "H200");
}

MachineRates machine_rates(std::string_view device_name) {
  MachineRates rates;
  if (!contains(device_name, "H100")) return rates;
  rates.name = "NVIDIA H100";
  rates.memory_bytes = 2.9e12;  // HBM3 at 3.35 TB/s, where an H200 has HBM3e at 4.8 TB/s
  rates.memory_gib = 79.1;
  return rates;
}

std::string describe_rates(const MachineRates& rates, std::string_view device_name) {
  if (!rates.file.empty()) {
    const bool other = !device_name.empty() && device_name != rates.name;
    return fmt::format("rates: {}, measured on {}{}", rates.file, rates.name,
                       other ? fmt::format(", and this is {}: `trireme calibrate` measures its own", device_name) : "");
  }
  if (!rates.measured)
    return fmt::format(
        "rates: {}, NOT MEASURED: of the figures of its datasheet the parts that an H200 reaches ({:.0f} TFLOP/s in "
        "bf16, "
        "memory {:.2f} TB/s, {:.0f} GB/s from other GPUs of the host); `trireme calibrate` on such a machine measures "
        "its "
        "own",
        rates.name, rates.bf16_flops / 1e12, rates.memory_bytes / 1e12, rates.link_bytes / 1e9);
  if (device_name.empty() || has_machine_rates(device_name))
    return fmt::format("rates: {}, built-in table", rates.name);
  return fmt::format(
      "rates: {}, because the built-in table has none of {}: `mpirun -n <its GPUs> trireme calibrate --output "
      "rates.yaml` measures them, and parallel.rates: rates.yaml loads them",
      rates.name, device_name);
}

MachineRates read_rates(const std::filesystem::path& file) {
  std::vector<NumberKey> keys;
  for (const RateKey& key : rate_keys()) keys.push_back({key.name, key.least, key.most});
  keys.push_back({kCapability, 5, 20});
  const NumberFile read = read_number_file(file, {"name"}, keys);
  MachineRates rates = machine_rates(read.texts.at("name"));
  rates.name = read.texts.at("name");
  rates.file = file.string();
  for (const RateKey& key : rate_keys())
    if (const auto found = read.numbers.find(key.name); found != read.numbers.end()) rates.*key.value = found->second;
  if (const auto found = read.numbers.find(kCapability); found != read.numbers.end())
    rates.capability = static_cast<int>(std::lround(10 * found->second));
  return rates;
}

MachineRates run_rates(const Config& config, std::string_view device_name) {
  return config.parallel.rates ? read_rates(*config.parallel.rates) : machine_rates(device_name);
}

std::string rates_text(const MachineRates& rates, const std::set<std::string>& measured,
                       const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += "# " + note + '\n';
  // Single quotes hold every character but themselves.
  std::string name;
  for (const char c : rates.name) name += c == '\'' ? std::string("''") : std::string(1, c);
  text += fmt::format("name: '{}'\n", name);
  text += fmt::format("{}: {}.{}\n", kCapability, rates.capability / 10, rates.capability % 10);
  for (const RateKey& key : rate_keys())
    if (measured.contains(key.name))
      text += fmt::format("{:<40}# {}\n", fmt::format("{}: {:.4g}", key.name, rates.*key.value), key.meaning);
  return text;
}

}  // namespace trireme
