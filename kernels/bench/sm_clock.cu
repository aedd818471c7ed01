// The clock of the multiprocessors: their cycle counters divided by the elapsed device time.

#include "kernels/bench/bench.h"

#include <algorithm>
#include <vector>

namespace trireme::kernels::bench {

namespace {

__device__ int64_t device_nanoseconds() {
  int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

/// One stamp for each multiprocessor that runs a block of this grid. If several blocks run on it, any of them may
/// write.
__global__ void stamp_kernel(SmClock::Stamp* stamps) {
  if (threadIdx.x != 0) return;
  uint32_t multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  const SmClock::Stamp stamp{clock64(), device_nanoseconds()};
  *reinterpret_cast<longlong2*>(stamps + multiprocessor) = {stamp.cycles, stamp.nanoseconds};
}

}  // namespace

SmClock::SmClock() {
  int device = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&count_, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  for (Stamp*& stamps : stamps_) {
    check(cudaMalloc(&stamps, static_cast<size_t>(count_) * sizeof(Stamp)), "cudaMalloc");
    check(cudaMemset(stamps, 0, static_cast<size_t>(count_) * sizeof(Stamp)), "cudaMemset");
  }
}

SmClock::~SmClock() {
  for (Stamp* stamps : stamps_) cudaFree(stamps);
}

void SmClock::stamp(Stamp* stamps) {
  stamp_kernel<<<static_cast<unsigned>(2 * count_), 1024>>>(
      stamps);  // each block takes half a multiprocessor's threads, so blocks spread over all multiprocessors
  check(cudaGetLastError(), "clock");
}

double SmClock::megahertz() const {
  const auto count = static_cast<size_t>(count_);
  std::vector<Stamp> begin(count), end(count);
  check(cudaMemcpy(begin.data(), stamps_[0], count * sizeof(Stamp), cudaMemcpyDeviceToHost), "clock");
  check(cudaMemcpy(end.data(), stamps_[1], count * sizeof(Stamp), cudaMemcpyDeviceToHost), "clock");
  std::vector<double> clocks;
  for (size_t i = 0; i < count; ++i)
    if (begin[i].nanoseconds != 0 && end[i].nanoseconds > begin[i].nanoseconds)
      clocks.push_back(1e3 * static_cast<double>(end[i].cycles - begin[i].cycles) /
                       static_cast<double>(end[i].nanoseconds - begin[i].nanoseconds));
  return clocks.empty() ? 0.0 : percentile(std::move(clocks), 0.5);
}

}  // namespace trireme::kernels::bench
