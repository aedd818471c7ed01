#include "models/common/units.h"

#include <algorithm>
#include <cmath>

namespace trireme {

ParameterSpec matrix_spec(const std::string& name, int64_t rows, int64_t columns, const std::string& module,
                          double deviation) {
  return {name, {rows, columns}, {{module + ".weight", rows}}, Init::kNormal, deviation, true};
}

ParameterSpec vector_spec(const std::string& name, int64_t width, const std::string& tensor, Init init) {
  return {name, {width}, {{tensor, width}}, init, 0, false};
}

void add_norm(UnitSpec& unit, const std::string& name, int64_t width, const std::string& module, bool bias,
              bool plus_one) {
  unit.parameters.push_back(vector_spec(name, width, module + ".weight", plus_one ? Init::kZeros : Init::kOnes));
  if (bias) unit.parameters.push_back(vector_spec(name + ".bias", width, module + ".bias"));
}

void add_linear(UnitSpec& unit, const std::string& name, int64_t rows, int64_t columns, const std::string& module,
                double deviation) {
  unit.parameters.push_back(matrix_spec(name, rows, columns, module, deviation));
  unit.parameters.push_back(vector_spec(name + ".bias", rows, module + ".bias"));
}

namespace {

/// ParameterSpec::matrix_rows of a product.
std::vector<int64_t> stacked_matrices(const BlockTable& block, const BlockLayer& layer) {
  const bool fused = layer.parts.size() == 1;
  const int64_t kv = block.kv_heads * block.head_dim;
  if (fused && layer.name == "qkv") return {layer.out() - 2 * kv, kv, kv};
  if (fused && layer.name == "up" && block.gated) return {layer.out() / 2, layer.out() / 2};
  std::vector<int64_t> rows;
  for (const LayerPart& part : layer.parts) rows.push_back(part.rows);
  return rows;
}

}  // namespace

UnitSpec block_unit(const BlockTable& block, const std::string& name, const std::string& prefix) {
  UnitSpec unit;
  unit.name = name;
  unit.parameters.resize(static_cast<size_t>(block.parameters()));
  for (int l = 0; l < static_cast<int>(block.layers.size()); ++l) {
    const BlockLayer& layer = block.layers[static_cast<size_t>(l)];
    const auto parts = [&](const char* suffix) {
      std::vector<ParameterPart> list;
      for (const LayerPart& part : layer.parts) list.push_back({prefix + part.module + suffix, part.rows});
      return list;
    };
    ParameterSpec& weight = unit.parameters[static_cast<size_t>(block.weight_position(l))];
    const Init identity = block.norms_plus_one ? Init::kZeros : Init::kOnes;
    weight = {layer.name, {layer.out()}, parts(".weight"), identity, 0, false};
    if (layer.product()) {
      weight = {layer.name, {layer.out(), layer.in}, parts(".weight"), Init::kNormal, layer.deviation, true, true};
      weight.transposed = block.transposed;
      weight.matrix_rows = stacked_matrices(block, layer);
    }
    if (layer.bias)
      unit.parameters[static_cast<size_t>(block.bias_position(l))] = {
          layer.name + ".bias", {layer.out()}, parts(".bias"), Init::kZeros, 0, false};
  }
  return unit;
}

void add_adapters(UnitSpec& unit, const std::vector<LoraTarget>& targets, int64_t r, const std::string& name,
                  const std::string& prefix) {
  for (const LoraTarget& target : targets) {
    // Two layers of one name (GPT-2's c_proj) are distinguished by their modules.
    const bool ambiguous = std::count_if(targets.begin(), targets.end(),
                                         [&](const LoraTarget& other) { return other.name == target.name; }) > 1;
    const std::string full = name + (ambiguous ? target.module : target.name), module = prefix + target.module;
    const double bound = 1.0 / std::sqrt(static_cast<double>(target.in));
    unit.parameters.push_back(
        {full + ".lora_A", {r, target.in}, {{module + ".lora_A.weight", r}}, Init::kUniform, bound, true});
    unit.parameters.back().matrix_rows = {r};
    unit.parameters.push_back(
        {full + ".lora_B", {target.rows, r}, {{module + ".lora_B.weight", target.rows}}, Init::kZeros, 0, true});
    unit.parameters.back().matrix_rows = {target.rows};
  }
}

int64_t base_parameters(const std::vector<UnitSpec>& units) {
  int64_t n = 0;
  for (const UnitSpec& unit : units) n += unit.replicated ? 0 : unit.numel();
  return n;
}

int64_t trained_parameters(const std::vector<UnitSpec>& units) {
  int64_t n = 0;
  for (const UnitSpec& unit : units) n += unit.trained ? unit.numel() : 0;
  return n;
}

}  // namespace trireme
