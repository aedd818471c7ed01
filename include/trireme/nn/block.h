#pragma once
// The table of a transformer block: each norm and each matrix product once. The block's unit, biases, LoRA targets,
// tensors in checkpoint files, FLOPs, memory and forward (models/common/) follow from it.
//
// The forward knows these names, in this order. Norms may be missing:
//   attention_norm, qkv, q_norm, k_norm, output, attention_branch_norm, attention_post_norm,
//   mlp_norm, up, down, mlp_branch_norm, mlp_post_norm

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Rows of a layer that form a separate layer in checkpoint files and for adapters.
struct LayerPart {
  std::string module;  // inside the block: "self_attn.q_proj"
  int64_t rows = 0;
};

enum class LayerKind {
  kProduct,     // y = x W^T + bias
  kNorm,        // of the input of the next product
  kHeadNorm,    // of q or k, each head by itself or all heads together
  kBranchNorm,  // of the product before it, in front of its addition to the residual
  kPostNorm,    // of the sum of the residual and the product before it
};

struct BlockLayer {
  std::string name;  // name of the weight in its unit and in the forward: "qkv"
  LayerKind kind = LayerKind::kProduct;
  int64_t in = 0;  // columns of its input; for a norm of each head the columns of all heads
  std::vector<LayerPart> parts;
  bool bias = false;        // a norm with a bias is a layer norm, without it an RMS norm
  double deviation = 0;     // of a product's initial values; norms start as the identity, biases as zeros
  std::string fused = {};   // module of one LoRA adapter over all parts: "self_attn.qkv_proj"; empty: no such module
  std::string nemo = {};    // array of all blocks in NeMo checkpoints: "self_attention.linear_qkv.weight"
  int64_t nemo_groups = 1;  // NeMo interleaves the rows of the parts in so many groups

  bool product() const { return kind == LayerKind::kProduct; }
  /// Rows of the weight.
  int64_t out() const;
};

/// What the attention of one block may do otherwise than that of another.
struct BlockAttention {
  int64_t window = 0;  // tokens that a position sees, itself included; 0: all before it
  int rope = 0;        // which of the model's rotary tables; -1: none
};

struct BlockTable {
  std::vector<BlockLayer> layers;  // in the order of the unit, which is the order of the forward
  bool biases_last = false;        // in the unit all biases follow all weights; otherwise each follows its weight
  bool transposed = false;         // files keep the matrices [in, out] (transformers' Conv1D)

  // The parts of the forward that have no parameters.
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true, rotary = false;
  bool fp8_attention = false;                  // AttentionOptions::fp8
  bool gated = false;                          // the MLP's first product computes gate and up projections
  bool norms_plus_one = false;                 // RMS norms multiply by 1 + weight
  double attention_scale = 0;                  // of the scores; 0: 1 / sqrt(head_dim)
  double branch_multiplier = 1;                // of what attention and MLP add to the residual
  std::vector<BlockAttention> attention = {};  // by block; empty: all as a BlockAttention{}

  const BlockAttention& attention_of(int64_t block) const;
  /// Index of a layer in `layers`; -1: the block has no layer of this name.
  int find(std::string_view name) const;
  /// A layer that every block has; an internal error otherwise.
  const BlockLayer& at(std::string_view name) const;
  /// Positions in the unit of the weight and the bias of layers[layer]; -1: the layer has no bias.
  int weight_position(int layer) const;
  int bias_position(int layer) const;
  /// Number of parameters of the unit.
  int parameters() const;
};

}  // namespace trireme
