// FP8 products of trained layers on a GPU against the CPU's emulation of them, and against fp64.
#include "fp8_block.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

class Fp8TrainingGpu : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
};

TEST_P(Fp8TrainingGpu, EqualTheEmulation) {
  const at::ScalarType dtype = GetParam();
  const Fp8Block block;
  const auto inputs = block.inputs();
  const auto exact = block.run(inputs, at::kCPU, at::kDouble, nullptr);
  Fp8Scales on_cpu(4, at::kCPU), on_gpu(4, at::kCUDA);
  for (const bool followed : {false, true}) {
    const auto emulated = block.run(inputs, at::kCPU, at::kFloat, &on_cpu),
               got = block.run(inputs, at::kCUDA, dtype, &on_gpu);
    EXPECT_EQ(on_gpu.update().item<double>(), 0);
    EXPECT_EQ(on_cpu.update().item<double>(), 0);
    const std::vector<double> theirs = on_cpu.state(), ours = on_gpu.state();
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i] / theirs[i], 1, 0.03) << "scale " << i;
    for (size_t i = 0; i < exact.size(); ++i) {
      const double emulation_error = relative_distance(emulated[i], exact[i]),
                   error = relative_distance(got[i], exact[i]);
      EXPECT_LT(error, 1.15 * emulation_error + (dtype == at::kHalf ? 0.004 : 0.03))
          << "output " << i << " (0: y, then the inputs' gradients), followed " << followed
          << ", the emulation's error is " << emulation_error;
      EXPECT_GT(cosine(got[i], exact[i]), 0.99) << "output " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Fp8TrainingGpu, ::testing::Values(at::kHalf, at::kBFloat16));

}  // namespace
}  // namespace trireme
