#include "trireme/fsdp/sharded_units.h"

#include "trireme/base/error.h"
#include "trireme/ops/matmul/recipe.h"
#include "unit_state.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

constexpr int64_t kPeerAlignment = 512;

/// Splits a unit into what its flat buffer holds and the vectors that are stored beside it in the compute dtype.
void split_storage(const UnitSpec& spec, bool fp8, UnitSpec& stored, UnitSpec& vectors,
                   std::vector<int>& stored_parameters) {
  stored = vectors = spec;
  stored.parameters.clear();
  vectors.parameters.clear();
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    if (fp8 && !spec.parameters[p].linear) {
      vectors.parameters.push_back(spec.parameters[p]);
    } else {
      stored.parameters.push_back(spec.parameters[p]);
      stored_parameters.push_back(static_cast<int>(p));
    }
  }
}

}  // namespace

ShardedUnits::ShardedUnits(std::vector<UnitSpec> units, Communicator& world, const RankGrid& grid, at::Device device,
                           const ShardingOptions& options)
    : specs_(std::move(units)), world_(world), grid_(grid), device_(device), options_(options) {
  TRIREME_CHECK(grid.world.size == world.size() && grid.world.rank == world.rank(), "the grid is that of rank ",
                grid.world.rank, " of ", grid.world.size);
  if (grid.shard.size > 1) {
    shard_group_ = world.split(grid.shard.group);
    if (grid.replica.size > 1) replica_group_ = world.split(grid.replica.group);
  }
  at::NoGradGuard no_grad;
  trained_fp8_ = trained_in_fp8(specs_, options.trained, options.compute_first, options.compute_last);
  add_trained_codes();
  make_peer_memory();
  for (size_t u = 0; u < specs_.size(); ++u) {
    states_.push_back(make_state(u));
    if (specs_[u].trained) add_trained(u);
  }
  add_slots();
  assign_weight_states();
  for (size_t u = 0; u < specs_.size(); ++u)
    if (specs_[u].trained) collect_gradients(u);
}

bool ShardedUnits::is_resident(size_t unit) const {
  return unit < options_.resident.size() && options_.resident[unit] && !specs_[unit].trained;
}

/// Shards of frozen units never change, so the ranks of one host can read them from each other's memory.
void ShardedUnits::make_peer_memory() {
  peer_offsets_.assign(specs_.size(), -1);
  if (grid_.shard.size == 1 || !device_.is_cuda()) return;
  const auto compute_bytes = static_cast<int64_t>(c10::elementSize(options_.compute_dtype));
  int64_t peer_bytes = 0;
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (specs_[u].trained || specs_[u].replicated || is_resident(u)) continue;
    UnitSpec stored, vectors;
    std::vector<int> indices;
    const bool fp8 = traits_of(options_.frozen).stores_codes && specs_[u].has_linear();
    split_storage(specs_[u], fp8, stored, vectors, indices);
    peer_offsets_[u] = peer_bytes;
    const int64_t bytes = make_layout(stored, grid_.shard.size).shard_numel * (fp8 ? 1 : compute_bytes);
    peer_bytes += (bytes + kPeerAlignment - 1) / kPeerAlignment * kPeerAlignment;
  }
  if (peer_bytes == 0) return;
  std::string why_not;
  peers_ = PeerMemory::create(*shard_group_, peer_bytes, device_, why_not);
  gather_path_ = peers_ ? "pulled from peer memory" : fmt::format("gathered by {} ({})", world_.backend(), why_not);
  outside_allocator_ = peers_ ? peer_bytes : 0;
}

std::unique_ptr<ShardedUnits::UnitState> ShardedUnits::make_state(size_t unit) {
  const UnitSpec& spec = specs_[unit];
  const UnitDivision division = divide_unit(spec, grid_.shard.size, options_.policy, is_resident(unit));
  auto state = std::make_unique<UnitState>();
  state->gathered = division.weights;
  state->divided = division.state;
  state->fp8 = traits_of(options_.frozen).stores_codes && !spec.trained && spec.has_linear();
  state->trained_codes = codes_ && trained_fp8_[unit];
  split_storage(spec, state->fp8 || state->trained_codes, state->stored, state->vectors, state->stored_parameters);
  if (state->trained_codes) state->stored = spec;
  const GridSlice slice = grid_.slice_of_unit(division.any());
  state->layout = make_layout(state->stored, slice.count);
  const UnitLayout& layout = state->layout;
  state->begin = slice.index * layout.shard_numel;

  const at::ScalarType storage = state->fp8 || state->trained_codes ? at::kFloat8_e4m3fn : options_.compute_dtype;
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device_);
  if (peers_ && peer_offsets_[unit] >= 0) {
    state->peer_offset = peer_offsets_[unit];
    const int64_t bytes = layout.shard_numel * static_cast<int64_t>(c10::elementSize(storage));
    state->shard = peers_->block().narrow(0, state->peer_offset, bytes).view(storage);
    state->shard.zero_();
  } else if (state->gathered) {
    state->shard = at::zeros({layout.shard_numel}, fp32.dtype(storage));
  }
  if (state->gathered) {
    state->full = make_borrowed_tensor(layout.numel, storage, device_);
  } else {
    state->full = at::zeros({layout.numel}, fp32.dtype(storage));
    state->shard = state->full.narrow(0, state->begin, layout.shard_numel);
  }
  if (state->fp8) {
    state->vector_memory = at::zeros({make_layout(state->vectors, 1).numel}, fp32.dtype(options_.compute_dtype));
    state->inverse_scales = at::ones({static_cast<int64_t>(spec.parameters.size())}, fp32);
  } else if (state->trained_codes) {
    const int64_t vectors = make_layout(state->vectors, 1).numel;
    state->vector_memory = codes_->vectors.narrow(0, codes_->next_vector, vectors);
    codes_->next_vector += vectors;
    state->inverse_scales =
        codes_->inverse.narrow(0, codes_->next_parameter, static_cast<int64_t>(spec.parameters.size()));
  }

  state->views.resize(spec.parameters.size());
  const auto place = [&](const at::Tensor& memory, int64_t offset, size_t parameter) {
    const ParameterSpec& shape = spec.parameters[parameter];
    state->views[parameter] = memory.narrow(0, offset, shape.numel()).view(shape.shape).detach();
  };
  std::vector<bool> in_flat_buffer(spec.parameters.size(), false);
  for (size_t i = 0; i < state->stored_parameters.size(); ++i) {
    const auto parameter = static_cast<size_t>(state->stored_parameters[i]);
    place(state->full, layout.offsets[state->trained_codes ? parameter : i], parameter);
    in_flat_buffer[parameter] = true;
  }
  for (size_t p = 0, v = 0; p < spec.parameters.size(); ++p)
    if (!in_flat_buffer[p]) place(state->vector_memory, make_layout(state->vectors, 1).offsets[v++], p);
  return state;
}

void ShardedUnits::add_trained(size_t unit) {
  const UnitSpec& spec = specs_[unit];
  UnitState& state = *states_[unit];
  state.master = state.shard.scalar_type() == at::kFloat
                     ? state.shard
                     : at::zeros({state.layout.shard_numel}, state.shard.options().dtype(at::kFloat));
  state.arrived.assign(spec.parameters.size(), false);
  state.written.assign(spec.parameters.size(), false);
  TrainedShard trained;
  trained.name = spec.name;
  trained.master = state.master;
  if (!state.trained_codes) trained.compute = state.shard;
  const GridSlice slice = grid_.slice_of_unit(state.divided);
  trained.begin = state.begin;
  trained.unit_numel = make_layout(spec, 1).numel;
  trained.copies = slice.copies;
  trained.copy = slice.copy;
  trained.first_element = trained_elements_ + state.begin;
  trained_elements_ += spec.numel() / UnitLayout::kAlignment * UnitLayout::kAlignment +
                       static_cast<int64_t>(spec.parameters.size() + 1) * UnitLayout::kAlignment;
  const int64_t end = state.begin + state.layout.shard_numel;
  for (const LayoutPiece& piece : pieces_in_range(spec, state.layout, state.begin, end))
    trained.ranges.push_back({piece.flat_begin - state.begin, piece.flat_begin - state.begin + piece.count,
                              piece.tensor, spec.parameters[static_cast<size_t>(piece.parameter)].decay});
  for (const ParameterSpec& parameter : spec.parameters)
    trained.num_tensors += static_cast<int>(parameter.parts.size());
  state.trained_index = static_cast<int>(trained_.size());
  trained_.push_back(std::move(trained));
  if (state.trained_codes) place_trained_codes(unit);
}

void ShardedUnits::add_slots() {
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(device_);
  int64_t slot_bytes = 0, slot_users = 0;
  for (size_t u = 0; u < specs_.size(); ++u) {
    UnitState& state = *states_[u];
    if (!state.gathered) continue;
    const int64_t size = state.layout.numel * static_cast<int64_t>(state.full.element_size());
    if (specs_[u].keep) {
      state.own_slot = std::make_unique<Slot>();
      state.own_slot->memory = at::empty({size}, bytes);
    } else {
      slot_bytes = std::max(slot_bytes, size);
      ++slot_users;
    }
  }
  for (int64_t i = 0; i < std::min<int64_t>(kGatherSlots, slot_users); ++i) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->memory = at::empty({slot_bytes}, bytes);
  }
}

/// Matrices of linear layers get a sink. Gradients of other parameters are moved to the unit's buffer as soon as
/// autograd has computed them, so that no second copy stays.
void ShardedUnits::collect_gradients(size_t unit) {
  UnitState& state = *states_[unit];
  const int u = static_cast<int>(unit);
  state.sinks.resize(specs_[unit].parameters.size());
  for (size_t i = 0; i < specs_[unit].parameters.size(); ++i) {
    const int p = static_cast<int>(i);
    if (specs_[unit].parameters[i].linear) {
      state.sinks[i] = std::make_unique<Sink>(*this, u, p);
      state.states[i].sink = state.sinks[i].get();
      continue;
    }
    state.views[i].set_requires_grad(true);
    auto accumulator = torch::autograd::impl::grad_accumulator(state.views[i]);
    accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, u, p](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          gradient_arrived(u, p);
          return outputs;
        }));
    state.accumulators.push_back(std::move(accumulator));
  }
}

ShardedUnits::~ShardedUnits() = default;

const std::vector<at::Tensor>& ShardedUnits::parameters(int unit) { return states_.at(unit)->views; }

const std::vector<WeightState>& ShardedUnits::weight_states(int unit) {
  const UnitState& state = *states_.at(static_cast<size_t>(unit));
  return training_ ? state.states : state.evaluation_states;
}

void ShardedUnits::assign_weight_states() {
  int64_t linears = 0;
  for (size_t u = 0; u < specs_.size(); ++u)
    if (trained_fp8_[u])
      linears += std::count_if(specs_[u].parameters.begin(), specs_[u].parameters.end(),
                               [](const auto& p) { return p.linear; });
  const bool delayed = traits_of(options_.trained).delayed_scales;
  if (delayed && linears > 0) scales_ = std::make_unique<Fp8Scales>(linears, device_);
  int64_t next = 0;
  for (size_t u = 0; u < specs_.size(); ++u) {
    UnitState& state = *states_[u];
    state.states.resize(specs_[u].parameters.size());
    if (state.fp8)
      for (const int p : state.stored_parameters)
        state.states[static_cast<size_t>(p)] = {options_.frozen, state.inverse_scales.select(0, p), {}};
    state.evaluation_states = state.states;
    for (size_t p = 0; p < state.states.size(); ++p) {
      if (!trained_fp8_[u] || !specs_[u].parameters[p].linear) continue;
      state.states[p].recipe = options_.trained;
      if (delayed) state.states[p].scales = scales_->linear(next++);
      if (state.trained_codes) state.states[p].inverse_scale = state.inverse_scales.select(0, static_cast<int64_t>(p));
    }
    if (!delayed) state.evaluation_states = state.states;
  }
}

void ShardedUnits::begin_step() {
  if (scales_) scales_->begin_step();
}

at::Tensor ShardedUnits::end_step() {
  if (!scales_) return {};
  // All ranks need the same scales.
  if (world_.size() > 1) reduce_amax(world_, scales_->amax());
  return scales_->update();
}

std::string ShardedUnits::find_nonfinite_operand() const {
  for (size_t u = 0; u < specs_.size(); ++u) {
    for (size_t p = 0; scales_ && p < specs_[u].parameters.size(); ++p) {
      const WeightState& state = states_[u]->states[p];
      if (!traits_of(state.recipe).delayed_scales) continue;
      const auto bad = [](const Fp8Scale& scale) { return !std::isfinite(scale.amax.item<float>()); };
      const char* what = bad(state.scales.x)        ? "the input of "
                         : bad(state.scales.weight) ? "the weight "
                         : bad(state.scales.dy)     ? "the gradient of the output of "
                                                    : nullptr;
      if (what != nullptr) return what + specs_[u].parameters[p].parts.front().name;
    }
  }
  return "";
}

std::vector<double> ShardedUnits::scale_state() const { return scales_ ? scales_->state() : std::vector<double>{}; }

bool ShardedUnits::restore_scales(const std::vector<double>& state) {
  return scales_ ? scales_->restore(state) : state.empty();
}

ShardedUnits::MemoryUse ShardedUnits::memory_use() const {
  MemoryUse memory;
  for (const auto& state : states_) {
    memory.shards += static_cast<int64_t>(state->gathered ? state->shard.nbytes() : state->full.nbytes());
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
    if (state->gathered) bytes += static_cast<int64_t>(state->shard.nbytes()) * (grid_.shard.size - 1);
  return bytes;
}

}  // namespace trireme
