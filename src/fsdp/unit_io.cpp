// Filling units from checkpoints or random numbers, and writing them out again.
#include "trireme/base/error.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/ops/init.h"
#include "unit_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace trireme {

namespace {

at::ScalarType scalar_type(DType dtype, const std::string& tensor) {
  switch (dtype) {
    case DType::kF32: return at::kFloat;
    case DType::kF64: return at::kDouble;
    case DType::kF16: return at::kHalf;
    case DType::kBF16: return at::kBFloat16;
    default:
      throw ModelError(fmt::format("tensor {} is stored as {}; weights must be F32, F16, BF16 or F64", tensor, dtype_name(dtype)));
  }
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

void ShardedUnits::fill(UnitState& state, const std::function<void(const LayoutPiece&, at::Tensor)>& write) {
  const size_t unit = std::find_if(states_.begin(), states_.end(), [&](const auto& s) { return s.get() == &state; }) - states_.begin();
  const int64_t begin = state.sharded ? shard_group_->rank() * state.layout.shard_numel : 0;
  at::Tensor& target = state.master.defined() ? state.master : state.shard;
  for (const LayoutPiece& piece : pieces_in_range(specs_[unit], state.layout, begin, begin + state.layout.shard_numel))
    write(piece, target.narrow(0, piece.flat_begin - begin, piece.count));
  if (state.master.defined() && !state.master.is_same(state.shard)) state.shard.copy_(state.master);
}

void ShardedUnits::load(const WeightSource& source, const std::function<void(double)>& progress) {
  at::NoGradGuard no_grad;
  std::vector<std::string> problems;
  int64_t total = 0, done = 0;
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (specs_[u].replicated) continue;
    total += states_[u]->layout.shard_numel;
    for (const ParameterSpec& parameter : specs_[u].parameters) {
      for (const ParameterPart& part : parameter.parts) {
        std::vector<int64_t> expected = parameter.shape;
        expected[0] = part.rows;
        const auto info = source.find(part.name);
        if (!info)
          problems.push_back(part.name + " is missing");
        else if (info->shape != expected)
          problems.push_back(fmt::format("{} has shape {}, the configuration asks for {}", part.name, shape_text(info->shape),
                                         shape_text(expected)));
        else
          scalar_type(info->dtype, part.name);
      }
    }
  }
  if (!problems.empty()) {
    const size_t shown = std::min<size_t>(problems.size(), 5);
    throw ModelError(fmt::format("the checkpoint ({}) does not fit its config.json: {}{}", source.description(),
                                 fmt::join(problems.begin(), problems.begin() + static_cast<long>(shown), "; "),
                                 problems.size() > shown ? fmt::format("; and {} more", problems.size() - shown) : ""));
  }
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (specs_[u].replicated) continue;
    fill(*states_[u], [&](const LayoutPiece& piece, at::Tensor target) {
      const std::string& name = specs_[u].parameters[piece.parameter].parts[piece.part].name;
      const auto dtype = scalar_type(source.find(name)->dtype, name);
      int64_t at = 0;
      for (const ElementSpan& span : source.read(name, piece.tensor_begin, piece.tensor_begin + piece.count)) {
        // The map is read-only and nothing writes to this tensor.
        at::Tensor stored = at::from_blob(const_cast<std::byte*>(span.data), {span.count}, at::TensorOptions().dtype(dtype));
        target.narrow(0, at, span.count).copy_(stored);
        at += span.count;
      }
      TRIREME_CHECK(at == piece.count, "read ", at, " of ", piece.count, " elements of ", name);
    });
    done += states_[u]->layout.shard_numel;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(total));
  }
}

void ShardedUnits::initialise(uint64_t seed, bool only_replicated) {
  at::NoGradGuard no_grad;
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (only_replicated && !specs_[u].replicated) continue;
    fill(*states_[u], [&](const LayoutPiece& piece, at::Tensor target) {
      const ParameterSpec& parameter = specs_[u].parameters[piece.parameter];
      draw_initial_values(parameter, parameter.parts[piece.part], seed, piece.tensor_begin, target);
    });
  }
}

bool ShardedUnits::assign(const std::string& tensor_name, const at::Tensor& value) {
  at::NoGradGuard no_grad;
  bool found = false;
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (!specs_[u].replicated) continue;
    const bool here = std::any_of(specs_[u].parameters.begin(), specs_[u].parameters.end(), [&](const ParameterSpec& p) {
      return std::any_of(p.parts.begin(), p.parts.end(), [&](const ParameterPart& q) { return q.name == tensor_name; });
    });
    if (!here) continue;
    found = true;
    fill(*states_[u], [&](const LayoutPiece& piece, at::Tensor target) {
      if (specs_[u].parameters[piece.parameter].parts[piece.part].name != tensor_name) return;
      TRIREME_CHECK(value.numel() == piece.count, tensor_name, " has ", piece.count, " elements, the value has ", value.numel());
      target.copy_(value.reshape(-1));
    });
  }
  return found;
}

at::Tensor ShardedUnits::whole(int unit) {
  UnitState& state = *states_[unit];
  const at::Tensor& shard = state.master.defined() ? state.master : state.shard;
  if (!state.sharded) return shard;
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
