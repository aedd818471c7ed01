#pragma once
// Private to fsdp/: from the gradient of a parameter to the shard that the optimizer reads.

#include "trireme/comm/communicator.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/trained_shard.h"
#include "trireme/nn/unit.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme {

/// One flat buffer for each trained unit. wgrad of its matrices writes there through a GradientSink. Gradients of other
/// parameters are moved there as soon as autograd has computed them, so that no second copy stays. When a micro-batch
/// has produced all gradients of a unit, its reduction over the ranks starts, if it is the step's last micro-batch or
/// each micro-batch is reduced separately; at most two reductions run at a time.
class GradientBuffers {
 public:
  struct Options {
    at::Device device = at::kCPU;
    at::ScalarType reduce_dtype = at::kFloat, sum_dtype = at::kFloat;
    /// A divided unit's gradient is reduced in each micro-batch, and shards are summed in sum_dtype. Otherwise whole
    /// gradients are summed in it over the micro-batches.
    bool reduce_each = false;
    int64_t tokens = 0;  // processed at a time
  };
  /// Multiprocessors that a reduction beside products takes. BERT-large's largest products of weight gradients have 128
  /// tiles, one wave on 132 multiprocessors: NCCL's 24 beside them make it two.
  static constexpr int kNarrow = 4;
  /// Tokens processed at a time from which backward through a unit hides the reduction of one of its size. A reduction
  /// with kNarrow multiprocessors of an H200 moves 66 GB/s, up to 4 bytes a parameter; products take 4 operations a
  /// parameter and token, up to 1.2e15 a second in FP8. A third is added.
  static constexpr int64_t kTokensThatHide = 20480;
  /// `shards`, `replicas`: null where such a group has one rank. `narrow`: the group of `shards` with kNarrow
  /// multiprocessors for reductions that the next unit's backward hides; null: there is none.
  GradientBuffers(Communicator& world, Communicator* shards, Communicator* narrow, Communicator* replicas,
                  const Options& options);
  ~GradientBuffers();

  /// `divided`: a rank gets its shard of the sum over the ranks, not the whole. `tensors`: the unit's parameters;
  /// parameters without a sink become leaves that require grad. All arguments outlive this object.
  void add(const UnitSpec& spec, const UnitLayout& layout, bool divided, std::vector<at::Tensor>& tensors,
           TrainedShard& shard);
  /// Of a unit, by the order of add(). Null where autograd carries the gradient.
  GradientSink* sink(size_t unit, size_t parameter) const;

  /// From now on `observer` gets every gradient of this rank before it is reduced, and may change it: of a matrix the
  /// sum over the micro-batches so far, of others one micro-batch's. Empty: none.
  void observe(std::function<void(const ParameterSpec&, const at::Tensor&)> observer) {
    observer_ = std::move(observer);
  }
  /// From now on reductions start at the end of backward, after all gradients, one for each unit, were multiplied by
  /// their `factor`.
  void clip_before_reduction(std::function<at::Tensor(const std::vector<at::Tensor>& gradients)> factor) {
    clip_ = std::move(factor);
  }

  /// Call before each micro-batch's forward. `last`: it is the step's last one.
  void begin_micro_batch(bool last);
  /// Waits (on the stream) for all reductions. Afterwards every TrainedShard has its gradient; a unit without a
  /// gradient is an InternalError.
  void finish();
  /// Frees the step's gradients.
  void clear();

 private:
  struct Sink;
  /// Small gradients of a micro-batch that are not in the buffer yet.
  struct Small {
    std::vector<at::Tensor> sums, values;
  };
  struct Unit {
    size_t index;  // in units_
    const UnitSpec& spec;
    const UnitLayout& layout;
    bool divided;
    std::vector<at::Tensor>& tensors;
    TrainedShard& shard;
    std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;  // of parameters without a sink
    std::vector<std::unique_ptr<Sink>> sinks;                          // one per parameter
    /// [numel], this rank's: of one micro-batch in the reduction's dtype, or the sum over several in sum_dtype.
    at::Tensor gradient{};
    std::vector<int> arrived;      // per parameter: its gradients of this micro-batch
    std::vector<bool> written;     // per parameter: the buffer has gradients of it
    Small first{}, more{};         // values to copy, and values to add
    WorkPtr reduction{};           // over the shard group or the world, then over the replicas
    at::Tensor reduced{};          // result of the reduction over the shard group or the world
    bool final_reduction = false;  // the reduction belongs to the step's last micro-batch
  };
  /// Gradients of a parameter in a micro-batch.
  static int expected(const ParameterSpec& spec) { return std::max(1, spec.given_gradients); }
  bool reduces_each(const Unit& unit) const { return unit.divided && options_.reduce_each && !clip_; }
  at::Tensor part(Unit& unit, size_t parameter);
  // Two ways lead to parameter_done(). A matrix, or an embedding: an operation asks its sink for target() and then
  // calls written(). Another parameter: autograd's hook calls arrived() when it has accumulated the gradient.
  GradientTarget target(Unit& unit, size_t parameter);
  void written(Unit& unit, size_t parameter);
  void arrived(Unit& unit, size_t parameter);
  void parameter_done(Unit& unit, size_t parameter);
  void clip_and_reduce();
  bool hides_reduction(const Unit& unit) const;
  void start_reduction(Unit& unit, Communicator* shards);
  void finish_reduction(Unit& unit);

  Communicator& world_;
  Communicator *shards_, *narrow_, *replicas_;
  Options options_;
  std::function<void(const ParameterSpec&, const at::Tensor&)> observer_;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> clip_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Unit*> reducing_;   // units whose whole gradient is being reduced, oldest first
  std::vector<Unit*> unclipped_;  // units whose gradients are not clipped yet
  bool last_micro_batch_ = true;
};

}  // namespace trireme
