#include "trireme/fsdp/sharded_units.h"

#include "gather_slots.h"
#include "gradient_buffers.h"
#include "trained_codes.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/base/rounding.h"
#include "trireme/nn/init.h"
#include "trireme/ops/matmul/recipe.h"
#include "unit_storage.h"
#include "weight_reader.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

namespace trireme {

namespace {

constexpr int64_t kPeerAlignment = 512;

/// Of the open range of a unit's backward in this thread, "layers.3 backward"; null: none. It has no destructor, which
/// could end a range after the thread's list of ranges.
thread_local RangeSink* open_sink = nullptr;

void end_backward_range() {
  if (RangeSink* const sink = std::exchange(open_sink, nullptr)) sink->end();
}

/// Ends the range of the unit before, if it is still open, and begins the range of `unit`. It ends with
/// end_backward_range() or, where autograd has nothing to compute at the unit's input, with the whole backward. Without
/// a profile it costs a relaxed load.
void begin_backward_range(const std::string& unit) {
  if (!ranges_recorded()) [[likely]]
    return;
  end_backward_range();
  RangeSink* const sink = detail::range_sink.load(std::memory_order_acquire);
  if (sink == nullptr) return;
  // Before the range begins: the engine refuses callbacks outside of a backward.
  torch::autograd::Engine::get_default_engine().queue_callback(&end_backward_range);
  sink->begin(unit + " backward");
  open_sink = sink;
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
  make_units();
  assign_weight_states();

  std::vector<GatherSlots::Unit> gathered;
  for (const auto& unit : units_)
    gathered.push_back({unit->spec.name, unit->gathered ? unit->full : at::Tensor(), unit->spec.keep,
                        unit->spec.backward_reads_weights});
  slots_ = std::make_unique<GatherSlots>(std::move(gathered), device, [this](int unit) {
    const auto u = static_cast<size_t>(unit);
    return peers_ && peer_offsets_[u] >= 0 ? peers_->gather(units_[u]->full.view(at::kByte), peer_offsets_[u])
                                           : units_[u]->gather(*shard_group_);
  });
  // A link between hosts needs more of NCCL's channels.
  if (shard_group_ && device.is_cuda() && grid.host.size % grid.shard.size == 0 &&
      options.tokens >= GradientBuffers::kTokensThatHide)
    narrow_group_ = shard_group_->split(0, GradientBuffers::kNarrow);
  gradients_ = std::make_unique<GradientBuffers>(
      world, shard_group_.get(), narrow_group_.get(), replica_group_.get(),
      GradientBuffers::Options{device, options.reduce_dtype, options.sum_dtype,
                               /*reduce_each=*/options.policy >= ShardPolicy::kGradients, options.tokens});
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (trained_index_[u] < 0) continue;
    const auto index = static_cast<size_t>(trained_index_[u]);
    gradients_->add(specs_[u], units_[u]->layout, units_[u]->divided, units_[u]->tensors, trained_[index]);
    for (size_t p = 0; p < specs_[u].parameters.size(); ++p) weight_states_[u][p].sink = gradients_->sink(index, p);
  }
}

ShardedUnits::~ShardedUnits() = default;

bool ShardedUnits::is_resident(size_t unit) const {
  return unit < options_.resident.size() && options_.resident[unit] && !specs_[unit].trained;
}

bool ShardedUnits::holds_frozen_codes(const UnitSpec& spec) const {
  return (options_.frozen_nf4 || traits_of(options_.frozen).stores_codes) && !spec.trained && spec.has_linear();
}

void ShardedUnits::make_units() {
  const bool codes = traits_of(options_.trained).stores_codes;
  std::vector<const UnitSpec*> with_codes;
  for (size_t u = 0; u < specs_.size(); ++u) {
    using Form = UnitStorage::Form;
    const UnitSpec& spec = specs_[u];
    const bool trained_codes = codes && trained_fp8_[u];
    const Form form = holds_frozen_codes(spec) ? (options_.frozen_nf4 ? Form::kFrozenNf4 : Form::kFrozenFp8)
                      : trained_codes          ? Form::kTrainedCodes
                                               : Form::kCompute;
    const UnitDivision division = divide_unit(spec, grid_.shard.size, options_.policy, is_resident(u));
    units_.push_back(std::make_unique<UnitStorage>(spec, form, division, grid_,
                                                   spec.fp32 ? at::kFloat : options_.compute_dtype,
                                                   spec.fp32 ? at::kFloat : options_.master_dtype));
    codes_index_.push_back(trained_codes ? static_cast<int>(with_codes.size()) : -1);
    if (trained_codes) with_codes.push_back(&spec);
    trained_index_.push_back(spec.trained ? static_cast<int>(trained_.size()) : -1);
    if (!spec.trained) continue;
    if (trained_index_[u] < options_.host_units) units_[u]->host = options_.host;
    trained_.emplace_back();
  }
  arriving_.resize(specs_.size());
  if (!with_codes.empty()) codes_ = std::make_unique<TrainedCodes>(with_codes, device_, options_.compute_dtype);
  make_peer_memory();
  int64_t expanded = 0;
  for (const auto& unit : units_)
    if (unit->form == UnitStorage::Form::kFrozenNf4) expanded = std::max(expanded, unit->layout.numel);
  if (expanded > 0)
    expanded_ = at::empty({expanded}, at::TensorOptions().dtype(options_.compute_dtype).device(device_));
  for (size_t u = 0; u < specs_.size(); ++u) {
    UnitStorage& unit = *units_[u];
    const int index = codes_index_[u];
    UnitStorage::Memory memory{.expanded = expanded_};
    if (peers_ && peer_offsets_[u] >= 0) memory.shard = peers_->block().narrow(0, peer_offsets_[u], unit.shard_bytes());
    if (index >= 0) memory.vectors = codes_->vectors(index), memory.scales = codes_->inverse_scales(index);
    unit.allocate(device_, memory);
    if (specs_[u].trained) add_trained(u);
  }
  if (codes_ && !divides_codes()) codes_->follow_updates();
}

bool ShardedUnits::divides_codes() const {
  const auto any = std::find_if(codes_index_.begin(), codes_index_.end(), [](int index) { return index >= 0; });
  return units_[static_cast<size_t>(any - codes_index_.begin())]->divided;
}

/// Shards of frozen units never change, so the ranks of one host can read them from each other's memory.
void ShardedUnits::make_peer_memory() {
  peer_offsets_.assign(specs_.size(), -1);
  if (!device_.is_cuda()) return;
  int64_t peer_bytes = 0;
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (specs_[u].trained || !units_[u]->gathered) continue;
    peer_offsets_[u] = peer_bytes;
    peer_bytes += round_up(units_[u]->shard_bytes(), kPeerAlignment);
  }
  if (peer_bytes == 0) return;
  std::string why_not;
  peers_ = PeerMemory::create(*shard_group_, peer_bytes, device_, why_not);
  gather_path_ = peers_ ? "pulled from peer memory" : fmt::format("gathered by {} ({})", world_.backend(), why_not);
  outside_allocator_ = peers_ ? peer_bytes : 0;
}

void ShardedUnits::add_trained(size_t unit) {
  const UnitSpec& spec = specs_[unit];
  const UnitStorage& state = *units_[unit];
  const auto index = static_cast<size_t>(trained_index_[unit]);
  TrainedShard& trained = trained_[index];
  trained.name = spec.name;
  trained.master = state.master;
  trained.host = state.host;
  if (codes_index_[unit] < 0) trained.compute = state.shard;
  const GridSlice slice = grid_.slice_of_unit(state.divided);
  trained.begin = state.begin;
  trained.unit_numel = make_layout(spec, 1).numel;
  trained.copies = slice.copies;
  trained.copy = slice.copy;
  // Units before count with an upper bound of their padded length, which is the same for every division.
  trained.first_element = state.begin;
  for (size_t u = 0; u < unit; ++u)
    if (specs_[u].trained)
      trained.first_element += specs_[u].numel() / UnitLayout::kAlignment * UnitLayout::kAlignment +
                               static_cast<int64_t>(specs_[u].parameters.size() + 1) * UnitLayout::kAlignment;
  for (const LayoutPiece& piece :
       pieces_in_range(spec, state.layout, state.begin, state.begin + state.layout.shard_numel))
    trained.ranges.push_back({piece.flat_begin - state.begin, piece.flat_begin - state.begin + piece.count,
                              piece.tensor, spec.parameters[static_cast<size_t>(piece.parameter)].decay});
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    const ParameterSpec& parameter = spec.parameters[p];
    trained.num_tensors += static_cast<int>(parameter.parts.size());
    int64_t first = state.layout.offsets[p];
    for (const int64_t rows : parameter.matrix_rows) {
      trained.matrices.push_back({first, rows, parameter.numel() / parameter.shape[0], parameter.decay});
      first += trained.matrices.back().numel();
    }
  }
  trained.group = state.divided ? shard_group_.get() : nullptr;
  if (codes_index_[unit] >= 0)
    codes_->add(codes_index_[unit], {state.layout, state.begin, state.shard, state.tensors}, trained);
}

void ShardedUnits::assign_weight_states() {
  int64_t linears = 0;
  for (size_t u = 0; u < specs_.size(); ++u)
    if (trained_fp8_[u]) linears += static_cast<int64_t>(specs_[u].matrices().parameters.size());
  const bool delayed = traits_of(options_.trained).delayed_scales;
  if (delayed && linears > 0) scales_ = std::make_unique<Fp8Scales>(linears, device_);
  int64_t next = 0;
  for (size_t u = 0; u < specs_.size(); ++u) {
    const UnitStorage& unit = *units_[u];
    std::vector<WeightState> states(specs_[u].parameters.size()), evaluation = states;
    at::Tensor transposed;
    if (u < options_.keeps_transposed.size() && options_.keeps_transposed[u]) {
      TRIREME_CHECK(unit.dtype == at::kFloat8_e4m3fn && !unit.gathered, "unit ", unit.spec.name,
                    " has no whole codes to keep transposed");
      transposed = at::empty_like(unit.full);
    }
    for (size_t p = 0; p < states.size(); ++p) {
      if (!specs_[u].parameters[p].linear) continue;
      if (!specs_[u].trained) states[p].row_squares = evaluation[p].row_squares = std::make_shared<at::Tensor>();
      const bool frozen = unit.form == UnitStorage::Form::kFrozenFp8;
      if (frozen || trained_fp8_[u]) states[p].recipe = frozen ? options_.frozen : options_.trained;
      if (unit.inverse_scales.defined())
        states[p].inverse_scale = unit.inverse_scales.select(0, static_cast<int64_t>(p));
      if (transposed.defined()) {
        const at::Tensor& codes = unit.tensors[p];
        states[p].transposed = std::make_shared<TransposedCodes>();
        states[p].transposed->codes =
            transposed.narrow(0, codes.storage_offset(), codes.numel()).view({codes.size(1), codes.size(0)});
      }
      if (delayed && trained_fp8_[u])
        states[p].scales = scales_->linear(next++);
      else
        evaluation[p] = states[p];
    }
    weight_states_.push_back(std::move(states));
    evaluation_states_.push_back(std::move(evaluation));
  }
}

const std::vector<at::Tensor>& ShardedUnits::parameters(int unit) {
  return units_.at(static_cast<size_t>(unit))->tensors;
}

const std::vector<WeightState>& ShardedUnits::weight_states(int unit) {
  return (training_ ? weight_states_ : evaluation_states_).at(static_cast<size_t>(unit));
}

void ShardedUnits::use(int unit) {
  if (WorkPtr& arriving = arriving_.at(static_cast<size_t>(unit))) {
    arriving->wait();
    arriving.reset();
  }
  at::NoGradGuard no_grad;
  slots_->use(unit);
  if (units_[static_cast<size_t>(unit)]->form == UnitStorage::Form::kFrozenNf4) expand(unit);
}

/// Backward, and what it recomputes, reads the weights between pre_backward() and post_backward(), so no copy is kept.
void ShardedUnits::expand(int unit) {
  const UnitStorage& state = *units_[static_cast<size_t>(unit)];
  if (expanded_unit_ != unit) {
    TRIREME_CHECK(!expanded_in_use_, "unit ", state.spec.name, " would take the memory of unit ",
                  specs_[static_cast<size_t>(expanded_unit_)].name, ", which is in use");
    const ProfileRange range("dequantize", state.spec.name);
    state.expand();
    expanded_unit_ = unit;
  }
  expanded_in_use_ = true;
}

void ShardedUnits::pre_forward(int unit) {
  use(unit);
  at::NoGradGuard no_grad;
  slots_->prefetch(unit, +1);
}

void ShardedUnits::post_forward(int unit) {
  slots_->end_use(unit);
  if (unit == expanded_unit_) expanded_in_use_ = false;
}

void ShardedUnits::pre_backward(int unit) {
  const UnitSpec& spec = specs_[static_cast<size_t>(unit)];
  if (spec.backward_reads_weights) use(unit);
  at::NoGradGuard no_grad;
  slots_->prefetch(unit, -1);
  begin_backward_range(spec.name);
}

void ShardedUnits::post_backward(int unit) {
  end_backward_range();
  post_forward(unit);
}

void ShardedUnits::release() {
  slots_->release();
  expanded_in_use_ = false;
}

void ShardedUnits::weights_changed() {
  at::NoGradGuard no_grad;
  if (codes_) codes_->update_scales(divides_codes() ? shard_group_.get() : nullptr);
  // In the order in which forward uses the units, so that the first whole copies arrive first.
  for (size_t u = 0; u < units_.size(); ++u) {
    if (!specs_[u].trained) continue;
    slots_->invalidate(static_cast<int>(u));
    forget_derived(u);
    if (codes_index_[u] >= 0) codes_->write(codes_index_[u]);
    if (!units_[u]->divided || units_[u]->gathered) continue;
    const ProfileRange range("all_gather", specs_[u].name);
    arriving_[u] = units_[u]->gather(*shard_group_);
  }
}

void ShardedUnits::begin_micro_batch(bool last) { gradients_->begin_micro_batch(last); }

void ShardedUnits::finish_backward() {
  gradients_->finish();
  release();
}

void ShardedUnits::observe_gradients(std::function<void(const ParameterSpec&, const at::Tensor&)> observer) {
  gradients_->observe(std::move(observer));
}

void ShardedUnits::clip_before_reduction(std::function<at::Tensor(const std::vector<at::Tensor>&)> factor) {
  gradients_->clip_before_reduction(std::move(factor));
}

void ShardedUnits::clear_gradients() { gradients_->clear(); }

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
  if (!scales_) return "";
  const auto bad = [](const Fp8Scale& scale) { return !std::isfinite(scale.amax.item<float>()); };
  for (size_t u = 0; u < specs_.size(); ++u) {
    for (size_t p = 0; p < specs_[u].parameters.size(); ++p) {
      const WeightState& state = weight_states_[u][p];
      if (!state.scales.x.amax.defined()) continue;
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

void ShardedUnits::forget_derived(size_t unit) {
  for (WeightState& state : weight_states_[unit]) {
    if (state.row_squares) state.row_squares->reset();
    if (state.transposed) state.transposed->valid = false;
  }
}

void ShardedUnits::fill(size_t unit, const Filling& filling) {
  units_[unit]->fill(filling);
  expanded_unit_ = -1;
  forget_derived(unit);
  if (trained_index_[unit] >= 0) trained_[static_cast<size_t>(trained_index_[unit])].update_compute();
}

void ShardedUnits::load(const WeightSource& source, int reader_threads, const std::function<void(double)>& progress) {
  at::NoGradGuard no_grad;
  check_weights(specs_, source, "the checkpoint", options_.frozen_nf4);
  int64_t total = 0, done = 0;
  for (size_t u = 0; u < specs_.size(); ++u)
    if (!specs_[u].replicated) total += units_[u]->layout.shard_numel;
  // The copies run on their own streams, which do not wait for the zero-filling of the shards.
  if (device_.is_cuda()) c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
  std::unique_ptr<Communicator> host, slice;
  if (options_.read_per_host) {
    host = world_.split(grid_.host.group);
    if (grid_.shard.size > 1) slice = world_.split(grid_.host_slice.group);
  }
  const auto several = [](const std::unique_ptr<Communicator>& group) {
    return group && group->size() > 1 ? group.get() : nullptr;
  };
  WeightReader reader(source, device_, reader_threads);
  const Filling filling{[&](const ParameterSpec&, const ParameterPart& part, const LayoutPiece& piece,
                            const at::Tensor& target) { reader.read(part, piece, target); },
                        [&] { reader.wait(); },
                        shard_group_.get(),
                        several(host),
                        several(slice),
                        [&](const ParameterPart& part) { return find_stored_nf4(source, part.name); }};
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (specs_[u].replicated) continue;
    reader.keep_failure([&] { fill(u, filling); });
    done += units_[u]->layout.shard_numel;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(total));
  }
  host.reset();
  slice.reset();
  weights_changed();
  // A barrier of the shard group, which ranks that have read everything wait in.
  if (peers_) peers_->publish();
  if (reader.failure()) std::rethrow_exception(reader.failure());
}

void ShardedUnits::initialise(uint64_t seed, bool only_replicated) {
  at::NoGradGuard no_grad;
  const Filling filling{
      .write =
          [&](const ParameterSpec& parameter, const ParameterPart& part, const LayoutPiece& piece,
              const at::Tensor& target) { draw_initial_values(parameter, part, seed, piece.tensor_begin, target); },
      .shard_group = shard_group_.get()};
  for (size_t u = 0; u < specs_.size(); ++u)
    if (!only_replicated || specs_[u].replicated) fill(u, filling);
  weights_changed();
  if (peers_ && !only_replicated) peers_->publish();
}

bool ShardedUnits::assign(const std::string& tensor_name, const at::Tensor& value) {
  at::NoGradGuard no_grad;
  bool found = false;
  const Filling filling{.write = [&](const ParameterSpec&, const ParameterPart& part, const LayoutPiece& piece,
                                     const at::Tensor& target) {
    if (part.name != tensor_name) return;  // it keeps its values
    target.copy_(value.reshape(-1).narrow(0, piece.tensor_begin, piece.count));
  }};
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (!specs_[u].trained) continue;
    for (const ParameterSpec& parameter : specs_[u].parameters)
      for (const ParameterPart& part : parameter.parts) {
        if (part.name != tensor_name) continue;
        found = true;
        const int64_t elements = part.rows * (parameter.numel() / parameter.shape[0]);
        TRIREME_CHECK(value.numel() == elements, tensor_name, " has ", elements, " elements, the value has ",
                      value.numel());
        fill(u, filling);
      }
  }
  return found;
}

void ShardedUnits::export_tensors(at::ScalarType dtype, const std::function<bool(int)>& select,
                                  const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  at::NoGradGuard no_grad;
  std::exception_ptr failure;  // the other ranks gather all units
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (!select(static_cast<int>(u))) continue;
    const at::Tensor full = units_[u]->whole(shard_group_.get());
    if (grid_.world.rank != 0 || failure) continue;
    const UnitLayout& layout = units_[u]->layout;
    for (const LayoutPiece& piece : pieces_in_range(specs_[u], layout, 0, layout.numel)) {
      const ParameterSpec& parameter = specs_[u].parameters[static_cast<size_t>(piece.parameter)];
      const ParameterPart& part = parameter.parts[static_cast<size_t>(piece.part)];
      std::vector<int64_t> shape = parameter.shape;
      shape[0] = part.rows;
      try {
        visit(part.name, full.narrow(0, piece.flat_begin, piece.count).to(dtype).to(at::kCPU).reshape(shape));
      } catch (const Error&) {
        failure = std::current_exception();
        break;
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace trireme
