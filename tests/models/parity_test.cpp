// Logits, loss and gradients of tiny random Llamas against transformers and peft, fp32.

#include "models/decoder/adapter.h"
#include "models/decoder/weights.h"
#include "reference.h"

#include "../ops/gradient_check.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

class LlamaParity : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder_ = decoder_references() / "llama";
};

/// Gradients of all units by checkpoint name.
std::map<std::string, at::Tensor> gradients_by_name(const DecoderModel& model,
                                                    const std::vector<std::vector<at::Tensor>>& units) {
  std::map<std::string, at::Tensor> result;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t p = 0; p < units[u].size(); ++p) {
      if (!units[u][p].grad().defined()) continue;
      int64_t row = 0;
      for (const ParameterPart& part : model.units()[u].parameters[p].parts) {
        result[part.name] = units[u][p].grad().narrow(0, row, part.rows);
        row += part.rows;
      }
    }
  }
  return result;
}

/// The adapter of the reference: what a reader of its PEFT directory would give.
Adapter reference_adapter(const Reference& reference) {
  Adapter adapter;
  adapter.config = {"", {3, 7, 0, {split(reference.text("lora"), ',')}}};
  for (const auto& [name, tensor] : reference.tensors) {
    const bool is_a = name.ends_with(".lora_A.weight");
    if (!name.starts_with("lora/") || (!is_a && !name.ends_with(".lora_B.weight"))) continue;
    AdapterPair& pair = adapter.modules[name.substr(5, name.size() - 5 - std::string(".lora_A.weight").size())];
    const float* data = tensor.const_data_ptr<float>();
    (is_a ? pair.a : pair.b).assign(data, data + tensor.numel());
    pair.r = tensor.size(is_a ? 0 : 1);
    (is_a ? pair.in : pair.out) = tensor.size(is_a ? 1 : 0);
  }
  return adapter;
}

struct LoadedLlama {
  DecoderModel model;
  std::vector<std::vector<at::Tensor>> units;
};

LoadedLlama load_llama(const Reference& reference, std::optional<LoraOptions> lora) {
  LoadedLlama loaded{DecoderModel(reference.config(), lora), {}};
  loaded.units = load_whole(loaded.model, ReferenceWeights(reference, "weight/"), at::kFloat);
  if (lora) assign_adapter(loaded.model, import_adapter(reference_adapter(reference), loaded.model), loaded.units);
  return loaded;
}

void expect_gradients(const Reference& reference, const std::map<std::string, at::Tensor>& ours) {
  size_t compared = 0;
  for (const auto& [name, want] : reference.tensors) {
    if (!name.starts_with("grad/")) continue;
    const auto found = ours.find(name.substr(5));
    ASSERT_NE(found, ours.end()) << name;
    EXPECT_LT(relative_difference(found->second, want), 1e-4) << name;
    ++compared;
  }
  EXPECT_EQ(compared, ours.size());
  EXPECT_GT(compared, 0u);
}

TEST_P(LlamaParity, LogitsLossAndGradients) {
  const Reference reference(folder_ / GetParam());
  const TokenBatch batch = reference.batch();
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    LoadedLlama loaded = load_llama(reference, reference.lora());
    WholeUnitStore store(loaded.units);
    ForwardOptions options;
    options.recompute.blocks.assign(static_cast<size_t>(reference.config().num_hidden_layers), recompute);
    EXPECT_LT(max_difference(loaded.model.logits(store, batch, options), reference.tensors.at("logits")), 1e-5);
    const at::Tensor loss = loaded.model.loss(store, batch, options);
    EXPECT_NEAR(loss.item<double>() / reference.tensors.at("loss_sum").item<double>(), 1.0, 1e-6);
    loss.backward();
    expect_gradients(reference, gradients_by_name(loaded.model, loaded.units));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LlamaParity,
                         ::testing::Values("mha", "gqa", "tied", "llama3_rope", "linear_rope", "packed", "lora_seven",
                                           "lora_q_v", "lora_o_up_down", "lora_tied_gate", "lora_fused",
                                           "lora_packed"));

using LlamaFusedParity = LlamaParity;

TEST_P(LlamaFusedParity, FusedQkvAdapter) {
  // One A for q, k and v in peft's terms: the fused A's gradient is the sum of the three, B's rows are theirs.
  const Reference reference(folder_ / GetParam());
  LoraOptions lora = *reference.lora();
  lora.target_modules.names = {"qkv_proj", "o_proj"};
  LoadedLlama loaded = load_llama(reference, lora);
  WholeUnitStore store(loaded.units);
  const TokenBatch batch = reference.batch();
  EXPECT_LT(max_difference(loaded.model.logits(store, batch, {}), reference.tensors.at("logits")), 1e-5);
  loaded.model.loss(store, batch, {}).backward();
  const auto ours = gradients_by_name(loaded.model, loaded.units);
  for (int block = 0; block < 2; ++block) {
    const std::string prefix = "model.layers." + std::to_string(block) + ".self_attn.";
    std::vector<at::Tensor> a, b;
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
      a.push_back(reference.tensors.at("grad/" + prefix + part + ".lora_A.weight"));
      b.push_back(reference.tensors.at("grad/" + prefix + part + ".lora_B.weight"));
    }
    EXPECT_LT(relative_difference(ours.at(prefix + "qkv_proj.lora_A.weight"), a[0] + a[1] + a[2]), 1e-4);
    EXPECT_LT(relative_difference(ours.at(prefix + "qkv_proj.lora_B.weight"), at::cat(b, 0)), 1e-4);
    EXPECT_LT(relative_difference(ours.at(prefix + "o_proj.lora_A.weight"),
                                  reference.tensors.at("grad/" + prefix + "o_proj.lora_A.weight")),
              1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LlamaFusedParity, ::testing::Values("lora_fused"));

}  // namespace
}  // namespace trireme
