#pragma once
// A post-norm block with all its products, in the compute type or in FP8, forward and backward: what the tests of
// FP8 training compare.

#include "gradient_check.h"
#include "trireme/ops/fp8_training.h"
#include "trireme/ops/pack_attention.h"

#include <vector>

namespace trireme::testing {

struct Fp8Block {
  int64_t tokens = 704, width = 256, inner = 1024, heads = 4;
  double dropout = 0.1;

  std::vector<at::Tensor> inputs() const {
    const auto rounded = [](at::IntArrayRef shape, uint64_t seed, double scale) {
      return random(shape, seed).mul_(scale).to(at::kBFloat16).to(at::kDouble);
    };
    return {rounded({tokens, width}, 1, 1), rounded({3 * width, width}, 2, 0.06),
            rounded({3 * width}, 3, 0.1),   rounded({width, width}, 4, 0.06),
            rounded({width}, 5, 0.1),       rounded({width}, 6, 0.1).add_(1),
            rounded({width}, 7, 0.1),       rounded({inner, width}, 8, 0.06),
            rounded({inner}, 9, 0.1),       rounded({width, inner}, 10, 0.03),
            rounded({width}, 11, 0.1),      rounded({width}, 12, 0.1).add_(1),
            rounded({width}, 13, 0.1)};
  }

  /// y, then the gradients of all inputs, in fp64 on the CPU. `fp8`: scales of four linears; null: the compute type.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& given, at::Device device, at::ScalarType dtype,
                              const Fp8Scales* fp8) const {
    std::vector<at::Tensor> t;
    for (const at::Tensor& input : given) t.push_back(input.to(device, dtype).detach().clone().requires_grad_(true));
    const at::Tensor keys = (at::arange(tokens, at::TensorOptions(at::kLong)) * 31 + 7).to(device);
    const Dropout drop = dropout > 0 ? Dropout{dropout, 21, keys} : Dropout{};
    const auto end = static_cast<int32_t>(tokens);
    const PackLayout layout = make_pack_layout({0, end / 5, end / 5 + 1, end / 2, end}, {4, 5, 6, 7}, device);
    const LayerNormWeights first{t[5], t[6], 1e-12}, second{t[11], t[12], 1e-12};
    const auto [qkv, same] = fp8 ? fp8_linear_bias(t[0], t[1], t[2], fp8->linear(0)) : linear_bias(t[0], t[1], t[2]);
    const at::Tensor attended = pack_attention(qkv.view({tokens, 3, heads, width / heads}), layout, 0.125, drop, 5);
    at::Tensor y;
    if (fp8) {
      const at::Tensor h = fp8_linear_add_norm(attended, t[3], t[4], same, first, drop, 2, fp8->linear(1));
      y = fp8_mlp_add_norm(h, {t[7], t[8], t[9], t[10]}, GeluForm::kTanh, second, drop, 3, fp8->linear(2),
                           fp8->linear(3));
    } else {
      const at::Tensor h = linear_add_norm(attended, t[3], t[4], same, first, drop, 2);
      const auto [activated, middle] = linear_gelu(h, t[7], t[8], GeluForm::kTanh);
      y = linear_add_norm(activated, t[9], t[10], middle, second, drop, 3);
    }
    (y.to(at::kDouble) * random(y.sizes(), 99).to(device)).sum().backward();
    std::vector<at::Tensor> result = {y.detach().to(at::kCPU, at::kDouble)};
    for (const at::Tensor& leaf : t) result.push_back(leaf.grad().to(at::kCPU, at::kDouble));
    return result;
  }
};

inline double relative_distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm().clamp_min(1e-12)).item<double>();
}
inline double cosine(const at::Tensor& a, const at::Tensor& b) {
  return (a.flatten().dot(b.flatten()) / (a.norm() * b.norm()).clamp_min(1e-300)).item<double>();
}

}  // namespace trireme::testing
