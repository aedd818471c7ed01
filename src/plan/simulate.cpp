#include "trireme/plan/simulate.h"

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/config/keys.h"
#include "trireme/ops/dispatch.h"
#include "trireme/plan/devices.h"
#include "trireme/plan/precision.h"
#include "trireme/plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace trireme {

namespace {

void check_gpus(const SimulationOptions& options) {
  std::vector<std::string> wrong;
  for (const int gpus : options.gpus)
    if (gpus > options.gpus_per_host && gpus % options.gpus_per_host != 0) wrong.push_back(std::to_string(gpus));
  if (!wrong.empty())
    throw ConfigError(fmt::format(
        "simulate: --gpus {} do{} not fill hosts of {} GPUs: give multiples of {}, or fewer than one host has, or "
        "--gpus-per-host",
        join(wrong, ", "), wrong.size() == 1 ? "es" : "", options.gpus_per_host, options.gpus_per_host));
}

/// The global batch for a number of GPUs; 0 where it would not be a whole number.
int64_t batch_for(const Config& config, const SimulationOptions& options, int gpus) {
  const int64_t global = config.batch.global_batch_size;
  if (!options.weak) return global;
  const int64_t first = options.gpus.front();
  return global * gpus % first == 0 ? global * gpus / first : 0;
}

/// All numbers of GPUs over which the batch does not divide, in one sentence.
void check_batch(const Config& config, const SimulationOptions& options, bool shares_rows) {
  const int64_t global = config.batch.global_batch_size, micro = config.batch.micro_batch_size;
  std::vector<std::string> wrong;
  int64_t unit = 1;  // what the batch of the smallest number must be a multiple of
  Config sized = config;
  for (const int gpus : options.gpus) {
    const int64_t batch = batch_for(config, options, gpus);
    sized.batch.global_batch_size = batch;
    bool divides = batch > 0;
    for (const int64_t context : options.contexts.empty() ? std::vector<int>{0} : options.contexts) {
      const int64_t together = context > 0 ? context : least_context_size(sized, gpus, shares_rows);
      if (gpus % together != 0) continue;  // refused with a sentence of its own
      const int64_t ranks = options.weak ? options.gpus.front() : gpus;
      unit = std::lcm(unit, std::max<int64_t>(1, ranks / together) * micro);
      divides = divides && batch % (gpus / together * micro) == 0;
    }
    if (!divides) wrong.push_back(std::to_string(gpus));
  }
  if (wrong.empty()) return;
  const int64_t next = round_up(global, unit);
  throw ConfigError(fmt::format(
      "simulate: batch.global_batch_size {} does not divide over {} GPU{} x batch.micro_batch_size {}: give --set "
      "batch.global_batch_size={}{}{}",
      global, join(wrong, ", "), wrong == std::vector<std::string>{"1"} ? "" : "s", micro, next,
      micro > 1 ? " or a smaller batch.micro_batch_size" : "",
      options.weak ? "" : ", fewer GPUs, or --weak, where the batch grows with the GPUs"));
}

SimulatedPlan simulate_one(const PlanQuestion& question, const std::string& policy, int context) {
  const PlanInput input = plan_input(question);
  SimulatedPlan one{
      .policy = policy, .context = context, .micro_batches = input.micro_batches, .plan = {}, .efficiency = {}};
  if (auto plan = find_plan(input)) {
    one.plan = *std::move(plan);
    const auto tokens = static_cast<double>(question.config.batch.global_batch_size * question.config.data.seq_length);
    one.tokens_per_s = tokens / one.plan.cost.total() / question.ranks;
  } else {
    one.plan = least_plan(input);
    one.fits = false;
  }
  return one;
}

}  // namespace

Simulation simulate(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                    const ProgramKeys& program, const std::function<std::unique_ptr<PlannedModel>(const Config&)>& open,
                    const SimulationOptions& options) {
  TRIREME_CHECK(!options.gpus.empty() && !options.policies.empty(), "a simulation of nothing");
  check_gpus(options);
  const Config config = load_config(file, overrides, program);
  check_batch(config, options, program.features.has(Feature::kContext));
  const std::unique_ptr<PlannedModel> model = open(config);
  const KernelClass kernels = planned_kernel_class(options.rates.capability);
  if (const std::string problem = fp8_problem_of(traits_of(block_recipe(config, model->facts().automatic_fp8)), kernels,
                                                 options.rates.capability, options.rates.name);
      !problem.empty())
    throw ConfigError(problem);

  Simulation simulation;
  simulation.model = model->facts().description;
  simulation.seq_length = config.data.seq_length;
  const std::vector<UnitSpec>& units = *model->facts().units;
  simulation.policy_free =
      std::none_of(units.begin(), units.end(), [](const UnitSpec& unit) { return unit.trained && !unit.replicated; });
  const std::vector<std::string> policies =
      simulation.policy_free ? std::vector<std::string>{"auto"} : options.policies;
  std::map<std::pair<std::string, int>, double> first;  // tokens_per_s of the smallest number of GPUs
  for (const int gpus : options.gpus) {
    // The rules of a run of so many ranks: parallel.shard_size divides them.
    std::vector<std::string> settings = overrides;
    settings.push_back(fmt::format("batch.global_batch_size={}", batch_for(config, options, gpus)));
    std::vector<std::pair<int, Config>> sizes;
    for (const int context : options.contexts) {
      std::vector<std::string> shared = settings;
      shared.push_back(fmt::format("parallel.context_size={}", context));
      sizes.emplace_back(context, load_config(file, shared, program, gpus));
    }
    if (sizes.empty()) sizes.emplace_back(0, load_config(file, settings, program, gpus));
    SimulatedSize size{.gpus = gpus,
                       .hosts = ceil_div(gpus, options.gpus_per_host),
                       .global_batch_size = sizes.front().second.batch.global_batch_size,
                       .plans = {}};
    for (const std::string& policy : policies)
      for (auto& [context, sized] : sizes) {
        sized.parallel.policy = choice_of<ParallelSection::Policy>(policy).value();
        const PlanQuestion question{
            .config = sized,
            .model = *model,
            .ranks = gpus,
            .gpu = true,
            .device_memory = static_cast<int64_t>(options.rates.memory_gib * (1 << 30)),
            .host_memory = pinnable_memory(static_cast<int64_t>(options.rates.host_memory_gib * (1 << 30)), 1),
            .ranks_per_host = std::min(gpus, options.gpus_per_host),
            .rates = options.rates,
            .kernels = kernels};
        SimulatedPlan one = simulate_one(question, policy, context);
        if (one.fits)
          one.efficiency = one.tokens_per_s / first.emplace(std::pair(policy, context), one.tokens_per_s).first->second;
        size.plans.push_back(std::move(one));
      }
    simulation.sizes.push_back(std::move(size));
  }
  return simulation;
}

}  // namespace trireme
