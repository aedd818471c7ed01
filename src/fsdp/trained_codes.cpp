#include "trained_codes.h"

#include "trireme/nn/host_state.h"
#include "trireme/ops/matmul/fp8.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace trireme {

namespace {

/// Distance of one matrix's scalars to the next, in floats: cuBLASLt requires aligned scalars.
constexpr int64_t kStride = 32;

/// Largest magnitudes of a shard's tensors; `master`: its master weights, here or on the host.
void find_amax(const TrainedShard& shard, const at::Tensor& master) {
  shard.amax.zero_();  // of tensors without elements on this rank
  for (const ShardRange& range : shard.ranges)
    shard.amax[range.tensor].copy_(
        fp8_amax(master.narrow(0, range.begin, range.end - range.begin).to(shard.amax.device())));
}

}  // namespace

void reduce_amax(Communicator& ranks, const at::Tensor& amax) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ranks.all_reduce(amax.nan_to_num_(kInfinity, kInfinity), ReduceOp::kMax)->wait();
}

TrainedCodes::TrainedCodes(const std::vector<const UnitSpec*>& units, at::Device device, at::ScalarType dtype) {
  int64_t vectors = 0, tensor = 0;
  size_t most_parts = 1;
  std::vector<std::vector<int64_t>> tensors_of;  // by parameter
  for (const UnitSpec* spec : units) {
    units_.push_back({spec, static_cast<int64_t>(tensors_of.size()), tensor, vectors, nullptr, {}, false});
    vectors += make_layout(spec->vectors(), 1).numel;
    for (const ParameterSpec& parameter : spec->parameters) {
      tensors_of.emplace_back();
      for (size_t q = 0; q < parameter.parts.size(); ++q) tensors_of.back().push_back(tensor++);
      most_parts = std::max(most_parts, parameter.parts.size());
    }
  }
  const auto fp32 = at::TensorOptions(device).dtype(at::kFloat);
  const auto parameters = static_cast<int64_t>(tensors_of.size());
  const at::Tensor index = at::empty({parameters, static_cast<int64_t>(most_parts)}, at::kLong);
  for (int64_t p = 0; p < parameters; ++p) {
    const std::vector<int64_t>& tensors = tensors_of[static_cast<size_t>(p)];
    // A parameter of fewer parts has its first tensor several times, which changes no maximum.
    for (size_t q = 0; q < most_parts; ++q)
      index[p][static_cast<int64_t>(q)] = q < tensors.size() ? tensors[q] : tensors.front();
  }
  amax_ = at::zeros({tensor}, fp32);
  tensors_of_ = index.to(device);
  scale_ = at::ones({parameters}, fp32);
  inverse_ = at::ones({parameters, kStride}, fp32).select(1, 0);
  vectors_ = at::zeros({vectors}, fp32.dtype(dtype));
}

at::Tensor TrainedCodes::vectors(int unit) const {
  const Unit& u = units_.at(static_cast<size_t>(unit));
  return vectors_.narrow(0, u.first_vector, make_layout(u.spec->vectors(), 1).numel);
}

at::Tensor TrainedCodes::inverse_scales(int unit) const {
  const Unit& u = units_.at(static_cast<size_t>(unit));
  return inverse_.narrow(0, u.first_parameter, static_cast<int64_t>(u.spec->parameters.size()));
}

void TrainedCodes::add(int unit, const Part& part, TrainedShard& shard) {
  Unit& u = units_.at(static_cast<size_t>(unit));
  u.shard = &shard;
  shard.amax = amax_.narrow(0, u.first_tensor, shard.num_tensors);
  const int64_t begin = part.begin, end = begin + part.layout.shard_numel;
  for (size_t p = 0; p < u.spec->parameters.size(); ++p) {
    const int64_t offset = part.layout.offsets[p], first = std::max(begin, offset),
                  last = std::min(end, offset + u.spec->parameters[p].numel());
    if (first >= last) continue;
    const at::Tensor master = shard.master.narrow(0, first - begin, last - first);
    const bool on_host = shard.host != nullptr;
    if (u.spec->parameters[p].linear) {
      const int64_t most = on_host ? shard.host->piece_elements() : last - first;
      for (int64_t from = first; from < last; from += most)
        u.pieces.push_back({u.first_parameter + static_cast<int64_t>(p), from - begin,
                            shard.master.narrow(0, from - begin, std::min(most, last - from)),
                            part.codes.narrow(0, from - begin, std::min(most, last - from))});
      continue;
    }
    const at::Tensor value = part.tensors[p].view(-1).narrow(0, first - offset, last - first);
    if (on_host) {
      host_vectors_.emplace_back(value, master);
      continue;
    }
    vector_masters_.push_back(master);
    vector_values_.push_back(value);
  }
}

void TrainedCodes::update_scales(Communicator* group) {
  for (const Unit& unit : units_) {
    TrainedShard& shard = *unit.shard;
    if (!shard.amax_known) find_amax(shard, shard.master);
    shard.amax_known = false;
  }
  const at::Tensor amax = parameter_amax(0, tensors_of_.size(0));
  if (group != nullptr) {
    reduce_amax(*group, amax);
    // Each element is on one rank and zero on the others, so that the sum is exact.
    vectors_.zero_();
  }
  if (!vector_values_.empty()) at::_foreach_copy_(vector_values_, vector_masters_);
  for (const auto& [value, master] : host_vectors_) value.copy_(master, /*non_blocking=*/true);
  if (group != nullptr && vectors_.numel() > 0) group->all_reduce(vectors_)->wait();
  inverse_.copy_(fp8_inverse_scale(amax));
  scale_.copy_(inverse_.reciprocal());
}

at::Tensor TrainedCodes::parameter_amax(int64_t first, int64_t count) const {
  const at::Tensor tensors = tensors_of_.narrow(0, first, count);
  return amax_.index_select(0, tensors.reshape(-1)).view(tensors.sizes()).amax(1);
}

void TrainedCodes::follow_updates() {
  for (Unit& unit : units_) {
    if (unit.shard->host == nullptr) continue;
    unit.shard->updated = [this, &unit](const at::Tensor& master) {
      if (!unit.shard->amax_known) find_amax(*unit.shard, master);
      unit.shard->amax_known = unit.written = true;
      // As update_scales() will compute them.
      const auto count = static_cast<int64_t>(unit.spec->parameters.size());
      const at::Tensor scale = fp8_inverse_scale(parameter_amax(unit.first_parameter, count)).reciprocal();
      for (const Piece& piece : unit.pieces)
        fp8_codes_(piece.codes, master.narrow(0, piece.begin, piece.codes.numel()),
                   scale.select(0, piece.parameter - unit.first_parameter));
    };
  }
}

void TrainedCodes::write(int unit) {
  Unit& u = units_.at(static_cast<size_t>(unit));
  if (std::exchange(u.written, false)) return;
  const auto convert = [&](const Piece& piece, const at::Tensor& master) {
    fp8_codes_(piece.codes, master, scale_.select(0, piece.parameter));
  };
  if (u.shard->host == nullptr) {
    for (const Piece& piece : u.pieces) convert(piece, piece.master);
    return;
  }
  std::vector<HostState::Piece> masters;
  for (const Piece& piece : u.pieces) masters.push_back({piece.master});
  u.shard->host->pass(
      masters, [&](size_t i, const HostState::Piece& here) { convert(u.pieces[i], here[0]); }, /*writes=*/false);
}

}  // namespace trireme
