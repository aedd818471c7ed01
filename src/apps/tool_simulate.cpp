// `trireme simulate`: predicted steps on numbers of GPUs that are not there.
#include "report_chart.h"
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/plan/devices.h"
#include "trireme/plan/rates.h"
#include "trireme/plan/simulate.h"
#include "trireme/train/training_program.h"
#include "trireme/version.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

namespace {

constexpr double kGiB = 1 << 30;
constexpr int kMostGpus = 65536;
constexpr OutputKind kJsonOutput{"file of `trireme simulate`", "{\n  \"version\"", "\n  \"gpus_per_host\": "},
    kSvgOutput{"picture of `trireme simulate`", "<svg ", "scaling, predicted</title>"};

struct SimulateArguments {
  std::string config, trainer = "train_llama", device, rates, output, svg;
  std::vector<std::string> overrides, policies = SimulationOptions{}.policies;
  std::vector<int> gpus, contexts;
  int gpus_per_host = 8;
  std::optional<double> link_gb_s, nvlink_gb_s, memory_gib, host_memory_gib;
  bool weak = false;
};

SimulationOptions simulation_options(const SimulateArguments& arguments) {
  SimulationOptions options;
  options.gpus = arguments.gpus;
  std::sort(options.gpus.begin(), options.gpus.end());
  options.gpus.erase(std::unique(options.gpus.begin(), options.gpus.end()), options.gpus.end());
  options.gpus_per_host = arguments.gpus_per_host;
  for (const std::string& policy : arguments.policies)
    if (policy != "auto" && !parse_policy(policy))
      throw ConfigError(fmt::format("simulate: --policy '{}' is not one of {}.{}", policy,
                                    join(SimulationOptions{}.policies, ", "),
                                    did_you_mean(policy, SimulationOptions{}.policies)));
  options.policies = arguments.policies;
  options.contexts = arguments.contexts;
  if (!arguments.rates.empty())
    options.rates = read_rates(arguments.rates);
  else if (!arguments.device.empty())
    options.rates = device_rates(arguments.device);
  else
    options.rates = run_rates(
        load_config(arguments.config, arguments.overrides, training_program(arguments.trainer).keys), "NVIDIA H200");
  if (arguments.link_gb_s) options.rates.network_bytes = *arguments.link_gb_s * 1e9 * kNetworkEfficiency;
  if (arguments.nvlink_gb_s) options.rates.link_bytes = *arguments.nvlink_gb_s * 1e9;
  if (arguments.memory_gib) options.rates.memory_gib = *arguments.memory_gib;
  if (arguments.host_memory_gib) options.rates.host_memory_gib = *arguments.host_memory_gib;
  options.weak = arguments.weak;
  return options;
}

/// "8 in hosts" or "64 over hosts"; of a group of one: "-".
std::string group_text(const SimulatedPlan& one, int gpus_per_host) {
  const int size = one.plan.shard_size;
  return size == 1 ? "-" : fmt::format("{} {} hosts", size, size <= gpus_per_host ? "in" : "over");
}

std::string machine_text(const SimulationOptions& options) {
  const MachineRates& rates = options.rates;
  return fmt::format("{} of {:.1f} GiB, {} a host; in a host {:.0f} GB/s a GPU, between hosts {:.1f} GB/s", rates.name,
                     rates.memory_gib, options.gpus_per_host, rates.link_bytes / 1e9, rates.network_bytes / 1e9);
}

/// "tiles of 8,192 tokens, activations of 20 blocks in 75.0 GiB of the host"; empty: none.
std::string kept_text(const TrainingPlan& plan) {
  std::vector<std::string> parts;
  if (plan.tile_tokens > 0) parts.push_back(fmt::format("tiles of {} tokens", format_count(plan.tile_tokens)));
  if (plan.offloaded > 0)
    parts.push_back(fmt::format("activations of {} in {:.1f} GiB of the host", counted(plan.offloaded, "block"),
                                static_cast<double>(plan.host) / kGiB));
  if (plan.host_units > 0)
    parts.push_back(fmt::format("master weights and moments of {} in {:.1f} GiB of the host",
                                counted(plan.host_units, "unit"), static_cast<double>(plan.host_state) / kGiB));
  return join(parts, ", ");
}

std::string table(const Simulation& simulation, const SimulationOptions& options) {
  std::string text =
      fmt::format("{:>6} {:>6} {:>7} {:<9} {:<9} {:>13} {:>10} {:>10} {:>9} {:>11} {:>6}\n", "GPUs", "batch", "context",
                  "asked", "policy", "shard group", "step ms", "exposed", "GiB", "tok/s/GPU", "eff.");
  for (const SimulatedSize& size : simulation.sizes)
    for (const SimulatedPlan& one : size.plans) {
      text +=
          fmt::format("{:>6} {:>6} {:>7} {:<9} {:<9} {:>13} ", size.gpus, size.global_batch_size, one.plan.context_size,
                      one.policy, policy_name(one.plan.policy), group_text(one, options.gpus_per_host));
      const double memory = static_cast<double>(one.plan.total()) / kGiB;
      if (one.fits)
        text += fmt::format("{:>10.1f} {:>10.1f} {:>9.1f} {:>11} {:>6.3f}\n", one.plan.cost.total() * 1e3,
                            one.plan.cost.exposed * 1e3, memory, format_count(std::llround(one.tokens_per_s)),
                            *one.efficiency);
      else
        text += fmt::format("{:>10} {:>10} {:>9.1f} does not fit\n", "-", "-", memory);
      if (const std::string kept = kept_text(one.plan); !kept.empty()) text += fmt::format("{:>14}{}\n", "", kept);
    }
  return text;
}

nlohmann::ordered_json plan_json(const SimulatedSize& size, const SimulatedPlan& one) {
  const StepCost& cost = one.plan.cost;
  const auto count = [&](Recompute what) {
    return std::count(one.plan.recompute.begin(), one.plan.recompute.end(), what);
  };
  nlohmann::ordered_json row = {{"gpus", size.gpus},
                                {"hosts", size.hosts},
                                {"global_batch_size", size.global_batch_size},
                                {"micro_batches", one.micro_batches},
                                {"context_size", one.plan.context_size},
                                {"asked", one.policy},
                                {"policy", policy_name(one.plan.policy)},
                                {"shard_size", one.plan.shard_size},
                                {"rows_per_pass", one.plan.rows_per_pass},
                                {"recomputed_blocks",
                                 {{"norms", count(Recompute::kNorms)},
                                  {"mlp", count(Recompute::kMlp)},
                                  {"attention", count(Recompute::kAttention)},
                                  {"full", count(Recompute::kFull)}}},
                                {"tile_tokens", one.plan.tile_tokens},
                                {"offloaded_blocks", one.plan.offloaded},
                                {"offloaded_units", one.plan.host_units},
                                {"host_memory_gib", static_cast<double>(one.plan.host + one.plan.host_state) / kGiB},
                                {"fits", one.fits},
                                {"memory_gib", static_cast<double>(one.plan.total()) / kGiB}};
  if (!one.fits) return row;
  row.update({{"step_ms", cost.total() * 1e3},
              {"computation_ms", cost.compute * 1e3},
              {"recomputation_ms", cost.recompute * 1e3},
              {"exposed_communication_ms", cost.exposed * 1e3},
              {"slowed_by_communication_ms", cost.interference * 1e3},
              {"optimizer_ms", cost.optimizer * 1e3},
              {"other_ms", cost.fixed * 1e3},
              {"host_copies_ms", cost.copies * 1e3},
              {"exposed_host_copies_ms", cost.offload * 1e3},
              {"host_state_ms", cost.state * 1e3},
              {"tokens_per_s_per_gpu", one.tokens_per_s},
              {"efficiency", *one.efficiency}});
  return row;
}

std::string simulation_json(const Simulation& simulation, const SimulationOptions& options,
                            const SimulateArguments& arguments) {
  const MachineRates& rates = options.rates;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const SimulatedSize& size : simulation.sizes)
    for (const SimulatedPlan& one : size.plans) rows.push_back(plan_json(size, one));
  const nlohmann::ordered_json all = {{"version", std::string(kVersion) + " (" + kCommit + ")"},
                                      {"gpus_per_host", options.gpus_per_host},
                                      {"config", arguments.config},
                                      {"set", arguments.overrides},
                                      {"trainer", arguments.trainer},
                                      {"model", simulation.model},
                                      {"seq_length", simulation.seq_length},
                                      {"scaling", options.weak ? "weak" : "strong"},
                                      {"machine",
                                       {{"name", rates.name},
                                        {"rates_file", rates.file},
                                        {"measured", rates.measured},
                                        {"memory_gib", rates.memory_gib},
                                        {"host_memory_gib", rates.host_memory_gib},
                                        {"host_bytes_per_s", rates.host_bytes},
                                        {"bf16_flops", rates.bf16_flops},
                                        {"fp8_flops", rates.fp8_flops},
                                        {"attention_flops", rates.attention_flops},
                                        {"memory_bytes_per_s", rates.memory_bytes},
                                        {"link_bytes_per_s", rates.link_bytes},
                                        {"network_bytes_per_s", rates.network_bytes},
                                        {"interference", rates.interference}}},
                                      {"rows", rows}};
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string series_name(const SimulatedPlan& one) {
  return one.context == 0 ? one.policy : fmt::format("{}, context {}", one.policy, one.context);
}

std::string picture(const Simulation& simulation, const SimulationOptions& options) {
  const auto& policies = simulation.sizes.front().plans;
  // One series for each policy and panel; a plan that does not fit leaves a gap.
  std::vector<std::vector<ReportSeries>> series(4, std::vector<ReportSeries>(policies.size()));
  std::vector<std::pair<double, std::string>> marks;
  for (const SimulatedSize& size : simulation.sizes) {
    const double x = std::log2(size.gpus);
    marks.emplace_back(x, std::to_string(size.gpus));
    for (size_t p = 0; p < policies.size(); ++p) {
      const SimulatedPlan& one = size.plans[p];
      const double none = std::numeric_limits<double>::quiet_NaN();
      const double values[] = {one.fits ? one.tokens_per_s : none, one.efficiency.value_or(none),
                               one.fits ? one.plan.cost.exposed * 1e3 : none,
                               static_cast<double>(one.plan.total()) / kGiB};
      for (size_t panel = 0; panel < 4; ++panel) {
        series[panel][p].steps.push_back(x);
        series[panel][p].values.push_back(values[panel]);
      }
    }
  }
  static constexpr std::pair<const char*, const char*> kTitles[] = {
      {"Throughput", "tokens per second and GPU, over GPUs"},
      {"Efficiency", "against the fewest GPUs that fit"},
      {"Communication that is not hidden", "ms a step"},
      {"Memory", "GiB a GPU; dotted: what it has, less headroom"}};
  std::vector<ChartPanel> panels;
  for (size_t panel = 0; panel < 4; ++panel) {
    ChartPanel one;
    one.options = {.title = kTitles[panel].first, .unit = kTitles[panel].second, .from_zero = true, .level = {}};
    one.options.marks = marks;
    if (panel == 3) one.options.level = options.rates.memory_gib * 0.98;
    for (size_t p = 0; p < policies.size(); ++p)
      one.lines.push_back({series_name(policies[p]), p, &series[panel][p], /*points=*/true});
    panels.push_back(std::move(one));
  }
  return chart_file(options.weak ? "Weak scaling, predicted" : "Strong scaling, predicted", machine_text(options),
                    panels.front().lines, panels);
}

void write_told(const std::string& path, const std::string& content) {
  write_output(path, content);
  std::printf("written: %s (%s)\n", path.c_str(), format_bytes(content.size()).c_str());
}

void run_simulate(const SimulateArguments& arguments) {
  require_output("simulate", "--output", arguments.output, kJsonOutput);
  require_output("simulate", "--svg", arguments.svg, kSvgOutput);
  if (same_file(arguments.output, arguments.svg))
    throw ConfigError(fmt::format("simulate: --output and --svg are one file, {}: name two", arguments.svg));
  const TrainingProgram& program = training_program(arguments.trainer);
  const SimulationOptions options = simulation_options(arguments);
  const Simulation simulation = simulate(
      arguments.config, arguments.overrides, program.keys,
      [&](const Config& config) { return model_to_plan(config, program); }, options);
  std::string text;
  for (const std::string& line : simulation.model) text += line + '\n';
  text += machine_text(options) + '\n' + describe_rates(options.rates, options.rates.name) + '\n';
  text += options.weak ? "weak scaling: the batch grows with the GPUs\n" : "strong scaling: one batch for all\n";
  if (simulation.policy_free)
    text += "only adapters are trained, which are whole on every GPU: parallel.policy changes nothing\n";
  text += table(simulation, options);
  std::fputs(text.c_str(), stdout);
  if (!arguments.output.empty()) write_told(arguments.output, simulation_json(simulation, options, arguments));
  if (!arguments.svg.empty()) write_told(arguments.svg, picture(simulation, options));
}

}  // namespace

void add_simulate_tool(CLI::App& app) {
  auto arguments = std::make_shared<SimulateArguments>();
  std::vector<std::string> trainers;
  for (const TrainingProgram& program : training_programs()) trainers.push_back(program.keys.name);
  CLI::App* tool = app.add_subcommand(
      "simulate", "Predict step time, memory and scaling of a run on GPUs that this machine does not have");
  tool->add_option("--config", arguments->config, "YAML configuration; its data and weights need not be there")
      ->required();
  tool->add_option("--set", arguments->overrides, "Override one key of the file: section.key=value")
      ->allow_extra_args(false);
  tool->add_option("--trainer", arguments->trainer, "The program that the configuration is for")
      ->check(CLI::IsMember(trainers))
      ->capture_default_str();
  tool->add_option("--gpus", arguments->gpus, "Numbers of GPUs, such as 8,16,32")
      ->delimiter(',')
      ->check(CLI::Range(1, kMostGpus))
      ->required();
  tool->add_option("--gpus-per-host", arguments->gpus_per_host, "GPUs of each host")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  CLI::Option* kind =
      tool->add_option("--device,--gpu", arguments->device,
                       "Kind of the GPUs, h200 (the default without parallel.rates), h100, or one whose "
                       "rates are derived from its datasheet")
          ->transform(CLI::IsMember(device_words(), CLI::ignore_case));
  tool->add_option("--rates", arguments->rates, "YAML file of rates that `trireme calibrate` wrote")->excludes(kind);
  tool->add_option("--link-gb-s", arguments->link_gb_s,
                   "Nominal rate of the network for each GPU, GB/s in each direction (default 50: one adapter of 400 "
                   "Gb/s for each GPU)")
      ->check(CLI::PositiveNumber);
  tool->add_option("--nvlink-gb-s", arguments->nvlink_gb_s,
                   "Rate at which a GPU receives from the others of its host in a collective, GB/s (default 150)")
      ->check(CLI::PositiveNumber);
  tool->add_option("--memory-gib", arguments->memory_gib, "Memory of a GPU, GiB")
      ->check(CLI::Range(kLeastMemoryGib, kMostMemoryGib));
  tool->add_option("--host-memory-gib", arguments->host_memory_gib,
                   "Memory of a host for each of its GPUs, GiB (default 128)")
      ->check(CLI::Range(kLeastMemoryGib, kMostMemoryGib));
  tool->add_option("--policy", arguments->policies,
                   "Values of parallel.policy to compare: auto,none,optimizer,gradients,full")
      ->delimiter(',')
      ->capture_default_str();
  tool->add_option("--context", arguments->contexts,
                   "Values of parallel.context_size to compare, such as 1,2,4; without it the configuration's")
      ->delimiter(',')
      ->check(CLI::Range(1, kMostGpus));
  tool->add_flag("--weak", arguments->weak,
                 "Weak scaling: the configured batch is that of the fewest GPUs, and grows in proportion");
  tool->add_option("--output", arguments->output, "JSON file to write");
  tool->add_option("--svg", arguments->svg, "SVG picture to write");
  tool->callback([arguments] { run_simulate(*arguments); });
}

}  // namespace trireme
