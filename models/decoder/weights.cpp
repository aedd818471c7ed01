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

void fill_part(const WeightSource& source, const ParameterPart& part, const at::Tensor& rows) {
  const at::Tensor value = read_tensor(source, part.name);
  if (value.sizes() != rows.sizes())
    throw ModelError(fmt::format("{} has shape [{}], the configuration asks for [{}]", tensor_text(source, part.name),
                                 fmt::join(value.sizes(), ", "), fmt::join(rows.sizes(), ", ")));
  rows.copy_(value);
}

using PartFill = std::function<void(const ParameterSpec&, const ParameterPart&, const at::Tensor& rows)>;

std::vector<at::Tensor> build_unit(const UnitSpec& unit, at::TensorOptions options, const PartFill& fill) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const ParameterSpec& spec : unit.parameters) {
    const at::Tensor& tensor = tensors.emplace_back(at::empty(spec.shape, options));
    int64_t row = 0;
    for (const ParameterPart& part : spec.parts) {
      fill(spec, part, tensor.narrow(0, row, part.rows));
      row += part.rows;
    }
  }
  return tensors;
}

/// Base weights from `source` or, null, drawn as the adapters are.
std::vector<std::vector<at::Tensor>> build_units(const DecoderModel& model, at::ScalarType dtype,
                                                 const WeightSource* source, uint64_t seed) {
  std::vector<std::vector<at::Tensor>> units;
  for (const UnitSpec& unit : model.units()) {
    const at::ScalarType type = unit.fp32 && dtype != at::kDouble ? at::kFloat : dtype;
    units.push_back(
        build_unit(unit, type, [&](const ParameterSpec& spec, const ParameterPart& part, const at::Tensor& rows) {
          if (source == nullptr || unit.replicated)
            draw_initial_values(spec, part, seed, 0, rows.view({-1}));
          else
            fill_part(*source, part, rows);
        }));
    for (const at::Tensor& tensor : units.back()) tensor.requires_grad_(unit.trained);
  }
  return units;
}

}  // namespace

std::vector<std::vector<at::Tensor>> load_whole(const DecoderModel& model, const WeightSource& source,
                                                at::ScalarType dtype) {
  return build_units(model, dtype, &source, 0);
}

std::vector<std::vector<at::Tensor>> random_whole(const DecoderModel& model, at::ScalarType dtype, uint64_t seed) {
  return build_units(model, dtype, nullptr, seed);
}

StreamedStore::StreamedStore(const DecoderModel& model, const WeightSource& source, at::ScalarType dtype,
                             const std::map<std::string, at::Tensor>& adapter)
    : model_(model), source_(source), dtype_(dtype), units_(model.units().size()) {
  for (size_t u = 0; u < units_.size(); ++u) {
    states_.emplace_back(model.units()[u].parameters.size());
    if (!model.of_adapter(u)) continue;
    units_[u] = build_unit(model.units()[u], at::TensorOptions(dtype),
                           [&](const ParameterSpec&, const ParameterPart& part, const at::Tensor& rows) {
                             const auto found = adapter.find(part.name);
                             TRIREME_CHECK(found != adapter.end(), "no adapter tensor ", part.name);
                             rows.copy_(found->second);
                           });
  }
}

void StreamedStore::pre_forward(int unit) {
  const UnitSpec& spec = model_.units().at(unit);
  if (!units_[unit].empty()) return;
  units_[unit] = build_unit(
      spec, at::TensorOptions(dtype_),
      [&](const ParameterSpec&, const ParameterPart& part, const at::Tensor& rows) { fill_part(source_, part, rows); });
}

void StreamedStore::post_forward(int unit) {
  const UnitSpec& spec = model_.units().at(unit);
  if (!model_.of_adapter(static_cast<size_t>(unit)) && !spec.keep) units_[unit].clear();
}

void StreamedStore::pre_backward(int) { TRIREME_CHECK(false, "a streamed store has no backward"); }
void StreamedStore::post_backward(int) { TRIREME_CHECK(false, "a streamed store has no backward"); }

void assign_adapter(const DecoderModel& model, const std::map<std::string, at::Tensor>& tensors,
                    std::vector<std::vector<at::Tensor>>& units) {
  at::NoGradGuard no_grad;
  size_t assigned = 0;
  for (size_t u = 0; u < model.units().size(); ++u) {
    if (!model.of_adapter(u)) continue;
    for (size_t p = 0; p < units[u].size(); ++p) {
      int64_t row = 0;
      for (const ParameterPart& part : model.units()[u].parameters[p].parts) {
        if (const auto found = tensors.find(part.name); found != tensors.end()) {
          units[u][p].narrow(0, row, part.rows).copy_(found->second);
          ++assigned;
        }
        row += part.rows;
      }
    }
  }
  TRIREME_CHECK(assigned == tensors.size(), assigned, " of ", tensors.size(),
                " adapter tensors have a place in the model");
}

}  // namespace trireme
