#pragma once
// The forward of the blocks of a model: the layers of its table in their order.

#include "models/common/lora.h"
#include "trireme/nn/block.h"
#include "trireme/nn/recompute.h"
#include "trireme/nn/sequence_exchange.h"
#include "trireme/nn/unit.h"
#include "trireme/ops/activation.h"
#include "trireme/ops/attention.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/norm.h"
#include "trireme/ops/rope.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

/// What is trained beside the frozen blocks of a model, of each block.
struct BlockAdapters {
  std::vector<std::vector<LoraTarget>> targets{};
  std::vector<std::vector<TrainedBias>> biases{};
  bool dora = false;  // each target has a magnitude
};

/// Inputs that all blocks of one forward pass share.
struct BlockPass {
  std::shared_ptr<const BlockTable> block{};
  Activation activation = Activation::kSwiglu;
  double norm_eps = 0;
  std::vector<RopeTable> ropes{};  // of a table with rotary positions: BlockAttention::rope counts them
  Sequences sequences{};           // of the whole pass
  /// The ranks that share the pass, where x has a slice of its tokens; null: x has all of them.
  SequenceExchange* exchange = nullptr;
  /// Dropout of attention's probabilities, and of both projections that end in the residual. In block b, attention, the
  /// output projection and the MLP draw from streams first_stream + b * streams and the two behind it.
  Dropout attention{}, residual{};
  uint64_t first_stream = 0, streams = 0;
  /// int64 [R]: the rows of the last block's result that anything reads; undefined: all. Attention needs all rows of
  /// its input. What follows it in the last block runs for these rows, unless dropout there is keyed by samples of
  /// several rows.
  at::Tensor result_rows{};
  std::shared_ptr<const BlockAdapters> adapters{};  // null: none
  Dropout lora_dropout{};                           // draws from streams b * streams + LoraTarget::index
};

/// Units of what is trained beside frozen blocks; -1: there is no such unit.
struct AdapterUnits {
  int matrices = -1;  // begins with A and B of every target, block after block
  int vectors = -1;   // begins with the magnitude of every target, then trained biases, block after block
};

/// On a GPU the number of tokens of a pass, and of its result_rows, is a multiple of this: few shapes keep the
/// allocator's and the libraries' choices. A CPU's products take any.
inline int64_t row_multiple(at::Device device) { return device.is_cuda() ? 256 : 1; }

/// x [T, D] through all blocks, which are units 1, 2, … of the store: [T, D], or BlockPass::result_rows of it.
at::Tensor run_blocks(const at::Tensor& x_TD, UnitStore& store, const BlockPass& pass, int64_t blocks,
                      const Recomputation& recomputation, const AdapterUnits& adapters = {});

/// layer_norm() with a bias, without one rms_norm() or, `plus_one`, rms_norm_plus_one().
Norm norm_of(const at::Tensor& weight, const at::Tensor& bias, double eps, bool plus_one = false);

}  // namespace trireme
