#pragma once
// Private to fsdp/: the memory of one unit on this rank, and the ways to fill it.

#include "trireme/comm/communicator.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/host_state.h"
#include "trireme/nn/unit.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme {

/// Writes the values of a piece of a parameter's part to `target`, now or until Filling::settle() returns.
using PieceWriter =
    std::function<void(const ParameterSpec&, const ParameterPart&, const LayoutPiece&, at::Tensor target)>;

/// How units are filled. Ranks that hold the same elements may write a share each and send it to the others.
struct Filling {
  PieceWriter write;
  std::function<void()> settle{};       // waits for the writers; empty: they write at once
  Communicator* shard_group = nullptr;  // null: one rank
  /// The ranks that share the writing of elements that all ranks of a host hold, and of elements that ranks with the
  /// same slice hold. Null: each rank writes its own elements.
  Communicator *whole_readers = nullptr, *slice_readers = nullptr;
};

struct UnitStorage {
  enum class Form {
    kCompute,    // all parameters in the compute dtype
    kFrozenFp8,  // matrices of linear layers as E4M3 codes in the flat buffer, the other parameters (vectors) beside it
    kTrainedCodes,  // the flat buffer has the layout of the whole unit, in codes; the codes of vectors are not used
  };
  /// Decides the layout and allocates nothing. `spec` outlives this object.
  UnitStorage(const UnitSpec& spec, Form form, UnitDivision division, const RankGrid& grid,
              at::ScalarType compute_dtype);
  /// Bytes of this rank's shard.
  int64_t shard_bytes() const { return layout.shard_numel * static_cast<int64_t>(c10::elementSize(dtype)); }
  /// Allocates memory that is not given. `shard_memory`: uint8 [shard_bytes()]. `vector_memory`, `scales`: of
  /// kTrainedCodes.
  void allocate(at::Device device, const at::Tensor& shard_memory = {}, const at::Tensor& vector_memory = {},
                const at::Tensor& scales = {});

  /// Writes this rank's elements of the flat buffer, and the vectors and scales of kFrozenFp8. Collective over the
  /// groups of `filling`.
  void fill(const Filling& filling);
  /// Starts to gather the shards of `group` into `full`.
  WorkPtr gather(Communicator& group) const;
  /// The flat buffer as `shard`, or the master weights, have it, on the device or the host. Collective over `group` if
  /// the weights are divided.
  at::Tensor whole(Communicator* group) const;

  const UnitSpec& spec;
  Form form;
  bool gathered;             // weights are sharded, and gathered into a slot for each use
  bool divided;              // trained: a rank updates its shard only
  UnitSpec stored, vectors;  // parameters in the flat buffer, and parameters stored beside it
  UnitLayout layout;         // of `stored`
  int64_t begin;             // first element of this rank's shard in the flat buffer
  at::ScalarType compute_dtype, dtype;
  HostState* host = nullptr;  // trained: has the master weights that are not `shard`; set before allocate()

  at::Tensor shard;                 // dtype [shard_numel]; may be a part of `full`
  at::Tensor master;                // trained: fp32 [shard_numel]; may be the same tensor as shard, or on the host
  at::Tensor full;                  // dtype [numel]; `gathered`: uses a slot's memory
  std::vector<at::Tensor> tensors;  // one per parameter of the unit
  at::Tensor vector_memory;         // compute dtype, flat, whole on every rank
  at::Tensor inverse_scales;        // fp32, one per parameter of the unit

 private:
  void fill_codes(const Filling& filling);
};

}  // namespace trireme
