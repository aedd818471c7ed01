#include "slurm_script.h"

#include "trireme/base/text.h"
#include "trireme/launcher/launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

using Kind = ConfNode::Kind;

std::string quoted(const std::vector<std::string>& words) {
  std::vector<std::string> parts;
  for (const std::string& word : words) parts.push_back(shell_quote(word));
  return join(parts, " ");
}

/// GiB as Slurm takes them; a fraction in MiB.
std::string memory(const ConfNode& value) {
  const double gib = value.is(Kind::kInteger) ? static_cast<double>(value.integer) : value.number;
  if (!value.is(Kind::kInteger) && !value.is(Kind::kNumber)) return value.str();
  if (gib == 0) return "0";
  if (gib == std::floor(gib)) return fmt::format("{}GB", static_cast<int64_t>(gib));
  return fmt::format("{}MB", static_cast<int64_t>(gib * 1024));
}

}  // namespace

bool is_sbatch_key(const std::string& key) {
  static const std::vector<std::string> known = {
      "account",    "array",   "comment",     "constraint",       "cpus_per_gpu",  "cpus_per_task",
      "dependency", "exclude", "exclusive",   "gpus_per_node",    "gpus_per_task", "gres",
      "job_name",   "mem",     "mem_per_cpu", "mem_per_gpu",      "nodes",         "ntasks_per_node",
      "partition",  "qos",     "srun_args",   "stderr_to_stdout", "time",          "job_name_prefix"};
  return std::find(known.begin(), known.end(), key) != known.end();
}

std::optional<std::string> sbatch_option(const std::string& key, const ConfNode& value) {
  if (value.is(Kind::kNull) || (value.is(Kind::kBool) && !value.boolean)) return std::nullopt;
  std::string name = key;
  std::replace(name.begin(), name.end(), '_', '-');
  if (value.is(Kind::kBool)) return "--" + name;
  return fmt::format("--{}={}", name, shell_quote(key == "mem" ? memory(value) : value.str()));
}

std::string slurm_script(const SlurmScript& job) {
  std::vector<std::string> lines = {"#!/bin/bash", "", "# Parameters"};
  for (const auto& [key, value] : job.parameters)
    if (const auto option = sbatch_option(key, value)) lines.push_back("#SBATCH " + *option);
  if (!job.setup.empty()) {
    lines.insert(lines.end(), {"", "# setup"});
    lines.insert(lines.end(), job.setup.begin(), job.setup.end());
  }
  std::vector<std::string> container;
  if (!job.container_image.empty()) {
    container = {"--container-image", job.container_image};
    if (!job.container_mounts.empty()) container.insert(container.end(), {"--container-mounts", job.container_mounts});
  }
  std::vector<std::string> srun_args = job.srun_args;
  if (!job.memory_log.empty()) {
    srun_args.push_back("--overlap");
    std::vector<std::string> srun = {"srun", "--ntasks=1", "--ntasks-per-node=1", "--output", job.memory_log};
    srun.insert(srun.end(), container.begin(), container.end());
    srun.insert(srun.end(), srun_args.begin(), srun_args.end());
    lines.insert(lines.end(),
                 {"", "# run memory measure", quoted(srun) + " \\",
                  "  nvidia-smi --query-gpu=timestamp,index,memory.total,memory.free,memory.used --format=csv -l 1 &"});
  }
  std::vector<std::string> srun = {"srun", "--output", job.output};
  if (!job.error.empty()) srun.insert(srun.end(), {"--error", job.error});
  srun.insert(srun.end(), container.begin(), container.end());
  srun.insert(srun.end(), srun_args.begin(), srun_args.end());
  lines.insert(lines.end(),
               {"", "# command 1", quoted(srun) + " bash -c \"", fmt::format("  {} \"", join(job.command, ";\n  "))});
  return join(lines, "\n") + "\n";
}

std::string interactive_script(const InteractiveScript& job) {
  std::vector<std::string> lines = {"#!/bin/bash"};
  if (!job.setup.empty()) {
    lines.insert(lines.end(), {"", "# setup"});
    lines.insert(lines.end(), job.setup.begin(), job.setup.end());
  }
  std::vector<std::string> start = job.launcher;
  start.insert(start.end(), {"bash", "-c"});
  lines.insert(lines.end(), {"", "# command 1"});
  // Before mpirun handles it, and after; the ranks do not inherit this.
  if (!job.launcher.empty()) lines.emplace_back("trap '' USR1");
  // Signals are for the ranks; the log ends after them.
  lines.insert(lines.end(),
               {fmt::format("exec > >(trap '' HUP INT PIPE QUIT TERM USR1; exec tee -a {}) 2>&1", shell_quote(job.log)),
                "exec " + quoted(start) + " \"", fmt::format("  {} \"", join(job.command, ";\n  "))});
  return join(lines, "\n") + "\n";
}

}  // namespace trireme
