#pragma once
// A decoder family: how its config.json is read and written, the table of its block, and the names of its tensors. All
// other differences between families are choices in DecoderConfig. One file a family, families/NAME.cpp.

#include "models/decoder/config.h"
#include "trireme/formats/huggingface/config_reader.h"
#include "trireme/formats/nemo/zarr_checkpoint.h"
#include "trireme/nn/block.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace trireme {

/// Names in checkpoint files of the tensors outside the blocks, and the prefix of tensors inside a block.
struct TensorNames {
  std::string base;                       // "model.": files saved from the model without its output matrix leave it out
  std::string embedding;                  // "model.embed_tokens"
  std::string positions;                  // learned positions; empty: the family has none
  std::string blocks;                     // "model.layers.": followed by the number of the block and "."
  std::string final_norm;                 // "model.norm"
  std::vector<std::string> buffers = {};  // ends of names in files that are no parameters
  std::string head = "lm_head";

  std::string block(int64_t index) const { return blocks + std::to_string(index) + "."; }
};

struct Preset {
  std::string name;  // of `trireme init-model --preset`
  DecoderConfig config;
};

struct Family {
  std::string model_type, architecture;  // of config.json
  TensorNames names;
  /// The table of a block of this shape.
  BlockTable (*block)(const DecoderConfig& config);
  /// Problems go to the reader; fields of the shape are checked afterwards (shape_problems).
  DecoderConfig (*read)(ConfigReader& reader);
  nlohmann::json (*write)(const DecoderConfig& config);
  /// Published shapes.
  std::vector<Preset> (*presets)();
};

/// All families, by name.
const std::vector<const Family*>& families();
/// The family of this name; an internal error for an unknown one.
const Family& family_of(const DecoderConfig& config);
/// The block of a model of this shape.
BlockTable decoder_block(const DecoderConfig& config);
/// The base model's tensors in the arrays of a NeMo checkpoint, for a family whose table names them.
std::vector<ZarrTensor> nemo_tensors(const DecoderConfig& config);

/// Published shapes of all families (config.json of each model) and llama-tiny, a shape for tests and the quick start.
std::vector<std::string> decoder_preset_names();
/// ConfigError with a suggestion for an unknown name.
DecoderConfig decoder_preset(const std::string& name);

}  // namespace trireme
