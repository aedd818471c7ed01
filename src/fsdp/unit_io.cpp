// Fills units from checkpoints or random numbers, and exports them.
#include "parallel_copy.h"
#include "trireme/base/error.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/nn/init.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/ops/matmul/fp8.h"
#include "unit_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <optional>

namespace trireme {

namespace {

/// Visits the pieces of checkpoint tensors in elements [begin, begin + target.numel()) of the flat buffer.
template <class Writer>
void write_pieces(const UnitSpec& spec, const UnitLayout& layout, int64_t begin, const at::Tensor& target,
                  const Writer& write) {
  for (const LayoutPiece& piece : pieces_in_range(spec, layout, begin, begin + target.numel())) {
    const ParameterSpec& parameter = spec.parameters[piece.parameter];
    write(parameter, parameter.parts[piece.part], piece, target.narrow(0, piece.flat_begin - begin, piece.count));
  }
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

void ShardedUnits::synchronise() const {
  if (device_.is_cuda()) c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
}

void ShardedUnits::fill(int unit, const Writer& write, const std::function<void()>& settle) {
  UnitState& state = *states_[unit];
  if (state.fp8) return fill_fp8(unit, write, settle);
  at::Tensor& target = state.master.defined() ? state.master : state.shard;
  write_shared(state.stored, state.layout, state.begin, target, state.divided || state.gathered, write, settle);
  if (state.master.defined()) trained_[static_cast<size_t>(state.trained_index)].update_compute();
}

void ShardedUnits::write_shared(const UnitSpec& spec, const UnitLayout& layout, int64_t begin, const at::Tensor& target,
                                bool sharded, const Writer& write, const std::function<void()>& settle) {
  Communicator* const readers = sharded ? shard_readers_.get() : host_readers_.get();
  const int64_t size = readers == nullptr ? 1 : readers->size(), rank = readers == nullptr ? 0 : readers->rank();
  const int64_t share = target.numel() / size, rest = target.numel() - size * share;
  write_pieces(spec, layout, begin + rank * share, target.narrow(0, rank * share, share), write);
  // Fewer elements than readers: each reads them.
  if (rest > 0) write_pieces(spec, layout, begin + size * share, target.narrow(0, size * share, rest), write);
  if (settle) settle();
  if (size > 1 && share > 0)
    readers->all_gather(target.narrow(0, 0, size * share), target.narrow(0, rank * share, share))->wait();
}

/// Groups of this host's ranks. A group of one rank is left null.
void ShardedUnits::join_readers() {
  if (!options_.read_per_host) return;
  host_readers_ = world_.split(grid_.host.group);
  if (grid_.shard.size > 1) {
    shard_readers_ = world_.split(grid_.host_slice.group);
    if (grid_.host_slice.size == 1) shard_readers_.reset();
  }
  if (grid_.host.size == 1) host_readers_.reset();
}

void ShardedUnits::fill_fp8(int unit, const Writer& write, const std::function<void()>& settle) {
  UnitState& state = *states_[unit];
  write_shared(state.vectors, make_layout(state.vectors, 1), 0, state.vector_memory, /*sharded=*/false, write, settle);
  const int64_t begin = state.begin, end = begin + state.layout.shard_numel;
  const at::Tensor values = at::zeros({state.layout.shard_numel}, state.vector_memory.options());
  synchronise();  // synchronised for the same reason as in load()
  write_shared(state.stored, state.layout, begin, values, state.gathered, write, settle);

  // This rank's part of every matrix; the scale comes from the largest magnitude over all ranks.
  const size_t count = state.stored.parameters.size();
  std::vector<at::Tensor> parts(count), targets(count);
  at::Tensor amax = at::zeros({static_cast<int64_t>(count)}, state.inverse_scales.options());
  for (size_t p = 0; p < count; ++p) {
    const int64_t first = std::max(begin, state.layout.offsets[p]),
                  last = std::min(end, state.layout.offsets[p] + state.stored.parameters[p].numel());
    if (first >= last) continue;
    parts[p] = values.narrow(0, first - begin, last - first);
    targets[p] = state.shard.narrow(0, first - begin, last - first);
    amax[static_cast<int64_t>(p)].copy_(fp8_amax(parts[p]));
  }
  if (state.gathered) reduce_amax(*shard_group_, amax);
  const at::Tensor on_host = amax.to(at::kCPU);
  for (size_t p = 0; p < count; ++p) {
    const ParameterSpec& parameter = state.stored.parameters[p];
    const float largest = on_host[static_cast<int64_t>(p)].item<float>();
    if (!std::isfinite(largest))
      throw ModelError(
          fmt::format("{}.{} holds a NaN or an infinity and cannot be stored in FP8; repair the checkpoint or use "
                      "precision.linear: compute",
                      state.stored.name, parameter.name));
    const at::Tensor inverse = state.inverse_scales.select(0, state.stored_parameters[p]);
    inverse.copy_(fp8_inverse_scale(amax[static_cast<int64_t>(p)]));
    if (parts[p].defined()) fp8_cast_(targets[p], parts[p], inverse);
  }
}

void check_weights(const std::vector<UnitSpec>& units, const WeightSource& source, const std::string& path) {
  std::vector<std::string> problems;
  for (const UnitSpec& unit : units) {
    if (unit.replicated) continue;
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const ParameterPart& part : parameter.parts) {
        std::vector<int64_t> expected = parameter.shape;
        expected[0] = part.rows;
        const auto info = source.find(part.name);
        // The directory stands at the beginning of the message.
        const std::string file = std::filesystem::path(source.place(part.name)).filename().string();
        const std::string named = file.empty() ? part.name : part.name + " in " + file;
        if (!info)
          problems.push_back(part.name + " is missing");
        else if (info->shape != expected)
          problems.push_back(fmt::format("{} has shape {}, the configuration asks for {}", named,
                                         shape_text(info->shape), shape_text(expected)));
        else if (!weight_scalar_type(info->dtype))
          problems.push_back(
              fmt::format("{} is stored as {}, not as F32, F16, BF16 or F64", named, dtype_name(info->dtype)));
      }
    }
  }
  if (problems.empty()) return;
  const size_t shown = std::min<size_t>(problems.size(), 5);
  throw ModelError(fmt::format("{} ({}) does not fit its config.json: {}{}", path, source.description(),
                               fmt::join(problems.begin(), problems.begin() + static_cast<long>(shown), "; "),
                               problems.size() > shown ? fmt::format("; and {} more", problems.size() - shown) : ""));
}

void ShardedUnits::load(const WeightSource& source, int reader_threads, const std::function<void(double)>& progress) {
  at::NoGradGuard no_grad;
  check_weights(specs_, source, "the checkpoint");
  int64_t total = 0, done = 0;
  for (size_t u = 0; u < specs_.size(); ++u)
    if (!specs_[u].replicated) total += states_[u]->layout.shard_numel;
  // The copies run on their own streams, which do not wait for the zero-filling of the shards.
  synchronise();
  join_readers();
  ParallelCopy copies(device_, reader_threads);
  std::exception_ptr failure;
  const auto keep_failure = [&failure](const auto& body) {
    try {
      body();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (specs_[u].replicated) continue;
    const auto write = [&](const ParameterSpec&, const ParameterPart& part, const LayoutPiece& piece,
                           const at::Tensor& target) {
      if (failure) return;
      keep_failure([&] {
        const std::string& name = part.name;
        const at::ScalarType dtype = weight_scalar_type(source.find(name)->dtype).value();
        int64_t at = 0;
        for (const ElementSpan& span : source.read(name, piece.tensor_begin, piece.tensor_begin + piece.count)) {
          copies.add(span.data, dtype, target.narrow(0, at, span.count));
          at += span.count;
        }
        TRIREME_CHECK(at == piece.count, "read ", at, " of ", piece.count, " elements of ", name);
        elements_read_ += at;
      });
    };
    keep_failure([&] { fill(static_cast<int>(u), write, [&] { keep_failure([&] { copies.wait(); }); }); });
    done += states_[u]->layout.shard_numel;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(total));
  }
  host_readers_.reset();
  shard_readers_.reset();
  weights_changed();
  // A barrier of the shard group, which ranks that have read everything wait in.
  if (peers_) peers_->publish();
  if (failure) std::rethrow_exception(failure);
}

void ShardedUnits::initialise(uint64_t seed, bool only_replicated) {
  at::NoGradGuard no_grad;
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (only_replicated && !specs_[u].replicated) continue;
    fill(static_cast<int>(u),
         [&](const ParameterSpec& parameter, const ParameterPart& part, const LayoutPiece& piece, at::Tensor target) {
           draw_initial_values(parameter, part, seed, piece.tensor_begin, target);
         });
  }
  weights_changed();
  if (peers_ && !only_replicated) peers_->publish();
}

bool ShardedUnits::assign(const std::string& tensor_name, const at::Tensor& value) {
  at::NoGradGuard no_grad;
  bool found = false;
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (!specs_[u].replicated) continue;
    const bool here =
        std::any_of(specs_[u].parameters.begin(), specs_[u].parameters.end(), [&](const ParameterSpec& p) {
          return std::any_of(p.parts.begin(), p.parts.end(),
                             [&](const ParameterPart& q) { return q.name == tensor_name; });
        });
    if (!here) continue;
    found = true;
    fill(static_cast<int>(u),
         [&](const ParameterSpec&, const ParameterPart& part, const LayoutPiece& piece, at::Tensor target) {
           if (part.name != tensor_name) return;
           TRIREME_CHECK(value.numel() == piece.count, tensor_name, " has ", piece.count, " elements, the value has ",
                         value.numel());
           target.copy_(value.reshape(-1));
         });
  }
  return found;
}

at::Tensor ShardedUnits::whole(int unit) {
  UnitState& state = *states_[unit];
  const at::Tensor& shard = state.master.defined() ? state.master : state.shard;
  if (!state.gathered && !state.divided) return shard;
  at::Tensor full = at::empty({state.layout.numel}, shard.options());
  shard_group_->all_gather(full, shard)->wait();
  return full;
}

void ShardedUnits::export_tensors(at::ScalarType dtype, const std::function<bool(int)>& select,
                                  const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  at::NoGradGuard no_grad;
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (!select(static_cast<int>(u))) continue;
    at::Tensor full = whole(static_cast<int>(u));
    if (world_.rank() != 0) continue;
    const UnitLayout& layout = states_[u]->layout;
    for (const LayoutPiece& piece : pieces_in_range(specs_[u], layout, 0, layout.numel)) {
      const ParameterSpec& parameter = specs_[u].parameters[piece.parameter];
      std::vector<int64_t> shape = parameter.shape;
      shape[0] = parameter.parts[piece.part].rows;
      visit(parameter.parts[piece.part].name,
            full.narrow(0, piece.flat_begin, piece.count).to(dtype).to(at::kCPU).reshape(shape));
    }
  }
}

}  // namespace trireme
