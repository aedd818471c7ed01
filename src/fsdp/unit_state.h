#pragma once
// Private to fsdp/: the storage of one unit, and the gather slots.

#include "trireme/fsdp/sharded_units.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

namespace trireme {

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
  /// The flat buffer's content: the unit's parameters, or only those that are stored in FP8.
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

  // Units with FP8 storage
  bool fp8 = false;
  UnitSpec vectors;                    // parameters stored in the compute dtype, whole on every rank: norms
  at::Tensor vector_memory;            // compute dtype, flat
  at::Tensor inverse_scales;           // fp32, one per parameter of the unit
  std::vector<int> stored_parameters;  // index in the unit of each parameter of `stored`

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

/// A flat tensor without memory of its own, whose storage is set to a slot's memory when it is used.
at::Tensor make_borrowed_tensor(int64_t numel, at::ScalarType dtype, at::Device device);
void lend_memory(const at::Tensor& borrowed, void* memory);

}  // namespace trireme
