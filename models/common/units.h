#pragma once
// Units of weights (trireme/nn/unit.h) as models list them, and the tensors that model directories keep of them.

#include "models/common/lora.h"
#include "trireme/formats/huggingface/weight_source.h"
#include "trireme/nn/unit.h"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// A matrix [rows, columns] stored as `module`.weight, of normal initial values.
ParameterSpec matrix_spec(const std::string& name, int64_t rows, int64_t columns, const std::string& module,
                          double deviation);
/// A vector stored as `tensor`.
ParameterSpec vector_spec(const std::string& name, int64_t width, const std::string& tensor, Init init = Init::kZeros);
/// Weight and, where there is one, bias of a norm and of a linear layer stored as `module`. `plus_one`: the norm is a
/// rms_norm_plus_one().
void add_norm(UnitSpec& unit, const std::string& name, int64_t width, const std::string& module, bool bias,
              bool plus_one = false);
void add_linear(UnitSpec& unit, const std::string& name, int64_t rows, int64_t columns, const std::string& module,
                double deviation);

/// The unit of one block, whose tensors' names begin with `prefix` ("model.layers.3.").
UnitSpec block_unit(const BlockTable& block, const std::string& name, const std::string& prefix);
/// A and B of each target in a block, by PEFT's initialisation: A as kaiming_uniform(a = sqrt(5)), which is uniform
/// within 1/sqrt(in); B zero. `name` begins their names in the unit.
void add_adapters(UnitSpec& unit, const std::vector<LoraTarget>& targets, const std::string& name,
                  const std::string& prefix);
/// The vectors of a block that are trained beside its adapters: DoRA's magnitude of each target, then biases.
void add_adapter_vectors(UnitSpec& unit, const BlockTable& block, const std::vector<LoraTarget>& targets, bool dora,
                         const std::vector<TrainedBias>& biases, const std::string& name, const std::string& prefix);

/// Parameters of the base model, and of the trained units.
int64_t base_parameters(const std::vector<UnitSpec>& units);
int64_t trained_parameters(const std::vector<UnitSpec>& units);

}  // namespace trireme
