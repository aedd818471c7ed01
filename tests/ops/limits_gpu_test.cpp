// Sizes that our kernels do not support, through the operations: these use the composition, with the same results.
#include "dropout_parts.h"
#include "gradient_check.h"
#include "trireme/ops/attention.h"
#include "trireme/ops/dispatch.h"
#include "trireme/ops/embedding.h"
#include "trireme/ops/layers/linear_residual.h"
#include "trireme/ops/layers/norm_linear.h"
#include "trireme/ops/matmul/fp8.h"
#include "uneven_samples.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#ifdef TRIREME_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <limits>
#include <string>

namespace trireme {
namespace {

using namespace testing;

at::Tensor in_fp64(const at::Tensor& x) { return x.detach().to(at::kCPU, at::kDouble); }

/// || a - b || / || b ||, infinite if there is a NaN.
double error_of(const at::Tensor& a, const at::Tensor& b) {
  const double error = ((in_fp64(a) - in_fp64(b)).norm() / in_fp64(b).norm().clamp_min(1e-30)).item<double>();
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

class LimitsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  }
  /// The reason to skip; empty if that much memory is free.
  static std::string lacks([[maybe_unused]] size_t gib) {
#ifdef TRIREME_WITH_CUDA
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return "cudaMemGetInfo failed";
    if (free >> 30 >= gib) return {};
    return "needs " + std::to_string(gib) + " GiB of device memory, " + std::to_string(free >> 30) + " are free";
#else
    return "a build without CUDA";
#endif
  }
};

TEST_F(LimitsGpu, ARmsNormWiderThanTheKernelsIsComposed) {
  constexpr int64_t width = 16400, out_width = 32;
  const std::vector<at::Tensor> inputs = {random({1, 5, width}, 1), random({width}, 2) * 0.1 + 1,
                                          random({out_width, width}, 3) / std::sqrt(static_cast<double>(width))};
  const at::Tensor dy = random({1, 5, out_width}, 4), d_residual = random({1, 5, width}, 5);
  const auto run = [&](at::Device device, at::ScalarType dtype, bool fp8) {
    std::vector<at::Tensor> t;
    for (const at::Tensor& x : inputs) t.push_back(x.to(at::kBFloat16).to(device, dtype).requires_grad_());
    Weight weight{t[2], {}};
    if (fp8) {
      t[2] = t[2].detach();
      const at::Tensor inverse = fp8_inverse_scale(fp8_amax(t[2])),
                       codes = at::empty(t[2].sizes(), t[2].options().dtype(at::kFloat8_e4m3fn));
      fp8_cast_(codes, t[2], inverse);
      weight = {codes, {Recipe::kFp8Frozen, inverse, {}}};
    }
    const auto [y, residual] = norm_linear(t[0], rms_norm(t[1], 1e-5), {weight, {}, {}});
    std::vector<at::Tensor> leaves = {t[0], t[1]};
    if (!fp8) leaves.push_back(t[2]);
    std::vector<at::Tensor> result =
        torch::autograd::grad({y, residual}, leaves, {dy.to(device, dtype), d_residual.to(device, dtype)});
    result.push_back(y);
    return result;
  };
  const std::vector<at::Tensor> expected = run(at::kCPU, at::kDouble, false);
  for (const auto& [dtype, bound] :
       std::vector<std::pair<at::ScalarType, double>>{{at::kFloat, 2e-5}, {at::kHalf, 4e-3}, {at::kBFloat16, 3e-2}}) {
    const std::vector<at::Tensor> got = run(at::kCUDA, dtype, false);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(error_of(got[i], expected[i]), bound) << c10::toString(dtype) << ", value " << i;
  }
  const std::vector<at::Tensor> fp8 = run(at::kCUDA, at::kBFloat16, true);
  EXPECT_LT(error_of(fp8[0], expected[0]), 0.08);
  EXPECT_LT(error_of(fp8[1], expected[1]), 0.08);
  EXPECT_LT(error_of(fp8[2], expected[3]), 0.08);
}

TEST_F(LimitsGpu, ABertEmbeddingOfMoreTokensThanAGridHasRows) {
  // Each token is a sample, as in the model: 130 rows of 512 tokens are more than 65,535 samples.
  constexpr int64_t tokens = 130 * 512, width = 24, vocabulary = 50;
  const std::vector<at::Tensor> tables = {random({vocabulary, width}, 1), random({512, width}, 2),
                                          random({2, width}, 3), random({width}, 4), random({width}, 5)};
  const at::Tensor ids = at::arange(tokens, at::TensorOptions(at::kLong)), dy = random({tokens, width}, 6);
  const auto run = [&](at::Device device, at::ScalarType dtype) {
    std::vector<at::Tensor> t;
    for (const at::Tensor& x : tables) t.push_back(x.to(at::kBFloat16).to(device, dtype).requires_grad_());
    const at::Tensor here = ids.to(device);
    const at::Tensor y = bert_embedding({t[0], t[1], t[2], t[3], t[4]},
                                        {here.remainder(vocabulary), here.remainder(512), here.remainder(2)}, 1e-5,
                                        {0.1, 42, here * 31 + 7, 9});
    std::vector<at::Tensor> result = torch::autograd::grad({y}, t, {dy.to(device, dtype)});
    result.push_back(y);
    return result;
  };
  const std::vector<at::Tensor> expected = run(at::kCPU, at::kDouble);
  for (const auto& [dtype, bound] :
       std::vector<std::pair<at::ScalarType, double>>{{at::kFloat, 1e-5}, {at::kHalf, 4e-3}}) {
    const std::vector<at::Tensor> got = run(at::kCUDA, dtype);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(error_of(got[i], expected[i]), bound) << c10::toString(dtype) << ", value " << i;
    EXPECT_TRUE(got[5].eq(0).cpu().equal(expected[5].eq(0)));
  }
}

TEST_F(LimitsGpu, APostNormWiderThanTheKernelsIsComposedForAnyNumberOfTokens) {
  if (const std::string why = lacks(24); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t tokens = 66000, width = 8200, in_width = 16, last_rows = 16;
  const auto make = [](at::IntArrayRef shape, uint64_t seed, double scale) {
    return (random(shape, seed) * scale).to(at::kBFloat16).to(at::kCUDA);
  };
  const at::Tensor w = make({width, in_width}, 1, 0.25), bias = make({width}, 2, 0.1), gamma = make({width}, 3, 1),
                   beta = make({width}, 4, 1), x = make({tokens, in_width}, 5, 1),
                   residual = at::zeros({tokens, width}, x.options()),
                   keys = (at::arange(tokens, at::TensorOptions(at::kLong)) * 31).to(at::kCUDA);
  at::NoGradGuard no_grad;
  const auto normed = [&](int64_t first, int64_t count) {
    return linear_residual(
        x.narrow(0, first, count), residual.narrow(0, first, count), {{w, {}}, bias, {}},
        {.dropout = {0.1, 21, keys.narrow(0, first, count), 2}, .post_norm = layer_norm(gamma, beta, 1e-12)});
  };
  const at::Tensor all = normed(0, tokens).narrow(0, tokens - last_rows, last_rows),
                   last = normed(tokens - last_rows, last_rows);
  EXPECT_LT(error_of(all, last), 1e-2);
}

TEST_F(LimitsGpu, DropoutOnAttentionOfASequenceBeyond65536TokensIsTheLibrarys) {
  constexpr int64_t tokens = 65'600;
  at::Tensor qkv = random({tokens, 3, 1, 64}, 1).to(at::kHalf);
  qkv.select(1, 2).fill_(1.0);  // with values of one, attention gives the sum of the kept probabilities
  const at::Tensor x = qkv.to(at::kCUDA).requires_grad_();
  const Sequences sequences = make_sequences({0, tokens}, {9}, at::kCUDA);
  const at::Tensor y = attention_of_packed(x.view({tokens, 3, 64}), 1, sequences,
                                           {.scale = 0.125, .causal = false, .dropout = {0.5, 5, {}, 3}});
  EXPECT_NEAR(y.to(at::kDouble).mean().item<double>(), 1.0, 0.01);
  EXPECT_GT(y.to(at::kDouble).std().item<double>(), 1e-4) << "nothing was dropped";
  const at::Tensor d = torch::autograd::grad({y}, {x}, {at::ones_like(y)})[0];
  EXPECT_TRUE(d.isfinite().all().item<bool>());
}

TEST_F(LimitsGpu, LoraOnASampleBeyond32BitsOfWordsDrawsAsDropoutDoes) {
  if (const std::string why = lacks(45); !why.empty()) GTEST_SKIP() << why;
  if (kernel_class(at::Device(at::kCUDA, 0)) == KernelClass::kNone) GTEST_SKIP() << "the draws would not fit";
  constexpr int64_t in_width = 8192, tokens = (int64_t{1} << 33) / in_width + 64, rank = 16, out_width = 16,
                    last_rows = 96;
  at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor x = at::empty({tokens, in_width}, options).normal_();
  const at::Tensor a = (random({rank, in_width}, 1) / std::sqrt(static_cast<double>(in_width))).to(options),
                   b = random({out_width, rank}, 2).to(options), ids = at::tensor({int64_t{7}}, at::kLong);
  const Dropout dropout{0.5, 42, ids.to(at::kCUDA)};
  // The layer's own weight is zero, so y is the adapter's part.
  const at::Tensor y =
      linear_residual(x, at::zeros({tokens, out_width}, options),
                      {{at::zeros({out_width, in_width}, options), {}}, {}, {{{a, b, 0, 3}}, dropout}});
  // Rows on both sides of the element where 32-bit word indices start again.
  const int64_t first = tokens - last_rows;
  const at::Tensor rows = in_fp64(x.narrow(0, first, last_rows)).view({1, last_rows * in_width});
  const at::Tensor kept = dropout_elements::by_loop(rows, ids, dropout_key(dropout.at(3)), first * in_width);
  const at::Tensor expected = at::mm(at::mm(kept.view({last_rows, in_width}), in_fp64(a).t()), in_fp64(b).t());
  EXPECT_LT(error_of(y.narrow(0, first, last_rows), expected), 2e-2);
}

TEST_F(LimitsGpu, ALossHeadInFp16KeepsALongSampleBesideAShortOne) {
  const UnevenSamplesErrors errors = uneven_samples_errors(at::kCUDA, 32000);
  EXPECT_LT(errors.weight, 1e-3);
  EXPECT_LT(errors.bias, 1e-3);
  EXPECT_LT(errors.hidden, 1e-3);
}

}  // namespace
}  // namespace trireme
