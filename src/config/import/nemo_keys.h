#pragma once
// The keys of NeMo's launcher, conf/training/gpt3/*.yaml and conf/training/llama/*.yaml.

#include "tree_options.h"
#include "trireme/config/compose.h"

namespace trireme {

/// Of the tags 23.07 to 24.05 and HEAD.
const KnownKeys& nemo_training_keys();

/// Fills `options` from a resolved training configuration. "hydra" and "defaults" are not read.
void add_conf_options(const ConfNode& training, TreeOptions& options);

}  // namespace trireme
