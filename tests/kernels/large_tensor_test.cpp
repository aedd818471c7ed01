// Tensors of more than 2^31 elements, and a sample of more than 2^33: checks that every offset has 64 bits. Most of a
// tensor is zeros or one value; some rows on both sides of the limits have normal values and are compared with an
// oracle.

#include "cross_entropy_oracle.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "layer_norm_oracle.h"
#include "rope_oracle.h"
#include "swiglu_oracle.h"
#include "testing.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>

namespace trireme::kernels::testing::large_tensor_tests {

namespace {

constexpr Element kElement = Element::kBF16;
constexpr int64_t kLimit = int64_t{1} << 31;

/// Elements of bf16 on the device, all bytes equal to `fill`.
class Large {
 public:
  explicit Large(int64_t count, int fill = 0) {
    if (cudaMalloc(&data_, static_cast<size_t>(2 * count)) != cudaSuccess)
      throw std::runtime_error("cudaMalloc failed");
    cudaMemset(data_, fill, static_cast<size_t>(2 * count));
  }
  Large(const Large&) = delete;
  Large& operator=(const Large&) = delete;
  ~Large() { cudaFree(data_); }
  char* at(int64_t element) const { return static_cast<char*>(data_) + 2 * element; }
  void* data() const { return data_; }
  void write(int64_t element, const Values& values) const {
    std::vector<unsigned char> bytes(2 * values.size());
    for (size_t i = 0; i < values.size(); ++i) encode(values[i], kElement, bytes.data() + 2 * i);
    cudaMemcpy(at(element), bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
  }
  Values read(int64_t element, int64_t count) const {
    std::vector<unsigned char> bytes(static_cast<size_t>(2 * count));
    EXPECT_EQ(cudaMemcpy(bytes.data(), at(element), bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess)
        << cudaGetErrorString(cudaGetLastError());
    Values values;
    for (size_t i = 0; i < bytes.size(); i += 2) values.push_back(decode(bytes.data() + i, kElement));
    return values;
  }

 private:
  void* data_ = nullptr;
};

/// Rows of [rows, width]: the first and last ones, and those where a row's offset exceeds 2^31 elements.
std::vector<int64_t> sampled_rows(int64_t rows, int64_t width) {
  const int64_t limit = kLimit / width;
  return {0, 1, rows / 2, limit - 1, limit, limit + 1, rows - 1};
}

/// Writes (below: reads) the sampled rows, whose values are consecutive in `values`.
void write_rows(const Large& to, const std::vector<int64_t>& rows, int64_t width, const Values& values) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto from = values.begin() + static_cast<int64_t>(i) * width;
    to.write(rows[i] * width, {from, from + width});
  }
}
Values read_rows(const Large& from, const std::vector<int64_t>& rows, int64_t width) {
  Values all;
  for (const int64_t row : rows) {
    const Values values = from.read(row * width, width);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

class LargeTensorTest : public KernelTest {
 protected:
  /// The reason to skip; empty if that much memory is free.
  static std::string lacks(int64_t gib) {
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return "cudaMemGetInfo failed";
    if (static_cast<int64_t>(free >> 30) >= gib) return {};
    return "needs " + std::to_string(gib) + " GiB of device memory, " + std::to_string(free >> 30) + " of " +
           std::to_string(total >> 30) + " are free";
  }
};

TEST_F(LargeTensorTest, Swiglu) {
  if (const std::string why = lacks(16); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t kTokens = 37'500, kF = 28'672;
  static_assert(kTokens * 2 * kF > kLimit);
  const std::vector<int64_t> rows = sampled_rows(kTokens, 2 * kF);
  const auto count = static_cast<int64_t>(rows.size());
  const Values gate_up = normal_values(count * 2 * kF, kElement, 1, 2.0), dy = normal_values(count * kF, kElement, 2);
  const Large in(kTokens * 2 * kF), in_dy(kTokens * kF), y(kTokens * kF, 0xff);
  write_rows(in, rows, 2 * kF, gate_up);
  write_rows(in_dy, rows, kF, dy);
  CUDA_OK(
      swiglu_forward({.gate_up = in.data(), .y = y.data(), .tokens = kTokens, .f = kF, .element = kElement}, nullptr));
  const Values expected = oracle::swiglu(gate_up, count, kF);
  expect_close(read_rows(y, rows, kF), expected, kElement, 1.05, 1e-36, "y");
  {
    // Also writes FP8 codes of y and gate_up.
    const Large codes(kTokens * kF / 2), saved(kTokens * kF);
    DeviceArray inverse(kTokens, Element::kF32), saved_inverse(2 * kTokens, Element::kF32);
    SwigluForward a;
    a.gate_up = in.data(), a.y = y.data(), a.tokens = kTokens, a.f = kF, a.element = kElement;
    a.fp8.data = static_cast<uint8_t*>(codes.data());
    a.fp8.row_inverse = inverse.fp32();
    a.saved.data = static_cast<uint8_t*>(saved.data()), a.saved.inverse = saved_inverse.fp32();
    CUDA_OK(cudaMemset(y.data(), 0xff, static_cast<size_t>(2 * kTokens * kF)));
    CUDA_OK(swiglu_forward(a, nullptr));
    expect_close(read_rows(y, rows, kF), expected, kElement, 1.05, 1e-36, "y beside FP8");
    // Backward from the codes, with only FP8 gradients, written into y's memory.
    SwigluBackward b;
    b.dy = in_dy.data(), b.saved = a.saved, b.tokens = kTokens, b.f = kF, b.element = kElement;
    b.fp8.data = static_cast<uint8_t*>(y.data()), b.fp8.row_inverse = inverse.fp32();
    CUDA_OK(swiglu_backward(b, nullptr));
    const Values inverses = inverse.values();
    const Values exact = oracle::swiglu_backward(dy, gate_up, count, kF);
    for (size_t i = 0; i < rows.size(); ++i) {
      double most = 0;
      for (int64_t c = 0; c < 2 * kF; ++c)
        most = std::max(most, std::abs(exact[i * static_cast<size_t>(2 * kF) + static_cast<size_t>(c)]));
      // gate_up was stored in E4M3, with a relative error of up to 1/16.
      EXPECT_NEAR(inverses[static_cast<size_t>(rows[i])] * 448 / most, 1.0, 0.2) << "row " << rows[i];
    }
  }
  CUDA_OK(swiglu_backward({.dy = in_dy.data(),
                           .gate_up = in.data(),
                           .d_gate_up = in.data(),
                           .tokens = kTokens,
                           .f = kF,
                           .element = kElement},
                          nullptr));
  expect_close(read_rows(in, rows, 2 * kF), oracle::swiglu_backward(dy, gate_up, count, kF), kElement, 1.05, 4e-6,
               "d_gate_up");
}

TEST_F(LargeTensorTest, Rope) {
  if (const std::string why = lacks(10); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t kTokens = 420'000;
  constexpr int kQ = 24, kKv = 8, kHeads = kQ + 2 * kKv, kDim = 128, kWidth = kHeads * kDim;
  static_assert(kTokens * kWidth > kLimit);
  const std::vector<int64_t> rows = sampled_rows(kTokens, kWidth);
  const auto count = static_cast<int64_t>(rows.size());
  const Values x = normal_values(count * kWidth, kElement, 1);
  Values cosines, sines;
  for (const int64_t row : rows)
    for (int i = 0; i < kDim / 2; ++i) {
      const double angle = static_cast<double>(row % 1000) * std::pow(10000.0, -2.0 * i / kDim);
      cosines.push_back(round_to(std::cos(angle), kElement)), sines.push_back(round_to(std::sin(angle), kElement));
    }
  const Large heads(kTokens * kWidth), merged(kTokens * kWidth, 0xff), cos(kTokens * kDim / 2), sin(kTokens * kDim / 2);
  write_rows(cos, rows, kDim / 2, cosines);
  write_rows(sin, rows, kDim / 2, sines);
  write_rows(heads, rows, kWidth, x);
  const HeadStrides strides{kWidth, kDim};
  CUDA_OK(rope_merge(heads.at(0), strides, heads.at(kQ * kDim), strides, heads.at((kQ + kKv) * kDim), strides,
                     cos.data(), sin.data(), merged.data(), kTokens, kQ, kKv, kDim, kElement, nullptr));
  expect_close(read_rows(merged, rows, kWidth), oracle::rope(x, cosines, sines, count, kHeads, kQ + kKv, kDim, -1),
               kElement, 1.05, 1e-6, "merged");
  CUDA_OK(rope_rotate(heads.data(), cos.data(), sin.data(), kTokens, kHeads, kQ + kKv, kDim, 1, kElement, nullptr));
  expect_close(read_rows(heads, rows, kWidth), oracle::rope(x, cosines, sines, count, kHeads, kQ + kKv, kDim, 1),
               kElement, 1.05, 1e-6, "rotated");
}

TEST_F(LargeTensorTest, LayerNorm) {
  if (const std::string why = lacks(24); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t kRows = 262'400, kColumns = 8192;
  static_assert(kRows * kColumns > kLimit);
  constexpr double kEps = 1e-5;
  const std::vector<int64_t> rows = sampled_rows(kRows, kColumns);
  const auto count = static_cast<int64_t>(rows.size());
  const Values x = normal_values(count * kColumns, kElement, 1), gamma = normal_values(kColumns, kElement, 2),
               beta = normal_values(kColumns, kElement, 3), dy = normal_values(count * kColumns, kElement, 4);
  constexpr uint32_t kThreshold = 6554;
  const float keep = 65536.0f / (65536.0f - kThreshold);
  std::vector<int64_t> ids;
  for (int64_t r = 0; r < kRows; ++r) ids.push_back(r * 31);
  Values factors, s;
  for (const int64_t row : rows)
    for (uint64_t c = 0; c < kColumns; ++c) factors.push_back(oracle::dropout_factor(row * 31, c, 1, 2, kThreshold));
  const auto dropped = [&](double v, double factor) {
    return factor == 0 ? 0 : round_to(static_cast<float>(v) * keep, kElement);
  };
  for (size_t i = 0; i < x.size(); ++i) s.push_back(dropped(x[i], factors[i]));
  const Large in(kRows * kColumns), y(kRows * kColumns, 0xff), in_dy(kRows * kColumns), ds(kRows * kColumns, 0xff),
      dx(kRows * kColumns, 0xff);
  write_rows(in, rows, kColumns, x);
  write_rows(in_dy, rows, kColumns, dy);
  DeviceArray in_gamma(gamma, kElement), in_beta(beta, kElement), mean(kRows, Element::kF32),
      rstd(kRows, Element::kF32), d_gamma(kColumns, kElement), d_beta(kColumns, kElement), d_bias(kColumns, kElement),
      workspace(layer_norm_backward_workspace(kRows, kColumns), Element::kF32);
  DeviceIntegers<int64_t> device_ids(ids);
  LayerNormForward f;
  f.x = in.data(), f.gamma = in_gamma.data(), f.beta = in_beta.data(), f.sum = in.data(), f.y = y.data();
  f.mean = mean.fp32(), f.rstd = rstd.fp32(), f.dropout = {device_ids.as<int64_t>(), 1, 1, 2, kThreshold, keep};
  f.rows = kRows, f.columns = kColumns, f.eps = static_cast<float>(kEps), f.element = kElement;
  CUDA_OK(layer_norm_forward(f, nullptr));
  EXPECT_TRUE(read_rows(in, rows, kColumns) == s);
  expect_close(read_rows(y, rows, kColumns), oracle::layer_norm(s, gamma, beta, count, kColumns, kEps).y, kElement,
               1.01, 4e-6, "y");
  // Rows of zeros have zero gradients and add nothing to the sums.
  LayerNormBackward b;
  b.dy = in_dy.data(), b.sum = in.data(), b.mean = mean.fp32(), b.rstd = rstd.fp32(), b.gamma = in_gamma.data();
  b.dropout = f.dropout, b.ds = ds.data(), b.dx = dx.data(), b.d_gamma = d_gamma.data(), b.d_beta = d_beta.data();
  b.d_bias = d_bias.data(), b.workspace = workspace.fp32();
  b.rows = kRows, b.columns = kColumns, b.element = kElement;
  CUDA_OK(layer_norm_backward(b, nullptr));
  const oracle::LayerNormGradients expected = oracle::layer_norm_backward(dy, s, gamma, {}, count, kColumns, kEps);
  Values through = read_rows(ds, rows, kColumns), bias(static_cast<size_t>(kColumns), 0.0);
  expect_close(through, expected.ds, kElement, 1.01, 4e-5, "ds");
  for (size_t i = 0; i < through.size(); ++i) {
    through[i] = dropped(through[i], factors[i]);
    bias[i % kColumns] += through[i];
  }
  EXPECT_TRUE(read_rows(dx, rows, kColumns) == through);
  expect_close(d_gamma.values(), expected.d_gamma, kElement, 1.01, 1e-4, "d_gamma");
  expect_close(d_beta.values(), expected.d_beta, kElement, 1.01, 1e-4, "d_beta");
  expect_close(d_bias.values(), bias, kElement, 1.01, 1e-4, "d_bias");
}

TEST_F(LargeTensorTest, CrossEntropy) {
  if (const std::string why = lacks(6); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t kTokens = 16'800, kVocab = 128'256;
  static_assert(kTokens * kVocab > kLimit);
  const std::vector<int64_t> rows = sampled_rows(kTokens, kVocab);
  const auto count = static_cast<int64_t>(rows.size());
  const Values logits = normal_values(count * kVocab, kElement, 1, 4.0);
  Values weights(static_cast<size_t>(kTokens), 0.0), sampled_weights;
  std::vector<int64_t> targets(static_cast<size_t>(kTokens), -100), sampled_targets;
  for (int64_t i = 0; i < count; ++i) {
    sampled_weights.push_back(0.5 + 0.25 * static_cast<double>(i));
    sampled_targets.push_back(kVocab - 1 - i * 7919);
    weights[static_cast<size_t>(rows[static_cast<size_t>(i)])] = sampled_weights.back();
    targets[static_cast<size_t>(rows[static_cast<size_t>(i)])] = sampled_targets.back();
  }
  const Large in(kTokens * kVocab, 0xff);  // NaN where tokens are not counted
  write_rows(in, rows, kVocab, logits);
  DeviceArray w(weights, Element::kF32), loss(kTokens, Element::kF32);
  DeviceIntegers<int64_t> target(targets);
  CrossEntropy a;
  a.logits = in.data(), a.d_logits = in.data(), a.targets = target.as<int64_t>(), a.weights = w.fp32();
  a.loss = loss.fp32(), a.tokens = kTokens, a.vocab = a.stride = kVocab, a.element = kElement;
  CUDA_OK(cross_entropy(a, nullptr));
  const oracle::CrossEntropy expected =
      oracle::cross_entropy(logits, sampled_targets, sampled_weights, count, kVocab, kVocab);
  expect_close(read_rows(in, rows, kVocab), expected.d_logits, kElement, 1.05, 2e-5, "d_logits");
  const Values losses = loss.values();
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_NEAR(losses[static_cast<size_t>(rows[i])], expected.loss[i], 1e-4) << "row " << rows[i];
  const int64_t ignored = kLimit / kVocab + 2;
  EXPECT_EQ(in.read(ignored * kVocab, kVocab), Values(static_cast<size_t>(kVocab), 0.0));
  EXPECT_EQ(losses[static_cast<size_t>(ignored)], 0);
}

TEST_F(LargeTensorTest, DropoutOfASampleBeyond32BitsOfWords) {
  if (const std::string why = lacks(18); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t kWrap = int64_t{1} << 33, kCount = kWrap + 65'536, kPart = 8192;
  const Large x(kCount, 0x3c);  // one value in all elements before dropout
  const double value = x.read(0, 1)[0], scaled = round_to(static_cast<float>(value) * 2.0f, kElement);
  DeviceIntegers<int64_t> ids({(int64_t{1} << 40) + 7});
  CUDA_OK(dropout({x.data(), nullptr, x.data(), ids.as<int64_t>(), 1, kCount, 11, 22, 32768, 2.0f, kElement}, nullptr));
  const Values start = x.read(0, kPart);
  for (const int64_t first : {int64_t{0}, kLimit - 4096, 2 * kLimit - 4096, kWrap - kPart, kWrap, kCount - kPart}) {
    const Values part = x.read(first, kPart);
    int64_t as_at_start = 0;
    for (int64_t e = 0; e < kPart; ++e) {
      const bool kept =
          oracle::dropout_factor((int64_t{1} << 40) + 7, static_cast<uint64_t>(first + e), 11, 22, 32768) != 0;
      ASSERT_EQ(part[static_cast<size_t>(e)], kept ? scaled : 0) << "element " << first + e;
      as_at_start += part[static_cast<size_t>(e)] == start[static_cast<size_t>(e)];
    }
    if (first == 0) continue;
    EXPECT_NEAR(static_cast<double>(as_at_start) / kPart, 0.5, 0.05)
        << "the decisions of element 0 repeat at element " << first;
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::large_tensor_tests
