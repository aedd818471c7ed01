#pragma once
// Shared by the kernel tests: device arrays that detect out-of-bounds writes, reads of uninitialised memory and missing
// writes; random values of each element type; tolerances.

#include "kernels/element.h"
#include "kernels/launch.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme::kernels::testing {

using Values = std::vector<double>;

inline int64_t size_of(Element element) { return element == Element::kF32 ? 4 : 2; }

inline const char* name_of(Element element) {
  return element == Element::kF32 ? "fp32" : element == Element::kF16 ? "fp16" : "bf16";
}

inline constexpr Element kElements[] = {Element::kBF16, Element::kF16, Element::kF32};

/// Unit roundoff: the largest relative error of one rounding.
inline double roundoff(Element element) {
  return element == Element::kF32   ? std::ldexp(1.0, -24)
         : element == Element::kF16 ? std::ldexp(1.0, -11)
                                    : std::ldexp(1.0, -8);
}

inline double round_to(double value, Element element) {
  const float single = static_cast<float>(value);
  if (element == Element::kF16) return __half2float(__float2half_rn(single));
  if (element == Element::kBF16) return __bfloat162float(__float2bfloat16_rn(single));
  return single;
}

inline void encode(double value, Element element, void* to) {
  const float single = static_cast<float>(value);
  if (element == Element::kF16) {
    const __half x = __float2half_rn(single);
    std::memcpy(to, &x, 2);
  } else if (element == Element::kBF16) {
    const __nv_bfloat16 x = __float2bfloat16_rn(single);
    std::memcpy(to, &x, 2);
  } else {
    std::memcpy(to, &single, 4);
  }
}

inline double decode(const void* from, Element element) {
  if (element == Element::kF16) {
    __half x;
    std::memcpy(&x, from, 2);
    return __half2float(x);
  }
  if (element == Element::kBF16) {
    __nv_bfloat16 x;
    std::memcpy(&x, from, 2);
    return __bfloat162float(x);
  }
  float x;
  std::memcpy(&x, from, 4);
  return x;
}

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaGetLastError())

/// Device memory between two guard zones. New memory is all ones, which is NaN in every floating type.
class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes, int64_t misalignment = 0) : bytes_(bytes), offset_(kGuard + misalignment) {
    if (cudaMalloc(&block_, static_cast<size_t>(total())) != cudaSuccess) throw std::runtime_error("cudaMalloc failed");
    poison();
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { cudaFree(block_); }

  void* data() const { return static_cast<char*>(block_) + offset_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
  void poison() {
    cudaMemset(block_, 0xA5, static_cast<size_t>(total()));
    cudaMemset(data(), 0xFF, static_cast<size_t>(bytes_));
  }
  void write(const void* host) { cudaMemcpy(data(), host, static_cast<size_t>(bytes_), cudaMemcpyHostToDevice); }
  /// Synchronises with the device; fails the test if a guard zone was written.
  std::vector<unsigned char> read() const {
    std::vector<unsigned char> all(static_cast<size_t>(total()));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    EXPECT_EQ(cudaMemcpy(all.data(), block_, all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    const auto guard = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (all[static_cast<size_t>(i)] != 0xA5)
          return ADD_FAILURE() << "a byte outside the array was written: offset " << i - offset_ << ", the array has "
                               << bytes_ << " bytes";
    };
    guard(0, offset_);
    guard(offset_ + bytes_, total());
    return {all.begin() + offset_, all.begin() + offset_ + bytes_};
  }

 private:
  static constexpr int64_t kGuard = 512;
  int64_t total() const { return offset_ + bytes_ + kGuard; }
  int64_t bytes_, offset_;
  void* block_ = nullptr;
};

/// An array of floating elements that starts `shift` elements after a 16-byte boundary.
class DeviceArray : public DeviceBytes {
 public:
  DeviceArray(int64_t count, Element element, int64_t shift = 0)
      : DeviceBytes(count * size_of(element), shift * size_of(element)), count_(count), element_(element) {}
  DeviceArray(const Values& values, Element element, int64_t shift = 0)
      : DeviceArray(static_cast<int64_t>(values.size()), element, shift) {
    std::vector<unsigned char> bytes(static_cast<size_t>(count_ * size_of(element_)));
    for (int64_t i = 0; i < count_; ++i)
      encode(values[static_cast<size_t>(i)], element_, bytes.data() + i * size_of(element_));
    write(bytes.data());
  }
  Values values() const {
    const std::vector<unsigned char> bytes = read();
    Values result;
    for (int64_t i = 0; i < count_; ++i) result.push_back(decode(bytes.data() + i * size_of(element_), element_));
    return result;
  }
  float* fp32() const { return as<float>(); }

 private:
  int64_t count_;
  Element element_;
};

template <class T>
class DeviceIntegers : public DeviceBytes {
 public:
  explicit DeviceIntegers(const std::vector<T>& values) : DeviceBytes(static_cast<int64_t>(values.size() * sizeof(T))) {
    write(values.data());
  }
};

/// Nearly normal values that the element type represents exactly: sums of four uniform values, which are fast to
/// generate.
inline Values normal_values(int64_t count, Element element, uint32_t seed, double scale = 1.0) {
  std::mt19937_64 generator(seed);
  Values values(static_cast<size_t>(count));
  for (double& value : values) {
    const uint64_t bits = generator();
    const double sum =
        static_cast<double>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) / 65536.0 -
        2.0;
    value = round_to(scale * sum * 1.7320508, element);
  }
  return values;
}

/// Checks |actual - expected| <= roundings * u * |expected| + absolute, u the unit roundoff, plus 64 unit roundoffs of
/// fp32 for the fp32 arithmetic. NaN always fails.
inline void expect_close(const Values& actual, const Values& expected, Element element, double roundings,
                         double absolute, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const double relative = roundings * roundoff(element) + 64 * roundoff(Element::kF32);
  int64_t wrong = 0, worst = -1;
  double excess = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]), bound = relative * std::abs(expected[i]) + absolute;
    if (error <= bound) continue;
    ++wrong;
    const double over = std::isnan(error) ? std::numeric_limits<double>::infinity() : error - bound;
    if (worst < 0 || over > excess) worst = static_cast<int64_t>(i), excess = over;
  }
  EXPECT_EQ(wrong, 0) << what << " (" << name_of(element) << "): element " << worst << " is "
                      << actual[static_cast<size_t>(std::max<int64_t>(worst, 0))] << ", expected "
                      << expected[static_cast<size_t>(std::max<int64_t>(worst, 0))];
}

/// || actual - expected || / || expected ||; infinite if there is a NaN.
inline double relative_error(const Values& actual, const Values& expected) {
  double error = 0, length = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    length += expected[i] * expected[i];
  }
  const double result = std::sqrt(error / length);
  return std::isnan(result) ? std::numeric_limits<double>::infinity() : result;
}

/// TRIREME_KERNEL_TEST_MAX=N skips shapes of more than N elements, because compute-sanitizer is slow.
inline bool too_large(int64_t elements) {
  const char* limit = std::getenv("TRIREME_KERNEL_TEST_MAX");
  return limit != nullptr && elements > std::atoll(limit);
}

/// Tests that need a GPU of compute capability 8.0 or later and are skipped, with the reason, without one.
/// TRIREME_KERNEL_TEST_SHARED=N: launches find N KiB of shared memory for a block at most, as on other GPUs; for builds
/// without 90a, because Hopper's variants need more.
class KernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* shared = std::getenv("TRIREME_KERNEL_TEST_SHARED"); shared != nullptr)
      most_shared_memory = most_ == 9 ? SIZE_MAX : static_cast<size_t>(std::atoll(shared)) << 10;
    int devices = 0, major = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      (void)cudaGetLastError();
      GTEST_SKIP() << "no CUDA device found";
    }
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (major < least_ || major > most_)
      GTEST_SKIP() << "these kernels are for compute capability " << least_ << " to " << most_ << ", this is " << major;
  }
  int least_ = 8, most_ = 1000;
};

/// Of kernels that are built for sm_90a only.
class HopperKernelTest : public KernelTest {
 protected:
  HopperKernelTest() { least_ = most_ = 9; }
};

}  // namespace trireme::kernels::testing
