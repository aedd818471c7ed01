#pragma once
// Private to train/: logging.style nemo: the files of NeMo's results folder (exp_manager) in output.dir.

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"

#include <filesystem>
#include <string>

namespace trireme {

/// Whether `name` is one of these files: cmd-args.log, git-info.log, hparams.yaml, events.out.tfevents.*,
/// nemo_log_globalrank-<g>_localrank-<l>.txt, nemo_error_log.txt, lightning_logs.txt.
bool is_results_file(const std::string& name);

/// Collective. Rank 0 moves what an earlier start has left of them to run_<k>/, k counting from 0, and writes
/// cmd-args.log, git-info.log ("commit hash: ..." of the build) and hparams.yaml. Messages of every rank go to its own
/// nemo_log file from here on, warnings of rank 0 to nemo_error_log.txt, too. CollectiveError (kCannotWrite).
void open_nemo_results(const Config& config, World& world);

/// Appends a line to lightning_logs.txt; a failure is a warning. Rank 0.
void write_lightning_log(const std::filesystem::path& output, const std::string& text);

}  // namespace trireme
