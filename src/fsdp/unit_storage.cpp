#include "unit_storage.h"

#include "gather_slots.h"
#include "trained_codes.h"
#include "trireme/base/error.h"
#include "trireme/ops/matmul/fp8.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace trireme {

namespace {

void write_pieces(const UnitSpec& spec, const UnitLayout& layout, int64_t begin, const at::Tensor& target,
                  const PieceWriter& write) {
  for (const LayoutPiece& piece : pieces_in_range(spec, layout, begin, begin + target.numel())) {
    const ParameterSpec& parameter = spec.parameters[static_cast<size_t>(piece.parameter)];
    write(parameter, parameter.parts[static_cast<size_t>(piece.part)], piece,
          target.narrow(0, piece.flat_begin - begin, piece.count));
  }
}

/// Fills `target`, elements [begin, begin + target.numel()) of a flat buffer. `sharded`: ranks with another place in
/// the shard group hold other elements.
void write_shared(const UnitSpec& spec, const UnitLayout& layout, int64_t begin, const at::Tensor& target, bool sharded,
                  const Filling& filling) {
  Communicator* const readers = sharded ? filling.slice_readers : filling.whole_readers;
  const int64_t size = readers == nullptr ? 1 : readers->size(), rank = readers == nullptr ? 0 : readers->rank();
  const int64_t share = target.numel() / size, rest = target.numel() - size * share;
  write_pieces(spec, layout, begin + rank * share, target.narrow(0, rank * share, share), filling.write);
  // Fewer elements than readers: each reads them.
  if (rest > 0) write_pieces(spec, layout, begin + size * share, target.narrow(0, size * share, rest), filling.write);
  if (filling.settle) filling.settle();
  if (size > 1 && share > 0)
    readers->all_gather(target.narrow(0, 0, size * share), target.narrow(0, rank * share, share))->wait();
}

}  // namespace

UnitStorage::UnitStorage(const UnitSpec& spec_, Form form_, UnitDivision division, const RankGrid& grid,
                         at::ScalarType compute_dtype_, at::ScalarType master_dtype_)
    : spec(spec_),
      form(form_),
      gathered(division.weights),
      divided(division.state),
      stored(frozen_codes() ? spec.matrices() : spec),
      vectors(spec.vectors()),
      compute_dtype(compute_dtype_),
      dtype(form == Form::kCompute     ? compute_dtype_
            : form == Form::kFrozenNf4 ? at::kByte
                                       : at::kFloat8_e4m3fn),
      master_dtype(master_dtype_) {
  if (form == Form::kCompute) vectors.parameters.clear();
  const GridSlice slice = grid.slice_of_unit(division.any());
  layout = make_layout(stored, slice.count);
  begin = slice.index * layout.shard_numel;
}

void UnitStorage::allocate(at::Device device, const Memory& memory) {
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  const int64_t shard_elements = stored_numel(layout.shard_numel), elements = stored_numel(layout.numel);
  if (memory.shard.defined()) {
    shard = memory.shard.view(dtype);
    shard.zero_();
  } else if (gathered) {
    shard = at::zeros({shard_elements}, fp32.dtype(dtype));
  }
  if (gathered) {
    full = make_borrowed_tensor(elements, dtype, device);
  } else {
    full = at::zeros({elements}, fp32.dtype(dtype));
    shard = full.narrow(0, stored_numel(begin), shard_elements);
  }
  const UnitLayout beside = make_layout(vectors, 1);
  vector_memory = memory.vectors;
  inverse_scales = memory.scales;
  expanded = memory.expanded;
  if (frozen_codes()) vector_memory = at::zeros({beside.numel}, fp32.dtype(compute_dtype));
  if (form == Form::kFrozenFp8) inverse_scales = at::ones({static_cast<int64_t>(spec.parameters.size())}, fp32);
  if (form == Form::kFrozenNf4) allocate_nf4();
  size_t next_vector = 0, next_stored = 0;
  for (size_t p = 0; p < spec.parameters.size(); ++p) {
    const ParameterSpec& parameter = spec.parameters[p];
    const bool vector = form != Form::kCompute && !parameter.linear;
    const int64_t offset = vector           ? beside.offsets[next_vector++]
                           : frozen_codes() ? layout.offsets[next_stored++]
                                            : layout.offsets[p];
    const at::Tensor& flat = vector ? vector_memory : form == Form::kFrozenNf4 ? expanded : full;
    tensors.push_back(flat.narrow(0, offset, parameter.numel()).view(parameter.shape).detach());
  }
  if (!spec.trained) return;
  if (dtype == master_dtype)
    master = shard;
  else
    master = host != nullptr ? host->zeros(layout.shard_numel, master_dtype)
                             : at::zeros({layout.shard_numel}, fp32.dtype(master_dtype));
}

void UnitStorage::fill(const Filling& filling) {
  if (form == Form::kFrozenFp8) return fill_codes(filling);
  if (form == Form::kFrozenNf4) return fill_nf4(filling);
  const bool sharded = divided || gathered;
  if (host == nullptr || master.is_same(shard))
    return write_shared(stored, layout, begin, master.defined() ? master : shard, sharded, filling);
  // Readers and communicators write to the device. Elements that are not written keep their values.
  host->settle();
  const at::Tensor values = master.to(shard.device(), /*non_blocking=*/false, /*copy=*/true);
  write_shared(stored, layout, begin, values, sharded, filling);
  master.copy_(values);
}

void UnitStorage::allocate_nf4() {
  TRIREME_CHECK(expanded.defined() && expanded.numel() >= layout.numel, "no memory for the matrices of ", spec.name);
  const at::Tensor absmax = at::zeros({nf4_blocks(layout.numel)}, full.options());
  const auto fp32 = absmax.options().dtype(at::kFloat);
  for (const LayoutPiece& piece : pieces_in_range(stored, layout, 0, layout.numel)) {
    const ParameterPart& part =
        stored.parameters[static_cast<size_t>(piece.parameter)].parts[static_cast<size_t>(piece.part)];
    TRIREME_CHECK(piece.flat_begin % kNf4Block == 0 && piece.count % kNf4Block == 0, part.name, " of ", piece.count,
                  " elements has no whole blocks");
    nf4_parts.push_back({&part,
                         piece.flat_begin,
                         piece.count,
                         {absmax.narrow(0, piece.flat_begin / kNf4Block, piece.count / kNf4Block),
                          at::zeros({nf4_nested_blocks(piece.count)}, fp32), at::zeros({}, fp32)}});
  }
}

void UnitStorage::expand() const {
  for (const Nf4Part& part : nf4_parts)
    nf4_dequantize_(expanded.narrow(0, part.first, part.numel), full.narrow(0, part.first / 2, part.numel / 2),
                    part.scales);
}

void UnitStorage::fill_values(const at::Tensor& values, const Filling& filling) {
  // The writers' streams do not wait for the zeros.
  if (const at::Device device = values.device(); device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  write_shared(stored, layout, begin, values, gathered, filling);
}

void UnitStorage::fill_nf4(const Filling& filling) {
  write_shared(vectors, make_layout(vectors, 1), 0, vector_memory, /*sharded=*/false, filling);
  if (filling.stored_nf4 && filling.stored_nf4(*nf4_parts.front().part)) {
    const auto bytes = [](std::span<const std::byte> data, at::ScalarType type) {
      return at::from_blob(const_cast<std::byte*>(data.data()),
                           {static_cast<int64_t>(data.size() / c10::elementSize(type))}, at::TensorOptions(type));
    };
    for (const Nf4Part& part : nf4_parts) {
      const StoredNf4 in_file = filling.stored_nf4(*part.part).value();
      const int64_t from = std::max(begin, part.first),
                    to = std::min(begin + layout.shard_numel, part.first + part.numel);
      if (from < to)
        shard.narrow(0, (from - begin) / 2, (to - from) / 2)
            .copy_(bytes(in_file.codes, at::kByte).narrow(0, (from - part.first) / 2, (to - from) / 2));
      part.scales.absmax.copy_(bytes(in_file.absmax, at::kByte));
      part.scales.nested.copy_(bytes(in_file.nested, at::kFloat));
      part.scales.offset.fill_(in_file.offset);
    }
  } else {
    // The memory of the expanded matrices is free while weights are loaded.
    const at::Tensor values = expanded.variable_data().narrow(0, 0, layout.shard_numel).zero_();
    fill_values(values, filling);
    const at::Tensor absmax = at::empty({nf4_blocks(layout.numel)}, values.options().dtype(at::kFloat));
    const at::Tensor mine = absmax.narrow(0, begin / kNf4Block, layout.shard_numel / kNf4Block);
    mine.copy_(nf4_quantize_(shard, values));
    if (gathered) filling.shard_group->all_gather(absmax, mine)->wait();
    for (const Nf4Part& part : nf4_parts)
      nf4_quantize_scales_(part.scales, absmax.narrow(0, part.first / kNf4Block, part.numel / kNf4Block));
  }
  for (const auto& [part, first, numel, scales] : nf4_parts)
    if (!at::isfinite(scales.nested).all().item<bool>() || !std::isfinite(scales.offset.item<float>()))
      throw ModelError(
          fmt::format("the scales of {} in four bits are not finite: its numbers are too large, or its file "
                      "is damaged; leave precision.frozen at auto, or take another copy of the model",
                      part->name));
}

void UnitStorage::fill_codes(const Filling& filling) {
  write_shared(vectors, make_layout(vectors, 1), 0, vector_memory, /*sharded=*/false, filling);
  const int64_t end = begin + layout.shard_numel;
  const at::Tensor values = at::zeros({layout.shard_numel}, vector_memory.options());
  fill_values(values, filling);

  // This rank's part of every matrix; the scale comes from the largest magnitude over all ranks.
  const size_t count = stored.parameters.size();
  std::vector<at::Tensor> parts(count), targets(count);
  at::Tensor amax = at::zeros({static_cast<int64_t>(count)}, inverse_scales.options());
  for (size_t p = 0; p < count; ++p) {
    const int64_t first = std::max(begin, layout.offsets[p]),
                  last = std::min(end, layout.offsets[p] + stored.parameters[p].numel());
    if (first >= last) continue;
    parts[p] = values.narrow(0, first - begin, last - first);
    targets[p] = shard.narrow(0, first - begin, last - first);
    amax[static_cast<int64_t>(p)].copy_(fp8_amax(parts[p]));
  }
  if (gathered) reduce_amax(*filling.shard_group, amax);
  for (size_t p = 0, i = 0; i < spec.parameters.size(); ++i) {
    if (!spec.parameters[i].linear) continue;
    const at::Tensor inverse = inverse_scales.select(0, static_cast<int64_t>(i));
    inverse.copy_(fp8_inverse_scale(amax[static_cast<int64_t>(p)]));
    if (parts[p].defined()) fp8_cast_(targets[p], parts[p], inverse);
    ++p;
  }
}

WorkPtr UnitStorage::gather(Communicator& group) const {
  // Codes as bytes, because the communicator has no FP8 type.
  return dtype == at::kFloat8_e4m3fn ? group.all_gather(full.view(at::kByte), shard.view(at::kByte))
                                     : group.all_gather(full, shard);
}

at::Tensor UnitStorage::whole(Communicator* group) const {
  const at::Tensor& mine = master.defined() ? master : shard;
  if (host != nullptr) host->settle();
  if (!gathered && !divided) return mine;
  at::Tensor all = at::empty({layout.numel}, shard.options().dtype(mine.scalar_type()));
  group->all_gather(all, mine.to(shard.device()))->wait();
  return all;
}

}  // namespace trireme
