#pragma once
// Times kernels: rotates over several sets of buffers, measures batches of launches between two events and reports the
// median batch. Also compares several implementations by alternating between them.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace trireme::kernels::bench {

/// Device memory of one benchmark with random content, freed with the object.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
  /// Standard normal random values.
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
  double megahertz;                    // mean clock of the multiprocessors during the row; 0: unknown
  // For rows that alternate with a peer, otherwise 0: one whole call on the host's clock, and the speed-up over the
  // peer on the device and for the whole call.
  double whole_microseconds = 0, ratio = 0, whole_ratio = 0;
  std::string peer;
};

/// One of several implementations of the work of a row.
struct Contender {
  std::string name;
  std::function<cudaError_t()> launch;
  std::function<cudaError_t()> whole_call;  // including what the caller prepares for each call; unset: launch
  bool peer = false;                        // the implementation that the others are compared with
};

/// Device time between two events.
class DeviceTimer {
 public:
  DeviceTimer();
  ~DeviceTimer();
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;
  /// Microseconds of one launch, averaged over launch(0) … launch(count - 1) in a row.
  double time(const std::string& name, int count, const std::function<cudaError_t(int)>& launch) const;

 private:
  cudaEvent_t begin_, end_;
};

/// The mean clock of the multiprocessors between two points of the default stream.
class SmClock {
 public:
  struct alignas(16) Stamp {
    long long cycles, nanoseconds;
  };
  SmClock();
  ~SmClock();
  SmClock(const SmClock&) = delete;
  SmClock& operator=(const SmClock&) = delete;
  void begin() { stamp(stamps_[0]); }
  void end() { stamp(stamps_[1]); }
  /// Synchronises with the device. 0: no multiprocessor was sampled at both points.
  double megahertz() const;

 private:
  void stamp(Stamp* stamps);

  int count_ = 0;
  Stamp* stamps_[2] = {};
};

/// `share` 0.5: the median.
double percentile(std::vector<double> values, double share);

class Recorder {
 public:
  explicit Recorder(std::string filter) : filter_(std::move(filter)) {}
  bool wants(const std::string& name) const { return name.find(filter_) != std::string::npos; }
  /// Waits at low power first, so that a row's clock does not depend on the rows before it. Then launches run(0),
  /// run(1), … (rotating over `sets`), checks every status, prints and stores the median. `bytes`: each input once plus
  /// each output once.
  void time(const std::string& name, const std::string& shape, Element element, double bytes, int sets,
            const std::function<cudaError_t(int)>& run);
  /// Alternates between the contenders whose names match the filter: half a second until the clocks settle, then rounds
  /// of batches between events, then rounds of single calls on the host's clock.
  void alternate(std::vector<Contender> contenders, const std::string& shape, Element element, double bytes);
  const std::vector<Result>& results() const { return results_; }

 private:
  static Result summary(const std::string& name, const std::string& shape, Element element, double bytes,
                        const std::vector<double>& times, double megahertz);
  void keep(Result result);  // stores and prints it

  std::string filter_;
  std::vector<Result> results_;
};

using Benchmark = void (*)(Recorder&);
struct Registration {
  Registration(const char* name, Benchmark benchmark);
};

/// Exits with the CUDA error and `what`.
void check(cudaError_t status, const char* what);

/// "8192 x 4096".
std::string shape_text(std::initializer_list<int64_t> extents);

const char* name_of(Element element);
inline int64_t size_of(Element element) { return element == Element::kF32 ? 4 : 2; }

}  // namespace trireme::kernels::bench

/// Defines a benchmark: TRIREME_BENCH(rms_norm) { …recorder… }
#define TRIREME_BENCH(name)                                                                      \
  static void bench_##name(::trireme::kernels::bench::Recorder& recorder);                       \
  static const ::trireme::kernels::bench::Registration registration_##name(#name, bench_##name); \
  static void bench_##name(::trireme::kernels::bench::Recorder& recorder)
