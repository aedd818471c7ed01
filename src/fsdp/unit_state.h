#pragma once
// Private to fsdp/: the storage of one unit, and the gather slots.

#include "trireme/fsdp/sharded_units.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

namespace trireme {

/// The largest amax of the ranks; infinite where a rank has a NaN, which neither MPI's nor NCCL's maximum keeps.
void reduce_amax(Communicator& ranks, const at::Tensor& amax);

/// A buffer that holds one gathered unit at a time.
struct ShardedUnits::Slot {
  at::Tensor memory;  // bytes
  int unit = -1;      // the unit whose weights it holds or receives; -1: none
  WorkPtr gather;     // running gather; null: none
  bool in_use = false;
  int64_t last_use = 0;
};

/// Takes the gradient of one matrix.
struct ShardedUnits::Sink final : GradientSink {
  Sink(ShardedUnits& owner, int of_unit, int of_parameter) : units(owner), unit(of_unit), parameter(of_parameter) {}
  GradientTarget target() override { return units.gradient_target(unit, parameter); }
  void written() override { units.gradient_written(unit, parameter); }
  ShardedUnits& units;
  int unit, parameter;
};

struct ShardedUnits::UnitState {
  /// What the flat buffer has places for: the unit's parameters, or of a frozen unit only those stored in FP8.
  UnitSpec stored;
  UnitLayout layout;                                   // layout of `stored`
  bool gathered = false;                               // weights are sharded, and gathered into a slot for each use
  bool divided = false;                                // trained: a rank updates its shard only
  int64_t begin = 0;                                   // first element of this rank's shard in the flat buffer
  at::Tensor shard;                                    // storage dtype [shard_numel]; may be a part of `full`
  at::Tensor master;                                   // trained: fp32 [shard_numel]; may be the same tensor as shard
  at::Tensor full;                                     // storage dtype [numel]; `gathered`: uses a slot's memory
  WorkPtr arriving;                                    // running gather of a whole compute copy; null: none
  std::vector<at::Tensor> views;                       // leaves, one per parameter
  std::vector<WeightState> states, evaluation_states;  // one per parameter
  int64_t peer_offset = -1;                            // offset of the shard in the peer memory; -1: it is not there
  Slot* slot = nullptr;                                // the slot that `full` uses now
  std::unique_ptr<Slot> own_slot;                      // slot of a unit with `keep` set

  // Units with FP8 storage: frozen ones, and those with trained codes
  bool fp8 = false;                    // frozen
  UnitSpec vectors;                    // parameters stored in the compute dtype, whole on every rank: norms, biases
  at::Tensor vector_memory;            // compute dtype, flat
  at::Tensor inverse_scales;           // fp32, one per parameter of the unit
  std::vector<int> stored_parameters;  // index in the unit of each parameter whose values are in the flat buffer

  // Trained units whose recipe stores codes: the flat buffer has the layout of the whole unit, in E4M3 codes. The codes
  // of `vectors` there are not used.
  bool trained_codes = false;
  /// This rank's elements of a matrix.
  struct CodePiece {
    int64_t parameter;  // index in TrainedCodes
    at::Tensor master, codes;
  };
  std::vector<CodePiece> code_pieces;

  // Trained units
  int trained_index = -1;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;  // of parameters without a sink
  std::vector<std::unique_ptr<Sink>> sinks;                          // one per parameter; null: autograd carries it
  // [numel], this rank's gradient: of one micro-batch in the reduction's dtype, or the sum over several in fp32
  at::Tensor gradient;
  at::Tensor observed;                 // gradient of one matrix, where an observer reads it before it is added
  std::vector<bool> arrived, written;  // per parameter: in this micro-batch; in the buffer at all
  /// Small gradients of this micro-batch that are not yet in `gradient`: first values to copy, and values to add.
  struct Small {
    std::vector<at::Tensor> sums, values;
  };
  Small small_first, small_more;
  void add_small_gradients();
  WorkPtr reduction;             // over the shard group or the world, then over the replicas
  at::Tensor reduced;            // result of the reduction over the shard group or the world
  bool final_reduction = false;  // the reduction is that of the step's last micro-batch
};

/// What the units with trained codes share, so that a few operations serve all of them. Parameters and checkpoint
/// tensors are numbered over these units, in order.
struct ShardedUnits::TrainedCodes {
  at::Tensor amax;            // fp32 [tensors]: this rank's
  at::Tensor tensors_of;      // int64 [parameters, most parts]: the tensors of each parameter, the first repeated
  at::Tensor scale, inverse;  // fp32 [parameters]
  at::Tensor vectors;         // compute dtype, flat: the `vectors` of all units
  std::vector<at::Tensor> vector_masters, vector_values;  // this rank's elements of them
  bool divided = false;        // UnitState::divided of these units, which is the same for all of them
  int64_t next_parameter = 0;  // the numbers of the next unit that is made
  int64_t next_tensor = 0, next_vector = 0;
};

/// A flat tensor without memory of its own, whose storage is set to a slot's memory when it is used.
at::Tensor make_borrowed_tensor(int64_t numel, at::ScalarType dtype, at::Device device);
void lend_memory(const at::Tensor& borrowed, void* memory);

}  // namespace trireme
