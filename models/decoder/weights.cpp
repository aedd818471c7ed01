#include "models/decoder/weights.h"

#include "trireme/base/error.h"
#include "trireme/nn/init.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>

namespace trireme {

namespace {

at::ScalarType scalar_type(DType dtype, const std::string& tensor) {
  switch (dtype) {
    case DType::kF32: return at::kFloat;
    case DType::kF64: return at::kDouble;
    case DType::kF16: return at::kHalf;
    case DType::kBF16: return at::kBFloat16;
    default:
      throw ModelError(
          fmt::format("tensor {} is stored as {}; weights must be F32, F16, BF16 or F64", tensor, dtype_name(dtype)));
  }
}

at::Tensor read_part(const WeightSource& source, const ParameterPart& part, at::IntArrayRef shape) {
  at::Tensor value = read_tensor(source, part.name);
  if (value.sizes() != shape)
    throw ModelError(fmt::format("{} has shape [{}], the configuration asks for [{}]", tensor_text(source, part.name),
                                 fmt::join(value.sizes(), ", "), fmt::join(shape, ", ")));
  return value;
}

using PartFill = std::function<void(const ParameterSpec&, const ParameterPart&, const at::Tensor& rows)>;

std::vector<std::vector<at::Tensor>> build_units(const DecoderModel& model, at::ScalarType dtype, at::Device device,
                                                 const PartFill& fill_base, uint64_t seed) {
  at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> units;
  for (const UnitSpec& unit : model.units()) {
    std::vector<at::Tensor>& tensors = units.emplace_back();
    for (const ParameterSpec& spec : unit.parameters) {
      at::Tensor tensor = at::empty(spec.shape, at::TensorOptions(dtype).device(device));
      int64_t row = 0;
      for (const ParameterPart& part : spec.parts) {
        const at::Tensor rows = tensor.narrow(0, row, part.rows);
        if (unit.replicated)
          draw_initial_values(spec, part, seed, 0, rows.view({-1}));
        else
          fill_base(spec, part, rows);
        row += part.rows;
      }
      tensors.push_back(tensor.set_requires_grad(unit.trained));
    }
  }
  return units;
}

}  // namespace

at::Tensor read_tensor(const WeightSource& source, const std::string& name) {
  const auto info = source.find(name);
  if (!info) throw ModelError(fmt::format("{} has no tensor {}", source.description(), name));
  const at::ScalarType dtype = scalar_type(info->dtype, tensor_text(source, name));
  at::Tensor tensor = at::empty(info->shape, at::TensorOptions(at::kFloat));
  at::Tensor flat = tensor.view({-1});
  int64_t next = 0;
  for (const ElementSpan& span : source.read(name, 0, tensor.numel())) {
    // The map is read-only and nothing writes to this tensor.
    const at::Tensor stored = at::from_blob(const_cast<std::byte*>(span.data), {span.count}, at::TensorOptions(dtype));
    flat.narrow(0, next, span.count).copy_(stored);
    next += span.count;
  }
  TRIREME_CHECK(next == tensor.numel(), "read ", next, " of ", tensor.numel(), " elements of ", name);
  return tensor;
}

std::vector<std::vector<at::Tensor>> load_whole(const DecoderModel& model, const WeightSource& source,
                                                at::ScalarType dtype, at::Device device, uint64_t seed) {
  return build_units(
      model, dtype, device,
      [&](const ParameterSpec&, const ParameterPart& part, const at::Tensor& rows) {
        rows.copy_(read_part(source, part, rows.sizes()));
      },
      seed);
}

std::vector<std::vector<at::Tensor>> random_whole(const DecoderModel& model, at::ScalarType dtype, at::Device device,
                                                  uint64_t seed) {
  return build_units(
      model, dtype, device,
      [&](const ParameterSpec& spec, const ParameterPart& part, const at::Tensor& rows) {
        draw_initial_values(spec, part, seed, 0, rows.view({-1}));
      },
      seed);
}

StreamedStore::StreamedStore(const DecoderModel& model, const WeightSource& source, at::ScalarType dtype,
                             const std::map<std::string, at::Tensor>& adapter)
    : model_(model), source_(source), dtype_(dtype), units_(model.units().size()) {
  for (size_t u = 0; u < units_.size(); ++u) {
    states_.emplace_back(model.units()[u].parameters.size());
    if (!model.units()[u].replicated) continue;
    for (const ParameterSpec& spec : model.units()[u].parameters) {
      const auto found = adapter.find(spec.parts[0].name);
      TRIREME_CHECK(found != adapter.end(), "no adapter tensor ", spec.parts[0].name);
      units_[u].push_back(found->second.to(dtype));
    }
  }
}

void StreamedStore::pre_forward(int unit) {
  const UnitSpec& spec = model_.units().at(unit);
  if (spec.replicated || !units_[unit].empty()) return;
  at::NoGradGuard no_grad;
  for (const ParameterSpec& parameter : spec.parameters) {
    at::Tensor tensor = at::empty(parameter.shape, at::TensorOptions(dtype_));
    int64_t row = 0;
    for (const ParameterPart& part : parameter.parts) {
      const at::Tensor rows = tensor.narrow(0, row, part.rows);
      rows.copy_(read_part(source_, part, rows.sizes()));
      row += part.rows;
    }
    units_[unit].push_back(tensor);
  }
}

void StreamedStore::post_forward(int unit) {
  const UnitSpec& spec = model_.units().at(unit);
  if (!spec.replicated && !spec.keep) units_[unit].clear();
}

void StreamedStore::pre_backward(int) { TRIREME_CHECK(false, "a streamed store has no backward"); }
void StreamedStore::post_backward(int) { TRIREME_CHECK(false, "a streamed store has no backward"); }

void assign_adapter(const DecoderModel& model, const std::map<std::string, at::Tensor>& tensors,
                    std::vector<std::vector<at::Tensor>>& units) {
  at::NoGradGuard no_grad;
  size_t assigned = 0;
  for (size_t u = 0; u < model.units().size(); ++u) {
    if (!model.units()[u].replicated) continue;
    for (size_t p = 0; p < units[u].size(); ++p) {
      const auto found = tensors.find(model.units()[u].parameters[p].parts[0].name);
      if (found == tensors.end()) continue;
      units[u][p].copy_(found->second);
      ++assigned;
    }
  }
  TRIREME_CHECK(assigned == tensors.size(), assigned, " of ", tensors.size(),
                " adapter tensors have a place in the model");
}

}  // namespace trireme
