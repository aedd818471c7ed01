// From the gradient of a parameter to the shard that the optimizer reads: sums over micro-batches, reductions over
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

/// `part` [n] of the buffer becomes the gradient, or has it added if it holds earlier ones.
void put_gradient(const at::Tensor& part, const at::Tensor& gradient, bool adds) {
  if (adds)
    part.add_(gradient.reshape(-1));
  else
    part.copy_(gradient.reshape(-1));
}

}  // namespace

/// Whether each micro-batch's gradient of the unit is reduced by itself. Clipping before the reduction needs the sum
/// over the micro-batches, whole.
bool ShardedUnits::reduces_each(const UnitState& state) const {
  return state.divided && options_.policy >= ShardPolicy::kGradients && !clip_;
}

void ShardedUnits::begin_micro_batch(bool last) {
  last_micro_batch_ = last;
  for (auto& state : states_) {
    state->arrived.assign(state->arrived.size(), false);
    if (reduces_each(*state)) state->written.assign(state->written.size(), false);
  }
}

/// The parameter's part of the unit's buffer, which is made for the first one: [numel of the parameter].
at::Tensor ShardedUnits::gradient_part(int unit, int parameter) {
  UnitState& state = *states_[unit];
  // The buffer of the micro-batch before may still be in use.
  if (const auto before = std::find(reducing_.begin(), reducing_.end(), unit); before != reducing_.end()) {
    finish_reduction(unit);
    reducing_.erase(before);
  }
  if (!state.gradient.defined()) {
    const bool one = last_micro_batch_ || reduces_each(state);
    state.gradient =
        at::empty({state.layout.numel}, state.master.options().dtype(one ? options_.reduce_dtype : at::kFloat));
  }
  return state.gradient.narrow(0, state.layout.offsets[parameter], specs_[unit].parameters[parameter].numel());
}

GradientTarget ShardedUnits::gradient_target(int unit, int parameter) {
  UnitState& state = *states_[unit];
  const at::Tensor part = gradient_part(unit, parameter);
  TRIREME_CHECK(!state.arrived[parameter], "a micro-batch has two gradients of ", specs_[unit].name, ".",
                specs_[unit].parameters[parameter].name);
  if (observer_) {
    state.observed = at::empty(specs_[unit].parameters[parameter].shape, part.options().dtype(options_.compute_dtype));
    return {state.observed, false};
  }
  return {part.view(specs_[unit].parameters[parameter].shape), state.written[parameter]};
}

void ShardedUnits::gradient_written(int unit, int parameter) {
  at::NoGradGuard no_grad;
  UnitState& state = *states_[unit];
  if (state.observed.defined()) {
    observer_(specs_[unit].parameters[parameter], state.observed);
    put_gradient(gradient_part(unit, parameter), state.observed, state.written[parameter]);
    state.observed = at::Tensor();
  }
  parameter_done(unit, parameter);
}

void ShardedUnits::gradient_arrived(int unit, int parameter) {
  at::NoGradGuard no_grad;
  UnitState& state = *states_[unit];
  at::Tensor& grad = state.views[parameter].mutable_grad();
  if (!grad.defined()) return;
  const ParameterSpec& spec = specs_[unit].parameters[parameter];
  if (observer_) observer_(spec, grad);
  const at::Tensor sum = gradient_part(unit, parameter);
  const bool adds = state.written[parameter];
  if (spec.numel() <= kSmallGradient && device_.is_cuda()) {
    auto& [sums, values] = adds ? state.small_more : state.small_first;
    sums.push_back(sum);
    values.push_back(grad.reshape(-1));
  } else {
    put_gradient(sum, grad, adds);
  }
  grad = at::Tensor();
  parameter_done(unit, parameter);
}

/// The parameter's gradient of this micro-batch is in the buffer, or among the small ones. Starts the unit's reduction
/// when it was the last one.
void ShardedUnits::parameter_done(int unit, int parameter) {
  UnitState& state = *states_[unit];
  if (!state.written[parameter]) {
    // The padding up to the next parameter is reduced as well and must be finite.
    const int64_t end = state.layout.offsets[parameter] + specs_[unit].parameters[parameter].numel();
    const bool is_last = parameter + 1 == static_cast<int>(state.layout.offsets.size());
    const int64_t next = is_last ? state.layout.numel : state.layout.offsets[parameter + 1];
    if (end < next) state.gradient.narrow(0, end, next - end).zero_();
  }
  state.written[parameter] = true;
  state.arrived[parameter] = true;
  if (!std::all_of(state.arrived.begin(), state.arrived.end(), [](bool b) { return b; })) return;
  state.add_small_gradients();
  if (last_micro_batch_ && clip_)
    unclipped_.push_back(unit);
  else if (last_micro_batch_ || reduces_each(state))
    start_reduction(unit);
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
  const ProfileRange range(states_[unit]->divided ? "reduce_scatter" : "all_reduce", specs_[unit].name);
  UnitState& state = *states_[unit];
  state.gradient = state.gradient.to(options_.reduce_dtype);
  state.final_reduction = last_micro_batch_;
  if (state.divided) {
    state.reduced = at::empty({state.layout.shard_numel}, state.gradient.options());
    state.reduction = shard_group_->reduce_scatter(state.reduced, state.gradient);
  } else {
    state.reduced = state.gradient;
    if (world_.size() > 1) state.reduction = world_.all_reduce(state.gradient);
  }
  reducing_.push_back(unit);
  // Bounds the number of whole gradients in memory: the oldest reduction has usually finished when the second next one
  // starts.
  if (reducing_.size() > kReductionsInFlight) {
    finish_reduction(reducing_.front());
    reducing_.erase(reducing_.begin());
  }
}

/// Waits for the reduction over the shard group, frees the whole gradient and adds the result to the unit's shard.
/// After the last micro-batch the reduction over the replicas starts here. It reads this rank's shard only, which stays
/// for the optimizer; finish_backward() waits for it.
void ShardedUnits::finish_reduction(int unit) {
  UnitState& state = *states_[unit];
  if (state.reduction) state.reduction->wait();
  state.reduction.reset();
  state.gradient = at::Tensor();
  at::Tensor& sum = trained_[state.trained_index].gradient;
  if (sum.defined())
    sum.add_(state.reduced);
  else
    sum = state.final_reduction ? state.reduced : state.reduced.to(at::kFloat);
  state.reduced = at::Tensor();
  if (!state.final_reduction || !state.divided || !replica_group_) return;
  sum = sum.to(options_.reduce_dtype);
  state.reduction = replica_group_->all_reduce(sum);
}

void ShardedUnits::finish_backward() {
  at::NoGradGuard no_grad;
  clip_and_reduce();
  for (const int unit : reducing_) finish_reduction(unit);
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
