#include "trireme/nn/block.h"

#include "trireme/base/error.h"

#include <algorithm>

namespace trireme {

int64_t BlockLayer::out() const {
  int64_t rows = 0;
  for (const LayerPart& part : parts) rows += part.rows;
  return rows;
}

int BlockTable::find(std::string_view name) const {
  const auto found = std::find_if(layers.begin(), layers.end(), [&](const auto& layer) { return layer.name == name; });
  return found == layers.end() ? -1 : static_cast<int>(found - layers.begin());
}

const BlockLayer& BlockTable::at(std::string_view name) const {
  const int layer = find(name);
  TRIREME_CHECK(layer >= 0, "the block has no layer ", name);
  return layers[static_cast<size_t>(layer)];
}

const BlockAttention& BlockTable::attention_of(int64_t block) const {
  static constexpr BlockAttention kPlain;
  return attention.empty() ? kPlain : attention.at(static_cast<size_t>(block));
}

int BlockTable::weight_position(int layer) const {
  if (biases_last) return layer;
  const auto before = layers.begin() + layer;
  return layer + static_cast<int>(std::count_if(layers.begin(), before, [](const auto& other) { return other.bias; }));
}

int BlockTable::bias_position(int layer) const {
  if (!layers.at(static_cast<size_t>(layer)).bias) return -1;
  if (!biases_last) return weight_position(layer) + 1;
  const auto before = layers.begin() + layer;
  return static_cast<int>(layers.size() +
                          std::count_if(layers.begin(), before, [](const auto& other) { return other.bias; }));
}

int BlockTable::parameters() const {
  return static_cast<int>(layers.size() +
                          std::count_if(layers.begin(), layers.end(), [](const auto& layer) { return layer.bias; }));
}

}  // namespace trireme
