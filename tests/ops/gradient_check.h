#pragma once
// Compares gradients with central differences; helpers of the ops tests. All in fp64.

#include "trireme/nn/weight.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace trireme::testing {

inline at::Tensor random(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kDouble) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(shape, generator, at::TensorOptions(at::kDouble)).to(dtype);
}

inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// max |a - b| / max |b|.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return max_difference(a, b) / std::max(1e-30, b.to(at::kDouble).abs().max().item<double>());
}

/// The RMS norm composed of operations that autograd records, rounded as ours.
inline at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor normed = wide * at::rsqrt(wide.pow(2).mean(-1, true) + eps);
  return weight * normed.to(x.scalar_type());
}

using Scalar = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

inline std::vector<at::Tensor> gradients(const Scalar& f, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
  return torch::autograd::grad({f(leaves)}, leaves, {}, false, false, true);
}

/// The largest difference between the gradients of f (a scalar function of fp64 inputs) and central differences,
/// relative to the largest gradient. Of an input with many elements kElements are moved one at a time, spread over it;
/// the others count in kDirections random directions, along which all elements move at once.
inline double gradient_error(const Scalar& f, const std::vector<at::Tensor>& inputs, double step = 1e-5) {
  constexpr int64_t kElements = 48, kDirections = 3;
  const std::vector<at::Tensor> analytic = gradients(f, inputs);
  double worst = 0;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!analytic[i].defined()) return std::numeric_limits<double>::infinity();
    const int64_t count = inputs[i].numel();
    if (count == 0) continue;
    // The derivative along `direction`, a tensor of the input's shape.
    const auto difference = [&](const at::Tensor& direction) {
      double value[2];
      for (int side = 0; side < 2; ++side) {
        std::vector<at::Tensor> moved = inputs;
        moved[i] = inputs[i] + direction * (side == 0 ? -step : step);
        value[side] = f(moved).item<double>();
      }
      return (value[1] - value[0]) / (2 * step);
    };
    const double scale = std::max(1.0, analytic[i].abs().max().item<double>());
    const int64_t checked = std::min(count, kElements);
    for (int64_t k = 0; k < checked; ++k) {
      at::Tensor direction = at::zeros_like(inputs[i], at::MemoryFormat::Contiguous);
      // Of each of `checked` equal parts another place.
      const int64_t e = k * count / checked + (count > checked ? k * 7 % (count / checked) : 0);
      direction.view({-1})[e] = 1;
      worst = std::max(worst, std::abs(analytic[i].reshape({-1})[e].item<double>() - difference(direction)) / scale);
    }
    for (int64_t d = 0; count > checked && d < kDirections; ++d) {
      const at::Tensor direction = random(inputs[i].sizes(), 1000 + static_cast<uint64_t>(d));
      const double expected = (analytic[i] * direction).sum().item<double>();
      worst = std::max(worst, std::abs(expected - difference(direction)) / (scale * direction.norm().item<double>()));
    }
  }
  return worst;
}

/// A fixed random projection of y to a scalar, so that every element has a different weight.
inline at::Tensor project(const at::Tensor& y, uint64_t seed = 99) {
  return (y * random(y.sizes(), seed, y.scalar_type())).sum();
}

/// Counts its calls.
struct CountingSink final : GradientSink {
  CountingSink(const at::Tensor& sum, bool adds) : result{sum, adds} {}
  GradientTarget target() override {
    ++targets;
    return result;
  }
  void written() override { ++writes; }
  GradientTarget result;
  int targets = 0, writes = 0;
};

}  // namespace trireme::testing
