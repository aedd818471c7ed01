#pragma once
// FLOPs and activation memory of a block, walked from its table.

#include "models/common/lora.h"
#include "trireme/nn/block.h"
#include "trireme/nn/block_work.h"

#include <cstdint>
#include <optional>

namespace trireme {

/// Elements of the matrices of one block: multiply-adds of its products for a token.
double block_matrices(const BlockTable& block);

/// Of one block, for a row of `row_length` tokens in `sequences` equal sequences.
BlockWork block_work(const BlockTable& block, int64_t row_length, double sequences, int64_t element_size);

/// Bytes of activations per row of a micro-batch: what a block keeps for backward with Recompute::kNone, kNorms, kMlp
/// and kFull; `block_saved_norms` is 0 where kNorms keeps as much as kNone, and both it and `block_saved_mlp` where the
/// norms follow the residual. `working_peak` is the peak of what backward needs beside that, `working_fixed` the part
/// of it that does not grow with the rows. `head`: of the loss head, per row; `head_logits` its logits per row, of
/// which it holds `head_logits_most` bytes at a time; `head_fixed`: the output matrix' gradient in fp32.
struct ActivationBytes {
  int64_t block_saved = 0, block_saved_norms = 0, block_saved_mlp = 0, block_recomputed = 0, working_peak = 0,
          working_fixed = 0, head = 0, head_logits = 0, head_logits_most = 0, head_fixed = 0;
};
struct ActivationStorage {
  int64_t element_size = 2;   // of the compute dtype
  bool frozen_fp8 = false;    // products in FP8; gate and up projections are kept in FP8
  bool trained_fp8 = false;   // products in FP8; codes of their inputs are kept for backward
  bool stored_codes = false;  // with trained_fp8: the store has the codes of the weights; otherwise forward makes them
};
/// The fields of the blocks, for rows of `row_length` tokens; those of the head are 0. With `lora` the matrices are
/// frozen, and `targets` have adapters.
ActivationBytes block_activations(const BlockTable& block, int64_t blocks, int64_t row_length,
                                  const ActivationStorage& storage, const LoraOptions* lora = nullptr,
                                  const std::vector<LoraTarget>& targets = {});

}  // namespace trireme
