#include "trireme/formats/huggingface/bert_config.h"

#include "trireme/base/dropout_steps.h"
#include "trireme/formats/huggingface/config_reader.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <fmt/format.h>

namespace trireme {

namespace {

using Json = nlohmann::json;

bool read_activation(ConfigReader& reader, bool tensorflow) {
  const Json act = reader.has("hidden_act") ? reader.json()["hidden_act"] : Json("gelu");
  if (act == "gelu") return tensorflow;
  if (act == "gelu_new" || act == "gelu_pytorch_tanh" || act == "gelu_fast") return true;
  reader.lacking("hidden_act", act);
  return false;
}

void check_shape(ConfigReader& reader, const BertConfig& c) {
  if (c.num_hidden_layers > kMaxLayers)
    reader.problem(fmt::format("num_hidden_layers is {}, at most {} are supported", c.num_hidden_layers, kMaxLayers));
  if (c.hidden_size % c.num_attention_heads != 0)
    reader.problem(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}", c.hidden_size,
                               c.num_attention_heads));
  if (c.pad_token_id >= c.vocab_size)
    reader.problem(fmt::format("pad_token_id is {}, and vocab_size {}", c.pad_token_id, c.vocab_size));
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double layer = real(c.hidden_size) * (4 * real(c.hidden_size) + 2 * real(c.intermediate_size));
  const double tables =
      real(c.hidden_size) * (real(c.vocab_size) + real(c.max_position_embeddings) + real(c.type_vocab_size));
  if (const double parameters = real(c.num_hidden_layers) * layer + tables; parameters > kMaxParameters)
    reader.problem(fmt::format("the shape has {:.3g} parameters, more than the limit of 2^50", parameters));
}

}  // namespace

std::filesystem::path find_bert_config(const std::filesystem::path& path) {
  if (std::filesystem::is_regular_file(path)) return path;
  require_model_directory(path);
  for (const char* name : {"config.json", "bert_config.json"})
    if (std::filesystem::is_regular_file(path / name)) return path / name;
  throw ModelError(
      fmt::format("{} has no config.json (Hugging Face) and no bert_config.json (TensorFlow)", path.string()));
}

BertConfig read_bert_config(const std::filesystem::path& path) {
  const std::filesystem::path file = find_bert_config(path);
  const Json json = read_json_object(file);
  ConfigReader reader(json, file.string());
  const bool tensorflow = !reader.has("model_type") && !reader.has("architectures");
  reader.only("model_type", {"\"bert\""});
  if (reader.has("architectures") && json["architectures"] == Json::parse(R"(["BertModel"])"))
    throw ModelError(fmt::format("{}: architectures: [\"BertModel\"], which {}", file.string(), kWithoutBertHeads));
  reader.only("architectures", {"[\"BertForPreTraining\"]", "[\"BertForMaskedLM\"]", "[]"});
  reader.only("position_embedding_type", {"\"absolute\""});
  reader.only("is_decoder", {"false"});
  reader.only("add_cross_attention", {"false"});
  reader.only("tie_word_embeddings", {"true"});
  if (reader.has("quantization_config")) reader.lacking("quantization_config", json["quantization_config"]);

  BertConfig config;
  config.hidden_size = reader.integer("hidden_size");
  config.num_hidden_layers = reader.integer("num_hidden_layers");
  config.num_attention_heads = reader.integer("num_attention_heads");
  config.intermediate_size = reader.integer("intermediate_size");
  config.vocab_size = reader.integer("vocab_size");
  config.max_position_embeddings = reader.integer("max_position_embeddings", 512);
  config.type_vocab_size = reader.integer("type_vocab_size", 2);
  config.pad_token_id = reader.is_null("pad_token_id") ? -1 : reader.integer("pad_token_id", 0, 0);
  config.layer_norm_eps = reader.number("layer_norm_eps", 1e-12);
  config.initializer_range = reader.number("initializer_range", 0.02);
  config.hidden_dropout_prob = reader.probability("hidden_dropout_prob", 0.1, kActivationDropoutSteps);
  config.attention_probs_dropout_prob = reader.probability("attention_probs_dropout_prob", 0.1, kAttentionDropoutSteps);
  config.gelu_tanh = read_activation(reader, tensorflow);
  config.next_sentence =
      !(reader.has("architectures") && json["architectures"] == Json::parse(R"(["BertForMaskedLM"])"));
  for (const char* key : {"torch_dtype", "dtype"})
    if (reader.has(key) && json[key].is_string()) config.dtype = json[key].get<std::string>();
  reader.finish();
  check_shape(reader, config);
  reader.finish();
  return config;
}

std::string bert_config_json(const BertConfig& c) {
  const Json json = {{"architectures", {c.next_sentence ? "BertForPreTraining" : "BertForMaskedLM"}},
                     {"model_type", "bert"},
                     {"hidden_size", c.hidden_size},
                     {"num_hidden_layers", c.num_hidden_layers},
                     {"num_attention_heads", c.num_attention_heads},
                     {"intermediate_size", c.intermediate_size},
                     {"vocab_size", c.vocab_size},
                     {"max_position_embeddings", c.max_position_embeddings},
                     {"type_vocab_size", c.type_vocab_size},
                     {"pad_token_id", c.pad_token_id < 0 ? Json() : Json(c.pad_token_id)},
                     {"layer_norm_eps", c.layer_norm_eps},
                     {"initializer_range", c.initializer_range},
                     {"hidden_dropout_prob", c.hidden_dropout_prob},
                     {"attention_probs_dropout_prob", c.attention_probs_dropout_prob},
                     {"hidden_act", c.gelu_tanh ? "gelu_pytorch_tanh" : "gelu"},
                     {"position_embedding_type", "absolute"},
                     {"torch_dtype", c.dtype},
                     {"use_cache", true}};
  return json.dump(2) + "\n";
}

}  // namespace trireme
