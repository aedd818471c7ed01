#include "trireme/ops/block_layers.h"

#include "lora_reference.h"
#include "trireme/ops/norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <limits>

namespace trireme {
namespace {

constexpr int64_t kB = 2, kS = 5, kD = 16, kF = 24, kR = 3;
constexpr double kEps = 1e-5;

at::Tensor random(at::IntArrayRef shape, double scale = 1.0) { return at::randn(shape, at::kDouble).mul_(scale); }

/// Weights, adapters and settings of one block, in fp64.
struct Layers {
  at::Tensor x, attended, residual, norm, qkv, out, gate_up, down;
  std::vector<LoraAdapter> on_qkv, on_out, on_gate_up, on_down;
  LoraSettings lora;

  explicit Layers(double dropout, bool trained = false) {
    at::manual_seed(7);
    x = random({kB, kS, kD});
    attended = random({kB, kS, kD});
    residual = random({kB, kS, kD});
    norm = random({kD}, 0.1).add_(1);
    qkv = random({kD + 8, kD}, 0.3);
    out = random({kD, kD}, 0.3);
    gate_up = random({2 * kF, kD}, 0.3);
    down = random({kD, kF}, 0.3);
    on_qkv = {{random({kR, kD}), random({kD, kR}), 0, 1}, {random({kR, kD}), random({8, kR}), kD, 2}};
    on_out = {{random({kR, kD}), random({kD, kR}), 0, 3}};
    on_gate_up = {{random({kR, kD}), random({kF, kR}), 0, 4}, {random({kR, kD}), random({kF, kR}), kF, 5}};
    on_down = {{random({kR, kF}), random({kD, kR}), 0, 6}};
    lora = {0.5, {dropout, 11, at::arange(kB, at::kLong)}};
    for (at::Tensor* t : {&x, &attended, &residual}) t->set_requires_grad(true);
    if (trained)
      for (at::Tensor* t : {&norm, &qkv, &out, &gate_up, &down}) t->set_requires_grad(true);
    for (auto* list : {&on_qkv, &on_out, &on_gate_up, &on_down})
      for (LoraAdapter& adapter : *list) {
        adapter.a.set_requires_grad(true);
        adapter.b.set_requires_grad(true);
      }
  }

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& t : {x, attended, residual, norm, qkv, out, gate_up, down})
      if (t.requires_grad()) all.push_back(t);
    for (const auto* list : {&on_qkv, &on_out, &on_gate_up, &on_down})
      for (const LoraAdapter& adapter : *list) {
        all.push_back(adapter.a);
        all.push_back(adapter.b);
      }
    return all;
  }
};

/// A little block: everything that block_layers has, with a product instead of attention.
at::Tensor block(const Layers& l, bool recompute, const std::function<Weight(const at::Tensor&)>& store) {
  const auto [qkv, residual] = norm_linear(l.x, l.norm, kEps, store(l.qkv), l.on_qkv, l.lora);
  const at::Tensor mixed = l.attended * qkv.narrow(-1, 0, kD) + qkv.narrow(-1, kD, 8).sum(-1, true);
  const at::Tensor h = linear_add(mixed, residual + l.residual, store(l.out), l.on_out, l.lora);
  return mlp_add(h, {l.norm, store(l.gate_up), store(l.down), l.on_gate_up, l.on_down}, kEps, l.lora, recompute);
}

at::Tensor block_reference(const Layers& l) {
  const auto linear = [&](const at::Tensor& x, const at::Tensor& w, const std::vector<LoraAdapter>& a) {
    return testing::lora_linear_reference(x, w, a, l.lora);
  };
  const at::Tensor qkv = linear(rms_norm_reference(l.x, l.norm, kEps), l.qkv, l.on_qkv);
  const at::Tensor mixed = l.attended * qkv.narrow(-1, 0, kD) + qkv.narrow(-1, kD, 8).sum(-1, true);
  const at::Tensor h = linear(mixed, l.out, l.on_out) + l.x + l.residual;
  const at::Tensor gate_up = linear(rms_norm_reference(h, l.norm, kEps), l.gate_up, l.on_gate_up);
  const at::Tensor activated = at::silu(gate_up.narrow(-1, 0, kF)) * gate_up.narrow(-1, kF, kF);
  return linear(activated, l.down, l.on_down) + h;
}

Weight unquantised(const at::Tensor& w) { return {w, {}}; }

Weight quantised(const at::Tensor& w) {
  const at::Tensor inverse = fp8_inverse_scale(fp8_amax(w.detach()));
  const at::Tensor stored = at::empty(w.sizes(), w.options().dtype(at::kFloat8_e4m3fn).requires_grad(false));
  fp8_cast_(stored, w.detach(), inverse);
  return {stored, inverse};
}

std::vector<at::Tensor> leaf_gradients(const at::Tensor& y, const std::vector<at::Tensor>& leaves) {
  const at::Tensor weights = at::arange(y.numel(), y.options()).sin().view(y.sizes());
  return torch::autograd::grad({(y * weights).sum()}, leaves, {}, std::nullopt, false, true);
}

class BlockLayers : public ::testing::TestWithParam<std::tuple<double, bool, bool>> {};

TEST_P(BlockLayers, EqualTheCompositionInValuesAndGradients) {
  const auto [dropout, trained, recompute] = GetParam();
  const Layers l(dropout, trained);
  const at::Tensor y = block(l, recompute, unquantised), expected = block_reference(l);
  EXPECT_TRUE(at::allclose(y, expected, 1e-12, 1e-12));
  const auto leaves = l.leaves();
  const auto actual = leaf_gradients(y, leaves), wanted = leaf_gradients(expected, leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_TRUE(actual[i].defined()) << "leaf " << i << " " << leaves[i].sizes();
    EXPECT_TRUE(at::allclose(actual[i], wanted[i], 1e-10, 1e-11))
        << "leaf " << i << " " << leaves[i].sizes() << ": " << (actual[i] - wanted[i]).abs().max();
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockLayers,
                         ::testing::Combine(::testing::Values(0.0, 0.25), ::testing::Bool(), ::testing::Bool()));

double relative(const at::Tensor& a, const at::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

TEST(BlockLayersFp8, StayWithinTheRoundingOfThreeBits) {
  // E4M3 rounds within 2^-4 relative; products average the rounding of their inputs.
  for (const bool recompute : {false, true}) {
    const Layers l(0.25);
    const at::Tensor y = block(l, recompute, quantised), expected = block_reference(l);
    EXPECT_LT(relative(y, expected), 0.06);
    EXPECT_GT(relative(y, expected), 1e-4) << "nothing was quantised";
    const auto leaves = l.leaves();
    const auto actual = leaf_gradients(y, leaves), wanted = leaf_gradients(expected, leaves);
    for (size_t i = 0; i < leaves.size(); ++i)
      EXPECT_LT(relative(actual[i], wanted[i]), 0.12) << "leaf " << i << " " << leaves[i].sizes();
  }
}

TEST(BlockLayersFp8, RecomputedAndKeptGateUpGiveTheSameForward) {
  const Layers l(0.25);
  EXPECT_TRUE(at::equal(block(l, false, quantised), block(l, true, quantised)));
}

TEST(BlockLayersChecks, ShapesThatDoNotFitAreRefused) {
  const Layers l(0);
  const auto add = [&](const at::Tensor& w, const std::vector<LoraAdapter>& adapters) {
    return linear_add(l.x, l.residual, unquantised(w), adapters, l.lora);
  };
  EXPECT_NO_THROW(add(l.out, l.on_out));
  EXPECT_ANY_THROW(add(random({kD, kD + 1}), {}));
  EXPECT_ANY_THROW(add(l.out.to(at::kFloat), {}));
  EXPECT_ANY_THROW(add(l.out, {{l.on_out[0].a, l.on_out[0].b, 1, 0}}));         // rows 1 to 17 of 16
  EXPECT_ANY_THROW(add(l.out, {{l.on_out[0].a, random({kD, kR + 1}), 0, 0}}));  // ranks 3 and 4
  EXPECT_ANY_THROW(add(l.out, {{random({kR, kD - 1}), l.on_out[0].b, 0, 0}}));
}

TEST(Fp8, RowsUseTheWholeRangeAndRoundToNearest) {
  const at::Tensor x =
      at::tensor({1.0, -448.0, 0.5, 3.0, 1e-6, 2e-6, 0.0, -4e-6, 0.0, 0.0, 0.0, 0.0}, at::kFloat).view({3, 4});
  const Fp8Rows rows = quantise_rows(x);
  EXPECT_EQ(rows.inverse_scale[0].item<float>(), 1.0f);
  EXPECT_FLOAT_EQ(rows.inverse_scale[1].item<float>(), 4e-6f / 448);
  EXPECT_EQ(rows.inverse_scale[2].item<float>(), 1.0f);
  EXPECT_TRUE(at::equal(rows.data[0].to(at::kFloat), x[0]));
  EXPECT_TRUE(at::allclose(dequantise_rows(rows, at::kFloat), x, 1.0 / 16, 0));
}

TEST(Fp8, GroupsHaveScalesOfTheirOwn) {
  const at::Tensor x = at::tensor({100.0, 50.0, 1e-3, -2e-3}, at::kFloat).view({1, 4});
  const at::Tensor back = dequantise_rows(quantise_rows(x, 2), at::kFloat);
  EXPECT_TRUE(at::allclose(back, x, 1.0 / 16, 0)) << back;
  EXPECT_GT((dequantise_rows(quantise_rows(x, 1), at::kFloat) - x).abs().max().item<float>(), 0);
}

TEST(Fp8, NonFiniteValuesAreSeen) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    at::Tensor x = at::ones({2, 4}, at::kFloat);
    x[1][2] = bad;
    const at::Tensor back = dequantise_rows(quantise_rows(x), at::kFloat);
    EXPECT_FALSE(back[1].isfinite().all().item<bool>()) << back;
    EXPECT_TRUE(at::equal(back[0], x[0]));
  }
}

TEST(Fp8, WeightCastIsWithinHalfAStepOfItsScale) {
  at::manual_seed(3);
  const at::Tensor w = at::randn({64, 32}, at::kBFloat16);
  const Weight stored = quantised(w);
  const at::Tensor back = stored.matrix.to(at::kFloat) * stored.inverse_scale;
  const at::Tensor step = (w.to(at::kFloat).abs() / 16).clamp_min((stored.inverse_scale / 1024).item<double>());
  EXPECT_TRUE(((back - w.to(at::kFloat)).abs() <= step).all().item<bool>());
  EXPECT_EQ(stored.matrix.to(at::kFloat).abs().max().item<float>(), 448.0f);
}

}  // namespace
}  // namespace trireme
