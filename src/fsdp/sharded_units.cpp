#include "trireme/fsdp/sharded_units.h"

#include "trireme/base/error.h"
#include "unit_state.h"

#include <fmt/format.h>

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr size_t kReductionsInFlight = 2;
constexpr int64_t kPeerAlignment = 512;
/// Gradients up to this size (norms, biases) wait for the unit's others and are added in one go: a GPU starts a kernel no faster than it
/// copies so few elements.
constexpr int64_t kSmallGradient = 65536;

bool has_quantisable(const UnitSpec& spec) {
  return std::any_of(spec.parameters.begin(), spec.parameters.end(), [](const ParameterSpec& p) { return p.quantisable; });
}

/// What goes into a unit's flat buffer and what stays beside it in the compute dtype.
void split_storage(const UnitSpec& spec, bool fp8, UnitSpec& stored, UnitSpec& vectors, std::vector<int>& stored_parameters) {
  stored = vectors = spec;
  stored.parameters.clear();
  vectors.parameters.clear();
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (fp8 && !spec.parameters[p].quantisable) {
      vectors.parameters.push_back(spec.parameters[p]);
    } else {
      stored.parameters.push_back(spec.parameters[p]);
      stored_parameters.push_back(static_cast<int>(p));
    }
  }
}

}  // namespace

ShardedUnits::ShardedUnits(std::vector<UnitSpec> units, Communicator& world, at::Device device, const ShardingOptions& options)
    : specs_(std::move(units)), world_(world), device_(device), options_(options) {
  TRIREME_CHECK(options.shard_size >= 1 && world.size() % options.shard_size == 0, "shard size ", options.shard_size,
                " does not divide the world of ", world.size());
  const bool sharding = options.shard_size > 1;
  if (sharding) {
    shard_group_ = world.split(world.rank() / options.shard_size);
    if (options.shard_size < world.size()) replica_group_ = world.split(world.rank() % options.shard_size);
  }
  at::NoGradGuard no_grad;
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  const auto compute = fp32.dtype(options.compute_dtype);
  const auto compute_bytes = static_cast<int64_t>(c10::elementSize(options.compute_dtype));
  // Shards of frozen units never change: ranks of one host pull them from each other.
  int64_t peer_bytes = 0;
  std::vector<int64_t> peer_offsets(specs_.size(), -1);
  for (size_t u = 0; sharding && device.is_cuda() && u < specs_.size(); ++u) {
    const bool resident = u < options.resident.size() && options.resident[u];
    if (specs_[u].trained || specs_[u].replicated || resident) continue;
    UnitSpec stored, vectors;
    std::vector<int> indices;
    const bool fp8 = options.frozen_fp8 && has_quantisable(specs_[u]);
    split_storage(specs_[u], fp8, stored, vectors, indices);
    peer_offsets[u] = peer_bytes;
    const int64_t bytes = make_layout(stored, options.shard_size).shard_numel * (fp8 ? 1 : compute_bytes);
    peer_bytes += (bytes + kPeerAlignment - 1) / kPeerAlignment * kPeerAlignment;
  }
  if (peer_bytes > 0) {
    std::string why_not;
    peers_ = PeerMemory::create(*shard_group_, peer_bytes, device, why_not);
    gather_path_ = peers_ ? "pulled from peer memory" : fmt::format("gathered by {} ({})", world.backend(), why_not);
    outside_allocator_ = peers_ ? peer_bytes : 0;
  }
  int64_t slot_bytes = 0, slot_users = 0;
  for (size_t u = 0; u < specs_.size(); ++u) {
    const UnitSpec& spec = specs_[u];
    auto state = std::make_unique<UnitState>();
    const bool resident = u < options.resident.size() && options.resident[u] && !spec.trained;
    state->sharded = sharding && !spec.replicated && !resident;
    state->fp8 = options.frozen_fp8 && !spec.trained && has_quantisable(spec);
    const at::ScalarType storage = state->fp8 ? at::kFloat8_e4m3fn : options.compute_dtype;
    split_storage(spec, state->fp8, state->stored, state->vectors, state->stored_parameters);
    state->layout = make_layout(state->stored, state->sharded ? options.shard_size : 1);
    if (peers_ && peer_offsets[u] >= 0) {
      state->peer_offset = peer_offsets[u];
      const int64_t bytes = state->layout.shard_numel * static_cast<int64_t>(c10::elementSize(storage));
      state->shard = peers_->block().narrow(0, state->peer_offset, bytes).view(storage);
      state->shard.zero_();
    } else {
      state->shard = at::zeros({state->layout.shard_numel}, fp32.dtype(storage));
    }
    if (state->fp8) {
      state->vector_memory = at::zeros({make_layout(state->vectors, 1).numel}, compute);
      state->inverse_scales = at::ones({static_cast<int64_t>(spec.parameters.size())}, fp32);
    }
    if (state->sharded) {
      state->full = make_borrowed_tensor(state->layout.numel, storage, device);
      const int64_t bytes = state->layout.numel * static_cast<int64_t>(c10::elementSize(storage));
      if (spec.keep) {
        state->own_slot = std::make_unique<Slot>();
        state->own_slot->memory = at::empty({bytes}, fp32.dtype(at::kByte));
      } else {
        slot_bytes = std::max(slot_bytes, bytes);
        ++slot_users;
      }
    } else {
      state->full = state->shard;
    }
    state->views.resize(spec.parameters.size());
    const auto place = [&](const at::Tensor& memory, int64_t offset, size_t parameter) {
      const ParameterSpec& shape = spec.parameters[parameter];
      at::Tensor view = memory.narrow(0, offset, shape.numel()).view(shape.shape).detach();
      if (spec.trained) view.set_requires_grad(true);
      state->views[parameter] = view;
    };
    std::vector<bool> in_flat_buffer(spec.parameters.size(), false);
    for (size_t p = 0; p < state->stored_parameters.size(); ++p) {
      place(state->full, state->layout.offsets[p], state->stored_parameters[p]);
      in_flat_buffer[state->stored_parameters[p]] = true;
    }
    for (size_t p = 0, v = 0; p < spec.parameters.size(); ++p)
      if (!in_flat_buffer[p]) place(state->vector_memory, make_layout(state->vectors, 1).offsets[v++], p);
    if (spec.trained) {
      state->master = options.compute_dtype == at::kFloat ? state->shard : at::zeros({state->layout.shard_numel}, fp32);
      state->arrived.assign(spec.parameters.size(), false);
      state->written.assign(spec.parameters.size(), false);
      TrainedShard trained;
      trained.name = spec.name;
      trained.master = state->master;
      trained.compute = state->shard;
      trained.copies = state->sharded ? world.size() / options.shard_size : world.size();
      const int64_t begin = state->sharded ? shard_group_->rank() * state->layout.shard_numel : 0;
      for (const LayoutPiece& piece : pieces_in_range(spec, state->layout, begin, begin + state->layout.shard_numel))
        trained.ranges.push_back({piece.flat_begin - begin, piece.flat_begin - begin + piece.count, piece.tensor,
                                  spec.parameters[piece.parameter].decay});
      for (const ParameterSpec& parameter : spec.parameters) trained.num_tensors += static_cast<int>(parameter.parts.size());
      state->trained_index = static_cast<int>(trained_.size());
      trained_.push_back(std::move(trained));
    }
    states_.push_back(std::move(state));
  }
  if (slot_bytes > 0) {
    for (int64_t i = 0; i < std::min<int64_t>(kGatherSlots, slot_users); ++i) {
      slots_.push_back(std::make_unique<Slot>());
      slots_.back()->memory = at::empty({slot_bytes}, fp32.dtype(at::kByte));
    }
  }
  // A leaf's gradient goes straight into the unit's fp32 sum, so that no unit keeps a second copy in the compute dtype.
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (!specs_[u].trained) continue;
    for (size_t p = 0; p < specs_[u].parameters.size(); ++p) {
      auto accumulator = torch::autograd::impl::grad_accumulator(states_[u]->views[p]);
      accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, u, p](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
            gradient_arrived(static_cast<int>(u), static_cast<int>(p));
            return outputs;
          }));
      states_[u]->accumulators.push_back(std::move(accumulator));
    }
  }
}

ShardedUnits::~ShardedUnits() = default;

const std::vector<at::Tensor>& ShardedUnits::parameters(int unit) { return states_.at(unit)->views; }
at::Tensor ShardedUnits::inverse_scales(int unit) { return states_.at(unit)->inverse_scales; }

// --- gathering -------------------------------------------------------------------------------------------------------------------

void ShardedUnits::evict(Slot& slot) {
  if (slot.unit < 0) return;
  slot.gather.reset();
  UnitState& state = *states_[slot.unit];
  lend_memory(state.full, nullptr);
  state.slot = nullptr;
  slot.unit = -1;
}

ShardedUnits::Slot* ShardedUnits::free_slot() {
  Slot* best = nullptr;
  for (auto& slot : slots_)
    if (!slot->in_use && (best == nullptr || slot->last_use < best->last_use)) best = slot.get();
  return best;
}

void ShardedUnits::start_gather(int unit) {
  UnitState& state = *states_[unit];
  Slot* slot = state.own_slot ? state.own_slot.get() : free_slot();
  TRIREME_CHECK(slot != nullptr, "no slot is free to gather unit ", specs_[unit].name);
  evict(*slot);
  lend_memory(state.full, slot->memory.data_ptr());
  slot->unit = unit;
  state.slot = slot;
  slot->last_use = ++gather_clock_;
  if (state.peer_offset >= 0) {
    slot->gather = peers_->gather(state.full.view(at::kByte), state.peer_offset);
    return;
  }
  // Bytes for the communicator, which knows no FP8 type.
  slot->gather = state.fp8 ? shard_group_->all_gather(state.full.view(at::kByte), state.shard.view(at::kByte))
                           : shard_group_->all_gather(state.full, state.shard);
}

void ShardedUnits::use(int unit) {
  UnitState& state = *states_[unit];
  if (!state.sharded) return;
  at::NoGradGuard no_grad;
  if (state.slot == nullptr) start_gather(unit);
  if (state.slot->gather) {
    state.slot->gather->wait();
    state.slot->gather.reset();
  }
  state.slot->in_use = true;
}

void ShardedUnits::prefetch(int unit, int direction) {
  at::NoGradGuard no_grad;
  int ahead = 0;
  for (int next = unit + direction; next >= 0 && next < static_cast<int>(states_.size()) && ahead < kGatherSlots - 1; next += direction) {
    if (!states_[next]->sharded) continue;
    if (direction < 0 && !specs_[next].backward_reads_weights) continue;
    ++ahead;
    if (states_[next]->slot != nullptr) {
      // Already there or on its way: it must outlive the gathers that follow.
      states_[next]->slot->last_use = ++gather_clock_;
      continue;
    }
    if (!states_[next]->own_slot && free_slot() == nullptr) return;
    start_gather(next);
  }
}

void ShardedUnits::pre_forward(int unit) {
  use(unit);
  prefetch(unit, +1);
}

void ShardedUnits::post_forward(int unit) {
  UnitState& state = *states_[unit];
  if (state.slot != nullptr && !specs_[unit].keep) state.slot->in_use = false;
}

void ShardedUnits::pre_backward(int unit) {
  if (specs_[unit].backward_reads_weights) use(unit);
  prefetch(unit, -1);
}

void ShardedUnits::post_backward(int unit) { post_forward(unit); }

void ShardedUnits::release() {
  for (auto& state : states_)
    if (state->slot != nullptr) state->slot->in_use = false;
}

void ShardedUnits::invalidate_trained() {
  for (size_t u = 0; u < states_.size(); ++u)
    if (specs_[u].trained && states_[u]->slot != nullptr) evict(*states_[u]->slot);
}

// --- gradients -------------------------------------------------------------------------------------------------------------------

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
    state.gradient = at::empty({state.layout.numel}, state.master.options().dtype(last_micro_batch_ ? options_.reduce_dtype : at::kFloat));
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
    // Padding up to the next parameter is reduced with the rest and must not be garbage.
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
    if (clip_) unclipped_.push_back(unit);
    else start_reduction(unit);
  }
}

void ShardedUnits::clip_and_reduce() {
  if (unclipped_.empty()) return;
  at::NoGradGuard no_grad;
  at::Tensor square = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device_));
  for (const int unit : unclipped_) square.add_(at::linalg_vector_norm(states_[unit]->gradient, 2, {}, false, at::kFloat).to(at::kDouble).square());
  const at::Tensor factor = clip_(square);
  for (const int unit : unclipped_) {
    states_[unit]->gradient.mul_(factor);
    start_reduction(unit);
  }
  unclipped_.clear();
}

void ShardedUnits::start_reduction(int unit) {
  UnitState& state = *states_[unit];
  TrainedShard& trained = trained_[state.trained_index];
  state.gradient = state.gradient.to(options_.reduce_dtype);
  if (state.sharded) {
    trained.gradient = at::empty({state.layout.shard_numel}, state.gradient.options());
    state.reduction = shard_group_->reduce_scatter(trained.gradient, state.gradient);
    state.replica_pending = replica_group_ != nullptr;
  } else {
    trained.gradient = state.gradient;
    if (world_.size() > 1) state.reduction = world_.all_reduce(state.gradient);
  }
  reducing_.push_back(unit);
  // Bounds the whole gradients that are alive: the oldest reduction has long finished when the second next one starts.
  if (reducing_.size() > kReductionsInFlight) {
    retire_reduction(reducing_.front());
    if (!states_[reducing_.front()]->reduction) reducing_.erase(reducing_.begin());
  }
}

void ShardedUnits::retire_reduction(int unit) {
  UnitState& state = *states_[unit];
  if (state.reduction) state.reduction->wait();
  state.reduction.reset();
  state.gradient = at::Tensor();
  if (state.replica_pending) {
    state.replica_pending = false;
    state.reduction = replica_group_->all_reduce(trained_[state.trained_index].gradient);
  }
}

void ShardedUnits::finish_backward() {
  clip_and_reduce();
  for (const int unit : reducing_) {
    UnitState& state = *states_[unit];
    while (state.reduction || state.replica_pending) retire_reduction(unit);
    state.gradient = at::Tensor();
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

ShardedUnits::MemoryUse ShardedUnits::memory_use() const {
  MemoryUse memory;
  for (const auto& state : states_) {
    memory.shards += static_cast<int64_t>(state->shard.nbytes());
    if (state->master.defined() && !state->master.is_same(state->shard))
      memory.masters += static_cast<int64_t>(state->master.nbytes());
    if (state->own_slot) memory.gather_slots += static_cast<int64_t>(state->own_slot->memory.nbytes());
  }
  for (const auto& slot : slots_) memory.gather_slots += static_cast<int64_t>(slot->memory.nbytes());
  return memory;
}

int64_t ShardedUnits::gathered_bytes_per_step_forward() const {
  int64_t bytes = 0;
  for (const auto& state : states_)
    if (state->sharded) bytes += static_cast<int64_t>(state->shard.nbytes()) * (options_.shard_size - 1);
  return bytes;
}

}  // namespace trireme
