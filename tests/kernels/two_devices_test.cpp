// Two devices in one process: launchers must set attributes for each device, above all the limit of dynamic shared
// memory.

#include "attention_problem.h"
#include "kernels/cross_entropy/cross_entropy.h"

#include <vector>

namespace trireme::kernels::testing::two_devices_tests {

namespace {

class TwoDevicesTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (IsSkipped()) return;
    int devices = 0, second = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) GTEST_SKIP() << "needs two GPUs";
    (void)cudaDeviceGetAttribute(&major_, cudaDevAttrComputeCapabilityMajor, 0);
    (void)cudaDeviceGetAttribute(&second, cudaDevAttrComputeCapabilityMajor, 1);
    if (major_ != second) GTEST_SKIP() << "the GPUs have compute capabilities " << major_ << " and " << second;
  }
  void TearDown() override { (void)cudaSetDevice(0); }
  int major_ = 0;
};

TEST_F(TwoDevicesTest, AttentionGivesTheSameOnBoth) {
  if (major_ != 9) GTEST_SKIP() << "these kernels are for compute capability 9, this is " << major_;
  for (const AttentionCase& c : {AttentionCase{{0, 200, 333}, 4, 2, 128, true},
                                 {{0, 200, 333}, 4, 2, 64, true},
                                 {{0, 200, 333}, 2, 2, 64, false, 1, 13}}) {
    SCOPED_TRACE(name_of(c, Element::kBF16));
    std::vector<unsigned char> o, gradients;
    for (const int device : {0, 1, 0}) {
      CUDA_OK(cudaSetDevice(device));
      AttentionProblem run(c, Element::kBF16);
      CUDA_OK(run.forward());
      CUDA_OK(run.backward(/*deterministic=*/true));
      const std::vector<unsigned char> o_now = run.o_bytes(), gradients_now = run.gradient_bytes();
      if (o.empty()) o = o_now, gradients = gradients_now;
      EXPECT_TRUE(o_now == o) << "device " << device;
      EXPECT_TRUE(gradients_now == gradients) << "device " << device;
      EXPECT_TRUE(run.counters_are_zero());
    }
  }
}

TEST_F(TwoDevicesTest, CrossEntropyOfStagedRowsGivesTheSameOnBoth) {
  constexpr int64_t kTokens = 5, kVocab = 32000;
  const Values logits = normal_values(kTokens * kVocab, Element::kBF16, 1, 4.0);
  std::vector<unsigned char> first;
  for (const int device : {0, 1, 0}) {
    CUDA_OK(cudaSetDevice(device));
    DeviceArray in(logits, Element::kBF16), loss(kTokens, Element::kF32);
    DeviceIntegers<int64_t> targets({1, 2, 3, 4, 5});
    CrossEntropy a;
    a.logits = in.data(), a.d_logits = in.data(), a.targets = targets.as<int64_t>(), a.loss = loss.fp32();
    a.tokens = kTokens, a.vocab = a.stride = kVocab;
    CUDA_OK(cross_entropy(a, nullptr));
    const std::vector<unsigned char> now = in.read();
    if (first.empty()) first = now;
    EXPECT_TRUE(now == first) << "device " << device;
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::two_devices_tests
