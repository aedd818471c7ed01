#include "trireme/plan/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace trireme {

namespace {

/// Figures of a datasheet: dense products with fp32 accumulation, TFLOP/s; GB/s. memory_gib: what CUDA leaves of the
/// nominal memory.
struct DeviceSheet {
  const char* word;  // --device WORD
  const char* name;
  int capability;  // 89: compute capability 8.9
  double bf16_tflops, fp8_tflops, memory_gb_s, memory_gib;
  double nvlink_gb_s;  // in each direction; 0: collectives go over PCIe
  double pcie_gb_s;    // in each direction, x16
};

constexpr DeviceSheet kH200 = {"h200", "NVIDIA H200", 90, 989, 1979, 4800, 139.8, 450, 63};

// Sources: NVIDIA's datasheets and architecture white papers of these products, without sparsity.
constexpr std::array<DeviceSheet, 10> kSheets = {{
    {"a100-40", "NVIDIA A100 40GB", 80, 312, 0, 1555, 39.4, 300, 31.5},
    {"a100-80", "NVIDIA A100 80GB", 80, 312, 0, 2039, 79.1, 300, 31.5},
    {"a6000", "NVIDIA RTX A6000", 86, 154.8, 0, 768, 47.4, 0, 31.5},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 86, 71, 0, 936, 23.6, 0, 31.5},
    {"l4", "NVIDIA L4", 89, 121, 242, 300, 22.0, 0, 31.5},
    {"l40s", "NVIDIA L40S", 89, 362, 733, 864, 44.4, 0, 31.5},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 165.2, 330.3, 1008, 23.5, 0, 31.5},
    {"rtx6000-ada", "NVIDIA RTX 6000 Ada", 89, 364, 728, 960, 47.4, 0, 31.5},
    {"b200", "NVIDIA B200", 100, 2250, 4500, 8000, 178.3, 900, 63},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 120, 209.5, 419, 1792, 31.3, 0, 63},
}};

const DeviceSheet* sheet_of(std::string_view word) {
  const auto* found = std::ranges::find(kSheets, word, &DeviceSheet::word);
  return found == kSheets.end() ? nullptr : found;
}

}  // namespace

std::vector<std::string> device_words() {
  std::vector<std::string> words = {"h100", "h200"};
  for (const DeviceSheet& sheet : kSheets) words.emplace_back(sheet.word);
  return words;
}

MachineRates device_rates(std::string_view word) {
  const DeviceSheet* sheet = sheet_of(word);
  if (sheet == nullptr) return machine_rates(word == "h100" ? "NVIDIA H100" : "NVIDIA H200");
  const MachineRates measured = machine_rates("NVIDIA H200");
  MachineRates rates = measured;
  const auto part = [](double rate, double own, double h200) { return rate * own / h200; };
  rates.name = sheet->name;
  rates.measured = false;
  rates.capability = sheet->capability;
  rates.bf16_flops = part(measured.bf16_flops, sheet->bf16_tflops, kH200.bf16_tflops);
  // Without FP8 the rate is not asked for (fp8_problem_of()).
  rates.fp8_flops = sheet->fp8_tflops > 0 ? part(measured.fp8_flops, sheet->fp8_tflops, kH200.fp8_tflops) : 1e12;
  rates.attention_flops = part(measured.attention_flops, sheet->bf16_tflops, kH200.bf16_tflops);
  rates.memory_bytes = part(measured.memory_bytes, sheet->memory_gb_s, kH200.memory_gb_s);
  rates.host_bytes = part(measured.host_bytes, sheet->pcie_gb_s, kH200.pcie_gb_s);
  // Without NVLink what a GPU sends goes through the host's memory, on its way out and in.
  rates.link_bytes =
      sheet->nvlink_gb_s > 0 ? part(measured.link_bytes, sheet->nvlink_gb_s, kH200.nvlink_gb_s) : rates.host_bytes / 2;
  rates.memory_gib = sheet->memory_gib;
  return rates;
}

std::string fp8_problem_of(const RecipeTraits& recipe, KernelClass kernels, int capability, const std::string& device) {
  if (!recipe.fp8()) return "";
  constexpr const char* kKeys = "FP8 products (precision.linear or precision.frozen)";
  if (kernels == KernelClass::kNone)
    return fmt::format(
        "{} need Trireme's kernels, which {} does not run: TRIREME_KERNELS is none, or this build has none for it. "
        "Leave "
        "these keys out",
        kKeys, device);
  if (multiplies_fp8(capability, recipe.scales_rows)) return "";
  return fmt::format(
      "{} with {} need a GPU of compute capability {}, and {} has {}.{}: {}leave these keys out", kKeys,
      recipe.scales_rows ? "a scale per row (frozen matrices, fp8_recipe: rowwise)" : "a scale per matrix",
      recipe.scales_rows ? "9.0" : "8.9 or more", device, capability / 10, capability % 10,
      recipe.scales_rows && recipe.trains && multiplies_fp8(capability, false)
          ? "set precision.fp8_recipe: tensorwise or delayed, or "
          : "");
}

}  // namespace trireme
