#pragma once
// Timing of kernels: several sets of buffers in rotation, batches of launches between two events,
// the median batch.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace trireme::kernels::bench {

/// Device memory of one benchmark, random content, released with it.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
  /// Standard normal values.
  void* normal(int64_t count, Element element);
  float* uniform(int64_t count, float low, float high);
  int64_t* integers(int64_t count, int64_t below);
  void* raw(int64_t bytes);

 private:
  std::vector<void*> blocks_;
  uint32_t seed_ = 1;
};

struct Result {
  std::string name, shape, element;
  double microseconds, spread, bytes;  // medians; spread: (90th - 10th percentile) / median
};

class Recorder {
 public:
  explicit Recorder(std::string filter) : filter_(std::move(filter)) {}
  bool wants(const std::string& name) const { return name.find(filter_) != std::string::npos; }
  /// Launches run(0), run(1), … (rotating over `sets`), checks every status, prints and keeps the
  /// median. `bytes`: each input once plus each output once.
  void time(const std::string& name, const std::string& shape, Element element, double bytes,
            int sets, const std::function<cudaError_t(int)>& run);
  const std::vector<Result>& results() const { return results_; }

 private:
  std::string filter_;
  std::vector<Result> results_;
};

using Benchmark = void (*)(Recorder&);
struct Registration {
  Registration(const char* name, Benchmark benchmark);
};

/// Stops the program with the CUDA error and the place.
void check(cudaError_t status, const char* what);

/// "8192 x 4096".
std::string shape_text(std::initializer_list<int64_t> extents);

const char* name_of(Element element);
inline int64_t size_of(Element element) { return element == Element::kF32 ? 4 : 2; }

}  // namespace trireme::kernels::bench

/// TRIREME_BENCH(rms_norm) { …recorder… }
#define TRIREME_BENCH(name)                                                                      \
  static void bench_##name(::trireme::kernels::bench::Recorder& recorder);                       \
  static const ::trireme::kernels::bench::Registration registration_##name(#name, bench_##name); \
  static void bench_##name(::trireme::kernels::bench::Recorder& recorder)
