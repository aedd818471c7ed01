#include "models/decoder/decoder.h"
#include "models/decoder/presets.h"
#include "trireme/base/error.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(ModelFlops, Llama70bLoraAsPublished) {
  const DecoderConfig config = decoder_preset("llama2-70b");
  const LoraOptions mlperf{16, 32, 0.1, {"qkv_proj", "o_proj"}};
  EXPECT_NEAR(model_flops_per_sample(config, mlperf, 8192) / 1e12, 2562, 2);
  EXPECT_NEAR(model_flops_per_sample(config, mlperf, 8192) / 8192 / 1e9, 313, 0.7);
  EXPECT_NEAR(model_flops_per_sample(config, mlperf, 2048) / 2048 / 1e9, 284, 0.7);
}

TEST(ModelFlops, FullTrainingCountsWeightGradients) {
  const DecoderConfig config = decoder_preset("llama2-7b");
  const double matrices = 6738415616.0 - 32000.0 * 4096 - 65.0 * 4096;  // all but the embedding and the norms
  const double attention = 3.5 * 32 * 2 * 4096.0 * 4096 * 4096;
  EXPECT_NEAR(model_flops_per_sample(config, {}, 4096) / (6 * matrices * 4096 + attention), 1.0, 1e-12);
}

TEST(ActivationBytes, FollowWhatIsKept) {
  const DecoderConfig config = decoder_preset("llama2-7b");
  const int64_t s = 1024, inner = 2 * (2 * 4096 + 3 * 4096 + 4096) + 4 * 34;
  const auto with = [&](std::vector<std::string> targets, bool fp8) {
    return activation_bytes(config, LoraOptions{8, 16, 0, std::move(targets)}, s, {2, fp8});
  };
  EXPECT_EQ(with({"o_proj"}, false).block_saved, s * (inner + 2 * 8 + 4 * 11008));
  EXPECT_EQ(with({"q_proj", "v_proj"}, false).block_saved, s * (inner + 2 * 16 + 4 * 11008));
  EXPECT_EQ(with({"o_proj"}, true).block_saved, s * (inner + 2 * 8 + 2 * 11008 + 8));
  EXPECT_EQ(with({"o_proj"}, true).block_saved_mlp, s * (inner + 2 * 8));
  EXPECT_EQ(activation_bytes(config, {}, s, {2}).block_saved_norms, s * (inner + 4 * 11008));
  // Outputs of two norms and of SwiGLU beside it.
  EXPECT_EQ(activation_bytes(config, {}, s, {2}).block_saved, s * (inner + 4 * 11008 + 2 * (2 * 4096 + 11008)));
  EXPECT_EQ(with({"o_proj"}, false).block_saved_norms, 0) << "adapters recompute norms always";
  EXPECT_EQ(activation_bytes(config, {}, s, {.element_size = 2, .trained_fp8 = true}).block_saved_norms, 0);
  EXPECT_EQ(activation_bytes(config, {}, s, {2}).block_recomputed, s * 2 * 4096);
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
