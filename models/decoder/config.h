#pragma once
// The shape of a decoder and its choices, and their files: config.json of a Hugging Face model, or model.yaml of a NeMo
// checkpoint. They are read strictly: an unsupported feature is a ModelError that names it.

#include "trireme/ops/activation.h"
#include "trireme/ops/norm_kind.h"
#include "trireme/ops/rope_frequencies.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

enum class DecoderPositions { kRope, kLearned };

/// Sizes under the names that a Llama's config.json gives them; the defaults are Llama's.
struct DecoderConfig {
  std::string family = "llama";  // model_type of config.json; family_of() has its table
  int64_t hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, max_position_embeddings = 0;
  double norm_eps = 1e-6, initializer_range = 0.02;
  RopeFrequencies rope;
  bool tie_word_embeddings = false;

  NormKind norm = NormKind::kRms;  // of the head and, without biases, of the blocks; kLayer has a bias
  Activation activation = Activation::kSwiglu;
  DecoderPositions positions = DecoderPositions::kRope;
  /// Of the embedding (rounded to the compute dtype), and of what attention and MLP add to the residual; the logits'
  /// divisor; the factor of attention's scores (0: 1 / sqrt(head_dim)).
  double embedding_multiplier = 1, residual_multiplier = 1, logits_divisor = 1, attention_multiplier = 0;
  /// Dropout of the embeddings' sum, of attention's probabilities, and of both projections that end in the residual.
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;
  /// The projections that end in the residual start with initializer_range / sqrt(2 num_hidden_layers) (GPT-2).
  bool scaled_residual_init = false;
  bool fp8_attention = false;  // forward of attention multiplies E4M3 codes: a choice of the run, in no file
  /// Tokens that a position sees, itself included, in the blocks that have a window; nullopt: all before it.
  std::optional<int64_t> sliding_window;
  /// The blocks with a window: by block, or where that is empty those from full_attention_layers on.
  std::vector<bool> windowed;
  int64_t full_attention_layers = 0;
  std::optional<RopeFrequencies> window_rope;  // of the blocks with a window, where it is not `rope`
  std::vector<bool> without_rope;              // by block: has no rotary positions; empty: all have

  bool has_window(int64_t block) const {
    if (!sliding_window) return false;
    return windowed.empty() ? block >= full_attention_layers : windowed.at(static_cast<size_t>(block));
  }

  std::optional<int64_t> bos_token_id = 1, pad_token_id;
  std::vector<int64_t> eos_token_ids = {2};  // each ends a text
  std::string dtype = "float32";             // torch_dtype / dtype of the stored weights
};

/// The row of the embedding that gets no gradient from the tokens that it embeds: the padding token's, as in
/// transformers (which takes -1 for the last row); -1: none. With learned positions (GPT-2) there is none.
int64_t padding_row(const DecoderConfig& config);
/// Reads config.json of a known family (family.h) as transformers 5 does. A special token that is null is none; one
/// that is absent has the family's default.
DecoderConfig read_decoder_config(const std::filesystem::path& config_json);
/// NeMo's context/model.yaml (NeMo 1: model_config.yaml) of a zarr checkpoint directory: a Llama.
DecoderConfig read_nemo_config(const std::filesystem::path& model_yaml);
/// config.json of the config's family, which transformers 4 and 5 load.
std::string decoder_config_json(const DecoderConfig& config);
/// Ids that end a text: from generation_config.json if that file names some, as in transformers' generate(); else the
/// config's, which generate() takes only where there is no such file.
std::vector<int64_t> end_of_text_ids(const std::filesystem::path& directory, const DecoderConfig& config);
/// Of generation_config.json; 1 where it has none. ModelError.
double repetition_penalty(const std::filesystem::path& directory);
/// generation_config.json with the config's special tokens.
std::string generation_config_json(const DecoderConfig& config);
/// The config of a model directory: config.json, else that of a NeMo zarr directory. ModelError when there is
/// neither.
DecoderConfig read_model_config(const std::filesystem::path& directory);
/// The same, or that of a config.json which `path` is itself: enough where no weights are read.
DecoderConfig read_model_shape(const std::filesystem::path& path);

/// The scaling's name in config.json.
const char* rope_type(RopeFrequencies::Scaling scaling);

/// Problems of a shape whose fields are positive; empty if there are none. A shape without problems has at most 2^50
/// parameters, so sizes computed from it fit 64 bits.
std::vector<std::string> shape_problems(const DecoderConfig& config);

/// The fields of config.json that benchmarks fix, with their values as texts.
std::vector<std::pair<std::string, std::string>> shape_facts(const DecoderConfig& shape);

/// ConfigError where the model cannot take sequences of `length` tokens: more than its learned positions. `what` names
/// the length's setting: "data.seq_length".
void check_sequence_length(const DecoderConfig& config, int64_t length, const std::string& what);

/// Raises max_position_embeddings to `length` where rotary positions are trained beyond it, so that a config.json
/// written from `config` does not cap what was trained. Returns whether it did; not with dynamic scaling, which is made
/// for longer sequences and counts from max_position_embeddings.
bool extend_positions(DecoderConfig& config, int64_t length);

/// Changes the number of blocks; blocks that are new continue the pattern of windows and rotary positions.
void set_layers(DecoderConfig& config, int64_t layers);

}  // namespace trireme
