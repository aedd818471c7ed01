// FP8 recipes in the CPU's emulation: rounding, the formulas of their gradients, and the update of delayed scales.
#include "block_testing.h"
#include "matmul/operand.h"
#include "matmul/recipe.h"
#include "trireme/base/error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

using namespace testing;

BlockChoices frozen_lora(BlockChoices c, bool recompute) {
  c.trained = false;
  c.rank = 3;
  c.lora_dropout = 0.25;
  c.recompute_up = recompute;
  return c;
}

TEST(FrozenFp8, StaysWithinTheRoundingOfThreeBits) {
  // E4M3 has a relative rounding error of up to 2^-4; products average the errors of their inputs.
  for (const BlockChoices& base : {kLlamaBlock, kGptBlock, kBertBlock}) {
    for (const bool recompute : {false, true}) {
      const TestBlock block(frozen_lora(base, recompute), {});
      const auto fp8 = block.run(at::kCPU, at::kDouble, {Recipe::kFp8Frozen, nullptr}), exact = block.run_reference();
      ASSERT_EQ(fp8.size(), exact.size());
      EXPECT_LT(relative_distance(fp8[0], exact[0]), 0.07) << base.name;
      EXPECT_GT(relative_distance(fp8[0], exact[0]), 1e-4) << "nothing was quantized";
      for (size_t i = 1; i < fp8.size(); ++i)
        EXPECT_LT(relative_distance(fp8[i], exact[i]), 0.15) << base.name << ", value " << i;
    }
  }
}

TEST(FrozenFp8, RecomputedAndKeptProjectionsGiveTheSameForward) {
  const TestBlock kept(frozen_lora(kLlamaBlock, false), {}), again(frozen_lora(kLlamaBlock, true), {});
  const TestBlock::Recipes recipes{Recipe::kFp8Frozen, nullptr};
  EXPECT_TRUE(at::equal(kept.run(at::kCPU, at::kDouble, recipes)[0], again.run(at::kCPU, at::kDouble, recipes)[0]));
}

TEST(FrozenFp8, KeptTransposesChangeNoBit) {
  for (BlockChoices choices : all_blocks()) {
    if (choices.rank == 0 || choices.trained) continue;
    for (const int64_t tile : {0, 3}) {
      choices.tile_tokens = tile;
      const TestBlock block(choices, {});
      const auto kept = block.run(at::kCPU, at::kDouble, {Recipe::kFp8Frozen, nullptr, true}),
                 plain = block.run(at::kCPU, at::kDouble, {Recipe::kFp8Frozen, nullptr});
      for (size_t i = 0; i < plain.size(); ++i)
        EXPECT_TRUE(at::equal(kept[i], plain[i])) << choices.name << ", value " << i;
    }
  }
}

TEST(TransposedCodes, AreWrittenOnceAndReadUntilTheyAreInvalid) {
  const at::Tensor codes = random({32, 16}, 7).to(at::kFloat8_e4m3fn);
  Weight weight{codes, {.recipe = Recipe::kFp8Frozen, .inverse_scale = at::ones({}, at::kFloat)}};
  const LinearRecipe& recipe = recipe_of(Recipe::kFp8Frozen);
  const Operand dy = make_operand(random({8, 32}, 8).to(at::kFloat), recipe.gradient_forms(weight));
  const auto dgrad = [&] { return recipe.dgrad(dy, weight, {}, at::kFloat, {}); };
  const at::Tensor expected = dgrad();
  weight.state.transposed = std::make_shared<TransposedCodes>(TransposedCodes{at::empty({16, 32}, codes.options())});
  TransposedCodes& kept = *weight.state.transposed;
  const void* const memory = kept.codes.data_ptr();
  EXPECT_TRUE(at::equal(dgrad(), expected));
  EXPECT_TRUE(kept.valid);
  codes.view(at::kByte).zero_();
  EXPECT_TRUE(at::equal(dgrad(), expected)) << "it was transposed again";
  kept.valid = false;
  EXPECT_EQ(dgrad().abs().max().item<float>(), 0);
  EXPECT_EQ(kept.codes.data_ptr(), memory);
  kept = {at::empty({32, 16}, codes.options())};
  EXPECT_THROW((void)dgrad(), InternalError);
}

TEST(FrozenFp8, AWeightWithoutCodesIsAnError) {
  const Weight plain{at::ones({16, 16}), {.recipe = Recipe::kFp8Frozen}};
  LinearRecipe::Kept kept;
  EXPECT_THROW((void)recipe_of(Recipe::kFp8Frozen).forward({}, plain, at::kFloat, {}, {}, kept), InternalError);
}

TEST(Fp8InTiles, RowsDoNotSeeEachOther) {
  for (const Recipe recipe : {Recipe::kFp8Frozen, Recipe::kFp8Rowwise}) {
    for (const BlockChoices& base : {kLlamaBlock, kGptBlock, kBertBlock}) {
      BlockChoices choices = recipe == Recipe::kFp8Frozen ? frozen_lora(base, false) : base;
      const auto whole = TestBlock(choices, {}).run(at::kCPU, at::kDouble, {recipe, nullptr});
      choices.tile_tokens = 3;
      const TestBlock block(choices, {});
      const auto tiled = block.run(at::kCPU, at::kDouble, {recipe, nullptr});
      ASSERT_EQ(whole.size(), tiled.size());
      for (size_t i = 0; i < whole.size(); ++i) {
        // Weight gradients of rowwise: the columns of a tile have scales of their own.
        const bool columns = recipe == Recipe::kFp8Rowwise && whole[i].dim() == 2 && whole[i].size(0) != 10;
        EXPECT_LT(relative_distance(tiled[i], whole[i]), columns ? 0.05 : 1e-6) << base.name << ", value " << i;
        if (columns) {
          EXPECT_GT(relative_distance(tiled[i], whole[i]), 1e-6);
        }
      }
    }
  }
}

TEST(DelayedFp8, GradientsAreThoseOfThePlainBlockButForRounding) {
  for (const BlockChoices& base : {kBertBlock, kGptBlock, kLlamaBlock}) {
    for (const bool recompute : {false, true}) {
      BlockChoices choices = base;
      choices.recompute_up = recompute;
      const TestBlock block(choices, {.samples = 4, .length = 32, .width = 64, .inner = 256, .extra = 128});
      Fp8Scales scales(4, at::kCPU);
      const auto plain = block.run(at::kCPU, at::kFloat, {});
      for (const bool followed : {false, true}) {
        const auto fp8 = block.run(at::kCPU, at::kFloat, {Recipe::kFp8Delayed, &scales});
        for (size_t i = 0; i < plain.size(); ++i) {
          // E4M3's mean rounding error is 2.6 %, E5M2's twice that; sums of products average them.
          EXPECT_GT(cosine(fp8[i], plain[i]), 0.99) << base.name << " value " << i << ", followed " << followed;
          EXPECT_NEAR((fp8[i].norm() / plain[i].norm()).item<double>(), 1, 0.04) << base.name << " value " << i;
        }
        EXPECT_GT(relative_distance(fp8[0], plain[0]), 1e-4) << "nothing was quantized";
        EXPECT_EQ(scales.update().item<double>(), 0);
      }
    }
  }
}

TEST(DelayedFp8, ProductsAreOfTheCodes) {
  // Multiples of 1/4 up to 7/4 make the scales powers of two and are exact in both formats, so nothing is rounded.
  const auto quarters = [](at::IntArrayRef shape, uint64_t seed) {
    at::Tensor values = random(shape, seed).mul_(4).round_().clamp_(-7, 7).div_(4).to(at::kFloat);
    values[0][0] = 1.75;
    return values;
  };
  at::Tensor x = quarters({32, 16}, 3), w = quarters({48, 16}, 4);
  x.requires_grad_(true), w.requires_grad_(true);
  at::Tensor bias = at::arange(48, at::kFloat).requires_grad_(true);
  Fp8Scales scales(1, at::kCPU);
  const auto [y, same] = norm_linear(x, {}, {{w, {Recipe::kFp8Delayed, {}, scales.linear(0)}}, bias, {}});
  EXPECT_TRUE(y.equal(at::addmm(bias, x, w.t())));
  const at::Tensor dy = quarters({32, 48}, 5), dx = random({32, 16}, 6).round_().to(at::kFloat);
  (y * dy).sum().add((same * dx).sum()).backward();
  EXPECT_TRUE(x.grad().equal(at::mm(dy, w.detach()) + dx));
  EXPECT_TRUE(w.grad().equal(at::mm(dy.t(), x.detach())));
  EXPECT_TRUE(bias.grad().equal(dy.sum(0)));
}

TEST(DelayedFp8, ScalesFollowTheNewestStep) {
  Fp8Scales scales(1, at::kCPU);
  EXPECT_TRUE(scales.state().empty());
  const Fp8Scale& x = scales.linear(0).x;
  const Fp8Scale& dy = scales.linear(0).dy;
  const auto codes = [&](const Fp8Scale& scale, double top) {
    return make_codes({at::full({16, 16}, top), {}, {}}, scale, *scales.linear(0).known, false).codes;
  };
  (void)codes(x, 7.0);  // before the first step the tensor's own amax is used
  EXPECT_EQ(x.scale.item<double>(), 448.0 / 2 / 7);
  scales.begin_step();
  EXPECT_EQ(x.amax.item<double>(), 0) << "a pass before the first step changed the amax";
  (void)codes(x, 2.0), (void)codes(dy, 0.5);
  EXPECT_EQ(scales.update().item<double>(), 0);
  EXPECT_EQ(x.scale.item<double>(), 112);
  EXPECT_EQ(dy.scale.item<double>(), 57344);
  EXPECT_TRUE(dy.inverse.equal(dy.scale.reciprocal()));

  const Fp8Codes doubled = codes(x, 4.0),
                 beyond = codes(x, -8.0);  // now an amax is known, and the scale is constant during the step
  EXPECT_EQ(doubled.data.to(at::kFloat).max().item<double>(), 448);
  EXPECT_EQ(beyond.data.to(at::kFloat).min().item<double>(), -448);
  EXPECT_EQ(scales.update().item<double>(), 1) << "number of saturated tensors";
  EXPECT_EQ(x.scale.item<double>(), 28);
  EXPECT_EQ(dy.scale.item<double>(), 57344) << "a tensor without an amax must keep its scale";

  (void)codes(x, 40.0);  // a pass that is no step: warm-up, or a step that is computed again
  scales.begin_step();
  (void)codes(x, 2.0);
  EXPECT_EQ(scales.nonfinite().item<double>(), 0);
  EXPECT_EQ(scales.update().item<double>(), 0);
  EXPECT_EQ(x.scale.item<double>(), 112) << "a pass between two steps changed the scale";
  (void)codes(x, 8.0);
  (void)scales.update();

  scales.begin_step();
  (void)codes(x, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(scales.nonfinite().item<double>())) << "products clamp an infinity";
  (void)codes(dy, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(scales.nonfinite().item<double>()));
  EXPECT_EQ(scales.update().item<double>(), 2);
  EXPECT_EQ(x.scale.item<double>(), 28);
  EXPECT_EQ(dy.scale.item<double>(), 57344);

  Fp8Scales again(1, at::kCPU), other(2, at::kCPU);
  EXPECT_TRUE(again.restore(scales.state()));
  EXPECT_TRUE(*again.linear(0).known);
  EXPECT_TRUE(again.linear(0).x.scale.equal(x.scale));
  EXPECT_TRUE(again.linear(0).x.inverse.equal(x.inverse));
  EXPECT_FALSE(other.restore(scales.state()));
}

TEST(DelayedFp8, TheFirstStepIsItsOwn) {
  const auto codes = [](Fp8Scales& scales, double top) {
    return make_codes({at::full({16, 16}, top), {}, {}}, scales.linear(0).x, *scales.linear(0).known, false).codes;
  };
  Fp8Scales warm(1, at::kCPU), cold(1, at::kCPU);
  (void)codes(warm, 7.0);
  for (Fp8Scales* scales : {&warm, &cold}) {
    scales->begin_step();
    (void)codes(*scales, 0.0);  // nothing to make a scale of
  }
  EXPECT_TRUE(warm.linear(0).x.scale.equal(cold.linear(0).x.scale)) << "of a pass before the step";
  (void)codes(cold, 64.0), (void)codes(cold, 2.0);  // micro-batches: each has the scale of its own amax
  EXPECT_EQ(cold.update().item<double>(), 0) << "nothing was saturated";
  EXPECT_EQ(cold.linear(0).x.scale.item<double>(), 3.5);
}

TEST(QuantizeRows, UseTheWholeRangeAndRoundToNearest) {
  const at::Tensor x =
      at::tensor({1.0, -448.0, 0.5, 3.0, 1e-6, 2e-6, 0.0, -4e-6, 0.0, 0.0, 0.0, 0.0}, at::kFloat).view({3, 4});
  const Fp8Rows rows = quantize_rows(x);
  EXPECT_EQ(rows.inverse_scale[0].item<float>(), 1.0f);
  EXPECT_FLOAT_EQ(rows.inverse_scale[1].item<float>(), 4e-6f / 448);
  EXPECT_EQ(rows.inverse_scale[2].item<float>(), 1.0f);
  EXPECT_TRUE(at::equal(rows.data[0].to(at::kFloat), x[0]));
  EXPECT_TRUE(at::allclose(dequantize_rows(rows, at::kFloat), x, 1.0 / 16, 0));
}

TEST(QuantizeRows, GroupsHaveScalesOfTheirOwn) {
  const at::Tensor x = at::tensor({100.0, 50.0, 1e-3, -2e-3}, at::kFloat).view({1, 4});
  const at::Tensor back = dequantize_rows(quantize_rows(x, 2), at::kFloat);
  EXPECT_TRUE(at::allclose(back, x, 1.0 / 16, 0)) << back;
  EXPECT_GT((dequantize_rows(quantize_rows(x, 1), at::kFloat) - x).abs().max().item<float>(), 0);
}

TEST(QuantizeRows, NonFiniteValuesAreSeen) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    at::Tensor x = at::ones({2, 4}, at::kFloat);
    x[1][2] = bad;
    const at::Tensor back = dequantize_rows(quantize_rows(x), at::kFloat);
    EXPECT_FALSE(back[1].isfinite().all().item<bool>()) << back;
    EXPECT_TRUE(at::equal(back[0], x[0]));
  }
}

TEST(Fp8Cast, IsWithinHalfAStepOfItsScale) {
  const at::Tensor w = random({64, 32}, 3, at::kBFloat16);
  const at::Tensor inverse = fp8_inverse_scale(fp8_amax(w)), codes = at::empty(w.sizes(), at::kFloat8_e4m3fn);
  fp8_cast_(codes, w, inverse);
  const at::Tensor back = codes.to(at::kFloat) * inverse;
  const at::Tensor step = (w.to(at::kFloat).abs() / 16).clamp_min((inverse / 1024).item<double>());
  EXPECT_TRUE(((back - w.to(at::kFloat)).abs() <= step).all().item<bool>());
  EXPECT_EQ(codes.to(at::kFloat).abs().max().item<float>(), 448.0f);
}

}  // namespace
}  // namespace trireme
