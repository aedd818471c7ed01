#include "device_backend.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <string_view>

namespace trireme::gpu {

namespace {

/// Dense peak of the tensor cores for 16-bit data, from the data sheets, TFLOP/s.
std::optional<double> peak_16bit(std::string_view name) {
  struct Row {
    const char* pattern;
    double tflops;
  };
  // The first match counts: variants precede the plain name.
  static constexpr Row kRows[] = {{"H100 NVL", 835}, {"H100 PCIe", 756}, {"H100", 989},   {"H200 NVL", 835},
                                  {"H200", 989},     {"H20", 148},       {"GB200", 2500}, {"GB300", 2500},
                                  {"B200", 2250},    {"B300", 2250},     {"A100", 312},   {"A800", 312},
                                  {"L40S", 362},     {"A10", 125}};
  for (const Row& row : kRows) {
    const std::string_view pattern = row.pattern;
    const size_t at = name.find(pattern), end = at + pattern.size();
    // The A10G and the RTX A1000 are other products than the A10 and the A100.
    if (at != std::string_view::npos &&
        (end == name.size() || std::isalnum(static_cast<unsigned char>(name[end])) == 0))
      return row.tflops * 1e12;
  }
  return std::nullopt;
}

c10::CachingDeviceAllocator::DeviceStats stats(at::Device device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
}

constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

int count(std::string& reason) {
  int number = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&number); status != cudaSuccess) {
    reason = cudaGetErrorString(status);
    (void)cudaGetLastError();
    return 0;
  }
  return number;
}

DeviceInfo describe(at::Device device, at::ScalarType compute_dtype) {
  cudaDeviceProp properties{};
  const cudaError_t status = cudaGetDeviceProperties(&properties, device.index());
  TRIREME_CHECK(status == cudaSuccess, "cudaGetDeviceProperties(", static_cast<int>(device.index()),
                "): ", cudaGetErrorString(status));
  DeviceInfo info;
  info.name = properties.name;
  info.total_memory = static_cast<int64_t>(properties.totalGlobalMem);
  // The allocator starts with the first tensor or limit_memory().
  if (c10::cuda::CUDACachingAllocator::get()->initialized())
    if (const double part = c10::cuda::CUDACachingAllocator::getMemoryFraction(device.index()); part < 1)
      info.total_memory = static_cast<int64_t>(part * static_cast<double>(info.total_memory));
  if (compute_dtype == at::kBFloat16 || compute_dtype == at::kHalf) info.peak_flops = peak_16bit(info.name);
  return info;
}

void limit_memory(at::Device device, int64_t bytes) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  const auto total = static_cast<double>(describe(device, at::kFloat).total_memory);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(1.0, static_cast<double>(bytes) / total), device.index());
}

int64_t peak_allocated(at::Device device) { return stats(device).allocated_bytes[kAggregate].peak; }
int64_t peak_reserved(at::Device device) { return stats(device).reserved_bytes[kAggregate].peak; }

std::string memory_state(at::Device device) {
  const auto counters = stats(device);
  std::string text = fmt::format("{:<24}{:>14}{:>14}\n", "bytes", "now", "peak");
  const auto line = [&](const char* name, const c10::CachingAllocator::Stat& stat) {
    text += fmt::format("{:<24}{:>14}{:>14}\n", name, format_bytes(stat.current), format_bytes(stat.peak));
  };
  line("allocated", counters.allocated_bytes[kAggregate]);
  line("reserved", counters.reserved_bytes[kAggregate]);
  line("free in split blocks", counters.inactive_split_bytes[kAggregate]);
  text += fmt::format("retries {}, failed allocations {}\n", counters.num_alloc_retries, counters.num_ooms);
  // Blocks by power of two: many equal blocks are gathered units or activations; the largest free block bounds an
  // allocation without new memory from the driver.
  struct Row {
    int64_t blocks = 0, total = 0;
  };
  std::map<int64_t, Row, std::greater<>> used, unused;
  int64_t largest_free = 0;
  for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot().segments) {
    if (segment.device != device.index()) continue;
    for (const auto& block : segment.blocks) {
      int64_t power = 512;
      while (power < static_cast<int64_t>(block.size)) power *= 2;
      Row& row = (block.allocated ? used : unused)[power];
      ++row.blocks;
      row.total += static_cast<int64_t>(block.size);
      if (!block.allocated) largest_free = std::max(largest_free, static_cast<int64_t>(block.size));
    }
  }
  text += fmt::format("largest free block {}\n\n{:<24}{:>14}{:>14}\n", format_bytes(largest_free), "used blocks up to",
                      "blocks", "together");
  for (const auto& [power, row] : used)
    text += fmt::format("{:<24}{:>14}{:>14}\n", format_bytes(power), row.blocks, format_bytes(row.total));
  text += fmt::format("\n{:<24}{:>14}{:>14}\n", "free blocks up to", "blocks", "together");
  for (const auto& [power, row] : unused)
    text += fmt::format("{:<24}{:>14}{:>14}\n", format_bytes(power), row.blocks, format_bytes(row.total));
  return text;
}

void start_capture() {
  (void)cudaDeviceSynchronize();
  (void)cudaProfilerStart();
}

void stop_capture() {
  (void)cudaDeviceSynchronize();
  (void)cudaProfilerStop();
}

std::string library_versions() {
  int runtime = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  return fmt::format("cuda {}.{}", runtime / 1000, runtime % 1000 / 10);
}

}  // namespace trireme::gpu
