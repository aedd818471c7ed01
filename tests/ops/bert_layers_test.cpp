#include "trireme/ops/bert_layers.h"

#include "gradient_check.h"
#include "trireme/ops/loss_head.h"
#include "trireme/ops/pack_attention.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme {
namespace {

using namespace testing;

const auto kLong = at::TensorOptions(at::kLong);

at::Tensor keys(int64_t count) { return at::arange(count, kLong) * 97 + 5; }

at::Tensor plain_gelu(const at::Tensor& z, GeluForm form) {
  if (form == GeluForm::kErf) return z * 0.5 * (1 + at::erf(z / std::sqrt(2.0)));
  return z * 0.5 * (1 + at::tanh(std::sqrt(2.0 / M_PI) * (z + 0.044715 * z.pow(3))));
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta, double eps) {
  const at::Tensor centred = x - x.mean(-1, true);
  return centred / (centred.square().mean(-1, true) + eps).sqrt() * gamma + beta;
}

TEST(LinearBias, AddsTheResidualsGradientOnce) {
  const std::vector<at::Tensor> in = {random({5, 4}, 1), random({6, 4}, 2), random({6}, 3)};
  const auto f = [](const std::vector<at::Tensor>& t) {
    const auto [y, x] = linear_bias(t[0], t[1], t[2]);
    return project(y.square()) + project(x.pow(3), 7);
  };
  EXPECT_LT(max_difference(linear_bias(in[0], in[1], in[2])[0], at::matmul(in[0], in[1].t()) + in[2]), 1e-12);
  EXPECT_LT(gradient_error(f, in), 1e-6);
  // A gradient that autograd lends as an expanded view.
  const auto g = [](const std::vector<at::Tensor>& t) {
    const auto [y, x] = linear_bias(t[0], t[1], t[2]);
    return y.square().sum() + x.sum();
  };
  EXPECT_LT(gradient_error(g, in), 1e-6);
}

TEST(LinearGelu, BothForms) {
  const std::vector<at::Tensor> in = {random({5, 4}, 1), random({6, 4}, 2), random({6}, 3)};
  for (const GeluForm form : {GeluForm::kErf, GeluForm::kTanh}) {
    const auto f = [form](const std::vector<at::Tensor>& t) {
      const auto [y, x] = linear_gelu(t[0], t[1], t[2], form);
      return project(y.square()) + project(x, 7);
    };
    EXPECT_LT(max_difference(linear_gelu(in[0], in[1], in[2], form)[0],
                             plain_gelu(at::matmul(in[0], in[1].t()) + in[2], form)),
              1e-12);
    EXPECT_LT(gradient_error(f, in), 1e-6);
  }
  EXPECT_GT(max_difference(linear_gelu(in[0], in[1], in[2], GeluForm::kErf)[0],
                           linear_gelu(in[0], in[1], in[2], GeluForm::kTanh)[0]),
            1e-6);
}

TEST(LinearAddNorm, ValueAndGradientsWithAndWithoutDropout) {
  const std::vector<at::Tensor> in = {random({5, 4}, 1), random({6, 4}, 2), random({6}, 3),
                                      random({5, 6}, 4), random({6}, 5),    random({6}, 6)};
  for (const double p : {0.0, 0.4}) {
    const Dropout dropout = p > 0 ? Dropout{p, 11, keys(5)} : Dropout{};
    const auto call = [&](const std::vector<at::Tensor>& t) {
      return linear_add_norm(t[0], t[1], t[2], t[3], {t[4], t[5], 1e-3}, dropout, 9);
    };
    at::Tensor branch = at::matmul(in[0], in[1].t()) + in[2];
    if (p > 0) branch = apply_dropout(branch.unsqueeze(1), dropout, 9).squeeze(1);
    EXPECT_LT(max_difference(call(in), plain_norm(branch + in[3], in[4], in[5], 1e-3)), 1e-12);
    EXPECT_LT(gradient_error([&](const std::vector<at::Tensor>& t) { return project(call(t).square()); }, in), 1e-6);
  }
}

TEST(LayerNorm, ValueAndGradients) {
  const std::vector<at::Tensor> in = {random({5, 6}, 1), random({6}, 2), random({6}, 3)};
  const auto call = [](const std::vector<at::Tensor>& t) { return layer_norm(t[0], {t[1], t[2], 1e-3}); };
  EXPECT_LT(max_difference(call(in), plain_norm(in[0], in[1], in[2], 1e-3)), 1e-12);
  EXPECT_LT(gradient_error([&](const std::vector<at::Tensor>& t) { return project(call(t).square()); }, in), 1e-6);
}

TEST(PackAttention, NobodySeesAnotherSequence) {
  const at::Tensor qkv = random({9, 3, 2, 4}, 1);
  const PackLayout layout = make_pack_layout({0, 4, 5, 9}, {1, 2, 3}, at::kCPU);
  const at::Tensor packed = pack_attention(qkv, layout, 0.5, {}, 0);
  for (size_t i = 0; i + 1 < layout.boundaries.size(); ++i) {
    const int64_t begin = layout.boundaries[i], length = layout.boundaries[i + 1] - begin;
    const at::Tensor own = qkv.narrow(0, begin, length);
    const at::Tensor q = own.select(1, 0).transpose(0, 1), k = own.select(1, 1).transpose(0, 1),
                     v = own.select(1, 2).transpose(0, 1);
    const at::Tensor expected =
        at::matmul(at::softmax(at::matmul(q, k.transpose(1, 2)) * 0.5, -1), v).transpose(0, 1).reshape({length, 8});
    EXPECT_LT(max_difference(packed.narrow(0, begin, length), expected), 1e-12);
  }
  EXPECT_EQ(layout.longest, 4);
}

TEST(PackAttention, GradientsWithDropout) {
  const PackLayout layout = make_pack_layout({0, 3, 5}, {7, 8}, at::kCPU);
  const std::vector<at::Tensor> in = {random({5, 3, 2, 4}, 1)};
  for (const double p : {0.0, 0.3}) {
    const Dropout dropout = p > 0 ? Dropout{p, 3, keys(5)} : Dropout{};
    const auto call = [&](const std::vector<at::Tensor>& t) {
      return project(pack_attention(t[0], layout, 0.5, dropout, 4).square());
    };
    EXPECT_LT(gradient_error(call, in), 1e-6);
  }
}

TEST(PackAttention, DropoutFollowsTheSequence) {
  // The second sequence alone draws what it draws in the pack: the decisions belong to it.
  const at::Tensor qkv = random({7, 3, 2, 4}, 1), second = qkv.narrow(0, 3, 4).contiguous();
  const Dropout dropout{0.5, 3, keys(7)};
  const at::Tensor packed = pack_attention(qkv, make_pack_layout({0, 3, 7}, {11, 12}, at::kCPU), 0.5, dropout, 4);
  const at::Tensor alone = pack_attention(second, make_pack_layout({0, 4}, {12}, at::kCPU), 0.5, dropout, 4);
  EXPECT_EQ(max_difference(packed.narrow(0, 3, 4), alone), 0);
  EXPECT_GT(max_difference(alone, pack_attention(second, make_pack_layout({0, 4}, {12}, at::kCPU), 0.5, {}, 4)), 1e-3);
  EXPECT_GT(max_difference(alone, pack_attention(second, make_pack_layout({0, 4}, {13}, at::kCPU), 0.5, dropout, 4)),
            1e-3);
}

TEST(PackAttention, DecisionsHaveTheirRateAndNoPattern) {
  constexpr int64_t kLength = 256;
  const DropoutKey key = dropout_key({0.1, 5, {}}, 3);
  const uint32_t threshold = attention_dropout_threshold(0.1);
  EXPECT_EQ(threshold, 13u);
  EXPECT_EQ(attention_dropout_threshold(0.0), 0u);
  EXPECT_ANY_THROW(attention_dropout_threshold(0.0039)) << "would drop nothing";
  bool one = false;
  EXPECT_ANY_THROW(attention_keeps(key, 70, 0, 65537, threshold, &one)) << "rows and columns have 16 bits";
  at::Tensor kept = at::empty({3, kLength, kLength}, at::TensorOptions(at::kBool));
  for (int64_t i = 0; i < 3; ++i)
    attention_keeps(key, 70 + i / 2, static_cast<uint32_t>(i % 2), kLength, threshold,
                    kept.mutable_data_ptr<bool>() + i * kLength * kLength);
  const at::Tensor x = kept.to(at::kDouble);
  const double rate = 1 - 13.0 / 128, deviation = std::sqrt(rate * (1 - rate) / (kLength * kLength));
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(x[i].mean().item<double>(), rate, 5 * deviation) << i;
  const at::Tensor c = (x - rate) / std::sqrt(rate * (1 - rate));
  // Other heads, other sequences, neighbours and the elements that share a draw are uncorrelated.
  const double bound = 5.0 / kLength;
  EXPECT_LT(std::abs((c[0] * c[1]).mean().item<double>()), bound);
  EXPECT_LT(std::abs((c[0] * c[2]).mean().item<double>()), bound);
  for (const int64_t shift : {1, 8, 16})
    for (const int64_t dim : {0, 1})
      EXPECT_LT(std::abs((c[0] * c[0].roll(shift, dim)).mean().item<double>()), bound) << shift << " " << dim;
}

TEST(PackLayout, RefusesEmptySequences) {
  EXPECT_ANY_THROW(make_pack_layout({0, 3, 3}, {0, 1}, at::kCPU));
  EXPECT_ANY_THROW(make_pack_layout({1, 3}, {0}, at::kCPU));
}

TEST(LossHead, WithBias) {
  const at::Tensor targets = at::tensor({1, 0, 4, 2}, kLong), weights = at::tensor({0.5, 0.0, 1.0, 0.25}, at::kFloat);
  const std::vector<at::Tensor> in = {random({4, 3}, 1), random({5, 3}, 2), random({5}, 3)};
  const at::Tensor log_p = at::log_softmax(at::matmul(in[0], in[1].t()) + in[2], -1);
  const at::Tensor expected = -(log_p.gather(1, targets.unsqueeze(1)).squeeze(1) * weights).sum();
  EXPECT_LT(max_difference(loss_head(in[0], in[1], targets, weights, in[2]), expected), 1e-12);
  EXPECT_LT(gradient_error(
                [&](const std::vector<at::Tensor>& t) { return loss_head(t[0], t[1], targets, weights, t[2]); }, in),
            1e-6);
  const HeadScore score = score_head(in[0], in[1], targets, weights, in[2]);
  EXPECT_LT(max_difference(score.loss, expected), 1e-12);
  const at::Tensor right = (at::matmul(in[0], in[1].t()) + in[2]).argmax(-1).eq(targets).logical_and(weights.ne(0));
  EXPECT_EQ(score.hits.item<double>(), right.sum().item<double>());
}

}  // namespace
}  // namespace trireme
