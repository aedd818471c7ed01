// Phi-3, Phi-3.5 and Phi-4 without experts: a Llama whose files have one matrix for q, k, v and one for gate and up,
// with dropout of the residual and longrope; of Phi-4-mini's heads a part rotates.
#include "models/decoder/hf_config.h"
#include "trireme/base/dropout_steps.h"

namespace trireme {

namespace {

BlockTable phi3_block(const DecoderConfig& config) {
  BlockTable block = llama_block(config);
  const auto fuse = [&](const char* name, const char* module) {
    BlockLayer& layer = block.layers[static_cast<size_t>(block.find(name))];
    layer.parts = {{module, layer.out()}};
    layer.fused.clear();
  };
  fuse("qkv", "self_attn.qkv_proj");
  fuse("up", "mlp.gate_up_proj");
  return block;
}

DecoderConfig read_phi3(ConfigReader& reader) {
  reader.only("attention_bias", {"false"});
  reader.only("embd_pdrop", {"0", "0.0"});
  DecoderConfig defaults;
  defaults.max_position_embeddings = 4096;
  defaults.norm_eps = 1e-5;
  defaults.eos_token_ids = {32000};
  defaults.pad_token_id = 32000;
  DecoderConfig config =
      read_llama_fields(reader, defaults, {.partial = true, .longrope_only = true, .original = 4096});
  config.residual_dropout = reader.probability("resid_pdrop", 0, kActivationDropoutSteps);
  if (reader.has("sliding_window")) config.sliding_window = reader.integer("sliding_window");
  return config;
}

nlohmann::json write_phi3(const DecoderConfig& config) {
  const RopeFrequencies& rope = config.rope;
  nlohmann::json json = llama_fields_json(config);
  json.update({{"attention_bias", false},
               {"embd_pdrop", 0.0},
               {"resid_pdrop", config.residual_dropout},
               {"sliding_window", or_null(config.sliding_window)},
               {"partial_rotary_factor", rope.part}});
  json["rope_parameters"]["partial_rotary_factor"] = rope.part;
  if (rope.scaling != RopeFrequencies::Scaling::kLongrope) return json;
  // transformers 4 takes these three fields and no other: a model that needs one of those below is for transformers 5.
  json["rope_scaling"] = {{"type", "longrope"}, {"short_factor", rope.short_factor}, {"long_factor", rope.long_factor}};
  if (rope.factor_stated) json["rope_scaling"]["factor"] = rope.factor;
  if (rope.attention_factor) json["rope_scaling"]["attention_factor"] = *rope.attention_factor;
  return json;
}

std::vector<Preset> phi3_presets() {
  DecoderConfig mini = with_sizes({}, 3072, 8192, 32, 32, 32);
  mini.family = "phi3";
  mini.vocab_size = 32064;
  mini.max_position_embeddings = 4096;
  mini.norm_eps = 1e-5;
  mini.sliding_window = 2047;
  mini.eos_token_ids = {32000};
  mini.pad_token_id = 32000;
  mini.dtype = "bfloat16";
  DecoderConfig phi4 = with_sizes(mini, 5120, 17920, 40, 40, 10);
  phi4.vocab_size = 100352;
  phi4.max_position_embeddings = 16384;
  phi4.rope.theta = 250000;
  phi4.sliding_window = std::nullopt;
  phi4.bos_token_id = 100257;
  phi4.eos_token_ids = {100257};
  phi4.pad_token_id = 100257;
  DecoderConfig phi4_mini = with_sizes(mini, 3072, 8192, 32, 24, 8);
  phi4_mini.vocab_size = 200064;
  phi4_mini.max_position_embeddings = 131072;
  phi4_mini.sliding_window = 262144;
  phi4_mini.tie_word_embeddings = true;
  phi4_mini.bos_token_id = 199999;
  phi4_mini.eos_token_ids = {199999};
  phi4_mini.pad_token_id = 199999;
  phi4_mini.rope.part = 0.75;
  phi4_mini.rope.scaling = RopeFrequencies::Scaling::kLongrope;
  phi4_mini.rope.original_max_position = 4096;
  phi4_mini.rope.factor = 32;
  phi4_mini.rope.factor_stated = false;
  phi4_mini.rope.short_factor.assign(48, 1.0);
  phi4_mini.rope.long_factor = {
      1,           1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897,  1.956131817, 2.187582649,
      2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533,
      5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372,  10.4687158,  11.70738129, 13.09260651,
      14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03,
      32.1,        32.13,       32.23,       32.6,        32.61,       32.64,       32.66,       32.7,
      32.71,       32.93,       32.97,       33.28,       33.49,       33.5,        44.16,       47.77};
  return {{"phi3-mini-4k", mini}, {"phi4", phi4}, {"phi4-mini", phi4_mini}};
}

}  // namespace

const Family& phi3_family() {
  static const Family family = {"phi3",    "Phi3ForCausalLM", llama_tensor_names(), phi3_block,
                                read_phi3, write_phi3,        phi3_presets};
  return family;
}

}  // namespace trireme
