// From the gradient of a leaf tensor to the shard that the optimizer reads: sums over micro-batches, reductions over
// ranks.
#include <ATen/core/grad_mode.h>
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/fsdp/sharded_units.h"
#include "unit_state.h"

#include <algorithm>

namespace trireme {

namespace {

constexpr size_t kReductionsInFlight = 2;
/// Gradients up to this size (norms, biases) are collected and added together when the unit is complete: launching a
/// kernel takes longer than copying so few elements.
constexpr int64_t kSmallGradient = 65536;

}  // namespace

void ShardedUnits::begin_micro_batch(bool last) {
  last_micro_batch_ = last;
  for (auto& state : states_) state->arrived.assign(state->arrived.size(), false);
}

void ShardedUnits::gradient_arrived(int unit, int parameter) {
  at::NoGradGuard no_grad;
  UnitState& state = *states_[unit];
  at::Tensor& grad = state.views[parameter].mutable_grad();
  if (!grad.defined()) return;
  if (!state.gradient.defined())
    state.gradient = at::empty({state.layout.numel},
                               state.master.options().dtype(last_micro_batch_ ? options_.reduce_dtype : at::kFloat));
  const ParameterSpec& spec = specs_[unit].parameters[parameter];
  if (observer_) observer_(spec, grad);
  at::Tensor sum = state.gradient.narrow(0, state.layout.offsets[parameter], spec.numel());
  const bool first = !state.written[parameter];
  if (spec.numel() <= kSmallGradient && device_.is_cuda()) {
    auto& [sums, values] = first ? state.small_first : state.small_more;
    sums.push_back(sum);
    values.push_back(grad.reshape(-1));
  } else if (first) {
    sum.copy_(grad.reshape(-1));
  } else {
    sum.add_(grad.reshape(-1));
  }
  if (first) {
    // The padding up to the next parameter is reduced as well and must be finite.
    const int64_t end = state.layout.offsets[parameter] + spec.numel();
    const bool is_last = parameter + 1 == static_cast<int>(state.layout.offsets.size());
    const int64_t next = is_last ? state.layout.numel : state.layout.offsets[parameter + 1];
    if (end < next) state.gradient.narrow(0, end, next - end).zero_();
  }
  grad = at::Tensor();
  state.written[parameter] = true;
  state.arrived[parameter] = true;
  if (!std::all_of(state.arrived.begin(), state.arrived.end(), [](bool b) { return b; })) return;
  state.add_small_gradients();
  if (last_micro_batch_) {
    if (clip_)
      unclipped_.push_back(unit);
    else
      start_reduction(unit);
  }
}

void ShardedUnits::clip_and_reduce() {
  if (unclipped_.empty()) return;
  at::NoGradGuard no_grad;
  at::Tensor square = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device_));
  for (const int unit : unclipped_)
    square.add_(at::linalg_vector_norm(states_[unit]->gradient, 2, {}, false, at::kFloat).to(at::kDouble).square());
  const at::Tensor factor = clip_(square);
  for (const int unit : unclipped_) {
    states_[unit]->gradient.mul_(factor);
    start_reduction(unit);
  }
  unclipped_.clear();
}

void ShardedUnits::start_reduction(int unit) {
  const ProfileRange range(states_[unit]->sharded ? "reduce_scatter" : "all_reduce", specs_[unit].name);
  UnitState& state = *states_[unit];
  TrainedShard& trained = trained_[state.trained_index];
  state.gradient = state.gradient.to(options_.reduce_dtype);
  if (state.sharded) {
    trained.gradient = at::empty({state.layout.shard_numel}, state.gradient.options());
    state.reduction = shard_group_->reduce_scatter(trained.gradient, state.gradient);
  } else {
    trained.gradient = state.gradient;
    if (world_.size() > 1) state.reduction = world_.all_reduce(state.gradient);
  }
  reducing_.push_back(unit);
  // Bounds the number of whole gradients in memory: the oldest reduction has usually finished when the second next one
  // starts.
  if (reducing_.size() > kReductionsInFlight) {
    drop_whole_gradient(reducing_.front());
    reducing_.erase(reducing_.begin());
  }
}

/// Waits for the reduction over the shard group and frees the whole gradient. The reduction over the replicas, started
/// here, reads this rank's shard only, which stays for the optimizer; finish_backward() waits for it.
void ShardedUnits::drop_whole_gradient(int unit) {
  UnitState& state = *states_[unit];
  if (state.reduction) state.reduction->wait();
  state.reduction.reset();
  state.gradient = at::Tensor();
  if (state.sharded && replica_group_)
    state.reduction = replica_group_->all_reduce(trained_[state.trained_index].gradient);
}

void ShardedUnits::finish_backward() {
  clip_and_reduce();
  for (const int unit : reducing_) drop_whole_gradient(unit);
  for (auto& state : states_) {
    if (state->reduction) state->reduction->wait();
    state->reduction.reset();
  }
  reducing_.clear();
  for (size_t u = 0; u < states_.size(); ++u)
    if (specs_[u].trained)
      TRIREME_CHECK(trained_[states_[u]->trained_index].gradient.defined(), "unit ", specs_[u].name,
                    " received no gradient in this step");
  release();
}

void ShardedUnits::clear_gradients() {
  for (size_t u = 0; u < states_.size(); ++u) {
    if (!specs_[u].trained) continue;
    states_[u]->gradient = at::Tensor();
    states_[u]->written.assign(states_[u]->written.size(), false);
    trained_[states_[u]->trained_index].gradient = at::Tensor();
  }
}

}  // namespace trireme
