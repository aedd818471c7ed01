#include "gradient_buffers.h"

#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr size_t kReductionsInFlight = 2;
/// Gradients up to this size (norms, biases) are collected and added together when the unit is complete: launching a
/// kernel takes longer than copying so few elements.
constexpr int64_t kSmallGradient = 65536;

/// Writes the gradient to `part` [n] of the buffer, or adds it if the part holds earlier micro-batches.
void put_gradient(const at::Tensor& part, const at::Tensor& gradient, bool adds) {
  if (adds)
    part.add_(gradient.reshape(-1));
  else
    part.copy_(gradient.reshape(-1));
}

}  // namespace

/// Takes the gradient of one matrix.
struct GradientBuffers::Sink final : GradientSink {
  Sink(GradientBuffers& owner, Unit& of_unit, size_t of_parameter)
      : buffers(owner), unit(of_unit), parameter(of_parameter) {}
  GradientTarget target() override { return buffers.target(unit, parameter); }
  void written() override { buffers.written(unit, parameter); }
  GradientBuffers& buffers;
  Unit& unit;
  size_t parameter;
};

GradientBuffers::GradientBuffers(Communicator& world, Communicator* shards, Communicator* narrow,
                                 Communicator* replicas, const Options& options)
    : world_(world), shards_(shards), narrow_(narrow), replicas_(replicas), options_(options) {}
GradientBuffers::~GradientBuffers() = default;

void GradientBuffers::add(const UnitSpec& spec, const UnitLayout& layout, bool divided,
                          std::vector<at::Tensor>& tensors, TrainedShard& shard) {
  const size_t count = spec.parameters.size();
  units_.push_back(std::unique_ptr<Unit>(new Unit{.index = units_.size(),
                                                  .spec = spec,
                                                  .layout = layout,
                                                  .divided = divided,
                                                  .tensors = tensors,
                                                  .shard = shard,
                                                  .accumulators = {},
                                                  .sinks = {},
                                                  .arrived = std::vector<int>(count, 0),
                                                  .written = std::vector<bool>(count, false)}));
  Unit& unit = *units_.back();
  unit.sinks.resize(count);
  for (size_t p = 0; p < count; ++p) {
    if (spec.parameters[p].linear || spec.parameters[p].given_gradients > 0) {
      unit.sinks[p] = std::make_unique<Sink>(*this, unit, p);
      continue;
    }
    tensors[p].set_requires_grad(true);
    auto accumulator = torch::autograd::impl::grad_accumulator(tensors[p]);
    accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, &unit, p](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          arrived(unit, p);
          return outputs;
        }));
    unit.accumulators.push_back(std::move(accumulator));
  }
}

GradientSink* GradientBuffers::sink(size_t unit, size_t parameter) const {
  return units_.at(unit)->sinks.at(parameter).get();
}

void GradientBuffers::begin_micro_batch(bool last) {
  last_micro_batch_ = last;
  for (const auto& unit : units_) {
    unit->arrived.assign(unit->arrived.size(), 0);
    // Clipping before the reduction needs the sum over the micro-batches, whole.
    if (reduces_each(*unit)) unit->written.assign(unit->written.size(), false);
  }
}

/// The parameter's part of the unit's buffer, which is made for the first one: [numel of the parameter].
at::Tensor GradientBuffers::part(Unit& unit, size_t parameter) {
  // The buffer of the micro-batch before may still be in use.
  if (const auto before = std::find(reducing_.begin(), reducing_.end(), &unit); before != reducing_.end()) {
    finish_reduction(unit);
    reducing_.erase(before);
  }
  if (!unit.gradient.defined()) {
    const bool one = last_micro_batch_ || reduces_each(unit);
    unit.gradient =
        at::empty({unit.layout.numel},
                  at::TensorOptions(options_.device).dtype(one ? options_.reduce_dtype : options_.sum_dtype));
  }
  return unit.gradient.narrow(0, unit.layout.offsets[parameter], unit.spec.parameters[parameter].numel());
}

GradientTarget GradientBuffers::target(Unit& unit, size_t parameter) {
  const at::Tensor sum = part(unit, parameter);
  const ParameterSpec& spec = unit.spec.parameters[parameter];
  TRIREME_CHECK(unit.arrived[parameter] < expected(spec), "a micro-batch has more than ", expected(spec),
                " gradients of ", unit.spec.name, ".", spec.name);
  return {sum.view(spec.shape), unit.written[parameter]};
}

void GradientBuffers::written(Unit& unit, size_t parameter) {
  at::NoGradGuard no_grad;
  const ParameterSpec& spec = unit.spec.parameters[parameter];
  if (observer_ && unit.arrived[parameter] + 1 == expected(spec)) observer_(spec, part(unit, parameter));
  parameter_done(unit, parameter);
}

void GradientBuffers::arrived(Unit& unit, size_t parameter) {
  at::NoGradGuard no_grad;
  at::Tensor& grad = unit.tensors[parameter].mutable_grad();
  if (!grad.defined()) return;
  const ParameterSpec& spec = unit.spec.parameters[parameter];
  if (observer_) observer_(spec, grad);
  const at::Tensor sum = part(unit, parameter);
  const bool adds = unit.written[parameter];
  if (spec.numel() <= kSmallGradient && options_.device.is_cuda()) {
    auto& [sums, values] = adds ? unit.more : unit.first;
    sums.push_back(sum);
    values.push_back(grad.reshape(-1));
  } else {
    put_gradient(sum, grad, adds);
  }
  grad = at::Tensor();
  parameter_done(unit, parameter);
}

/// A gradient of the parameter is in the buffer, or among the small gradients. Starts the unit's reduction when it was
/// the micro-batch's last one.
void GradientBuffers::parameter_done(Unit& unit, size_t parameter) {
  if (!unit.written[parameter]) {
    // The padding up to the next parameter is reduced as well and must be finite.
    const int64_t end = unit.layout.offsets[parameter] + unit.spec.parameters[parameter].numel();
    const bool is_last = parameter + 1 == unit.layout.offsets.size();
    const int64_t next = is_last ? unit.layout.numel : unit.layout.offsets[parameter + 1];
    if (end < next) unit.gradient.narrow(0, end, next - end).zero_();
  }
  unit.written[parameter] = true;
  ++unit.arrived[parameter];
  for (size_t p = 0; p < unit.arrived.size(); ++p)
    if (unit.arrived[p] < expected(unit.spec.parameters[p])) return;
  if (!unit.first.sums.empty()) at::_foreach_copy_(unit.first.sums, unit.first.values);
  if (!unit.more.sums.empty()) at::_foreach_add_(unit.more.sums, unit.more.values);
  unit.first = unit.more = {};
  if (last_micro_batch_ && clip_)
    unclipped_.push_back(&unit);
  else if (last_micro_batch_ || reduces_each(unit))
    start_reduction(unit, hides_reduction(unit) ? narrow_ : shards_);
}

void GradientBuffers::clip_and_reduce() {
  if (unclipped_.empty()) return;
  std::vector<at::Tensor> gradients;
  for (const Unit* unit : unclipped_) gradients.push_back(unit->gradient);
  const at::Tensor factor = clip_(gradients);
  gradients.clear();
  for (Unit* unit : unclipped_) {
    unit->gradient.mul_(factor);
    start_reduction(*unit, shards_);
  }
  unclipped_.clear();
}

/// Whether the backward of the unit below lasts longer than a reduction of this unit with kNarrow multiprocessors.
bool GradientBuffers::hides_reduction(const Unit& unit) const {
  if (narrow_ == nullptr || unit.index < 2) return false;
  return options_.tokens * units_[unit.index - 1]->layout.numel >= kTokensThatHide * unit.layout.numel;
}

/// `shards`: the shard group, or narrow_.
void GradientBuffers::start_reduction(Unit& unit, Communicator* shards) {
  const ProfileRange range(unit.divided ? "reduce_scatter" : "all_reduce", unit.spec.name);
  unit.gradient = unit.gradient.to(options_.reduce_dtype);
  unit.final_reduction = last_micro_batch_;
  if (unit.divided) {
    unit.reduced = at::empty({unit.layout.shard_numel}, unit.gradient.options());
    unit.reduction = shards->reduce_scatter(unit.reduced, unit.gradient);
  } else {
    unit.reduced = unit.gradient;
    if (world_.size() > 1) unit.reduction = world_.all_reduce(unit.gradient);
  }
  reducing_.push_back(&unit);
  // Bounds the number of whole gradients in memory: the oldest reduction has usually finished when the second next one
  // starts.
  if (reducing_.size() > kReductionsInFlight) {
    finish_reduction(*reducing_.front());
    reducing_.erase(reducing_.begin());
  }
}

/// Waits for the reduction over the shard group, frees the whole gradient and adds the result to the unit's shard.
/// After the last micro-batch the reduction over the replicas starts here. It reads this rank's shard only, which stays
/// for the optimizer; finish() waits for it.
void GradientBuffers::finish_reduction(Unit& unit) {
  if (unit.reduction) unit.reduction->wait();
  unit.reduction.reset();
  unit.gradient = at::Tensor();
  at::Tensor& sum = unit.shard.gradient;
  if (sum.defined())
    sum.add_(unit.reduced);
  else
    sum = unit.final_reduction ? unit.reduced : unit.reduced.to(options_.sum_dtype);
  unit.reduced = at::Tensor();
  if (!unit.final_reduction || !unit.divided || replicas_ == nullptr) return;
  sum = sum.to(options_.reduce_dtype);
  unit.reduction = replicas_->all_reduce(sum);
}

void GradientBuffers::finish() {
  at::NoGradGuard no_grad;
  clip_and_reduce();
  for (Unit* unit : reducing_) finish_reduction(*unit);
  for (const auto& unit : units_) {
    if (unit->reduction) unit->reduction->wait();
    unit->reduction.reset();
  }
  reducing_.clear();
  for (const auto& unit : units_)
    TRIREME_CHECK(unit->shard.gradient.defined(), "unit ", unit->spec.name, " received no gradient in this step");
}

void GradientBuffers::clear() {
  for (const auto& unit : units_) {
    unit->gradient = unit->shard.gradient = at::Tensor();
    unit->written.assign(unit->written.size(), false);
  }
}

}  // namespace trireme
