#pragma once
// Shape of a BERT: Hugging Face's config.json of BertForPreTraining and BertForMaskedLM, or the
// bert_config.json of a TensorFlow checkpoint. ModelError names every setting that is not supported.

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

/// Fields are named as in config.json.
struct BertConfig {
  int64_t hidden_size = 0, num_hidden_layers = 0, num_attention_heads = 0, intermediate_size = 0;
  int64_t vocab_size = 0, max_position_embeddings = 512, type_vocab_size = 2;
  int64_t pad_token_id = 0;  // its row of the embedding is not trained as an input; -1: null
  double layer_norm_eps = 1e-12, initializer_range = 0.02;
  double hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1;
  /// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) instead of x/2 (1 + erf(x/sqrt 2)).
  bool gelu_tanh = false;
  /// True for BertForPreTraining, which has a pooler and a next-sentence head; false for BertForMaskedLM.
  bool next_sentence = true;
  std::string dtype = "float32";

  int64_t head_dim() const { return hidden_size / num_attention_heads; }
};

/// Of files of BertModel, for messages.
inline constexpr const char* kWithoutBertHeads =
    "has no heads for pre-training (cls.*): load it in Python with transformers' BertForPreTraining, or "
    "BertForMaskedLM, which draw them, and write what save_pretrained(path) gives";

/// `path`, or of a directory its config.json or bert_config.json. ModelError without.
std::filesystem::path find_bert_config(const std::filesystem::path& path);
/// `path`: as of find_bert_config().
/// hidden_act: "gelu" means the exact form in Hugging Face's files and the tanh form in TensorFlow's bert_config.json
/// (which has no model_type), as in transformers and google-research/bert; "gelu_new", "gelu_pytorch_tanh" and
/// "gelu_fast" mean the tanh form in both.
BertConfig read_bert_config(const std::filesystem::path& path);
/// The text of a config.json that transformers 4 and 5 load.
std::string bert_config_json(const BertConfig& config);

}  // namespace trireme
