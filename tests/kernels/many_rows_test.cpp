// More rows than the limit of grid.y (65,535) and than 16 bits can count: every kernel that works by rows, in bf16,
// against its oracle. Other shapes and types are in the kernels' own tests.

#include "cross_entropy_oracle.h"
#include "fp8_testing.h"
#include "gelu_oracle.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/fp8/fp8.h"
#include "kernels/gelu/gelu.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/scale/scale.h"
#include "kernels/swiglu/swiglu.h"
#include "layer_norm_oracle.h"
#include "rms_norm_oracle.h"
#include "swiglu_oracle.h"
#include "testing.h"

namespace trireme::kernels::testing::many_rows_tests {

namespace {

constexpr int64_t kRows = 65'600, kColumns = 40, kCount = kRows * kColumns;
constexpr Element kElement = Element::kBF16;
constexpr double kEps = 1e-5;
constexpr uint32_t kT0 = 11, kT1 = 22, kThreshold = 6554;
constexpr float kKeep = 65536.0f / (65536.0f - kThreshold);
const double kRoot = std::sqrt(static_cast<double>(kRows));

class ManyRowsTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (!IsSkipped() && too_large(kCount)) GTEST_SKIP() << "TRIREME_KERNEL_TEST_MAX is less than " << kCount;
  }
};

std::vector<int64_t> row_ids() {
  std::vector<int64_t> ids;
  for (int64_t r = 0; r < kRows; ++r) ids.push_back(r * 0x1234567890ll + 5);
  return ids;
}

/// The dropout factor of each element, for rows that are one sample each.
Values dropout_factors(const std::vector<int64_t>& ids) {
  Values factors;
  for (const int64_t id : ids)
    for (uint64_t c = 0; c < kColumns; ++c) factors.push_back(oracle::dropout_factor(id, c, kT0, kT1, kThreshold));
  return factors;
}

double dropped(double x, double factor) { return factor == 0 ? 0 : round_to(static_cast<float>(x) * kKeep, kElement); }

Values column_totals(const Values& x) {
  Values total(static_cast<size_t>(kColumns), 0.0);
  for (size_t i = 0; i < x.size(); ++i) total[i % kColumns] += x[i];
  return total;
}

TEST_F(ManyRowsTest, Dropout) {
  const std::vector<int64_t> ids = row_ids();
  const Values x = normal_values(kCount, kElement, 1), before = normal_values(kCount, kElement, 2),
               factors = dropout_factors(ids);
  DeviceIntegers<int64_t> device_ids(ids);
  for (const bool accumulate : {false, true}) {
    Values expected;
    for (size_t i = 0; i < x.size(); ++i) {
      const double y = dropped(x[i], factors[i]);
      expected.push_back(accumulate ? round_to(before[i] + y, kElement) : y);
    }
    DeviceArray in(x, kElement), out(before, kElement);
    CUDA_OK(dropout({in.data(), accumulate ? out.data() : nullptr, out.data(), device_ids.as<int64_t>(), kRows,
                     kColumns, kT0, kT1, kThreshold, kKeep, kElement},
                    nullptr));
    EXPECT_TRUE(out.values() == expected) << "accumulate " << accumulate;
  }
}

TEST_F(ManyRowsTest, LayerNorm) {
  const std::vector<int64_t> ids = row_ids();
  const Values x = normal_values(kCount, kElement, 1), bias = normal_values(kColumns, kElement, 2),
               residual = normal_values(kCount, kElement, 3), gamma = normal_values(kColumns, kElement, 4),
               beta = normal_values(kColumns, kElement, 5), dy = normal_values(kCount, kElement, 7),
               factors = dropout_factors(ids);
  Values s;
  for (size_t i = 0; i < x.size(); ++i)
    s.push_back(round_to(dropped(round_to(x[i] + bias[i % kColumns], kElement), factors[i]) + residual[i], kElement));
  const oracle::LayerNorm expected = oracle::layer_norm(s, gamma, beta, kRows, kColumns, kEps);
  DeviceArray in(x, kElement), in_bias(bias, kElement), in_residual(residual, kElement), in_gamma(gamma, kElement),
      in_beta(beta, kElement), sum(kCount, kElement), y(kCount, kElement), mean(kRows, Element::kF32),
      rstd(kRows, Element::kF32);
  DeviceIntegers<int64_t> device_ids(ids);
  LayerNormForward f;
  f.x = in.data(), f.bias = in_bias.data(), f.residual = in_residual.data(), f.gamma = in_gamma.data();
  f.beta = in_beta.data(), f.sum = sum.data(), f.y = y.data(), f.mean = mean.fp32(), f.rstd = rstd.fp32();
  f.dropout = {device_ids.as<int64_t>(), 1, kT0, kT1, kThreshold, kKeep};
  f.rows = kRows, f.columns = kColumns, f.eps = static_cast<float>(kEps), f.element = kElement;
  CUDA_OK(layer_norm_forward(f, nullptr));
  EXPECT_TRUE(sum.values() == s);
  expect_close(y.values(), expected.y, kElement, 1.01, 1e-5, "y");
  expect_close(rstd.values(), expected.rstd, Element::kF32, 32, 0, "rstd");

  const oracle::LayerNormGradients gradients = oracle::layer_norm_backward(dy, s, gamma, {}, kRows, kColumns, kEps);
  DeviceArray in_dy(dy, kElement), ds(kCount, kElement), dx(kCount, kElement), d_gamma(kColumns, kElement),
      d_beta(kColumns, kElement), d_bias(kColumns, kElement),
      workspace(layer_norm_backward_workspace(kRows, kColumns), Element::kF32);
  LayerNormBackward b;
  b.dy = in_dy.data(), b.sum = sum.data(), b.mean = mean.fp32(), b.rstd = rstd.fp32(), b.gamma = in_gamma.data();
  b.dropout = f.dropout, b.ds = ds.data(), b.dx = dx.data(), b.d_gamma = d_gamma.data(), b.d_beta = d_beta.data();
  b.d_bias = d_bias.data(), b.workspace = workspace.fp32();
  b.rows = kRows, b.columns = kColumns, b.element = kElement;
  CUDA_OK(layer_norm_backward(b, nullptr));
  Values through = ds.values();
  expect_close(through, gradients.ds, kElement, 1.01, 1e-4, "ds");
  for (size_t i = 0; i < through.size(); ++i) through[i] = dropped(through[i], factors[i]);
  EXPECT_TRUE(dx.values() == through);
  expect_close(d_gamma.values(), gradients.d_gamma, kElement, 1.01, 4e-5 * kRoot, "d_gamma");
  expect_close(d_beta.values(), gradients.d_beta, kElement, 1.01, 4e-5 * kRoot, "d_beta");
  expect_close(d_bias.values(), column_totals(through), kElement, 1.01, 8e-5 * kRoot, "d_bias");
  // Without sums over rows another kernel computes ds.
  ds.poison(), dx.poison();
  b.d_gamma = b.d_beta = b.d_bias = nullptr;
  CUDA_OK(layer_norm_backward(b, nullptr));
  expect_close(ds.values(), gradients.ds, kElement, 1.01, 1e-4, "ds alone");
}

TEST_F(ManyRowsTest, RmsNorm) {
  const Values x = normal_values(kCount, kElement, 1), w = normal_values(kColumns, kElement, 2),
               dy = normal_values(kCount, kElement, 3);
  const oracle::RmsNorm expected = oracle::rms_norm(x, w, kRows, kColumns, kEps);
  DeviceArray in(x, kElement), weight(w, kElement), y(kCount, kElement), rstd(kRows, Element::kF32),
      inverse(kRows, Element::kF32);
  DeviceBytes codes(kCount);
  RmsNormForward f;
  f.x = in.data(), f.weight = weight.data(), f.y = y.data(), f.rstd = rstd.fp32();
  f.fp8.data = codes.as<uint8_t>(), f.fp8.row_inverse = inverse.fp32();
  f.rows = kRows, f.columns = kColumns, f.eps = static_cast<float>(kEps), f.element = kElement;
  CUDA_OK(rms_norm_forward(f, nullptr));
  const Values plain = y.values();
  expect_close(plain, expected.y, kElement, 2.1, 0, "y");
  expect_quantized_rows(plain, codes.read(), inverse.values(), kRows, kColumns, Fp8Format::kE4M3, "y in FP8");

  const oracle::RmsNormGradients gradients = oracle::rms_norm_backward(dy, x, w, {}, kRows, kColumns, kEps);
  DeviceArray in_dy(dy, kElement), dx(kCount, kElement), dw(kColumns, kElement),
      workspace(rms_norm_backward_workspace(kRows, kColumns), Element::kF32);
  RmsNormBackward b;
  b.dy = in_dy.data(), b.x = in.data(), b.weight = weight.data(), b.rstd = rstd.fp32(), b.dx = dx.data();
  b.dw = dw.data(), b.workspace = workspace.fp32(), b.rows = kRows, b.columns = kColumns, b.element = kElement;
  CUDA_OK(rms_norm_backward(b, nullptr));
  expect_close(dx.values(), gradients.dx, kElement, 1.01, 1e-4, "dx");
  expect_close(dw.values(), gradients.dw, kElement, 1.01, (2 * roundoff(kElement) + 1e-5) * 3 * kRoot, "dw");
}

TEST_F(ManyRowsTest, Gelu) {
  const Values x = normal_values(kCount, kElement, 1, 2.0), dy = normal_values(kCount, kElement, 2);
  DeviceArray in(x, kElement), in_dy(dy, kElement), y(kCount, kElement), dx(kCount, kElement),
      d_bias(kColumns, kElement), workspace(gelu_backward_workspace(kRows, kColumns), Element::kF32);
  GeluForward f;
  f.x = in.data(), f.y = y.data(), f.rows = kRows, f.columns = kColumns, f.element = kElement;
  CUDA_OK(gelu_forward(f, nullptr));
  expect_close(y.values(), oracle::gelu(x, GeluKind::kErf), kElement, 1.03, 2e-9, "y");
  GeluBackward b;
  b.dy = in_dy.data(), b.x = in.data(), b.dx = dx.data(), b.d_bias = d_bias.data(), b.workspace = workspace.fp32();
  b.rows = kRows, b.columns = kColumns, b.element = kElement;
  CUDA_OK(gelu_backward(b, nullptr));
  const Values gradient = dx.values();
  expect_close(gradient, oracle::gelu_backward(dy, x, GeluKind::kErf), kElement, 1.03, 4e-6, "dx");
  expect_close(d_bias.values(), column_totals(gradient), kElement, 1.01, 4e-5 * kRoot, "d_bias");
}

TEST_F(ManyRowsTest, Swiglu) {
  const Values gate_up = normal_values(2 * kCount, kElement, 1, 2.0), dy = normal_values(kCount, kElement, 2);
  DeviceArray in(gate_up, kElement), in_dy(dy, kElement), y(kCount, kElement), out(2 * kCount, kElement),
      inverse(kRows, Element::kF32), saved_inverse(2 * kRows, Element::kF32);
  DeviceBytes codes(kCount), saved(2 * kCount);
  SwigluForward f;
  f.gate_up = in.data(), f.y = y.data(), f.tokens = kRows, f.f = kColumns, f.element = kElement;
  f.fp8.data = codes.as<uint8_t>(), f.fp8.row_inverse = inverse.fp32();
  f.saved.data = saved.as<uint8_t>(), f.saved.inverse = saved_inverse.fp32();
  CUDA_OK(swiglu_forward(f, nullptr));
  const Values plain = y.values();
  expect_close(plain, oracle::swiglu(gate_up, kRows, kColumns), kElement, 1.05, 1e-36, "y");
  expect_quantized_rows(plain, codes.read(), inverse.values(), kRows, kColumns, Fp8Format::kE4M3, "y in FP8");
  expect_quantized_rows(gate_up, saved.read(), saved_inverse.values(), 2 * kRows, kColumns, Fp8Format::kE4M3,
                        "gate_up in FP8");
  y.poison();
  CUDA_OK(swiglu_forward({.gate_up = in.data(), .y = y.data(), .tokens = kRows, .f = kColumns, .element = kElement},
                         nullptr));
  EXPECT_TRUE(y.values() == plain);

  const Values expected = oracle::swiglu_backward(dy, gate_up, kRows, kColumns);
  SwigluBackward b;
  b.dy = in_dy.data(), b.gate_up = in.data(), b.d_gate_up = out.data();
  b.tokens = kRows, b.f = kColumns, b.element = kElement;
  CUDA_OK(swiglu_backward(b, nullptr));
  const Values gradient = out.values();
  expect_close(gradient, expected, kElement, 1.05, 4e-6, "d_gate_up");
  out.poison();
  b.fp8.data = saved.as<uint8_t>(), b.fp8.row_inverse = inverse.fp32();
  CUDA_OK(swiglu_backward(b, nullptr));
  EXPECT_TRUE(out.values() == gradient) << "written together with FP8";
  expect_quantized_rows(gradient, saved.read(), inverse.values(), kRows, 2 * kColumns, Fp8Format::kE4M3,
                        "d_gate_up in FP8");
}

TEST_F(ManyRowsTest, Quantize) {
  const Values x = normal_values(kCount, kElement, 1, 3.0);
  DeviceArray in(x, kElement), inverse(kRows, Element::kF32);
  DeviceBytes codes(kCount), transposed(kCount);
  CUDA_OK(quantize_rows(in.data(), codes.as<uint8_t>(), inverse.fp32(), kRows, kColumns, kElement, nullptr));
  expect_quantized_rows(x, codes.read(), inverse.values(), kRows, kColumns, Fp8Format::kE4M3, "rows");
  const std::vector<unsigned char> plain = codes.read();
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{kRows, 32}, {32, kRows}, {16, kCount / 16}}) {
    transposed.poison();
    CUDA_OK(transpose_bytes(codes.as<uint8_t>(), transposed.as<uint8_t>(), rows, columns, nullptr));
    const std::vector<unsigned char> turned = transposed.read();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        ASSERT_EQ(turned[static_cast<size_t>(c * rows + r)], plain[static_cast<size_t>(r * columns + c)])
            << "row " << r << " of " << rows << ", column " << c;
  }
}

TEST_F(ManyRowsTest, Fp8Operands) {
  constexpr int64_t kWidth = 16, kElements = kRows * kWidth;
  const Values x = normal_values(kElements, kElement, 1, 3.0);
  DeviceArray in(x, kElement), scale(Values{70.0}, Element::kF32), top(Values{0.0}, Element::kF32),
      sums(kWidth, kElement), workspace(fp8_operands_workspace(kRows, kWidth), Element::kF32);
  DeviceBytes data(kElements), transposed(kElements);
  Fp8Operands a;
  a.x = in.data(), a.data = data.as<uint8_t>(), a.transposed = transposed.as<uint8_t>(), a.scale = scale.fp32();
  a.amax = top.fp32(), a.sums = sums.data(), a.workspace = workspace.fp32();
  a.rows = kRows, a.columns = kWidth, a.element = kElement;
  CUDA_OK(fp8_operands(a, nullptr));
  const std::vector<uint8_t> expected = oracle::quantized(x, 70.0, Fp8Format::kE4M3);
  expect_codes(data.read(), expected, Fp8Format::kE4M3, "data");
  const std::vector<unsigned char> turned = transposed.read();
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kWidth; ++c)
      ASSERT_EQ(turned[static_cast<size_t>(c * kRows + r)], expected[static_cast<size_t>(r * kWidth + c)]) << r;
  Values total(static_cast<size_t>(kWidth), 0.0);
  for (size_t i = 0; i < x.size(); ++i) total[i % kWidth] += x[i];
  expect_close(sums.values(), total, kElement, 1.01, 4e-5 * kRoot, "sums");
}

TEST_F(ManyRowsTest, CrossEntropy) {
  constexpr int64_t kVocab = kColumns - 3;
  Values logits = normal_values(kCount, kElement, 1, 4.0), weights;
  std::vector<int64_t> targets;
  for (int64_t t = 0; t < kRows; ++t) {
    targets.push_back(t * 7919 % kVocab);
    weights.push_back(t % 5 == 1 ? 0.0 : round_to(0.25 + 0.001 * static_cast<double>(t % 100), Element::kF32));
  }
  const oracle::CrossEntropy expected = oracle::cross_entropy(logits, targets, weights, kRows, kVocab, kColumns);
  DeviceArray in(logits, kElement), out(kCount, kElement), w(weights, Element::kF32), loss(kRows, Element::kF32);
  DeviceIntegers<int64_t> target(targets);
  CrossEntropy a;
  a.logits = in.data(), a.d_logits = out.data(), a.targets = target.as<int64_t>(), a.weights = w.fp32();
  a.loss = loss.fp32(), a.tokens = kRows, a.vocab = kVocab, a.stride = kColumns;
  a.element = kElement;
  CUDA_OK(cross_entropy(a, nullptr));
  expect_close(out.values(), expected.d_logits, kElement, 1.05, 2e-5, "d_logits");
  expect_close(loss.values(), expected.loss, Element::kF32, 0, 4e-5, "loss");
}

TEST_F(ManyRowsTest, ScaleRows) {
  for (const int64_t shift : {0, 1}) {
    const Values x = normal_values(kCount, kElement, 1), factors = normal_values(kRows, Element::kF32, 2);
    Values expected;
    for (size_t i = 0; i < x.size(); ++i)
      expected.push_back(round_to(static_cast<float>(x[i]) * static_cast<float>(factors[i / kColumns]), kElement));
    DeviceArray in(x, kElement, shift), out(kCount, kElement, shift), by(factors, Element::kF32);
    CUDA_OK(scale_rows(in.data(), by.fp32(), out.data(), kRows, kColumns, kElement, nullptr));
    EXPECT_TRUE(out.values() == expected) << "shift " << shift;
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::many_rows_tests
