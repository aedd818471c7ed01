// The fused sub-layers against their plain composition in fp64 and against central differences.
#include "block_testing.h"
#include "layers/tiles.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

class Layers : public ::testing::TestWithParam<BlockChoices> {};

TEST_P(Layers, EqualTheCompositionInValuesAndGradients) {
  const TestBlock block(GetParam(), {});
  const auto ours = block.run(at::kCPU, at::kDouble, {}), expected = block.run_reference();
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_LT(relative_distance(ours[i], expected[i]), 1e-11) << "value " << i;
}

TEST_P(Layers, InTilesEqualTheCompositionToo) {
  // Parts of the two samples of five tokens; one sample at a time; and tokens that are a sample each.
  for (const int64_t tile : {1, 2, 3, 7}) {
    for (const BlockShape& shape : {BlockShape{}, BlockShape{.samples = 10, .length = 1}}) {
      BlockChoices choices = GetParam();
      const auto expected = TestBlock(choices, shape).run_reference();
      choices.tile_tokens = tile;
      const auto ours = TestBlock(choices, shape).run(at::kCPU, at::kDouble, {});
      ASSERT_EQ(ours.size(), expected.size());
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_LT(relative_distance(ours[i], expected[i]), 1e-11) << "value " << i << ", tiles of " << tile;
    }
  }
}

TEST_P(Layers, OneTileHasTheBitsOfNone) {
  BlockChoices choices = GetParam();
  const auto without = TestBlock(choices, {}).run(at::kCPU, at::kFloat, {});
  for (const int64_t tile : {10, 11}) {
    choices.tile_tokens = tile;
    const auto with = TestBlock(choices, {}).run(at::kCPU, at::kFloat, {});
    for (size_t i = 0; i < with.size(); ++i) EXPECT_EQ(max_difference(with[i], without[i]), 0) << "value " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Layers, ::testing::ValuesIn(all_blocks()),
                         [](const auto& each) { return each.param.name; });

Linear plain(const at::Tensor& weight, const at::Tensor& bias = {}) { return {{weight, {}}, bias, {}}; }

TEST(NormLinear, AddsTheResidualsGradientOnce) {
  const std::vector<at::Tensor> in = {random({5, 4}, 1), random({6, 4}, 2), random({6}, 3)};
  const auto f = [](const std::vector<at::Tensor>& t) {
    const auto [y, x] = norm_linear(t[0], {}, plain(t[1], t[2]));
    return project(y.square()) + project(x.pow(3), 7);
  };
  EXPECT_LT(gradient_error(f, in), 1e-6);
  // Autograd passes this gradient as an expanded view.
  const auto g = [](const std::vector<at::Tensor>& t) {
    const auto [y, x] = norm_linear(t[0], {}, plain(t[1], t[2]));
    return y.square().sum() + x.sum();
  };
  EXPECT_LT(gradient_error(g, in), 1e-6);
}

TEST(NormLinear, ActivatesWithEitherGelu) {
  const std::vector<at::Tensor> in = {random({5, 4}, 1), random({6, 4}, 2), random({6}, 3)};
  for (const Activation form : {Activation::kGeluErf, Activation::kGeluTanh}) {
    const auto f = [form](const std::vector<at::Tensor>& t) {
      const auto [y, x] = norm_linear(t[0], {}, plain(t[1], t[2]), form);
      return project(y.square()) + project(x, 7);
    };
    EXPECT_LT(max_difference(norm_linear(in[0], {}, plain(in[1], in[2]), form)[0],
                             activation_reference(at::matmul(in[0], in[1].t()) + in[2], form)),
              1e-12);
    EXPECT_LT(gradient_error(f, in), 1e-6);
  }
  EXPECT_ANY_THROW(norm_linear(in[0], {}, plain(in[1]), Activation::kGeluErf)) << "GELU without a bias was accepted";
  EXPECT_ANY_THROW(norm_linear(in[0], {}, plain(in[1], in[2]), Activation::kSwiglu));
}

TEST(LinearResidual, FrozenWeightGetsNoGradientAndAdaptersTrainWithoutAnInputGradient) {
  const at::Tensor x = random({6, 5}, 1), weight = random({9, 5}, 2), residual = random({6, 9}, 3);
  at::Tensor a = random({2, 5}, 4).requires_grad_(), b = random({9, 2}, 5).requires_grad_();
  const Linear linear{{weight, {}}, {}, {{{a, b, 0, 1, 1.7}}, {0.2, 17, at::arange(2, at::kLong)}}};
  project(linear_residual(x, residual, linear)).backward();
  EXPECT_TRUE(a.grad().defined());
  EXPECT_TRUE(b.grad().defined());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST(LinearResidual, ReadsTheWeightAgainInBackward) {
  // A sharded unit's storage is released between forward and backward and may be reallocated elsewhere. A layer that
  // kept a copy of the weight would not be noticed in that case.
  const at::Tensor x = random({2, 5}, 1).requires_grad_(), w = random({3, 5}, 2);
  const at::Tensor y = linear_residual(x, at::zeros({2, 3}, at::kDouble), plain(w));
  w.data().mul_(2);
  y.sum().backward();
  EXPECT_LT(max_difference(x.grad()[0], w.sum(0)), 1e-13);
}

/// A linear layer with dropout, and the layer whose norm reads the sum; `other`: how often another user reads it, too.
std::vector<at::Tensor> gradients_through_a_sum(const std::shared_ptr<BranchGradient>& branch, bool trains_bias,
                                                double other) {
  const auto x = random({6, 5}, 1, at::kFloat).requires_grad_(),
             residual = random({6, 8}, 2, at::kFloat).requires_grad_(),
             w = random({8, 5}, 3, at::kFloat).requires_grad_(),
             bias = random({8}, 4, at::kFloat).requires_grad_(trains_bias);
  Norm norm = layer_norm(random({8}, 5, at::kFloat), random({8}, 6, at::kFloat), 1e-5);
  norm.branch = branch;
  const at::Tensor h = linear_residual(x, residual, plain(w, bias),
                                       {.dropout = {0.4, 17, at::arange(3, at::kLong)}, .gradient = branch});
  const auto [y, passed] = norm_linear(h, norm, plain(random({4, 8}, 7, at::kFloat)));
  at::Tensor loss = project(y.square()) + project(passed.pow(3), 7);
  if (other != 0) loss = loss + other * project(h.square(), 8);
  loss.backward();
  return {x.grad(), residual.grad(), w.grad(), bias.grad()};
}

TEST(BranchGradients, HaveTheBitsOfTheSubLayersOwn) {
  for (const bool trains_bias : {true, false}) {
    const auto branch = std::make_shared<BranchGradient>();
    const auto ours = gradients_through_a_sum(branch, trains_bias, 0),
               expected = gradients_through_a_sum(nullptr, trains_bias, 0);
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].defined(), expected[i].defined()) << "gradient " << i;
      if (!ours[i].defined()) continue;
      EXPECT_EQ(max_difference(ours[i], expected[i]), 0) << "gradient " << i;
    }
    EXPECT_TRUE(branch->expected(6));
    EXPECT_EQ(branch->column_sums, trains_bias);
    EXPECT_FALSE(branch->of.defined() || branch->dropped.defined()) << "memory that nobody needs any more";
  }
}

TEST(BranchGradients, AreNotUsedWhereTheSumHasAnotherUser) {
  const auto branch = std::make_shared<BranchGradient>();
  const auto ours = gradients_through_a_sum(branch, true, 0.5), expected = gradients_through_a_sum(nullptr, true, 0.5);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(max_difference(ours[i], expected[i]), 0) << "gradient " << i;
  EXPECT_TRUE(branch->of.defined()) << "the norm computed it of its own gradient";
}

TEST(LinearResidual, RefusesShapesThatDoNotFit) {
  const at::Tensor x = random({6, 5}, 1), w = random({9, 5}, 2), residual = random({6, 9}, 3);
  const auto with = [&](const std::vector<LoraAdapter>& adapters) {
    return linear_residual(x, residual, {{w, {}}, {}, {adapters, {}}});
  };
  EXPECT_NO_THROW(with({{random({2, 5}, 1), random({3, 2}, 1), 6, 0}}));
  EXPECT_ANY_THROW(linear_residual(x, residual, plain(random({9, 6}, 1))));
  EXPECT_ANY_THROW(linear_residual(x, residual, plain(w.to(at::kFloat))));
  EXPECT_ANY_THROW(linear_residual(x, residual, plain(w, random({8}, 1))));
  EXPECT_ANY_THROW(linear_residual(x, random({5, 9}, 1), plain(w)));
  EXPECT_ANY_THROW(with({{random({2, 5}, 1), random({3, 2}, 1), 7, 0}}));  // rows 7 to 10 of 9
  EXPECT_ANY_THROW(with({{random({2, 5}, 1), random({3, 3}, 1), 0, 0}}));  // ranks 2 and 3
  EXPECT_ANY_THROW(with({{random({2, 4}, 1), random({3, 2}, 1), 0, 0}}));
  EXPECT_ANY_THROW(with({{random({2, 5}, 1), random({3, 2}, 1), 0, 0}, {random({2, 5}, 1), random({3, 2}, 1), 2, 1}}));
}

TEST(Tiles, AddUpWeightGradientsWhereASinkWantsThem) {
  const at::Tensor h = random({7, 8}, 1, at::kFloat), up = random({12, 8}, 2, at::kFloat),
                   down = random({8, 6}, 3, at::kFloat), dy = random({7, 8}, 4, at::kFloat);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool adds : {false, true}) {
      std::vector<at::Tensor> whole;
      for (const int64_t tile : {0, 3}) {
        CountingSink up_sink(at::ones({12, 8}, at::TensorOptions(type)), adds),
            down_sink(at::ones({8, 6}, at::TensorOptions(type)), adds);
        // Operands have the target's type, or 16 bits.
        const auto in = [&](const at::Tensor& x) { return x.to(type); };
        const at::Tensor x = in(h).clone().requires_grad_();
        norm_mlp(x, {.up = {{in(up), {.sink = &up_sink}}, {}, {}},
                     .down = {{in(down), {.sink = &down_sink}}, {}, {}},
                     .tile_tokens = tile})
            .backward(in(dy).clone());  // a residual alone gives its gradient up
        EXPECT_EQ(std::pair(up_sink.targets, up_sink.writes), std::pair(1, 1));
        EXPECT_EQ(std::pair(down_sink.targets, down_sink.writes), std::pair(1, 1));
        const std::vector<at::Tensor> now = {x.grad(), up_sink.result.sum, down_sink.result.sum};
        if (tile == 0)
          whole = now;
        else
          for (size_t i = 0; i < now.size(); ++i)
            EXPECT_LT(relative_distance(now[i].to(at::kDouble), whole[i].to(at::kDouble)),
                      type == at::kFloat ? 1e-6 : 4e-3)
                << i << (adds ? ", added" : "");
      }
    }
  }
}

TEST(Tiles, RoundGradientsInSixteenBitsOnce) {
  // Each token's gradient is 1 or 2^-9 of it: added in bf16, the small ones would vanish.
  const auto gradients = [](int64_t tile) {
    at::Tensor x = at::full({257, 1}, 1.0 / 512, at::TensorOptions(at::kBFloat16));
    x[0][0] = 1;
    const at::Tensor w = at::zeros({1, 1}, x.options()).requires_grad_(),
                     b = at::zeros({1}, x.options()).requires_grad_();
    CountingSink sink(at::zeros({1, 1}, x.options()), false);
    linear_residual(x, at::zeros({257, 1}, x.options()), {{w, {}}, b, {}}, {}, tile).sum().backward();
    linear_residual(x, at::zeros({257, 1}, x.options()).requires_grad_(), {{w, {.sink = &sink}}, {}, {}}, {}, tile)
        .sum()
        .backward();
    return std::array{w.grad().item<float>(), b.grad().item<float>(), sink.result.sum.item<float>()};
  };
  EXPECT_EQ(gradients(1), (std::array{1.5f, 256.0f, 1.5f}));
  EXPECT_EQ(gradients(0), (std::array{1.5f, 256.0f, 1.5f}));
}

TEST(Tiles, CutSamplesAndNothingElse) {
  const auto cuts = [](int64_t tokens, int64_t most, std::initializer_list<int64_t> counts) {
    std::vector<std::pair<int64_t, int64_t>> result;
    for (const Tile& tile : cut_tiles(tokens, most, counts)) result.emplace_back(tile.begin, tile.count);
    return result;
  };
  using Cuts = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(cuts(10, 0, {0}), (Cuts{{0, 10}}));
  EXPECT_EQ(cuts(10, 10, {2}), (Cuts{{0, 10}}));
  EXPECT_EQ(cuts(10, 4, {0, 0}), (Cuts{{0, 4}, {4, 4}, {8, 2}}));
  EXPECT_EQ(cuts(10, 4, {2, 0}), (Cuts{{0, 4}, {4, 1}, {5, 4}, {9, 1}}));
  EXPECT_EQ(cuts(12, 7, {4, 12}), (Cuts{{0, 6}, {6, 6}}));
  EXPECT_EQ(cuts(10, 4, {10}), (Cuts{{0, 4}, {4, 4}, {8, 2}}));
  EXPECT_ANY_THROW(cuts(10, 4, {3}));
  const Dropout dropout{0.5, 1, at::arange(2, at::kLong)};
  EXPECT_EQ(dropout.of_rows(6, 4, 10).first_row, 6);
  EXPECT_EQ(dropout.of_rows(6, 4, 10).of_rows(1, 2, 4).first_row, 7);
  EXPECT_EQ(dropout.of_rows(5, 5, 10).samples(), 1);
  EXPECT_EQ(dropout.of_rows(3, 4, 10).samples(), 0);  // of two samples
  EXPECT_ANY_THROW(dropout.of_rows(0, 3, 9));
}

TEST(Dora, KeepsTheSquaresOfAFrozenWeightsRows) {
  const at::Tensor x = random({6, 5}, 1), w = random({9, 5}, 2), residual = random({6, 9}, 3), m = random({4}, 4) + 2;
  Linear linear{{w, {}}, {}, {{{random({2, 5}, 5), random({4, 2}, 6), 3, 0, 0.5, m}}, {}}};
  const at::Tensor y = linear_residual(x, residual, linear);
  linear.weight.state.row_squares = std::make_shared<at::Tensor>();
  EXPECT_EQ(max_difference(linear_residual(x, residual, linear), y), 0);
  EXPECT_LT(max_difference(*linear.weight.state.row_squares, w.square().sum(1)), 1e-12);
  // A magnitude of the directions' own length changes nothing but the adapter's part.
  const LoraAdapter& adapter = linear.lora.adapters[0];
  const at::Tensor v = w.narrow(0, 3, 4) + 0.5 * at::mm(adapter.b, adapter.a);
  linear.lora.adapters[0].magnitude = v.norm(2, {1});
  EXPECT_LT(max_difference((linear_residual(x, residual, linear) - residual).narrow(1, 3, 4), at::mm(x, v.t())), 1e-12);
  linear.lora.adapters[0].magnitude = random({3}, 4);
  EXPECT_ANY_THROW(linear_residual(x, residual, linear));
}

TEST(Nodes, RunTheirBackwardOnce) {
  const at::Tensor x = random({2, 5}, 1).requires_grad_();
  const at::Tensor y = norm_linear(x, {}, plain(random({3, 5}, 2)))[0].sum();
  y.backward({}, /*retain_graph=*/true);
  EXPECT_ANY_THROW(y.backward());
}

TEST(Nodes, GiveBackWhatTheyKeep) {
  // A node that owned its own output would never be freed.
  c10::weak_intrusive_ptr<c10::TensorImpl> kept(at::empty({1}).getIntrusivePtr());
  {
    const at::Tensor x = random({4, 6}, 1).requires_grad_(), w = random({6, 6}, 2).requires_grad_();
    const at::Tensor inner = x * 2;
    kept = c10::weak_intrusive_ptr<c10::TensorImpl>(inner.getIntrusivePtr());
    const at::Tensor y = linear_residual(inner, inner, plain(w));
    y.sum().backward();
  }
  EXPECT_TRUE(kept.expired());
}

}  // namespace
}  // namespace trireme
