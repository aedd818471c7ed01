// kernel_bench [--json FILE] [--filter TEXT]

#include "kernels/bench/bench.h"
#include "kernels/device.cuh"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

namespace trireme::kernels::bench {

namespace {

std::map<std::string, Benchmark>& registry() {
  static std::map<std::string, Benchmark> benchmarks;
  return benchmarks;
}

__device__ uint32_t hash(uint64_t x) {
  x *= 0x9e3779b97f4a7c15ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return static_cast<uint32_t>(x >> 32);
}

__device__ float unit(uint64_t x) { return (static_cast<float>(hash(x) >> 8) + 0.5f) * (1.0f / 16777216.0f); }

template <class T>
__global__ void normal_kernel(T* out, int64_t count, uint32_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint64_t at = (static_cast<uint64_t>(seed) << 40) + 2 * i;
    out[i] = from_float<T>(sqrtf(-2.0f * logf(unit(at))) * cospif(2.0f * unit(at + 1)));
  }
}
__global__ void uniform_kernel(float* out, int64_t count, float low, float high, uint32_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    out[i] = low + (high - low) * unit((static_cast<uint64_t>(seed) << 40) + i);
}
__global__ void integer_kernel(int64_t* out, int64_t count, int64_t below, uint32_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    out[i] = hash((static_cast<uint64_t>(seed) << 40) + i) % below;
}

}  // namespace

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

DeviceTimer::DeviceTimer() {
  check(cudaEventCreate(&begin_), "event");
  check(cudaEventCreate(&end_), "event");
}

DeviceTimer::~DeviceTimer() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

double DeviceTimer::time(const std::string& name, int count, const std::function<cudaError_t(int)>& launch) const {
  check(cudaEventRecord(begin_), "event");
  for (int i = 0; i < count; ++i) check(launch(i), name.c_str());
  check(cudaEventRecord(end_), "event");
  check(cudaEventSynchronize(end_), name.c_str());
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin_, end_), "event");
  return milliseconds * 1e3 / count;
}

Registration::Registration(const char* name, Benchmark benchmark) { registry()[name] = benchmark; }

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "kernel_bench: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(70);
}

const char* name_of(Element element) {
  return element == Element::kF32 ? "fp32" : element == Element::kF16 ? "fp16" : "bf16";
}

std::string shape_text(std::initializer_list<int64_t> extents) {
  char text[128];
  int length = 0;
  for (const int64_t extent : extents)
    length += std::snprintf(text + length, sizeof(text) - static_cast<size_t>(length), length == 0 ? "%lld" : " x %lld",
                            static_cast<long long>(extent));
  return text;
}

Memory::~Memory() {
  for (void* block : blocks_) cudaFree(block);
}

void* Memory::raw(int64_t bytes) {
  void* block = nullptr;
  check(cudaMalloc(&block, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "cudaMalloc");
  check(cudaMemset(block, 0, static_cast<size_t>(bytes)), "cudaMemset");
  blocks_.push_back(block);
  return block;
}

void* Memory::normal(int64_t count, Element element) {
  void* block = raw(count * size_of(element));
  check(dispatch(element,
                 [&](auto zero) {
                   normal_kernel<<<1024, 256>>>(static_cast<decltype(zero)*>(block), count, seed_++);
                   return cudaGetLastError();
                 }),
        "fill");
  return block;
}

float* Memory::uniform(int64_t count, float low, float high) {
  float* block = static_cast<float*>(raw(count * 4));
  uniform_kernel<<<1024, 256>>>(block, count, low, high, seed_++);
  check(cudaGetLastError(), "fill");
  return block;
}

int64_t* Memory::integers(int64_t count, int64_t below) {
  int64_t* block = static_cast<int64_t*>(raw(count * 8));
  integer_kernel<<<1024, 256>>>(block, count, below, seed_++);
  check(cudaGetLastError(), "fill");
  return block;
}

void Recorder::time(const std::string& name, const std::string& shape, Element element, double bytes, int sets,
                    const std::function<cudaError_t(int)>& run) {
  constexpr int kWarmUp = 6, kBatches = 15, kPerBatch = 8;
  const std::chrono::milliseconds kRest(100);
  if (!wants(name)) return;
  check(cudaDeviceSynchronize(), name.c_str());
  std::this_thread::sleep_for(kRest);
  for (int i = 0; i < kWarmUp; ++i) check(run(i % sets), name.c_str());
  check(cudaDeviceSynchronize(), name.c_str());
  const DeviceTimer timer;
  SmClock clock;
  std::vector<double> times;
  clock.begin();
  for (int batch = 0; batch < kBatches; ++batch)
    times.push_back(timer.time(name, kPerBatch, [&](int i) { return run(i % sets); }));
  clock.end();
  keep(summary(name, shape, element, bytes, times, clock.megahertz()));
}

Result Recorder::summary(const std::string& name, const std::string& shape, Element element, double bytes,
                         const std::vector<double>& times, double megahertz) {
  const double median = percentile(times, 0.5);
  return {name,
          shape,
          name_of(element),
          median,
          (percentile(times, 0.9) - percentile(times, 0.1)) / median,
          bytes,
          megahertz,
          0,
          0,
          0,
          {}};
}

namespace {

/// Rows with TFLOP/s in their name count floating-point operations instead of bytes.
bool counts_operations(const Result& result) { return result.name.find("(TFLOP/s)") != std::string::npos; }

}  // namespace

void Recorder::keep(Result result) {
  const Result& r = results_.emplace_back(std::move(result));
  const bool operations = counts_operations(r);
  std::printf("%-44s %-24s %-5s %9.1f us  %7.*f %-7s  +-%4.1f%%  %4.0f MHz", r.name.c_str(), r.shape.c_str(),
              r.element.c_str(), r.microseconds, operations ? 0 : 2, r.bytes / r.microseconds * 1e-6,
              operations ? "TFLOP/s" : "TB/s", r.spread * 50, r.megahertz);
  if (r.whole_microseconds > 0) std::printf("  whole call %9.1f us", r.whole_microseconds);
  if (r.ratio > 0) std::printf("  x %.3f (whole %.3f) of %s", r.ratio, r.whole_ratio, r.peer.c_str());
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace trireme::kernels::bench

int main(int argc, char** argv) {
  using namespace trireme::kernels;
  std::string json, filter;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc)
      json = argv[++i];
    else if (std::strcmp(argv[i], "--filter") == 0 && i + 1 < argc)
      filter = argv[++i];
    else
      return std::fprintf(stderr, "usage: kernel_bench [--json FILE] [--filter TEXT]\n"), 2;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    return std::fprintf(stderr, "kernel_bench: no CUDA device found; run it on a machine with a GPU\n"), 70;
  cudaDeviceProp properties;
  bench::check(cudaGetDeviceProperties(&properties, 0), "device");
  std::printf("%s, %d multiprocessors, L2 %d MiB\n", properties.name, properties.multiProcessorCount,
              properties.l2CacheSize >> 20);

  bench::Recorder recorder(filter);
  {
    bench::Memory memory;
    const int64_t bytes = int64_t{1} << 30;
    void* from[2] = {memory.normal(bytes / 2, Element::kBF16), memory.normal(bytes / 2, Element::kBF16)};
    void* to[2] = {memory.raw(bytes), memory.raw(bytes)};
    recorder.time("copy (cudaMemcpyAsync)", "1 GiB", Element::kBF16, 2.0 * static_cast<double>(bytes), 2,
                  [&](int set) { return cudaMemcpyAsync(to[set], from[set], bytes, cudaMemcpyDeviceToDevice); });
  }
  for (const auto& [name, benchmark] : bench::registry()) benchmark(recorder);

  if (json.empty()) return 0;
  std::FILE* file = std::fopen(json.c_str(), "w");
  if (file == nullptr) return std::fprintf(stderr, "kernel_bench: cannot open %s for writing\n", json.c_str()), 73;
  std::fprintf(file, "{\"device\": \"%s\", \"results\": [", properties.name);
  const char* separator = "\n";
  for (const auto& r : recorder.results()) {
    const bool operations = bench::counts_operations(r);
    std::fprintf(file,
                 "%s  {\"name\": \"%s\", \"shape\": \"%s\", \"element\": \"%s\", \"microseconds\": "
                 "%.3f, \"spread\": %.4f, \"%s\": %.0f, "
                 "\"%s\": %.4f, \"sm_mhz\": %.0f",
                 separator, r.name.c_str(), r.shape.c_str(), r.element.c_str(), r.microseconds, r.spread,
                 operations ? "operations" : "bytes", r.bytes, operations ? "tflop_per_s" : "tb_per_s",
                 r.bytes / r.microseconds * 1e-6, r.megahertz);
    if (r.whole_microseconds > 0) std::fprintf(file, ", \"whole_microseconds\": %.3f", r.whole_microseconds);
    if (r.ratio > 0)
      std::fprintf(file, ", \"peer\": \"%s\", \"ratio\": %.4f, \"whole_ratio\": %.4f", r.peer.c_str(), r.ratio,
                   r.whole_ratio);
    std::fprintf(file, "}");
    separator = ",\n";
  }
  std::fprintf(file, "\n]}\n");
  return std::fclose(file) == 0 ? 0 : 73;
}
