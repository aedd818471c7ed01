#pragma once
// The table of a transformer block: each norm and each matrix product once. The block's unit, biases, LoRA targets,
// tensors in checkpoint files, FLOPs, memory and forward (models/common/) follow from it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Rows of a layer that are a layer of their own in checkpoint files and for adapters.
struct LayerPart {
  std::string module;  // inside the block: "self_attn.q_proj"
  int64_t rows = 0;
};

enum class LayerKind {
  kProduct,   // y = x W^T + bias
  kNorm,      // of what the next product reads
  kPostNorm,  // of the sum of the residual and the product before it
};

struct BlockLayer {
  std::string name;  // of the weight in its unit, and under which the forward asks for it: "qkv"
  LayerKind kind = LayerKind::kProduct;
  int64_t in = 0;  // columns of its input, which of a norm of each head are those of all heads
  std::vector<LayerPart> parts;
  bool bias = false;        // a norm with a bias is a layer norm, another an RMS norm
  double deviation = 0;     // of a product's initial values; norms start as ones, biases as zeros
  std::string fused = {};   // module of one LoRA adapter over all parts: "self_attn.qkv_proj"; empty: there is none
  std::string nemo = {};    // array of NeMo checkpoints, which holds all blocks: "self_attention.linear_qkv.weight"
  int64_t nemo_groups = 1;  // NeMo interleaves the parts: rows of each part, so many times

  bool product() const { return kind == LayerKind::kProduct; }
  /// Rows of the weight.
  int64_t out() const;
};

struct BlockTable {
  std::vector<BlockLayer> layers;  // in the order of the unit, which is the order of the forward
  bool biases_last = false;        // in the unit all biases follow all weights; otherwise each follows its weight
  bool transposed = false;         // files keep the matrices [in, out] (transformers' Conv1D)

  // The parts of the forward that have no parameters.
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true, rotary = false;
  bool gated = false;  // the MLP's first product computes gate and up projections

  /// Index of a layer in `layers`; -1: the block has none of this name.
  int find(std::string_view name) const;
  /// A layer that every block has; an internal error otherwise.
  const BlockLayer& at(std::string_view name) const;
  /// Positions in the unit of the weight and the bias of layers[layer]; -1: it has no bias.
  int weight_position(int layer) const;
  int bias_position(int layer) const;
  /// Parameters of the unit.
  int parameters() const;
};

}  // namespace trireme
