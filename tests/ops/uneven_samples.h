#pragma once
// The mean over two samples near initialisation, one with a single target and one with 2,000, in fp16. A token's weight
// in the long sample is 1/2000 of that in the short one, its probabilities are about one over the vocabulary, and fp16
// has no positive value below 6e-8.

#include "gradient_check.h"
#include "trireme/ops/layers/loss_head.h"

#include <cmath>

namespace trireme::testing {

/// Relative errors || ours - exact || / || exact || of loss_head()'s fp16 gradients on a device: of the weight and the
/// bias in rows that are not a target, and of the long sample's hidden states. Exact: fp64 on the CPU.
struct UnevenSamplesErrors {
  double weight, bias, hidden;
};

inline UnevenSamplesErrors uneven_samples_errors(at::Device device, int64_t vocabulary) {
  constexpr int64_t kLong = 2000, kWidth = 8, kTargets = 500;
  const double loss_scale = 65536;
  // Rows of length sqrt(width), as a norm gives them; logits of about 0.35.
  at::Tensor hidden = random({kLong + 1, kWidth}, 1);
  hidden = (hidden / hidden.square().mean(1, true).sqrt()).to(at::kHalf);
  hidden[0].zero_();  // the short sample's token adds nothing to the weight's gradient
  const at::Tensor weight = (random({vocabulary, kWidth}, 2) * (0.35 / std::sqrt(double{kWidth}))).to(at::kHalf),
                   bias = (random({vocabulary}, 3) * 0.02).to(at::kHalf);
  const at::Tensor targets = at::arange(kLong + 1, at::TensorOptions(at::kLong)).remainder(kTargets);
  at::Tensor weights = at::full({kLong + 1}, 0.5 / kLong, at::kFloat);
  weights[0] = 0.5;
  const auto gradients_of = [&](at::Device where, at::ScalarType type) {
    const at::Tensor target = targets.to(where),
                     token_weight = weights.to(where, type == at::kDouble ? at::kDouble : at::kFloat);
    std::vector<at::Tensor> result =
        gradients([&](const auto& t) { return loss_head(t[0], t[1], target, token_weight, t[2]) * loss_scale; },
                  {hidden.to(where, type), weight.to(where, type), bias.to(where, type)});
    for (at::Tensor& x : result) x = x.to(at::kCPU, at::kDouble);
    return result;
  };
  const std::vector<at::Tensor> ours = gradients_of(device, at::kHalf), exact = gradients_of(at::kCPU, at::kDouble);
  const auto error = [&](size_t i, int64_t first) {
    const int64_t count = exact[i].size(0) - first;
    const at::Tensor a = ours[i].narrow(0, first, count), b = exact[i].narrow(0, first, count);
    return ((a - b).norm() / b.norm()).item<double>();
  };
  return {error(1, kTargets), error(2, kTargets), error(0, 1)};
}

}  // namespace trireme::testing
