// The fused sub-layers on a GPU, with its kernels and tensor cores, against the same layers in fp64 and against the
// CPU's emulation of FP8.
#include "block_testing.h"
#include "trireme/ops/dispatch.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace trireme {
namespace {

using namespace testing;

const BlockShape kShape{.samples = 2, .length = 96, .width = 256, .inner = 352, .extra = 128};

class LayersGpu : public ::testing::TestWithParam<BlockChoices> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  }
  /// Fills freed blocks of the caching allocator with NaN, so that an output that is not written shows.
  static void poison() {
    for (int i = 0; i < 8; ++i)
      (void)at::full({int64_t{1} << (14 + 2 * i)}, std::numeric_limits<float>::quiet_NaN(),
                     at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  }
};

TEST_P(LayersGpu, CloseToFp64InTheComputeDtype) {
  BlockChoices choices = GetParam();
  if (choices.rank > 0) choices.rank = 8;
  const TestBlock block(choices, kShape);
  const auto expected = block.run_reference();
  for (const auto& [dtype, bound] :
       std::vector<std::pair<at::ScalarType, double>>{{at::kFloat, 2e-5}, {at::kHalf, 6e-3}, {at::kBFloat16, 4e-2}}) {
    poison();
    const auto got = block.run(at::kCUDA, dtype, {});
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(relative_distance(got[i], expected[i]), bound) << c10::toString(dtype) << ", value " << i;
  }
}

TEST_P(LayersGpu, FrozenFp8IsAsCloseAsItsEmulation) {
  BlockChoices choices = GetParam();
  choices.trained = false;
  choices.rank = 8;
  const TestBlock::Recipes recipes{Recipe::kFp8Frozen, nullptr};
  for (const int64_t length : {96, 33}) {
    BlockShape shape = kShape;
    shape.length = length;
    const TestBlock block(choices, shape);
    const auto expected = block.run_reference();
    poison();
    const auto emulated = block.run(at::kCPU, at::kBFloat16, recipes), wide = block.run(at::kCPU, at::kFloat, recipes),
               got = block.run(at::kCUDA, at::kBFloat16, recipes);
    for (size_t i = 0; i < got.size(); ++i) {
      const double ours = relative_distance(got[i], expected[i]), theirs = relative_distance(emulated[i], expected[i]);
      // Dropout in front of an adapter multiplies what it keeps, and with it the rounding of codes. Behind a norm of
      // the branch the gradient of the second adapter of qkv is a sum of columns that nearly cancel, so that it is
      // several times as wrong as its terms, and codes that bf16 rounds to a neighbour change it as much.
      const double more = choices.branch_norm ? 0.04 : choices.lora_dropout > 0 ? 0.03 : 0.01;
      EXPECT_LT(ours, 1.15 * theirs + more) << "value " << i << ", emulation " << theirs;
      // bf16 rounds a value to the neighbour of its code, and each class of kernels rounds at places of its own: two
      // results differ by the sum of two such changes, sqrt(2) times one if they are independent. The emulation in fp32
      // says how large one is for this value (0.02 to 0.08). Our kernels stay below a bound for all values, too.
      const double rounding = relative_distance(emulated[i], wide[i]), most = choices.branch_norm ? 0.12 : 0.08;
      const bool ours_run = kernel_class({at::kCUDA, 0}) != KernelClass::kNone;
      EXPECT_LT(relative_distance(got[i], emulated[i]), std::min(1.5 * rounding + 0.01, ours_run ? most : 1.0))
          << "value " << i << ", rounding changes the emulation by " << rounding;
    }
  }
}

TEST_P(LayersGpu, DelayedFp8IsAsCloseAsItsEmulation) {
  BlockChoices choices = GetParam();
  if (choices.rank > 0) GTEST_SKIP() << "adapters have frozen weights";
  const BlockShape shape{.samples = 4, .length = 176, .width = 256, .inner = 1024, .extra = 512};
  const TestBlock block(choices, shape);
  const auto exact = block.run_reference();
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    Fp8Scales on_cpu(4, at::kCPU), on_gpu(4, at::kCUDA);
    for (const bool followed : {false, true}) {
      poison();
      const auto emulated = block.run(at::kCPU, at::kFloat, {Recipe::kFp8Delayed, &on_cpu}),
                 got = block.run(at::kCUDA, dtype, {Recipe::kFp8Delayed, &on_gpu});
      EXPECT_EQ(on_gpu.update().item<double>(), 0);
      EXPECT_EQ(on_cpu.update().item<double>(), 0);
      const std::vector<double> theirs = on_cpu.state(), ours = on_gpu.state();
      // A scale follows one value, the largest, which the emulation computes in fp32.
      for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i] / theirs[i], 1, 0.1) << "scale " << i;
      for (size_t i = 0; i < exact.size(); ++i) {
        const double emulation_error = relative_distance(emulated[i], exact[i]),
                     error = relative_distance(got[i], exact[i]);
        EXPECT_LT(error, 1.15 * emulation_error + (dtype == at::kHalf ? 0.006 : 0.03))
            << "value " << i << ", followed " << followed << ", the emulation's error is " << emulation_error;
        EXPECT_GT(cosine(got[i], exact[i]), 0.99) << "value " << i;
      }
    }
  }
}

TEST_P(LayersGpu, CurrentFp8IsAsCloseAsItsEmulation) {
  BlockChoices choices = GetParam();
  if (choices.rank > 0) GTEST_SKIP() << "adapters have frozen weights";
  const TestBlock block(choices, {.samples = 4, .length = 176, .width = 256, .inner = 1024, .extra = 512});
  const auto exact = block.run_reference();
  for (const Recipe recipe : {Recipe::kFp8Tensorwise, Recipe::kFp8Rowwise}) {
    const auto emulated = block.run(at::kCPU, at::kFloat, {recipe});
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      poison();
      const auto got = block.run(at::kCUDA, dtype, {recipe});
      for (size_t i = 0; i < exact.size(); ++i) {
        const double emulation_error = relative_distance(emulated[i], exact[i]),
                     error = relative_distance(got[i], exact[i]);
        EXPECT_LT(error, 1.15 * emulation_error + (dtype == at::kHalf ? 0.006 : 0.03))
            << "value " << i << ", recipe " << static_cast<int>(recipe) << ", the emulation's error is "
            << emulation_error;
        EXPECT_GT(cosine(got[i], exact[i]), 0.99) << "value " << i << ", recipe " << static_cast<int>(recipe);
      }
      poison();
      const auto again = block.run(at::kCUDA, dtype, {recipe});
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], again[i])) << "value " << i << " changes";
    }
  }
}

TEST_P(LayersGpu, KeptTransposesOfFp8ChangeNoBit) {
  BlockChoices choices = GetParam();
  choices.trained = false;
  choices.rank = 16;
  const TestBlock block(choices, {.samples = 1, .length = 128, .width = 256, .inner = 352, .extra = 128});
  poison();
  const auto kept = block.run(at::kCUDA, at::kBFloat16, {Recipe::kFp8Frozen, nullptr, true}),
             plain = block.run(at::kCUDA, at::kBFloat16, {Recipe::kFp8Frozen, nullptr});
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(kept[i], plain[i])) << "value " << i;
}

TEST_P(LayersGpu, Fp8RepeatsToTheBit) {
  BlockChoices choices = GetParam();
  choices.trained = false;
  choices.rank = 16;
  choices.lora_dropout = 0.1;
  const TestBlock block(choices, {.samples = 1, .length = 128, .width = 1024, .inner = 2816, .extra = 512});
  const TestBlock::Recipes recipes{Recipe::kFp8Frozen, nullptr};
  const auto first = block.run(at::kCUDA, at::kBFloat16, recipes);
  for (int i = 0; i < 3; ++i) {
    poison();
    const auto again = block.run(at::kCUDA, at::kBFloat16, recipes);
    for (size_t v = 0; v < first.size(); ++v) EXPECT_TRUE(at::equal(first[v], again[v])) << "value " << v;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayersGpu, ::testing::ValuesIn(all_blocks()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace trireme
