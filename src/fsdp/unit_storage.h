#pragma once
// Private to fsdp/: the memory of one unit on this rank, and the ways to fill it.

#include "trireme/comm/communicator.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/formats/huggingface/stored_nf4.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/host_state.h"
#include "trireme/nn/unit.h"
#include "trireme/ops/matmul/nf4.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
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
  /// The codes of a matrix that the files have in NF4; nullopt: they have its values. Empty: of every matrix.
  std::function<std::optional<StoredNf4>(const ParameterPart&)> stored_nf4{};
};

struct UnitStorage {
  enum class Form {
    kCompute,    // all parameters in the compute dtype
    kFrozenFp8,  // matrices of linear layers as E4M3 codes in the flat buffer, the other parameters (vectors) beside it
    kFrozenNf4,  // the same in NF4, two codes a byte; the scales are whole on every rank
    kTrainedCodes,  // the flat buffer has the layout of the whole unit, in codes; the codes of vectors are not used
  };
  /// Decides the layout and allocates nothing. `spec` outlives this object.
  UnitStorage(const UnitSpec& spec, Form form, UnitDivision division, const RankGrid& grid,
              at::ScalarType compute_dtype, at::ScalarType master_dtype = at::kFloat);
  bool frozen_codes() const { return form == Form::kFrozenFp8 || form == Form::kFrozenNf4; }
  /// Elements of `dtype` that hold this many of the layout's elements.
  int64_t stored_numel(int64_t elements) const { return form == Form::kFrozenNf4 ? elements / 2 : elements; }
  /// Bytes of this rank's shard.
  int64_t shard_bytes() const {
    return stored_numel(layout.shard_numel) * static_cast<int64_t>(c10::elementSize(dtype));
  }
  struct Memory {
    at::Tensor shard{};              // uint8 [shard_bytes()]
    at::Tensor vectors{}, scales{};  // of kTrainedCodes
    at::Tensor expanded{};           // of kFrozenNf4: compute dtype, at least [layout.numel], shared by all units
  };
  /// Allocates memory that is not given.
  void allocate(at::Device device, const Memory& memory);

  /// Writes this rank's elements of the flat buffer, and the vectors and scales of frozen codes. Collective over the
  /// groups of `filling`. ModelError for a matrix whose scales are infinite.
  void fill(const Filling& filling);
  /// kFrozenNf4: writes the matrices from `full` to `expanded`.
  void expand() const;
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
  at::ScalarType compute_dtype, dtype, master_dtype;
  HostState* host = nullptr;  // trained: has the master weights that are not `shard`; set before allocate()

  at::Tensor shard;   // dtype [shard_numel]; may be a part of `full`
  at::Tensor master;  // trained: master_dtype [shard_numel]; may be the same tensor as shard, or on the host
  at::Tensor full;    // dtype [numel]; `gathered`: uses a slot's memory
  std::vector<at::Tensor> tensors;  // one per parameter of the unit
  at::Tensor vector_memory;         // compute dtype, flat, whole on every rank
  at::Tensor inverse_scales;        // fp32, one per parameter of the unit
  at::Tensor expanded;              // kFrozenNf4: where `tensors` has the matrices
  /// kFrozenNf4: one per checkpoint tensor, whose elements [first, first + numel) are in the flat buffer.
  struct Nf4Part {
    const ParameterPart* part;
    int64_t first, numel;
    Nf4Scales scales;
  };
  std::vector<Nf4Part> nf4_parts;

 private:
  void allocate_nf4();
  /// Values of this rank's elements of the flat buffer.
  void fill_values(const at::Tensor& values, const Filling& filling);
  void fill_codes(const Filling& filling);
  void fill_nf4(const Filling& filling);
};

}  // namespace trireme
