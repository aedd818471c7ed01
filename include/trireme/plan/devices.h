#pragma once
// GPUs that no measurement of ours knows, by their vendor's datasheets: for dry runs and simulations.

#include "trireme/ops/dispatch.h"
#include "trireme/ops/matmul/recipe.h"
#include "trireme/plan/rates.h"

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// What options take for the memory of a GPU or of a host.
constexpr double kLeastMemoryGib = 0.001, kMostMemoryGib = 1 << 20;

/// The words of --device: those of the datasheets, and h100 and h200, whose rates are measured.
std::vector<std::string> device_words();
/// Rates of a device by its word. Of a datasheet's figures the parts that an H200 reaches of its own, with
/// MachineRates::measured false.
MachineRates device_rates(std::string_view word);
/// Why `device`, a GPU of this compute capability that runs these kernels, does not multiply in the recipe; empty: it
/// does.
std::string fp8_problem_of(const RecipeTraits& recipe, KernelClass kernels, int capability, const std::string& device);

}  // namespace trireme
