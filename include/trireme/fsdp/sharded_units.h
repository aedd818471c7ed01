#pragma once
// The weights of a model sharded over ranks: the store behind enter_unit()/leave_unit().
//
// A unit's flat buffer is divided evenly among its shard group (RankGrid::shard); the groups hold replicas of each
// other (HSDP). For each use of a sharded unit the store gathers it into one of a few slots. While a unit computes, the
// store starts the gathers of the next units (forward: ascending, backward: descending). Frozen shards are read from
// the memory of ranks on the same host (PeerMemory); others go through the communicator. A slot keeps its unit until
// another unit needs the slot, so the last unit of forward is still gathered when backward starts.
//
//   frozen unit    shard in the storage dtype; with a recipe that stores codes its matrices in E4M3, with one scale
//                  each that is computed during loading; in NF4, with scales that are whole on every rank, they are
//                  expanded to the compute dtype for each use, all units into the same memory
//   trained unit   master weights, compute copy (the same where they have one type) and, after finish_backward(),
//                  gradient: of each, the policy says whether a rank has its shard or the whole. A whole compute copy
//                  of divided master weights is gathered after the optimizer step, while the next forward runs. With a
//                  recipe that stores codes the compute copy of a block's matrices is E4M3 codes with one scale per
//                  matrix, made from the masters after each optimizer step and gathered as bytes; its vectors are whole
//                  on every rank.
//   replicated     whole on every rank
//
// A trained unit has one flat gradient buffer. wgrad of its matrices writes there (GradientSink); gradients of its
// other parameters are copied there when autograd has computed them. As soon as a micro-batch has produced all
// gradients of a unit, its reduction starts, if it is the step's last micro-batch or the policy divides gradients. With
// several micro-batches, sums over them have ShardingOptions::sum_dtype: of whole gradients, or of the shards that come
// out of each reduction.

#include "trireme/comm/communicator.h"
#include "trireme/comm/peer_memory.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/formats/huggingface/weight_source.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/host_state.h"
#include "trireme/nn/trained_shard.h"
#include "trireme/nn/unit.h"
#include "trireme/ops/matmul/fp8_scales.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

class GatherSlots;
class GradientBuffers;
class TrainedCodes;
struct Filling;
struct UnitStorage;

struct ShardingOptions {
  at::ScalarType compute_dtype = at::kFloat;
  /// Per unit: whether it stays whole although the shard group has several ranks (from the plan). Only for frozen
  /// units. Empty: no unit stays whole.
  std::vector<bool> resident{};
  /// Recipe of the matrices of linear layers of frozen and of trained units. Delayed scales are part of this store.
  Recipe frozen = Recipe::kCompute, trained = Recipe::kCompute;
  /// The matrices of linear layers of frozen units are stored and gathered in NF4, and multiplied in the compute dtype.
  bool frozen_nf4 = false;
  /// Dtypes in which gradients are summed over ranks, and over micro-batches.
  at::ScalarType reduce_dtype = at::kFloat, sum_dtype = at::kFloat;
  /// Of the master weights: fp32, or with compute_dtype bf16 also bf16. Units that are used in fp32 have fp32.
  at::ScalarType master_dtype = at::kFloat;
  ShardPolicy policy = ShardPolicy::kFull;  // of trained units, if the shard group has several ranks
  /// Among the trained units that have matrices of linear layers, the first `compute_first` and the last `compute_last`
  /// units are multiplied with kCompute.
  int64_t compute_first = 0, compute_last = 0;
  /// load() reads each element from the files once per host: ranks of a host that hold the same elements read a share
  /// each and send it to the others. false: each rank reads all of its elements.
  bool read_per_host = false;
  /// Master weights and moments of the first `host_units` trained units are in memory of `host`, which outlives the
  /// store.
  int host_units = 0;
  HostState* host = nullptr;
  /// Per unit: whether the codes of its matrices stay transposed on the device too, so that dgrad transposes them only
  /// where they have changed (from the plan). Only for units with codes that are whole. Empty: of no unit.
  std::vector<bool> keeps_transposed{};
  int64_t tokens = 0;  // that this rank processes at a time; 0: unknown
};

/// Checks that `source`, opened from `path`, holds the checkpoint tensors of all units but replicated ones. Throws
/// ModelError, which lists missing tensors, wrong shapes and dtypes that weights cannot have. Reads headers only.
/// `nf4`: matrices of frozen linear layers become NF4, and may be stored so, all or none.
void check_weights(const std::vector<UnitSpec>& units, const WeightSource& source, const std::string& path,
                   bool nf4 = false);

class ShardedUnits : public UnitStore {
 public:
  ShardedUnits(std::vector<UnitSpec> units, Communicator& world, const RankGrid& grid, at::Device device,
               const ShardingOptions& options);
  ~ShardedUnits() override;

  /// Reads this rank's elements of the checkpoint tensors of all units but replicated ones; check_weights() has
  /// accepted `source`. `reader_threads` threads copy from the files. Throws ModelError with file and tensor for a
  /// weight that is not finite in the type that it is kept in. When reading fails on a rank, that rank still takes part
  /// in the collectives of the others, and throws at the end. Collective.
  void load(const WeightSource& source, int reader_threads, const std::function<void(double fraction)>& progress = {});
  /// Fills units with random weights as their specs say. Values depend only on (seed, tensor name, element), not on the
  /// sharding. `only_replicated`: only replicated units, for adapters on a loaded base model.
  void initialise(uint64_t seed, bool only_replicated);
  /// Sets one checkpoint tensor of a trained unit to `value`, the whole tensor (of an adapter read from disk). False if
  /// no trained unit has a tensor of that name. Call weights_changed() after the last one.
  bool assign(const std::string& tensor_name, const at::Tensor& value);

  const std::vector<at::Tensor>& parameters(int unit) override;
  const std::vector<WeightState>& weight_states(int unit) override;
  void pre_forward(int unit) override;
  void post_forward(int unit) override;
  void pre_backward(int unit) override;
  void post_backward(int unit) override;

  /// During the lifetime of such an object weights with delayed scales are multiplied in the compute dtype, because
  /// the scales do not cover the tensors of an evaluation.
  class Evaluation {
   public:
    explicit Evaluation(ShardedUnits& units) : units_(units) { units_.training_ = false; }
    Evaluation(const Evaluation&) = delete;
    Evaluation& operator=(const Evaluation&) = delete;
    ~Evaluation() { units_.training_ = true; }

   private:
    ShardedUnits& units_;
  };
  /// Call before the first forward of a step, also of a step that is computed again.
  void begin_step();
  /// Fp8Scales::nonfinite() of this rank's operands since begin_step(); undefined if there are no scales.
  at::Tensor nonfinite_operands() const { return scales_ ? scales_->nonfinite() : at::Tensor(); }
  /// "the input of x.weight", the first operand with a scale that held an infinity or NaN; empty if there is no such
  /// operand. Waits for the device.
  std::string find_nonfinite_operand() const;
  /// Call after the optimizer step, on all ranks (collective). Updates the scales for the next step. Returns the number
  /// of tensors of FP8 products with values beyond their scale's range, which were saturated (fp64 scalar on the
  /// device, equal on all ranks); undefined if there are no such products.
  at::Tensor end_step();
  /// The scales for a checkpoint; empty if there are none.
  std::vector<double> scale_state() const;
  /// False if `state` does not belong to this run's scales.
  bool restore_scales(const std::vector<double>& state);
  int64_t scaled_tensors() const { return scales_ ? scales_->tensors() : 0; }

  /// Call before each micro-batch's forward. `last`: it is the last micro-batch of the step.
  void begin_micro_batch(bool last);
  /// Waits (on the stream) for all reductions. Afterwards every TrainedShard has its gradient and no unit is gathered.
  /// A trained unit without a gradient is an internal error.
  void finish_backward();
  /// From now on `observer` gets every gradient of this rank before it is reduced, and may change it: of a matrix the
  /// sum over the micro-batches so far, of others one micro-batch's. Empty: none.
  void observe_gradients(std::function<void(const ParameterSpec&, const at::Tensor&)> observer);
  /// From now on reductions start at the end of backward: each rank first multiplies all its gradients, one for each
  /// unit, by their `factor` (fp32 device scalar).
  void clip_before_reduction(std::function<at::Tensor(const std::vector<at::Tensor>& gradients)> factor);
  /// Frees the step's gradients.
  void clear_gradients();
  /// Ends a forward without backward (evaluation); afterwards no unit is in use.
  void release();
  /// Call on all ranks when the shards of trained units have changed: gathered copies in slots become invalid, and
  /// whole compute copies start to be gathered again.
  void weights_changed();

  std::vector<TrainedShard>& trained() { return trained_; }

  /// Visits the checkpoint tensors of the units in order. On rank 0 `visit` gets the whole tensor on the CPU in
  /// `dtype`; on other ranks it is not called. Collective. `select` chooses units by index.
  void export_tensors(at::ScalarType dtype, const std::function<bool(int unit)>& select,
                      const std::function<void(const std::string& name, const at::Tensor& value)>& visit);

  const std::vector<UnitSpec>& units() const { return specs_; }
  /// Device memory of this store in bytes that is not allocated by the caching allocator.
  int64_t memory_outside_allocator() const { return outside_allocator_; }
  /// How frozen shards are gathered, as text for the log; empty if no frozen unit is sharded on a GPU.
  const std::string& gather_path() const { return gather_path_; }

 private:
  void make_units();
  void make_peer_memory();
  void add_trained(size_t unit);
  void assign_weight_states();
  bool is_resident(size_t unit) const;
  bool holds_frozen_codes(const UnitSpec& spec) const;
  void expand(int unit);
  /// All units with trained codes are divided, or none is. There is one.
  bool divides_codes() const;
  void use(int unit);
  /// What has been computed from the unit's weights is not theirs any more.
  void forget_derived(size_t unit);
  /// Fills a unit; weights_changed() then makes codes and whole copies of trained units.
  void fill(size_t unit, const Filling& filling);

  std::vector<UnitSpec> specs_;
  Communicator& world_;
  RankGrid grid_;
  at::Device device_;
  ShardingOptions options_;
  std::unique_ptr<Communicator> shard_group_, replica_group_;  // null: a group of one rank
  std::unique_ptr<Communicator> narrow_group_;                 // of the shard group; null: no reduction hides
  std::unique_ptr<PeerMemory> peers_;
  std::vector<int64_t> peer_offsets_;  // per unit, in the peer memory; -1: not there
  std::string gather_path_;
  int64_t outside_allocator_ = 0;
  std::vector<bool> trained_fp8_;  // per unit: trained_in_fp8()
  std::vector<std::unique_ptr<UnitStorage>> units_;
  std::vector<TrainedShard> trained_;    // of the trained units, in order
  std::vector<int> trained_index_;       // per unit: in trained_, and of the unit in gradients_; -1: frozen
  std::vector<int> codes_index_;         // per unit: in codes_; -1: no codes
  std::unique_ptr<TrainedCodes> codes_;  // null: no unit has trained codes
  std::unique_ptr<GatherSlots> slots_;
  std::unique_ptr<GradientBuffers> gradients_;
  at::Tensor expanded_;     // the matrices of one unit in NF4, in the compute dtype; undefined: there is none
  int expanded_unit_ = -1;  // the unit whose matrices are there
  bool expanded_in_use_ = false;
  std::vector<WorkPtr> arriving_;  // per unit: running gather of a whole compute copy; null: none
  std::vector<std::vector<WeightState>> weight_states_, evaluation_states_;  // per unit and parameter
  std::unique_ptr<Fp8Scales> scales_;
  bool training_ = true;
};

}  // namespace trireme
