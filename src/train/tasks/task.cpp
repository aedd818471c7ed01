#include "task.h"

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/ops/dispatch.h"
#include "trireme/ops/matmul/nf4.h"
#include "trireme/plan/devices.h"
#include "trireme/plan/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>

namespace trireme {

namespace {

/// Copies of one rank under way at a time: as many as keep the bus busy, not more than the machine's cores give each
/// rank.
int reader_threads(int world_size) {
  constexpr int kMostRanksPerHost = 8;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / std::min(world_size, kMostRanksPerHost), 2,
                    12);
}

/// Reads this rank's bytes of all units from `source`, telling how far it is every tenth when it takes long.
void load_units(ShardedUnits& units, const WeightSource& source, const std::string& path, int world_size) {
  log_info("loading " + path + " (" + source.description() + ")");
  const double begin = steady_seconds();
  int tenths = 0;
  units.load(source, reader_threads(world_size), [&](double fraction) {
    if (steady_seconds() - begin < 10 || fraction * 10 < tenths + 1) return;
    tenths = static_cast<int>(fraction * 10);
    log_info(fmt::format("loaded {} %", tenths * 10));
  });
  log_info(fmt::format("weights loaded in {}", format_duration(steady_seconds() - begin)));
}

}  // namespace

void TrainingTask::set_rows_per_pass(int rows) {
  TRIREME_CHECK(rows >= 1 && rows_per_pass_ == 0, rows, " rows in each pass, where ", rows_per_pass_, " are set");
  rows_per_pass_ = rows;
}

int64_t TrainingTask::rows_per_pass() const {
  TRIREME_CHECK(rows_per_pass_ > 0, "a batch is asked for before the plan's rows per pass are known");
  return rows_per_pass_;
}

uint64_t TrainingTask::artefact_bytes() const {
  int64_t elements = 0;
  for (const UnitSpec& unit : units())
    if (unit.trained || !config_.lora) elements += unit.numel();
  return static_cast<uint64_t>(elements) * (config_.lora ? sizeof(float) : c10::elementSize(rank_.compute_dtype));
}

std::string fp8_problem(const RankInfo& rank, const RecipeTraits& recipe,
                        std::vector<std::pair<const char*, int64_t>> sizes, int64_t tokens) {
  const int capability = rank.device.is_cuda() ? compute_capability(rank.device) : rank.planned_capability;
  if (capability == 0) return "";
  const bool here = rank.device.is_cuda();
  if (std::string problem = fp8_problem_of(recipe, here ? kernel_class(rank.device) : planned_kernel_class(capability),
                                           capability, here ? rank.device.str() : "the GPU");
      !problem.empty())
    return problem;
  if (recipe.needs_16_bit && rank.compute_dtype == at::kFloat)
    return "precision.linear fp8 goes with precision.compute bf16 or fp16 on a GPU, not with fp32";
  const int64_t multiple = recipe.size_multiple;
  if (std::ranges::all_of(sizes, [&](const auto& size) { return size.second % multiple == 0; }) &&
      tokens % recipe.token_multiple == 0)
    return "";
  if (tokens > 0 && recipe.token_multiple > 1) sizes.emplace_back("the tokens of a micro-batch", tokens);
  std::vector<std::string> all;
  for (const auto& [name, size] : sizes) all.push_back(fmt::format("{} is {}", name, size));
  return fmt::format("precision.linear fp8 needs sizes that are multiples of {}: {}",
                     std::max(multiple, recipe.token_multiple), join(all, ", "));
}

std::string nf4_problem(const std::vector<UnitSpec>& units) {
  for (const UnitSpec& unit : units)
    for (const ParameterSpec& parameter : unit.parameters)
      for (const ParameterPart& part : parameter.parts)
        if (const int64_t numel = part.rows * (parameter.numel() / parameter.shape[0]);
            parameter.linear && !unit.trained && numel % kNf4Block != 0)
          return fmt::format(
              "precision.frozen nf4 needs matrices of whole blocks of {} numbers, and {} has {}: leave it "
              "at auto",
              kNf4Block, part.name, numel);
  return "";
}

std::string nf4_description(const std::vector<UnitSpec>& units, at::ScalarType compute_dtype) {
  int64_t stored = 0, largest = 0;
  for (const UnitSpec& unit : units) {
    const int64_t numel = unit.trained || !unit.has_linear() ? 0 : unit.matrices().numel();
    stored += numel;
    largest = std::max(largest, numel);
  }
  const auto bytes = static_cast<double>(nf4_code_bytes(stored) + nf4_blocks(stored) + 4 * nf4_nested_blocks(stored));
  return fmt::format(
      "frozen matrices: {} parameters in NF4, {} of codes and scales; the {} parameters of one block at a "
      "time are expanded to {}",
      format_count(stored), format_bytes(bytes), format_count(largest), type_name(compute_dtype));
}

void TrainingTask::check_weights() {
  checked_ = true;
  check_start();
  if (config_.model.init == ModelSection::Init::kRandom) return;
  source_ = open_weights();
  trireme::check_weights(units(), *source_, config_.model.path, frozen_nf4(config_));
}

void TrainingTask::load_weights(ShardedUnits& units) {
  if (!checked_) check_weights();
  std::exception_ptr failure;
  try {
    if (source_) load_units(units, *source_, config_.model.path, rank_.grid.world.size);
  } catch (...) {
    failure = std::current_exception();  // the other ranks wait in initialise()
  }
  try {
    units.initialise(seed(), /*only_replicated=*/source_ != nullptr);
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  if (failure) std::rethrow_exception(failure);
  weights_loaded(units, source_.get());
  source_.reset();
}

}  // namespace trireme
