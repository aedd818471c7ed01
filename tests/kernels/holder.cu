#include "holder.h"

#include <chrono>
#include <thread>

namespace trireme::kernels::testing {

namespace {

constexpr int64_t kLimitNanoseconds = 6'000'000'000;
constexpr int kShared = 227 * 1024;  // all of a multiprocessor's shared memory

__device__ int64_t nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void hold_kernel(volatile int32_t* resident, volatile int32_t* released) {
  const int64_t begin = nanoseconds();
  atomicAdd_system(const_cast<int32_t*>(resident), 1);
  while (*released == 0 && nanoseconds() - begin < kLimitNanoseconds) __nanosleep(2000);
}

template <class F>
bool within(double seconds, const F& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace

Holder::Holder(int count) : count_(count) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, sizeof(Flags), cudaHostAllocMapped) != cudaSuccess) return;
  flags_ = static_cast<volatile Flags*>(memory);
  flags_->resident = 0;
  flags_->released = 0;
  if (cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) != cudaSuccess ||
      cudaFuncSetAttribute(hold_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared) != cudaSuccess)
    return;
  hold_kernel<<<count, 1, kShared, stream_>>>(&flags_->resident, &flags_->released);
}

bool Holder::holds() const {
  return flags_ != nullptr && cudaPeekAtLastError() == cudaSuccess &&
         within(3, [&] { return flags_->resident == count_; });
}

void Holder::release() {
  if (flags_ != nullptr) flags_->released = 1;
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
}

Holder::~Holder() {
  release();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (flags_ != nullptr) cudaFreeHost(const_cast<Flags*>(flags_));
}

}  // namespace trireme::kernels::testing
