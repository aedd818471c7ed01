#pragma once
// From the command line to a finished run: what every trainer's main() calls.

#include "trireme/train/model_family.h"

namespace trireme {

/// `--config FILE [--set a.b.c=value …] [--dry-run [--ranks N] [--device-memory-gib X]] [--print-config] [--version]
/// [--help]`. Returns the process exit code; every failure ends in one sentence on stderr.
int train_main(int argc, char** argv, const ModelFamily& family);

}  // namespace trireme
