#pragma once
// Compares gradients with central differences; helpers of the ops tests. All in fp64.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
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

using Scalar = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

inline std::vector<at::Tensor> gradients(const Scalar& f, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
  return torch::autograd::grad({f(leaves)}, leaves, {}, false, false, true);
}

/// The largest difference between the gradients of f (a scalar function of fp64 inputs) and central differences, over
/// all elements, relative to the largest gradient.
inline double gradient_error(const Scalar& f, const std::vector<at::Tensor>& inputs, double step = 1e-5) {
  const std::vector<at::Tensor> analytic = gradients(f, inputs);
  double worst = 0;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor numeric = at::empty(inputs[i].sizes(), inputs[i].options());
    for (int64_t e = 0; e < inputs[i].numel(); ++e) {
      double value[2];
      for (int side = 0; side < 2; ++side) {
        std::vector<at::Tensor> moved;
        for (const at::Tensor& input : inputs) moved.push_back(input.clone());
        moved[i].view({-1})[e] += side == 0 ? -step : step;
        value[side] = f(moved).item<double>();
      }
      numeric.view({-1})[e] = (value[1] - value[0]) / (2 * step);
    }
    const double scale = std::max(1.0, numeric.abs().max().item<double>());
    if (!analytic[i].defined()) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, max_difference(analytic[i], numeric) / scale);
  }
  return worst;
}

/// A fixed random projection of y to a scalar, so that every element has a different weight.
inline at::Tensor project(const at::Tensor& y, uint64_t seed = 99) {
  return (y * random(y.sizes(), seed, y.scalar_type())).sum();
}

}  // namespace trireme::testing
