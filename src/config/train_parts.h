#pragma once
// data.train as a list of {path, weight, name}: another way to write data.train, data.weights and data.names.

#include "problems.h"
#include "yaml_tree.h"

namespace trireme {

/// Replaces such a list in the tree by the three keys; a weight that is not given is 1, a name the path's last part.
/// Reports unknown keys, missing paths, and data.weights or data.names beside it.
void expand_train_parts(YamlNode& root, Problems& problems);

}  // namespace trireme
