// Codes of trained weights: made from the master weights after each optimizer step.
#include "trireme/base/error.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/ops/matmul/fp8.h"
#include "trireme/ops/matmul/recipe.h"
#include "unit_state.h"

#include <algorithm>
#include <limits>

namespace trireme {

namespace {

/// Distance of one matrix's scalars to the next, in floats: cuBLASLt requires aligned scalars.
constexpr int64_t kStride = 32;

}  // namespace

void reduce_amax(Communicator& ranks, const at::Tensor& amax) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ranks.all_reduce(amax.nan_to_num_(kInfinity, kInfinity), ReduceOp::kMax)->wait();
}

/// Allocates what all units share, before their states are made.
void ShardedUnits::add_trained_codes() {
  if (!traits_of(options_.trained).stores_codes ||
      std::find(trained_fp8_.begin(), trained_fp8_.end(), true) == trained_fp8_.end())
    return;
  codes_ = std::make_unique<TrainedCodes>();
  int64_t vectors = 0, first_tensor = 0;
  size_t most_parts = 1;
  std::vector<std::vector<int64_t>> tensors_of;  // by parameter
  for (size_t u = 0; u < specs_.size(); ++u) {
    if (!trained_fp8_[u]) continue;
    vectors += make_layout(specs_[u].vectors(), 1).numel;
    for (const ParameterSpec& parameter : specs_[u].parameters) {
      tensors_of.emplace_back();
      for (size_t q = 0; q < parameter.parts.size(); ++q) tensors_of.back().push_back(first_tensor++);
      most_parts = std::max(most_parts, parameter.parts.size());
    }
  }
  const auto fp32 = at::TensorOptions(device_).dtype(at::kFloat);
  const auto parameters = static_cast<int64_t>(tensors_of.size());
  const at::Tensor index = at::empty({parameters, static_cast<int64_t>(most_parts)}, at::kLong);
  for (int64_t p = 0; p < parameters; ++p) {
    const std::vector<int64_t>& tensors = tensors_of[static_cast<size_t>(p)];
    for (size_t q = 0; q < most_parts; ++q)
      index[p][static_cast<int64_t>(q)] = q < tensors.size() ? tensors[q] : tensors.front();
  }
  codes_->amax = at::zeros({first_tensor}, fp32);
  codes_->tensors_of = index.to(device_);
  codes_->scale = at::ones({parameters}, fp32);
  codes_->inverse = at::ones({parameters, kStride}, fp32).select(1, 0);
  codes_->vectors = at::zeros({vectors}, fp32.dtype(options_.compute_dtype));
}

/// Finds this rank's elements of the unit's matrices and vectors, and their places.
void ShardedUnits::place_trained_codes(size_t unit) {
  const UnitSpec& spec = specs_[unit];
  UnitState& state = *states_[unit];
  TrainedShard& shard = trained_[static_cast<size_t>(state.trained_index)];
  codes_->divided = state.divided;
  shard.amax = codes_->amax.narrow(0, codes_->next_tensor, shard.num_tensors);
  codes_->next_tensor += shard.num_tensors;
  const int64_t begin = state.begin, end = begin + state.layout.shard_numel;
  for (size_t p = 0; p < spec.parameters.size(); ++p, ++codes_->next_parameter) {
    const int64_t offset = state.layout.offsets[p], first = std::max(begin, offset),
                  last = std::min(end, offset + spec.parameters[p].numel());
    if (first >= last) continue;
    const at::Tensor master = state.master.narrow(0, first - begin, last - first);
    if (spec.parameters[p].linear) {
      state.code_pieces.push_back({codes_->next_parameter, master, state.shard.narrow(0, first - begin, last - first)});
    } else {
      codes_->vector_masters.push_back(master);
      codes_->vector_values.push_back(state.views[p].view(-1).narrow(0, first - offset, last - first));
    }
  }
}

/// The scale of every matrix from its largest magnitude over the shard group, and the vectors of all units.
void ShardedUnits::find_code_scales() {
  for (size_t u = 0; u < states_.size(); ++u) {
    const UnitState& state = *states_[u];
    if (!state.trained_codes) continue;
    TrainedShard& shard = trained_[static_cast<size_t>(state.trained_index)];
    if (!shard.amax_known) {
      shard.amax.zero_();  // of tensors without elements on this rank
      for (const ShardRange& range : shard.ranges)
        shard.amax[range.tensor].copy_(fp8_amax(shard.master.narrow(0, range.begin, range.end - range.begin)));
    }
    shard.amax_known = false;
  }
  const at::Tensor& index = codes_->tensors_of;
  const at::Tensor amax = codes_->amax.index_select(0, index.view(-1)).view(index.sizes()).amax(1);
  if (codes_->divided) {
    reduce_amax(*shard_group_, amax);
    // Each element is on one rank and zero on the others, so that the sum is exact.
    codes_->vectors.zero_();
  }
  if (!codes_->vector_values.empty()) at::_foreach_copy_(codes_->vector_values, codes_->vector_masters);
  if (codes_->divided && codes_->vectors.numel() > 0) shard_group_->all_reduce(codes_->vectors)->wait();
  codes_->inverse.copy_(fp8_inverse_scale(amax));
  codes_->scale.copy_(codes_->inverse.reciprocal());
}

void ShardedUnits::write_codes(int unit) {
  for (const UnitState::CodePiece& piece : states_[static_cast<size_t>(unit)]->code_pieces)
    fp8_codes_(piece.codes, piece.master, codes_->scale.select(0, piece.parameter));
}

}  // namespace trireme
