#pragma once
// A decoder family: how its config.json is read and written, and the names of its tensors. Everything else about it is
// a choice in DecoderConfig. One file a family, families/NAME.cpp, and its name in the list of family.cpp.

#include "models/decoder/config.h"
#include "trireme/formats/huggingface/config_reader.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace trireme {

/// Checkpoint names. Norms and linear layers have ".weight" and, where the config says so, ".bias" behind the name.
struct TensorNames {
  std::string base;       // "model.": files saved from the model without its output matrix leave it out
  std::string embedding;  // "model.embed_tokens"
  std::string positions;  // learned positions; empty: the family has none
  std::string blocks;     // "model.layers.": followed by the number of the block and "."
  // Inside a block.
  std::string attention_norm;    // "input_layernorm"
  std::vector<std::string> qkv;  // three layers, or one whose rows are q | k | v
  std::string output;            // "self_attn.o_proj"
  std::string mlp_norm;
  std::vector<std::string> up;  // gate and up projections, or the only one
  std::string down;

  std::string final_norm;  // "model.norm"
  std::string head = "lm_head";
  bool transposed = false;           // the matrices of the blocks are stored [in, out] (transformers' Conv1D)
  std::vector<std::string> buffers;  // ends of names in files that are no parameters

  std::string block(int64_t index) const { return blocks + std::to_string(index) + "."; }
};

struct Preset {
  std::string name;  // of `trireme init-model --preset`
  DecoderConfig config;
};

struct Family {
  std::string model_type, architecture;  // of config.json
  TensorNames names;
  /// Problems go to the reader; fields of the shape are checked afterwards (shape_problems).
  DecoderConfig (*read)(ConfigReader& reader);
  nlohmann::json (*write)(const DecoderConfig& config);
  /// Published shapes.
  std::vector<Preset> (*presets)();
};

/// All families, by name.
const std::vector<const Family*>& families();
/// The table of config.family; an internal error for an unknown one.
const Family& family_of(const DecoderConfig& config);

}  // namespace trireme
