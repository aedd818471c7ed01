// The units of a BERT: shapes, Hugging Face names, initial values.
#include "models/bert/bert.h"
#include "trireme/base/error.h"

#include <string>

namespace trireme {

namespace {

ParameterSpec matrix(const std::string& name, int64_t rows, int64_t columns, const std::string& checkpoint_name,
                     double deviation) {
  return {name, {rows, columns}, {{checkpoint_name, rows}}, Init::kNormal, deviation, true};
}
ParameterSpec vector(const std::string& name, int64_t width, const std::string& checkpoint_name,
                     Init init = Init::kZeros) {
  return {name, {width}, {{checkpoint_name, width}}, init, 0, false};
}
void add_linear(UnitSpec& unit, const std::string& name, int64_t out, int64_t in, const std::string& module,
                double deviation) {
  unit.parameters.push_back(matrix(name + ".weight", out, in, module + ".weight", deviation));
  unit.parameters.push_back(vector(name + ".bias", out, module + ".bias"));
}
void add_norm(UnitSpec& unit, const std::string& name, int64_t width, const std::string& module) {
  unit.parameters.push_back(vector(name + ".gamma", width, module + ".weight", Init::kOnes));
  unit.parameters.push_back(vector(name + ".beta", width, module + ".bias"));
}

UnitSpec embed_unit(const BertConfig& c, int64_t padded_vocab) {
  const std::string prefix = "bert.embeddings.";
  UnitSpec unit;
  unit.name = "embed";
  unit.trained = unit.keep = true;
  unit.parameters = {
      matrix("word", padded_vocab, c.hidden_size, prefix + "word_embeddings.weight", c.initializer_range),
      matrix("position", c.max_position_embeddings, c.hidden_size, prefix + "position_embeddings.weight",
             c.initializer_range),
      matrix("type", c.type_vocab_size, c.hidden_size, prefix + "token_type_embeddings.weight", c.initializer_range)};
  unit.parameters[0].zero_rows_from = c.vocab_size;
  add_norm(unit, "norm", c.hidden_size, prefix + "LayerNorm");
  return unit;
}

UnitSpec layer_unit(const BertConfig& c, int64_t layer) {
  const std::string prefix = "bert.encoder.layer." + std::to_string(layer) + ".";
  const int64_t d = c.hidden_size;
  UnitSpec unit;
  unit.name = "layers." + std::to_string(layer);
  unit.trained = true;
  ParameterSpec weight{"qkv.weight", {3 * d, d}, {}, Init::kNormal, c.initializer_range, true};
  ParameterSpec bias{"qkv.bias", {3 * d}, {}, Init::kZeros, 0, false};
  for (const char* name : {"query", "key", "value"}) {
    weight.parts.push_back({prefix + "attention.self." + name + ".weight", d});
    bias.parts.push_back({prefix + "attention.self." + name + ".bias", d});
  }
  unit.parameters = {weight, bias};
  add_linear(unit, "out", d, d, prefix + "attention.output.dense", c.initializer_range);
  add_norm(unit, "attention_norm", d, prefix + "attention.output.LayerNorm");
  add_linear(unit, "up", c.intermediate_size, d, prefix + "intermediate.dense", c.initializer_range);
  add_linear(unit, "down", d, c.intermediate_size, prefix + "output.dense", c.initializer_range);
  add_norm(unit, "output_norm", d, prefix + "output.LayerNorm");
  for (ParameterSpec& parameter : unit.parameters) parameter.linear = parameter.shape.size() == 2;
  return unit;
}

UnitSpec head_unit(const BertConfig& c, int64_t padded_vocab) {
  const int64_t d = c.hidden_size;
  UnitSpec unit;
  unit.name = "head";
  unit.trained = true;
  add_linear(unit, "transform", d, d, "cls.predictions.transform.dense", c.initializer_range);
  add_norm(unit, "transform_norm", d, "cls.predictions.transform.LayerNorm");
  unit.parameters.push_back(vector("output_bias", padded_vocab, "cls.predictions.bias"));
  if (!c.next_sentence) return unit;
  add_linear(unit, "pooler", d, d, "bert.pooler.dense", c.initializer_range);
  add_linear(unit, "next", 2, d, "cls.seq_relationship", c.initializer_range);
  return unit;
}

}  // namespace

BertModel::BertModel(const BertConfig& config, int64_t vocab_multiple) : config_(config) {
  TRIREME_CHECK(vocab_multiple >= 1, "vocabulary padded to a multiple of ", vocab_multiple);
  padded_vocab_ = (config.vocab_size + vocab_multiple - 1) / vocab_multiple * vocab_multiple;
  units_.push_back(embed_unit(config_, padded_vocab_));
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) units_.push_back(layer_unit(config_, layer));
  units_.push_back(head_unit(config_, padded_vocab_));
}

int64_t BertModel::num_parameters() const {
  int64_t n = 0;
  for (const UnitSpec& unit : units_) n += unit.numel();
  return n;
}

}  // namespace trireme
