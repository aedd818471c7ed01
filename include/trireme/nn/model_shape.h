#pragma once
// The parts of a model, from which plan/ computes its memory, time and FLOPs. All figures are for one row of a
// micro-batch.

#include "trireme/nn/block.h"
#include "trireme/nn/unit.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

/// LoRA on rows of a layer: A [rank, in], B [rows, rank].
struct AdapterShape {
  int layer = 0;  // of BlockTable::layers
  int64_t in = 0, rows = 0, rank = 0;
  double share = 1;  // of the blocks, that have it
  bool operator==(const AdapterShape&) const = default;
};

/// Bytes of the loss head's working memory. row: per row; logits: of a row's logits; logits_most: limit of the logits
/// in memory at a time; fixed: for any number of rows; held: from the head's backward to the end of backward.
struct HeadMemory {
  int64_t row = 0, logits = 0, logits_most = 0, fixed = 0, held = 0;
};

/// The loss head.
struct HeadShape {
  /// x [tokens, in] times W^T [in, out].
  struct Product {
    double tokens = 0;
    int64_t in = 0, out = 0;
  };
  std::vector<Product> products;
  bool trained = true;  // the matrices have weight gradients
  bool again = false;   // trained ones: backward computes the products again
  HeadMemory memory;
};

struct ModelShape {
  const std::vector<UnitSpec>* units = nullptr;
  std::shared_ptr<const void> owner{};  // keeps `units` alive if nothing else does
  std::shared_ptr<const BlockTable> block;
  int num_blocks = 0;
  bool trained = true;   // the blocks' matrices have weight gradients
  int64_t tokens = 0;    // of a row; with a context, of this rank's slice of it
  int context = 1;       // ranks that share a row
  double sequences = 1;  // sequences of equal length in a row
  bool attention_dropout = false;
  bool adapter_dropout = false, dora = false;
  std::vector<AdapterShape> adapters{};
  HeadShape head{};
  bool reference = false;  // a step has a second forward, of a frozen reference without adapters
};

}  // namespace trireme
