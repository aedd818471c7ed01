// Our CUDA kernels through the operations that use them, against the same operations in fp64 on the CPU. Outputs are written over
// memory full of NaN by the caching allocator's reuse: each test first fills and frees blocks of the same size.
#include "trireme/ops/dropout.h"
#include "trireme/ops/rope.h"
#include "trireme/ops/swiglu.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>

namespace trireme {
namespace {

class KernelsGpu : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
  at::Tensor random(at::IntArrayRef shape) const {
    return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).to(GetParam());
  }
  static void poison(int64_t bytes) {
    for (int i = 0; i < 4; ++i)
      (void)at::full({bytes / 4}, std::numeric_limits<float>::quiet_NaN(), at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  }
  /// Half a unit in the last place for a result rounded once, relative to the largest value.
  double tolerance() const { return GetParam() == at::kFloat ? 2e-6 : GetParam() == at::kHalf ? 1e-3 : 8e-3; }
  void expect_close(const at::Tensor& got, const at::Tensor& want) const {
    const at::Tensor host = got.detach().to(at::kCPU, at::kDouble), expected = want.detach().to(at::kCPU, at::kDouble);
    ASSERT_EQ(host.sizes(), expected.sizes());
    const double scale = std::max(1e-3, expected.abs().max().item<double>());
    const double error = (host - expected).abs().max().item<double>() / scale;
    EXPECT_LT(error, tolerance()) << c10::toString(GetParam());  // NaN fails too
  }
};

TEST_P(KernelsGpu, DropoutMakesTheSameDecisionsAsTheTensorOperations) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 1, 1}, {3, 5, 7}, {2, 17, 256}, {1, 64, 4096}, {4, 33, 1000}}) {
    const at::Tensor x = random(shape);
    Dropout dropout{0.1, 42, at::arange(shape[0], at::TensorOptions(at::kCUDA).dtype(at::kLong)) * int64_t{5'000'000'000}};
    poison(static_cast<int64_t>(x.nbytes()) + 512);
    const at::Tensor ours = apply_dropout(x, dropout, 9), plain = apply_dropout_tensor_ops(x, dropout, 9);
    EXPECT_TRUE(ours.eq(0).equal(plain.eq(0)));
    expect_close(ours, plain);
    at::Tensor sum = random(shape);
    const at::Tensor before = sum.clone();
    add_dropout_(sum, x, dropout, 9);
    expect_close(sum, before.to(at::kDouble) + plain.to(at::kDouble));
    EXPECT_TRUE(apply_dropout(x, dropout, 9).equal(ours)) << "not deterministic";
  }
}

TEST_P(KernelsGpu, SwigluAndItsBackward) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 2}, {3, 14}, {65, 512}, {70001, 16}, {128, 2 * 28672}}) {
    const at::Tensor gate_up = random(shape).mul_(3).requires_grad_(true), dy = random({shape[0], shape[1] / 2});
    poison(static_cast<int64_t>(gate_up.nbytes()));
    const at::Tensor y = swiglu(gate_up);
    const at::Tensor d = torch::autograd::grad({y}, {gate_up}, {dy})[0];
    const at::Tensor wide = gate_up.detach().to(at::kCPU, at::kDouble).requires_grad_(true);
    const int64_t f = shape[1] / 2;
    const at::Tensor expected = at::silu(wide.narrow(1, 0, f)) * wide.narrow(1, f, f);
    const at::Tensor d_expected = torch::autograd::grad({expected}, {wide}, {dy.to(at::kCPU, at::kDouble)})[0];
    expect_close(y, expected);
    expect_close(d, d_expected);
  }
}

TEST_P(KernelsGpu, SwigluExtremesGiveNoNan) {
  const at::Tensor gate_up = at::tensor({-1e4, -100.0, 0.0, 100.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0}, at::TensorOptions(at::kFloat))
                                 .to(at::TensorOptions(at::kCUDA).dtype(GetParam())).view({1, 10}).requires_grad_(true);
  const at::Tensor y = swiglu(gate_up);
  const at::Tensor d = torch::autograd::grad({y}, {gate_up}, {at::ones_like(y)})[0];
  EXPECT_TRUE(y.isfinite().all().item<bool>());
  EXPECT_TRUE(d.isfinite().all().item<bool>());
}

TEST_P(KernelsGpu, RopeSplitAndItsInverse) {
  struct Shape {
    int64_t b, s, n, k, h;
  };
  for (const Shape& shape : {Shape{1, 1, 1, 1, 16}, Shape{2, 37, 4, 2, 64}, Shape{1, 300, 8, 8, 128}, Shape{1, 65, 6, 1, 32}, Shape{1, 9, 2, 1, 20}}) {
    const int64_t width = (shape.n + 2 * shape.k) * shape.h;
    const at::Tensor inverse = rope_inverse_frequencies({}, shape.h);
    const at::Tensor positions = at::arange(shape.s, at::TensorOptions(at::kLong)).expand({shape.b, shape.s}).contiguous() * 7;
    const RopeTable table = rope_table(inverse, positions.to(at::kCUDA), GetParam());
    const at::Tensor x = random({shape.b, shape.s, width}).requires_grad_(true);
    const at::Tensor copy = x * 1;  // the split rotates in place
    const auto [q, k, v] = rope_split_qkv_(copy, table, shape.n, shape.k, shape.h);
    const at::Tensor dq = at::randn_like(q), dk = at::randn_like(k), dv = at::randn_like(v);
    const at::Tensor d = torch::autograd::grad({q, k, v}, {x}, {dq, dk, dv})[0];

    const at::Tensor wide = x.detach().to(at::kCPU, at::kDouble).requires_grad_(true);
    const at::Tensor heads = wide.view({shape.b, shape.s, shape.n + 2 * shape.k, shape.h});
    const at::Tensor cos = table.cos.to(at::kCPU, at::kDouble).unsqueeze(2), sin = table.sin.to(at::kCPU, at::kDouble).unsqueeze(2);
    const auto turn = [&](const at::Tensor& y) {
      const at::Tensor a = y.narrow(-1, 0, shape.h / 2), b = y.narrow(-1, shape.h / 2, shape.h / 2);
      return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
    };
    const at::Tensor wq = turn(heads.narrow(2, 0, shape.n)), wk = turn(heads.narrow(2, shape.n, shape.k)), wv = heads.narrow(2, shape.n + shape.k, shape.k);
    const auto host = [](const at::Tensor& t) { return t.to(at::kCPU, at::kDouble); };
    const at::Tensor dw = torch::autograd::grad({wq, wk, wv}, {wide}, {host(dq), host(dk), host(dv)})[0];
    expect_close(q, wq);
    expect_close(k, wk);
    expect_close(v, wv);
    expect_close(d, dw);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KernelsGpu, testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& each) { return std::string(c10::toString(each.param)); });

}  // namespace
}  // namespace trireme
