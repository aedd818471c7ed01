#pragma once
// Private to fsdp/: E4M3 codes of trained matrices, made from the master weights after each optimizer step.

#include "trireme/comm/communicator.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/trained_shard.h"
#include "trireme/nn/unit.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace trireme {

/// The largest amax of the ranks; infinite where a rank has a NaN, which neither MPI's nor NCCL's maximum keeps.
void reduce_amax(Communicator& ranks, const at::Tensor& amax);

/// The scales of all matrices of some units, and the values of all other parameters (vectors), which are whole on every
/// rank. A few operations process all units together.
class TrainedCodes {
 public:
  /// `units`: their indices are the arguments of the functions below. `dtype`: of vectors.
  TrainedCodes(const std::vector<const UnitSpec*>& units, at::Device device, at::ScalarType dtype);

  /// The memory of a unit's vectors, laid out as make_layout(unit.vectors(), 1), and fp32 [parameters of the unit]: the
  /// inverse of each parameter's scale.
  at::Tensor vectors(int unit) const;
  at::Tensor inverse_scales(int unit) const;

  /// This rank's part of a unit: elements [begin, begin + shard_numel) of its flat buffer.
  struct Part {
    const UnitLayout& layout;
    int64_t begin;
    at::Tensor codes;                        // E4M3 [shard_numel]
    const std::vector<at::Tensor>& tensors;  // the unit's tensors; vectors lie in the memory of vectors()
  };
  /// `shard` outlives this object.
  void add(int unit, const Part& part, TrainedShard& shard);

  /// The scale of every matrix from its largest magnitude over the ranks of `group`, and the vectors. `group` null: the
  /// units are not divided. Collective over it.
  void update_scales(Communicator* group);
  /// From now on codes of units with masters on the host are made in the optimizer's pass, while the masters are on the
  /// device. Not for divided units, whose scales the other ranks decide, too.
  void follow_updates();
  /// Writes this rank's codes of the unit, unless the optimizer's pass has.
  void write(int unit);

 private:
  /// This rank's elements of a matrix, or some of them that go through the device together.
  struct Piece {
    int64_t parameter;  // number among the parameters of all units
    int64_t begin;      // first element in the shard
    at::Tensor master, codes;
  };
  struct Unit {
    const UnitSpec* spec;
    int64_t first_parameter = 0, first_tensor = 0, first_vector = 0;
    TrainedShard* shard = nullptr;
    std::vector<Piece> pieces;
    bool written = false;  // the codes are those of the masters
  };
  /// Of consecutive parameters of all units.
  at::Tensor parameter_amax(int64_t first, int64_t count) const;
  std::vector<Unit> units_;
  at::Tensor amax_;                                         // fp32 [checkpoint tensors]: this rank's
  at::Tensor tensors_of_;                                   // int64 [parameters, most parts]: tensors of each parameter
  at::Tensor scale_, inverse_;                              // fp32 [parameters]
  at::Tensor vectors_;                                      // flat
  std::vector<at::Tensor> vector_masters_, vector_values_;  // this rank's elements of them
  std::vector<std::pair<at::Tensor, at::Tensor>> host_vectors_;  // the same of units whose masters are on the host
};

}  // namespace trireme
