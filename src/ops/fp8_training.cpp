#include "trireme/ops/fp8_training.h"

#include "fp8_products.h"
#include "post_norm_rows.h"
#include "trireme/base/error.h"
#include "trireme/ops/fp8.h"
#include "trireme/ops/kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

namespace trireme {

namespace {

constexpr double kLargestE4m3 = 448, kLargestE5m2 = 57344;
/// Scales aim at this part of the largest value.
constexpr double kHeadroom = 0.5;
/// cuBLASLt wants the scalars it reads on boundaries of their own: floats from one to the next.
constexpr int64_t kStride = 32;
enum Member { kInput, kWeight, kGradient, kMembers };

double largest_code(bool gradient) { return gradient ? kLargestE5m2 : kLargestE4m3; }
at::ScalarType code_type(bool gradient) { return gradient ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn; }

/// scale and its inverse from an amax, where it is a number above 0.
void follow(const at::Tensor& scale, const at::Tensor& inverse, const at::Tensor& amax, const at::Tensor& largest) {
  const at::Tensor wanted = (largest * kHeadroom / amax).clamp_max_(std::numeric_limits<float>::max());
  scale.copy_(at::where(amax.gt(0).logical_and(amax.isfinite()), wanted, scale));
  inverse.copy_(scale.reciprocal());
}

/// The first step knows no amax but the tensor's own.
void measure(const Fp8Tensor& scaling, const at::Tensor& values) {
  follow(scaling.scale, scaling.inverse, fp8_amax(values),
         at::full_like(scaling.scale, largest_code(scaling.gradient)));
}

/// What the kernel does in one pass.
Fp8Operand compose(const at::Tensor& values, const Fp8Tensor& scaling, bool want_sums) {
  scaling.amax.copy_(at::maximum(scaling.amax, fp8_amax(values)));
  const double most = largest_code(scaling.gradient);
  const at::Tensor data = values.to(at::kFloat).mul(scaling.scale).clamp_(-most, most).to(code_type(scaling.gradient));
  const at::Tensor transposed = data.view(at::kByte).t().contiguous().view(data.scalar_type());
  return {data, transposed, scaling.inverse,
          want_sums ? at::sum(values, {0}, false, at::kFloat).to(values.scalar_type()) : at::Tensor()};
}

}  // namespace

Fp8Scales::Fp8Scales(int64_t linears, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const int64_t tensors = linears * kMembers;
  scale_ = at::ones({tensors}, options);
  inverse_ = at::ones({tensors, kStride}, options).select(1, 0);
  amax_ = at::zeros({tensors}, options);
  largest_ = at::full({linears, kMembers}, kLargestE4m3, options);
  largest_.select(1, kGradient).fill_(kLargestE5m2);
  largest_ = largest_.view({tensors});
  const auto scaling = [&](int64_t linear, Member member) {
    const int64_t i = linear * kMembers + member;
    return Fp8Tensor{scale_.select(0, i), inverse_.select(0, i), amax_.select(0, i), member == kGradient};
  };
  for (int64_t i = 0; i < linears; ++i)
    linears_.push_back({scaling(i, kInput), scaling(i, kWeight), scaling(i, kGradient), &known_});
}

void Fp8Scales::begin_step() {
  if (!known_) amax_.zero_();
}

at::Tensor Fp8Scales::update() {
  const at::NoGradGuard no_grad;
  // Also true of infinities and NaN.
  const at::Tensor beyond = (amax_ * scale_).le(largest_ * (1 + 1e-6)).logical_not().sum().to(at::kDouble);
  follow(scale_, inverse_, amax_, largest_);
  amax_.zero_();
  known_ = true;
  return beyond;
}

std::vector<double> Fp8Scales::state() const {
  if (!known_) return {};
  const at::Tensor host = scale_.to(at::kCPU, at::kDouble);
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

bool Fp8Scales::restore(const std::vector<double>& state) {
  if (state.empty()) return true;  // saved before the first step ended
  if (static_cast<int64_t>(state.size()) != tensors()) return false;
  const at::Tensor host = at::empty({tensors()}, at::kDouble);
  std::copy(state.begin(), state.end(), host.mutable_data_ptr<double>());
  scale_.copy_(host);
  inverse_.copy_(scale_.reciprocal());
  known_ = true;
  return true;
}

Fp8Operand fp8_operand(const at::Tensor& x, const Fp8Tensor& scaling, bool known, bool want_sums) {
  if (!known) measure(scaling, x);
  if (bridge::has_kernels(x)) return bridge::fp8_operand({x.contiguous(), {}, {}, GeluForm::kErf}, scaling, want_sums);
  return compose(x, scaling, want_sums);
}

Fp8Operand fp8_gelu_operand(const at::Tensor& z, const at::Tensor& bias, GeluForm form, const Fp8Tensor& scaling,
                            bool known) {
  if (!known) measure(scaling, rows::gelu_forward(z, bias, form));
  if (bridge::has_kernels(z)) return bridge::fp8_operand({z, bias, {}, form}, scaling, /*want_sums=*/false);
  return compose(rows::gelu_forward(z, bias, form), scaling, false);
}

Fp8Operand fp8_gelu_gradient_operand(const at::Tensor& dy, const at::Tensor& z, const at::Tensor& bias, GeluForm form,
                                     const Fp8Tensor& scaling, bool known) {
  if (!known) measure(scaling, rows::gelu_backward(dy, z, bias, form)[0]);
  if (bridge::has_kernels(z)) return bridge::fp8_operand({z, bias, dy.contiguous(), form}, scaling, /*want_sums=*/true);
  return compose(rows::gelu_backward(dy, z, bias, form)[0], scaling, true);
}

at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, at::ScalarType dtype, const at::Tensor& bias_N,
                       const Addend& addend) {
  TRIREME_CHECK(a_MK.codes.size(1) == b_NK.codes.size(1), "an FP8 product of ", a_MK.codes.sizes(), " and ",
                b_NK.codes.sizes(), ": their inner dimensions differ");
  if (bridge::has_kernels(a_MK.inverse)) {
    for (const int64_t size : {a_MK.codes.size(0), a_MK.codes.size(1), b_NK.codes.size(0)})
      TRIREME_CHECK(size % 16 == 0, "an FP8 product of ", a_MK.codes.sizes(), " and ", b_NK.codes.sizes(),
                    " needs multiples of 16 on a GPU: use precision.encoder: compute");
    return bridge::fp8_product(a_MK, b_NK, dtype, bias_N, addend);
  }
  at::Tensor product =
      at::mm(a_MK.codes.to(at::kFloat), b_NK.codes.to(at::kFloat).t()).mul_(a_MK.inverse * b_NK.inverse);
  if (bias_N.defined()) product.add_(bias_N);
  return added_and_rounded(product, addend, dtype);
}

at::Tensor added_and_rounded(at::Tensor product, const Addend& addend, at::ScalarType dtype) {
  if (addend.sum.defined()) product.add_(addend.sum);
  return addend.overwritten ? addend.sum.copy_(product) : product.to(dtype);
}

}  // namespace trireme
