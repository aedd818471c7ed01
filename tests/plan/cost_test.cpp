// FLOPs, times and activations of models, against counts by hand.
#include "trireme/plan/cost.h"
#include "models/bert/bert.h"
#include "models/decoder/decoder.h"
#include "models/decoder/family.h"
#include "trireme/plan/memory.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

double flops(const DecoderConfig& config, const std::optional<LoraOptions>& lora, int64_t tokens) {
  return model_flops(DecoderModel(config, lora).shape(tokens, 2));
}

RowMemory memory(const DecoderModel& model, int64_t tokens, Recipe recipe = Recipe::kCompute) {
  return row_memory(model.shape(tokens, 2), traits_of(recipe), 2);
}

BertModel bert_large() {
  BertConfig config;
  config.hidden_size = 1024, config.intermediate_size = 4096, config.num_hidden_layers = 24;
  config.num_attention_heads = 16, config.vocab_size = 30522;
  return BertModel(config, 8);
}

TEST(ModelFlops, Llama70bLoraAsPublished) {
  const DecoderConfig config = decoder_preset("llama2-70b");
  const LoraOptions mlperf{16, 32, 0.1, {{"qkv_proj", "o_proj"}}};
  EXPECT_NEAR(flops(config, mlperf, 8192) / 1e12, 2562, 2);
  EXPECT_NEAR(flops(config, mlperf, 8192) / 8192 / 1e9, 313, 0.7);
  EXPECT_NEAR(flops(config, mlperf, 2048) / 2048 / 1e9, 284, 0.7);
}

TEST(ModelFlops, FullTrainingCountsWeightGradients) {
  const DecoderConfig config = decoder_preset("llama2-7b");
  const double matrices = 6738415616.0 - 32000.0 * 4096 - 65.0 * 4096;  // all but the embedding and the norms
  const double attention = 3.5 * 32 * 2 * 4096.0 * 4096 * 4096;
  EXPECT_NEAR(flops(config, {}, 4096) / (6 * matrices * 4096 + attention), 1.0, 1e-12);
}

TEST(ModelFlops, ATiedHeadCountsOnceAndPositionsNever) {
  DecoderConfig config = decoder_preset("gpt3-126m");
  config.vocab_size = 50304;
  const double norms_and_biases = 12 * (4 * 768.0 + 3 * 768 + 768 + 3072 + 768) + 2 * 768;
  const double matrices = 125262336.0 - 2048.0 * 768 - norms_and_biases;
  const double attention = 3.5 * 12 * 2 * 2048.0 * 2048 * 768;
  EXPECT_NEAR(flops(config, {}, 2048) / (6 * matrices * 2048 + attention), 1.0, 1e-12);
}

TEST(ModelFlops, BertOnPackedRowsAsTheBenchmarkCounts) {
  // 6 x 302 M x 24,576 for the encoder, about 0.7 TFLOP for the heads (48 rows of 512).
  EXPECT_NEAR(48 * model_flops(bert_large().shape(512, 2, 2)) / 1e12,
              44.5 + 0.7 + 48 * 3.5 * 24 * 4 * 512 * 256 * 1024 / 1e12, 0.4);
}

TEST(RowFlopsOfSequences, CountAttentionWithinThem) {
  DecoderConfig config = decoder_preset("llama2-7b");
  const auto flops = [&] { return RowFlops(DecoderModel(config, {}).shape(4096, 2)); };
  const double whole = flops().whole_row(), attention = 3.5 * 32 * 2 * 4096.0 * 4096 * 4096;
  EXPECT_EQ(whole, model_flops(DecoderModel(config, {}).shape(4096, 2)));
  EXPECT_NEAR(flops().mean(1, {0, 4096}) / whole, 1, 1e-12);
  EXPECT_NEAR((whole - flops().mean(1, {0, 2048, 4096})) / (attention / 2), 1, 1e-9);
  // Two rows: one of 16 documents, one of two.
  std::vector<int32_t> boundaries = {0};
  while (boundaries.back() < 4096) boundaries.push_back(boundaries.back() + 256);
  boundaries.insert(boundaries.end(), {4096 + 1024, 8192});
  const double share = (1.0 / 16 + (1.0 + 9) / 16) / 2;
  EXPECT_NEAR((whole - flops().mean(2, boundaries)) / (attention * (1 - share)), 1, 1e-9);
  // A window is no limit inside documents that are shorter.
  config.sliding_window = 1024;
  EXPECT_LT(flops().whole_row(), whole);
  EXPECT_NEAR((flops().mean(1, {0, 1024, 2048, 3072, 4096}) - (whole - attention)) / (attention / 4), 1, 1e-9);
}

/// Of a machine that does nothing in no time but what `rates` sets.
MachineRates only(double MachineRates::* member, double value) {
  MachineRates rates;
  rates.bf16_flops = rates.fp8_flops = rates.attention_flops = rates.memory_bytes =
      std::numeric_limits<double>::infinity();
  rates.*member = value;
  return rates;
}

TEST(RowTimes, OfLearnedPositionsAndGelu) {
  DecoderConfig config = decoder_preset("gpt3-126m");
  const double d = 768, f = 4 * d, s = 2048;
  const auto times = [&](const MachineRates& rates, Recipe recipe = Recipe::kCompute) {
    return row_times(DecoderModel(config, {}).shape(2048, 2), traits_of(recipe), rates, 2);
  };
  const RowTimes products = times(only(&MachineRates::bf16_flops, 1));
  EXPECT_DOUBLE_EQ(products.forward, 2 * s * (4 * d * d + 2 * d * f));
  EXPECT_DOUBLE_EQ(products.backward, 2 * products.forward);
  EXPECT_DOUBLE_EQ(products.mlp, 2 * s * d * f);
  EXPECT_DOUBLE_EQ(products.head, 3 * 2 * s * d * 50257);
  const RowTimes bytes = times(only(&MachineRates::memory_bytes, 1));
  // Inner dimensions of 768 (q k v, out, up), 3,072 (down); backward 2,304, 768, 3,072, 768. Nothing rotates q, k, v.
  const double narrow = 1 - 768.0 / 4096, wide = 1 - 3072.0 / 4096;
  EXPECT_DOUBLE_EQ(bytes.forward, 2 * s * (4 * d + 2 * f) + 2 * s * (8 * d * narrow + d * wide));
  EXPECT_DOUBLE_EQ(bytes.backward,
                   2 * s * (8 * d + 3 * f) + 2 * s * (d * (1 - 2304.0 / 4096) + d * narrow + d * wide + f * narrow));
  EXPECT_DOUBLE_EQ(bytes.norms, 2 * s * 4 * d) << "what GELU gives is kept";
  EXPECT_EQ(bytes.pass, 0);
  EXPECT_DOUBLE_EQ(times(only(&MachineRates::memory_bytes, 1), Recipe::kFp8Delayed).pass,
                   12 * 4 * (4 * d * d + 2 * d * f));
  EXPECT_EQ(times(only(&MachineRates::bf16_flops, 1), Recipe::kFp8Delayed).forward, 0);
  config.hidden_size = 4096, config.intermediate_size = 16384, config.num_attention_heads = 32,
  config.num_key_value_heads = 32, config.head_dim = 128;
  EXPECT_DOUBLE_EQ(times(only(&MachineRates::memory_bytes, 1)).forward, 2 * s * (4 + 2 * 4) * 4096)
      << "long sums hide their results";
}

TEST(RowTimes, OfFrozenMatricesWithAdapters) {
  const DecoderConfig config = decoder_preset("llama2-7b");
  const auto times = [&](std::optional<LoraOptions> lora, double MachineRates::* member) {
    return row_times(DecoderModel(config, std::move(lora)).shape(1024, 2), traits_of(Recipe::kCompute), only(member, 1),
                     2);
  };
  const LoraOptions lora{8, 16, 0, {{"o_proj", "down_proj"}}};
  EXPECT_DOUBLE_EQ(times(lora, &MachineRates::bf16_flops).backward, times({}, &MachineRates::bf16_flops).forward);
  EXPECT_DOUBLE_EQ(3 * times(lora, &MachineRates::bf16_flops).head, 2 * times({}, &MachineRates::bf16_flops).head);
  const double d = 4096, f = 11008, each = 1024 * 2;
  EXPECT_DOUBLE_EQ(times(lora, &MachineRates::memory_bytes).forward - times({}, &MachineRates::memory_bytes).forward,
                   each * (d + 2 * d + f + 2 * d));
  EXPECT_DOUBLE_EQ(times(lora, &MachineRates::memory_bytes).backward - times({}, &MachineRates::memory_bytes).backward,
                   each * (d + 3 * d + d + 3 * f));
}

TEST(RowTimes, OfDoraAndOfAdaptersInSomeBlocks) {
  const DecoderConfig config = decoder_preset("llama2-7b");
  const auto times = [&](const std::optional<LoraOptions>& lora, double MachineRates::* member) {
    return row_times(DecoderModel(config, lora).shape(1024, 2), traits_of(Recipe::kCompute), only(member, 1), 2);
  };
  LoraOptions lora{8, 16, 0, {{"down_proj"}}}, half = lora, dora = lora;
  for (int64_t block = 0; block < 16; ++block) half.layers_to_transform.push_back(block);
  dora.use_dora = true;
  const auto bytes = &MachineRates::memory_bytes, flops = &MachineRates::bf16_flops;
  const double none = times({}, bytes).forward, all = times(lora, bytes).forward;
  EXPECT_DOUBLE_EQ(times(half, bytes).forward, (none + all) / 2);
  const double d = 4096, f = 11008, each = 1024 * 2;
  EXPECT_DOUBLE_EQ(times(dora, bytes).forward - all, each * 2 * d);
  EXPECT_DOUBLE_EQ(times(dora, bytes).backward - times(lora, bytes).backward, each * 3 * d);
  EXPECT_DOUBLE_EQ(times(dora, bytes).pass, 32 * 2 * d * f) << "the weight is read once more";
  EXPECT_EQ(times(dora, flops).forward, times(lora, flops).forward);
  dora.dropout = 0.1;
  EXPECT_DOUBLE_EQ(times(dora, flops).forward - times(lora, flops).forward, 2 * 1024 * d * f);
  const auto saved = [&](const LoraOptions& of) { return memory(DecoderModel(config, of), 1024); };
  dora.dropout = 0;
  EXPECT_EQ(saved(dora).saved - saved(lora).saved, 1024 * 2 * 4096);
  dora.target_modules = lora.target_modules = {{"up_proj"}};
  EXPECT_EQ(saved(dora).saved - saved(lora).saved, 1024 * 2 * 11008);
  EXPECT_EQ(saved(dora).saved_mlp, saved(lora).saved_mlp) << "what is computed again is not kept";
}

TEST(RowTimes, OfBertsPackedRows) {
  const double d = 1024, f = 4096, s = 512;
  const ModelShape shape = bert_large().shape(512, 2, 2);
  const auto times = [&](double MachineRates::* member) {
    return row_times(shape, traits_of(Recipe::kCompute), only(member, 1), 2);
  };
  EXPECT_DOUBLE_EQ(times(&MachineRates::attention_flops).forward,
                   4 * s * (s / 2) * d / attention_part(64, /*dropout=*/true, s));
  const double narrow = 1 - 1024.0 / 4096;
  EXPECT_DOUBLE_EQ(times(&MachineRates::memory_bytes).forward, s * 2 * (8 * d + 2 * f) + 2 * s * (4 * d + f) * narrow);
  EXPECT_EQ(times(&MachineRates::memory_bytes).norms, 0) << "norms follow the residual";
}

TEST(RowMemory, OfAGeluBlock) {
  const DecoderModel model(decoder_preset("gpt3-126m"), {});
  const int64_t s = 2048, d = 768, f = 4 * d;
  const int64_t inner = 2 * (2 * d + 3 * d + d) + 4 * (4 + 12);  // means and deviations of two norms, 12 heads
  const RowMemory bytes = memory(model, s);
  EXPECT_EQ(bytes.saved, s * (inner + 2 * (f + f) + 2 * 2 * d));  // up projection, GELU, two norms
  EXPECT_EQ(bytes.saved_norms, s * (inner + 2 * (f + f)));
  EXPECT_EQ(bytes.saved_mlp, s * inner);
  const LoraOptions lora{8, 16, 0, {{"c_attn"}}};
  EXPECT_EQ(memory(DecoderModel(decoder_preset("gpt3-126m"), lora), s).saved, s * (inner + 2 * 8 + 2 * f));
  // FP8: codes of the four inputs, and of GELU's in- and outputs the first alone.
  const RowMemory fp8 = memory(model, s, Recipe::kFp8Delayed);
  EXPECT_EQ(fp8.saved, s * (inner + 3 * d + f + 2 * f));
  EXPECT_EQ(bytes.head.held, 4 * 50257 * d) << "the embedding adds to the head's gradient";
  EXPECT_EQ(bytes.head.fixed, 4 * 50257 * d);
  EXPECT_EQ(bytes.head.logits_most, 8192 * 2 * 50257) << "a chunk of the loss head";
  EXPECT_EQ(fp8.kept_codes, 4 * d * d + 2 * d * f) << "codes of the weights";
  EXPECT_EQ(memory(model, s, Recipe::kFp8Rowwise).working_fixed, d * f) << "one transposed matrix";
}

TEST(ModelFlops, AWindowLeavesWhatIsVisible) {
  DecoderConfig config = decoder_preset("mistral-7b-v0.1"), full = config;
  full.sliding_window = std::nullopt;
  const double heads = 32 * 128, s = 8192;
  const auto attention = [&](double seen) { return 3.5 * 4 * s * seen * heads; };
  // A position sees 4,096 tokens, the first 4,096 positions half as many on average.
  EXPECT_NEAR(flops(full, {}, 8192) - flops(config, {}, 8192), 32 * (attention(s / 2) - attention(3072)), 1e6);
  EXPECT_EQ(flops(full, {}, 4096), flops(config, {}, 4096)) << "a window as long as the sequence";
  config.windowed.assign(32, false);
  config.windowed[3] = true;
  EXPECT_NEAR(flops(full, {}, 8192) - flops(config, {}, 8192), attention(s / 2) - attention(3072), 1e6);
}

TEST(RowMemory, NormsOfBranchesKeepTheirInputs) {
  const DecoderConfig olmo = decoder_preset("olmo2-7b");
  const int64_t s = 512, d = 4096, f = 11008, heads = 32;
  // The residual twice, q and k (of all heads together) and both branches before their norms, q k v, attention's
  // output.
  const int64_t inner = 2 * (2 * d + 2 * d + 2 * d + 3 * d + d) + 4 * (heads + 4);
  const RowMemory full = memory(DecoderModel(olmo, {}), s);
  EXPECT_EQ(full.saved, s * (inner + 2 * 2 * f + 2 * f)) << "no norm's result is read by a product";
  EXPECT_EQ(full.saved_mlp, s * inner);
  // Frozen: no product in front of the output projection reads its input, but recomputing the MLP does.
  const LoraOptions lora{8, 16, 0, {{"o_proj"}}};
  const RowMemory frozen = memory(DecoderModel(olmo, lora), s);
  EXPECT_EQ(frozen.saved, s * (inner - 2 * 2 * d + 2 * 8 + 2 * 2 * f));
  EXPECT_EQ(frozen.saved_mlp, s * (inner - 2 * d + 2 * 8));
  // A Gemma's sandwich: norms in front, which adapters read, and behind.
  const DecoderConfig gemma = decoder_preset("gemma3-1b");
  EXPECT_EQ(memory(DecoderModel(gemma, LoraOptions{8, 16, 0, {{"q_proj"}}}), s).saved,
            s * (2 * (4 * 1152 + 5 * 256 + 6 * 256 + 4 * 256 + 8 + 2 * 6912) + 4 * (4 + 4 + 5)));
}

TEST(RowMemory, NormsOfHeadsKeepTheirInputs) {
  DecoderConfig config = decoder_preset("qwen3-8b"), plain = config;
  plain.family = "llama";
  // q and k before their norms, and a mean square for each of their heads; no product reads what the norms give.
  const int64_t q = 4096, k = 1024, s = 512;
  EXPECT_EQ(memory(DecoderModel(config, {}), s).saved,
            memory(DecoderModel(plain, {}), s).saved + s * (2 * (q + k) + 4 * (32 + 8)));
}

TEST(RowMemory, FollowsWhatIsKept) {
  const DecoderConfig config = decoder_preset("llama2-7b");
  const DecoderModel full(config, {});
  const int64_t s = 1024, inner = 2 * (2 * 4096 + 3 * 4096 + 4096) + 4 * 34;
  const auto with = [&](std::vector<std::string> targets, Recipe recipe = Recipe::kCompute) {
    return memory(DecoderModel(config, LoraOptions{8, 16, 0, {std::move(targets)}}), s, recipe);
  };
  EXPECT_EQ(with({"o_proj"}).saved, s * (inner + 2 * 8 + 4 * 11008));
  EXPECT_EQ(with({"q_proj", "v_proj"}).saved, s * (inner + 2 * 16 + 4 * 11008));
  EXPECT_EQ(with({"o_proj"}, Recipe::kFp8Frozen).saved, s * (inner + 2 * 8 + 2 * 11008 + 8));
  EXPECT_EQ(with({"o_proj"}, Recipe::kFp8Frozen).saved_mlp, s * (inner + 2 * 8));
  EXPECT_EQ(memory(full, s).saved_norms, s * (inner + 4 * 11008));
  // Outputs of two norms and of SwiGLU beside it.
  EXPECT_EQ(memory(full, s).saved, s * (inner + 4 * 11008 + 2 * (2 * 4096 + 11008)));
  EXPECT_EQ(with({"o_proj"}).saved_norms, 0) << "adapters recompute norms always";
  EXPECT_EQ(memory(full, s, Recipe::kFp8Rowwise).saved_norms, 0);
  EXPECT_EQ(memory(full, s).saved_input, s * 2 * 4096);
  // The activation and its gradient wait for gate and up, one after the other with the gradients of both.
  EXPECT_EQ(with({"down_proj"}).working, with({"o_proj"}).working);
  EXPECT_EQ(with({"o_proj"}).working, s * 2 * (2 * 4096 + 5 * 11008));
  EXPECT_LT(with({"o_proj"}).working_kept, with({"o_proj"}).working);
  EXPECT_EQ(with({"o_proj"}, Recipe::kFp8Frozen).working_kept, with({"o_proj"}, Recipe::kFp8Frozen).working);
  LoraOptions rows{8, 16, 0, {{"o_proj"}}};
  std::vector<int64_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 31000);
  rows.trainable_token_indices = {{"lm_head", ids}};
  EXPECT_EQ(DecoderModel(config, rows).shape(s, 2).head.memory.fixed, 4 * 1000 * 4096) << "gradients of added rows";
}

TEST(RowMemory, OfTiles) {
  // 8B with rows of 131,072 tokens: what a block's backward holds is q, k, v with their gradients, the gradients of
  // three inputs, and dq's fp32 sums.
  const DecoderModel model(decoder_preset("llama3-8b"), LoraOptions{16, 32, 0, {{"q_proj", "down_proj"}}});
  const int64_t s = 131072, d = 4096, qkv = 6144, beside = 2 * 16 * 2 + 4 * (32 + 2);
  const RowMemory bytes = memory(model, s);
  EXPECT_EQ(bytes.saved_attention, s * (2 * d * 2 + 4 * 32));
  EXPECT_EQ(bytes.working_whole, s * (2 * (2 * d + d + 2 * qkv) + beside) + 4 * d * (s + 32768));
  EXPECT_LT(bytes.working_whole, bytes.working / 2);
  EXPECT_GT(bytes.tile_token, 2 * 3 * 28672);
  EXPECT_EQ(bytes.tile_sums, 0);
  const DecoderModel trained(decoder_preset("llama3-8b"), {});
  EXPECT_EQ(memory(trained, s).tile_sums, 4 * (4096 * 28672 + 14336 * 4096));
  EXPECT_GT(memory(trained, s, Recipe::kFp8Rowwise).tile_token, 0);
  for (const Recipe recipe : {Recipe::kFp8Tensorwise, Recipe::kFp8Delayed})
    EXPECT_EQ(memory(trained, s, recipe).tile_token, 0) << "one scale for all tokens";
}

TEST(RowTimes, RecomputationLeavesTheResultAndAttentionOut) {
  const ModelShape shape = DecoderModel(decoder_preset("llama3-8b"), {}).shape(8192, 2);
  const auto times = [&](double MachineRates::* member) {
    return row_times(shape, traits_of(Recipe::kCompute), only(member, 1), 2);
  };
  const double down = 2 * 8192.0 * 14336 * 4096;
  EXPECT_DOUBLE_EQ(times(&MachineRates::bf16_flops).full, times(&MachineRates::bf16_flops).forward - down);
  EXPECT_DOUBLE_EQ(times(&MachineRates::attention_flops).full, times(&MachineRates::attention_flops).forward);
  EXPECT_EQ(times(&MachineRates::attention_flops).attention, 0);
  const ModelShape bert = bert_large().shape(512, 2, 2);
  const RowTimes with_norms = row_times(bert, traits_of(Recipe::kCompute), MachineRates{}, 2);
  EXPECT_EQ(with_norms.full, with_norms.forward) << "the norm behind the sum needs it";
}

TEST(RowMemory, OfBertsLayers) {
  const ModelShape shape = bert_large().shape(512, 1, 2);
  const int64_t d = 1024, f = 4096, vocabulary = 30528;
  const RowMemory plain = row_memory(shape, traits_of(Recipe::kCompute), 2),
                  fp8 = row_memory(shape, traits_of(Recipe::kFp8Delayed), 2);
  EXPECT_EQ(plain.saved, 512 * ((8 * d + 2 * f) * 2 + (16 + 4) * 4));
  EXPECT_EQ(fp8.saved, 512 * ((6 * d + f) * 2 + 3 * d + f + (16 + 4) * 4));
  EXPECT_EQ(plain.saved_norms, 0);
  EXPECT_EQ(plain.saved_mlp, 0);
  EXPECT_EQ(plain.working, 512 * std::max((2 * f + 2 * d) * 2, 9 * d * 2 + 4 * d));
  EXPECT_EQ(plain.head.row, 77 * (vocabulary + 6 * d) * 2 + 2 * 512 * d * 2);
  EXPECT_EQ(plain.working_fixed, 0);
  EXPECT_EQ(plain.head.fixed, vocabulary * d * 4);
  EXPECT_EQ(plain.head.held, vocabulary * d * 4);
  EXPECT_EQ(plain.kept_codes, 0);
  EXPECT_EQ(fp8.kept_codes, 4 * d * d + 2 * d * f);
  EXPECT_EQ(fp8.working_fixed, 0);
}

TEST(RowMemory, OfOtherKernels) {
  const auto bert = [](KernelClass kernels) {
    return row_memory(bert_large().shape(512, 1, 2), traits_of(Recipe::kCompute), 2, kernels);
  };
  const auto gpt = [](KernelClass kernels) {
    return row_memory(DecoderModel(decoder_preset("gpt3-126m"), {}).shape(2048, 2), traits_of(Recipe::kCompute), 2,
                      kernels);
  };
  const auto llama = [](KernelClass kernels) {
    return row_memory(DecoderModel(decoder_preset("llama3-8b"), {}).shape(4096, 2), traits_of(Recipe::kCompute), 2,
                      kernels);
  };
  for (const auto& of : std::vector<std::function<RowMemory(KernelClass)>>{bert, gpt, llama}) {
    const RowMemory hopper = of(KernelClass::kHopper), portable = of(KernelClass::kPortable),
                    none = of(KernelClass::kNone);
    for (const RowMemory& other : {portable, none}) {
      EXPECT_EQ(other.saved, hopper.saved) << "what the layers keep does not depend on who computes it";
      EXPECT_EQ(other.saved_mlp, hopper.saved_mlp);
      EXPECT_EQ(other.saved_attention, hopper.saved_attention);
    }
    EXPECT_GE(portable.working, hopper.working);
    EXPECT_EQ(portable.head.logits_most, hopper.head.logits_most);
    EXPECT_GT(none.working, portable.working);
    EXPECT_EQ(none.head.logits_most, int64_t{1} << 30);
  }
  // Sums of dq in fp32, with dropout of 128 rows more than a sequence has tokens, in place of sums on chip.
  constexpr int64_t d = 1024, f = 4096;
  EXPECT_EQ(bert(KernelClass::kPortable).working,
            std::max(512 * (2 * f + 2 * d) * 2, 512 * 9 * d * 2 + 4 * d * (512 + 128)));
  // Backward of GPT's MLP in compositions: bias + x of GELU, and six fp32 tensors of the norm.
  const RowMemory composed = gpt(KernelClass::kNone), kernels = gpt(KernelClass::kHopper);
  EXPECT_EQ(composed.head.logits, 2048 * 8 * decoder_preset("gpt3-126m").vocab_size);
  EXPECT_EQ(composed.head.fixed - kernels.head.fixed, 2 * 768 * decoder_preset("gpt3-126m").vocab_size);
  // Gradients of keys and values for each of 32 query heads.
  EXPECT_EQ(llama(KernelClass::kPortable).working_whole,
            llama(KernelClass::kHopper).working_whole + 4096 * 2 * 4096 * 2);
}

}  // namespace
}  // namespace trireme
