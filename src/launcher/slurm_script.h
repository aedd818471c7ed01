#pragma once
// The text of submission scripts.

#include "trireme/compose/compose.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct SlurmScript {
  std::map<std::string, ConfNode> parameters;  // sbatch options under NeMo's names: gpus_per_node, job_name
  std::vector<std::string> setup;              // lines in front of the commands
  std::string output, error;                   // logs; an empty error: with the output
  std::string container_image, container_mounts;
  std::vector<std::string> srun_args;
  std::string memory_log;  // not empty: nvidia-smi writes there beside the run
  std::vector<std::string> command;
};
std::string slurm_script(const SlurmScript& job);

struct InteractiveScript {
  std::vector<std::string> setup, launcher, command;  // launcher: srun or mpirun and its options, or nothing
  std::string log;
};
std::string interactive_script(const InteractiveScript& job);

/// "--mem=0"; nullopt for null and False.
std::optional<std::string> sbatch_option(const std::string& key, const ConfNode& value);
/// Whether NeMo's launcher has a key of the cluster section.
bool is_sbatch_key(const std::string& key);

}  // namespace trireme
