// The hand-written layers on a GPU, with its kernels and matrix engine, against the same layers in fp64 on the CPU.
#include "trireme/ops/block_layers.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace trireme {
namespace {

/// Inputs of one block in fp32 on the CPU; copies of them run on any device in any dtype.
struct Inputs {
  int64_t rows, tokens, d, f, r;
  double dropout;
  at::Tensor x, attended, norm, qkv, out, gate_up, down;
  std::vector<at::Tensor> pairs;

  Inputs(int64_t rows_, int64_t tokens_, int64_t d_, int64_t f_, int64_t r_, double dropout_)
      : rows(rows_), tokens(tokens_), d(d_), f(f_), r(r_), dropout(dropout_) {
    at::manual_seed(5);
    const auto random = [](at::IntArrayRef shape, double scale) {
      return at::randn(shape, at::kFloat).mul_(scale).to(at::kBFloat16).to(at::kFloat);
    };
    x = random({rows, tokens, d}, 1);
    attended = random({rows, tokens, d}, 1);
    norm = random({d}, 0.1).add_(1);
    const double by_d = 1 / std::sqrt(static_cast<double>(d)), by_f = 1 / std::sqrt(static_cast<double>(f));
    qkv = random({d, d}, by_d);
    out = random({d, d}, by_d);
    gate_up = random({2 * f, d}, by_d);
    down = random({d, f}, by_f);
    for (const auto& [out_rows, in] : std::vector<std::pair<int64_t, int64_t>>{{d, d}, {d, d}, {2 * f, d}, {d, f}}) {
      pairs.push_back(random({r, in}, 1 / std::sqrt(static_cast<double>(in))));
      pairs.push_back(random({out_rows, r}, 0.1));
    }
  }
};

struct Outcome {
  std::vector<at::Tensor> values;  // y, then gradients of x, attended and the adapters; fp64 on the CPU
};

Outcome run(const Inputs& in, at::Device device, at::ScalarType dtype, bool fp8, bool recompute) {
  std::vector<at::Tensor> leaves;
  const auto leaf = [&](const at::Tensor& t) {
    leaves.push_back(t.to(device, dtype).clone().requires_grad_(true));
    return leaves.back();
  };
  const auto store = [&](const at::Tensor& w) -> Weight {
    const at::Tensor here = w.to(device, dtype);
    if (!fp8) return {here, {}};
    // One scale on every device: that of the fp32 values.
    const at::Tensor inverse = fp8_inverse_scale(fp8_amax(w)).to(device);
    const at::Tensor stored = at::empty(w.sizes(), here.options().dtype(at::kFloat8_e4m3fn));
    fp8_cast_(stored, here, inverse);
    return {stored, inverse};
  };
  const at::Tensor x = leaf(in.x), attended = leaf(in.attended), norm = in.norm.to(device, dtype);
  std::vector<std::vector<LoraAdapter>> adapters;
  for (size_t i = 0; i < in.pairs.size(); i += 2) {
    const at::Tensor a = leaf(in.pairs[i]), b = leaf(in.pairs[i + 1]);
    adapters.push_back({{a, b, 0, i}});
  }
  const LoraSettings lora{2.0, {in.dropout, 3, at::arange(in.rows, at::TensorOptions(device).dtype(at::kLong))}};
  const auto [q, residual] = norm_linear(x, norm, 1e-5, store(in.qkv), adapters[0], lora);
  const at::Tensor h = linear_add(attended + q, residual, store(in.out), adapters[1], lora);
  const at::Tensor y =
      mlp_add(h, {norm, store(in.gate_up), store(in.down), adapters[2], adapters[3]}, 1e-5, lora, recompute);
  const at::Tensor dy = at::arange(y.numel(), at::TensorOptions(at::kDouble)).sin().view(y.sizes()).to(device, dtype);
  Outcome result;
  result.values.push_back(y.detach());
  for (const at::Tensor& g : torch::autograd::grad({y}, leaves, {dy})) result.values.push_back(g);
  for (at::Tensor& t : result.values) t = t.to(at::kCPU, at::kDouble);
  return result;
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  const double error = ((a - b).norm() / b.norm()).item<double>();
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

class BlockLayersGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
  static void poison() {
    for (int i = 0; i < 8; ++i)
      (void)at::full({int64_t{1} << (14 + 2 * i)}, std::numeric_limits<float>::quiet_NaN(),
                     at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  }
};

TEST_F(BlockLayersGpu, CloseToFp64InTheComputeDtype) {
  for (const double dropout : {0.0, 0.1}) {
    const Inputs in(2, 96, 256, 352, 8, dropout);
    const Outcome expected = run(in, at::kCPU, at::kDouble, false, false);
    for (const auto& [dtype, bound] :
         std::vector<std::pair<at::ScalarType, double>>{{at::kFloat, 2e-5}, {at::kHalf, 4e-3}, {at::kBFloat16, 3e-2}}) {
      for (const bool recompute : {false, true}) {
        poison();
        const Outcome got = run(in, at::kCUDA, dtype, false, recompute);
        for (size_t i = 0; i < got.values.size(); ++i)
          EXPECT_LT(relative(got.values[i], expected.values[i]), bound) << c10::toString(dtype) << ", value " << i;
      }
    }
  }
}

TEST_F(BlockLayersGpu, Fp8IsAsCloseAsItsEmulation) {
  for (const int64_t tokens : {96, 33}) {
    const Inputs in(2, tokens, 256, 352, 8, 0.1);
    const Outcome expected = run(in, at::kCPU, at::kDouble, false, false);
    for (const bool recompute : {false, true}) {
      poison();
      const Outcome emulated = run(in, at::kCPU, at::kBFloat16, true, recompute),
                    got = run(in, at::kCUDA, at::kBFloat16, true, recompute);
      for (size_t i = 0; i < got.values.size(); ++i) {
        const double ours = relative(got.values[i], expected.values[i]),
                     theirs = relative(emulated.values[i], expected.values[i]);
        EXPECT_LT(ours, 1.15 * theirs + 0.01) << "value " << i << ", emulation " << theirs;
        EXPECT_LT(relative(got.values[i], emulated.values[i]), 0.08) << "value " << i;
      }
    }
  }
}

TEST_F(BlockLayersGpu, Fp8RepeatsToTheBit) {
  const Inputs in(1, 128, 1024, 2816, 16, 0.1);
  const Outcome first = run(in, at::kCUDA, at::kBFloat16, true, false);
  for (int i = 0; i < 5; ++i) {
    poison();
    const Outcome again = run(in, at::kCUDA, at::kBFloat16, true, false);
    for (size_t v = 0; v < first.values.size(); ++v)
      EXPECT_TRUE(at::equal(first.values[v], again.values[v])) << "value " << v;
  }
}

}  // namespace
}  // namespace trireme
