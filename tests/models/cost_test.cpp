#include "models/decoder/decoder.h"
#include "models/decoder/family.h"
#include "trireme/base/error.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(ModelFlops, Llama70bLoraAsPublished) {
  const DecoderConfig config = decoder_preset("llama2-70b");
  const DecoderModel model(config, LoraOptions{16, 32, 0.1, {"qkv_proj", "o_proj"}});
  EXPECT_NEAR(model_flops_per_sample(model, 8192) / 1e12, 2562, 2);
  EXPECT_NEAR(model_flops_per_sample(model, 8192) / 8192 / 1e9, 313, 0.7);
  EXPECT_NEAR(model_flops_per_sample(model, 2048) / 2048 / 1e9, 284, 0.7);
}

TEST(ModelFlops, FullTrainingCountsWeightGradients) {
  const DecoderConfig config = decoder_preset("llama2-7b");
  const double matrices = 6738415616.0 - 32000.0 * 4096 - 65.0 * 4096;  // all but the embedding and the norms
  const double attention = 3.5 * 32 * 2 * 4096.0 * 4096 * 4096;
  EXPECT_NEAR(model_flops_per_sample(DecoderModel(config, {}), 4096) / (6 * matrices * 4096 + attention), 1.0, 1e-12);
}

TEST(ModelFlops, ATiedHeadCountsOnceAndPositionsNever) {
  DecoderConfig config = decoder_preset("gpt3-126m");
  config.vocab_size = 50304;
  const double norms_and_biases = 12 * (4 * 768.0 + 3 * 768 + 768 + 3072 + 768) + 2 * 768;
  const double matrices = 125262336.0 - 2048.0 * 768 - norms_and_biases;
  const double attention = 3.5 * 12 * 2 * 2048.0 * 2048 * 768;
  EXPECT_NEAR(model_flops_per_sample(DecoderModel(config, {}), 2048) / (6 * matrices * 2048 + attention), 1.0, 1e-12);
}

TEST(BlockWork, OfLearnedPositionsAndGelu) {
  const DecoderConfig config = decoder_preset("gpt3-126m");
  const double d = 768, f = 4 * d, s = 2048;
  const BlockWork work = block_work(decoder_block(config), 2048, 1, 2);
  EXPECT_EQ(work.matrices, 2 * s * (4 * d * d + 2 * d * f));
  EXPECT_EQ(work.forward_bytes, 2 * s * (4 * d + 2 * f)) << "nothing rotates q, k and v";
  EXPECT_EQ(work.norms_bytes, 2 * s * 4 * d) << "what GELU gives is kept";
  // Inner dimensions of 768 (q k v, out, up), 3,072 (down); backward 2,304, 768, 3,072, 768.
  const double narrow = 1 - 768.0 / 4096, wide = 1 - 3072.0 / 4096;
  EXPECT_DOUBLE_EQ(work.unhidden_forward, 2 * s * (8 * d * narrow + d * wide));
  EXPECT_DOUBLE_EQ(work.unhidden_backward, 2 * s * (d * (1 - 2304.0 / 4096) + d * narrow + d * wide + f * narrow));
  DecoderConfig large = config;
  large.hidden_size = 4096, large.intermediate_size = 16384, large.num_attention_heads = 32,
  large.num_key_value_heads = 32, large.head_dim = 128;
  EXPECT_EQ(block_work(decoder_block(large), 2048, 1, 2).unhidden_forward, 0);
  EXPECT_EQ(block_work(decoder_block(large), 2048, 1, 2).unhidden_backward, 0);
}

TEST(ActivationBytes, OfAGeluBlock) {
  const DecoderConfig config = decoder_preset("gpt3-126m");
  const int64_t s = 2048, d = 768, f = 4 * d;
  const int64_t inner = 2 * (2 * d + 3 * d + d) + 4 * (4 + 12);  // means and deviations of two norms, 12 heads
  const ActivationBytes bytes = activation_bytes(DecoderModel(config, {}), s, {2});
  EXPECT_EQ(bytes.block_saved, s * (inner + 2 * (f + f) + 2 * 2 * d));
  EXPECT_EQ(bytes.block_saved_norms, s * (inner + 2 * (f + f)));
  EXPECT_EQ(bytes.block_saved_mlp, s * inner);
  // FP8: codes of the four inputs, and of GELU's in- and outputs the first alone.
  const ActivationBytes fp8 = activation_bytes(DecoderModel(config, {}), s, {.element_size = 2, .trained_fp8 = true});
  EXPECT_EQ(fp8.block_saved, s * (inner + 3 * d + f + 2 * f));
  const int64_t tied = 2 * 50257 * d;
  EXPECT_EQ(bytes.working_fixed, tied) << "the head's gradient waits for the embedding's";
  EXPECT_EQ(bytes.head_fixed, 4 * 50257 * d);
  EXPECT_EQ(bytes.head_logits_most, 256 << 20);
  EXPECT_EQ(fp8.working_fixed, tied + 12 * (4 * d * d + 2 * d * f)) << "codes of the weights";
  const ActivationBytes stored =
      activation_bytes(DecoderModel(config, {}), s, {.element_size = 2, .trained_fp8 = true, .stored_codes = true});
  EXPECT_EQ(stored.working_fixed, tied + d * f) << "one transposed matrix";
}

TEST(ActivationBytes, FollowWhatIsKept) {
  const DecoderConfig config = decoder_preset("llama2-7b");
  const int64_t s = 1024, inner = 2 * (2 * 4096 + 3 * 4096 + 4096) + 4 * 34;
  const auto with = [&](std::vector<std::string> targets, bool fp8) {
    return activation_bytes(DecoderModel(config, LoraOptions{8, 16, 0, std::move(targets)}), s, {2, fp8});
  };
  EXPECT_EQ(with({"o_proj"}, false).block_saved, s * (inner + 2 * 8 + 4 * 11008));
  EXPECT_EQ(with({"q_proj", "v_proj"}, false).block_saved, s * (inner + 2 * 16 + 4 * 11008));
  EXPECT_EQ(with({"o_proj"}, true).block_saved, s * (inner + 2 * 8 + 2 * 11008 + 8));
  EXPECT_EQ(with({"o_proj"}, true).block_saved_mlp, s * (inner + 2 * 8));
  EXPECT_EQ(activation_bytes(DecoderModel(config, {}), s, {2}).block_saved_norms, s * (inner + 4 * 11008));
  // Outputs of two norms and of SwiGLU beside it.
  EXPECT_EQ(activation_bytes(DecoderModel(config, {}), s, {2}).block_saved,
            s * (inner + 4 * 11008 + 2 * (2 * 4096 + 11008)));
  EXPECT_EQ(with({"o_proj"}, false).block_saved_norms, 0) << "adapters recompute norms always";
  EXPECT_EQ(activation_bytes(DecoderModel(config, {}), s, {.element_size = 2, .trained_fp8 = true}).block_saved_norms,
            0);
  EXPECT_EQ(activation_bytes(DecoderModel(config, {}), s, {2}).block_recomputed, s * 2 * 4096);
  EXPECT_GT(with({"down_proj"}, false).working_peak, with({"o_proj"}, false).working_peak);
}

TEST(Presets, UnknownNameHasASuggestion) {
  try {
    decoder_preset("llama2-7B");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("Did you mean 'llama2-7b'?"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trireme
