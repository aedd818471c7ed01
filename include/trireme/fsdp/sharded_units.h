#pragma once
// Weights of a model cut over ranks: the store behind enter_unit()/leave_unit().
//
// A unit's flat buffer is cut evenly over its shard group (a run of shard_size neighbouring ranks); groups hold copies
// of each other (HSDP). Around a sharded unit's use the store gathers it into one of a few slots, and starts the
// gathers of the units that come next (forward: upwards, backward: downwards) while this one computes: frozen shards
// are pulled from the memory of peers on the same host (PeerMemory), others go through the communicator. A slot keeps
// its unit until another one needs the room, so that the last unit of forward is still there when backward starts.
// Gradients of trained units are accumulated in fp32 over the micro-batches of a step and reduced once, as soon as the
// last micro-batch has produced all gradients of a unit.
//
//   frozen unit:  shard in the storage dtype; with frozen_fp8 its matrices as E4M3 bytes with one scale each, found
//   while they load trained unit: fp32 master shard + compute copy; gradient shard after finish_backward() replicated:
//   whole on every rank; its gradient goes through one flat all-reduce over the world

#include "trireme/comm/communicator.h"
#include "trireme/comm/peer_memory.h"
#include "trireme/formats/weight_source.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/trained_shard.h"
#include "trireme/nn/unit.h"
#include "trireme/ops/matmul/fp8_scales.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

struct ShardingOptions {
  at::ScalarType compute_dtype = at::kFloat;
  int shard_size = 1;  // ranks a unit is cut over; divides the world
  /// Per unit: keep whole although shard_size > 1 (the plan's choice). Empty = none. Only frozen units.
  std::vector<bool> resident{};
  /// Of the quantisable parameters of frozen units (kCompute, kFp8Frozen: stored in FP8) and of trained ones (kCompute,
  /// kFp8Delayed: their scales live here).
  Recipe frozen = Recipe::kCompute, trained = Recipe::kCompute;
  /// Gradients are summed over ranks in this type. Over several micro-batches they are always added up in fp32 first.
  at::ScalarType reduce_dtype = at::kFloat;
};

/// ModelError listing missing tensors, wrong shapes and types that no weights have among what `source`, opened from
/// `path`, must hold for these units (all but replicated ones). Reads headers only.
void check_weights(const std::vector<UnitSpec>& units, const WeightSource& source, const std::string& path);

class ShardedUnits : public UnitStore {
 public:
  ShardedUnits(std::vector<UnitSpec> units, Communicator& world, at::Device device, const ShardingOptions& options);
  ~ShardedUnits() override;

  /// Reads this rank's elements of the checkpoint tensors of all units that `source` must hold (all but replicated
  /// ones), which check_weights() has accepted. `reader_threads` copy from the files at a time.
  void load(const WeightSource& source, int reader_threads, const std::function<void(double fraction)>& progress = {});
  /// Fills units with random weights as their specs say, a function of (seed, tensor name, element) alone: the same
  /// whatever the sharding. `only_replicated`: adapters on top of a loaded base.
  void initialise(uint64_t seed, bool only_replicated);
  /// Sets one checkpoint tensor of a replicated unit from whole values (an adapter read from disk). False when nobody
  /// has that name.
  bool assign(const std::string& tensor_name, const at::Tensor& value);

  const std::vector<at::Tensor>& parameters(int unit) override;
  const std::vector<WeightState>& weight_states(int unit) override;
  void pre_forward(int unit) override;
  void post_forward(int unit) override;
  void pre_backward(int unit) override;
  void post_backward(int unit) override;

  /// While one of these lives, trained weights are multiplied in the compute dtype: no scale has seen the tensors of an
  /// evaluation.
  class Evaluation {
   public:
    explicit Evaluation(ShardedUnits& units) : units_(units) { units_.training_ = false; }
    Evaluation(const Evaluation&) = delete;
    Evaluation& operator=(const Evaluation&) = delete;
    ~Evaluation() { units_.training_ = true; }

   private:
    ShardedUnits& units_;
  };
  /// Before the first forward of a step.
  void begin_step();
  /// After the optimizer of every step; collective. Scales of the next step follow; returns how many tensors of FP8
  /// products had values beyond their scale, which were saturated (fp64 scalar on the device, equal on all ranks);
  /// undefined without such products.
  at::Tensor end_step();
  /// The scales as a checkpoint keeps them; empty without any.
  std::vector<double> scale_state() const;
  /// False: not a state of this run's scales.
  bool restore_scales(const std::vector<double>& state);
  int64_t scaled_tensors() const { return scales_ ? scales_->tensors() : 0; }

  /// Before the first backward of a step; `last` = the reductions start in this micro-batch's backward.
  void begin_micro_batch(bool last);
  /// Waits (on the stream) for all reductions; after it every TrainedShard has its gradient and no unit is gathered.
  void finish_backward();
  /// Called with every gradient of this rank before it is summed and reduced; empty: nobody.
  void observe_gradients(std::function<void(const ParameterSpec&, at::Tensor&)> observer) {
    observer_ = std::move(observer);
  }
  /// From now on reductions wait for the end of backward; each rank multiplies all its gradients with `factor` of their
  /// squared L2 norm (fp64 device scalar to fp32 device scalar) before they are summed.
  void clip_before_reduction(std::function<at::Tensor(const at::Tensor& square)> factor) { clip_ = std::move(factor); }
  /// Drops the step's gradients.
  void clear_gradients();
  /// Ends a forward without backward (evaluation): no unit is in use any more.
  void release();
  /// The optimizer has changed the trained units: what slots hold of them is stale.
  void invalidate_trained();

  std::vector<TrainedShard>& trained() { return trained_; }

  /// Walks the checkpoint tensors of the units in order; on rank 0 `visit` gets the whole tensor on the CPU in `dtype`,
  /// on other ranks nothing. Collective. `select` chooses units by index.
  void export_tensors(at::ScalarType dtype, const std::function<bool(int unit)>& select,
                      const std::function<void(const std::string& name, const at::Tensor& value)>& visit);

  const std::vector<UnitSpec>& units() const { return specs_; }
  int64_t gathered_bytes_per_step_forward() const;  // what one forward pass receives per rank
  struct MemoryUse {
    int64_t shards = 0, masters = 0, gather_slots = 0;
  };
  MemoryUse memory_use() const;
  /// Device memory of this store that the caching allocator does not know.
  int64_t memory_outside_allocator() const { return outside_allocator_; }
  /// How frozen shards travel, for people; empty where none does.
  const std::string& gather_path() const { return gather_path_; }

 private:
  struct UnitState;
  struct Slot;
  void assign_weight_states();
  void use(int unit);
  void start_gather(int unit);
  Slot* free_slot();
  void evict(Slot& slot);
  void prefetch(int unit, int direction);
  void gradient_arrived(int unit, int parameter);
  void start_reduction(int unit);
  void clip_and_reduce();
  void drop_whole_gradient(int unit);
  at::Tensor whole(int unit);
  /// Writes values of a piece of a parameter's part.
  using Writer = std::function<void(const ParameterSpec&, const ParameterPart&, const LayoutPiece&, at::Tensor target)>;
  /// `settle` is called when all pieces were handed to `write`, which may still be writing.
  void fill(int unit, const Writer& write, const std::function<void()>& settle = {});
  void fill_fp8(int unit, const Writer& write, const std::function<void()>& settle);
  void synchronise() const;

  std::function<void(const ParameterSpec&, at::Tensor&)> observer_;
  std::vector<UnitSpec> specs_;
  Communicator& world_;
  at::Device device_;
  ShardingOptions options_;
  std::unique_ptr<Communicator> shard_group_, replica_group_;
  std::unique_ptr<PeerMemory> peers_;
  std::string gather_path_;
  int64_t outside_allocator_ = 0;
  std::vector<std::unique_ptr<UnitState>> states_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<TrainedShard> trained_;
  std::unique_ptr<Fp8Scales> scales_;
  bool training_ = true;
  std::vector<int> reducing_;  // units whose whole gradient is being reduced, oldest first
  std::function<at::Tensor(const at::Tensor&)> clip_;
  std::vector<int> unclipped_;  // units whose gradients wait for the clipping
  int64_t gather_clock_ = 0;
  bool last_micro_batch_ = true;
};

}  // namespace trireme
