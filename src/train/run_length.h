#pragma once
// Private to train/: how many steps train.epochs are.

#include "trireme/config/config.h"
#include "trireme/train/model_family.h"

namespace trireme {

/// Rows of so many passes over `rows` rows, rounded up. 1.1 times 100 is 110: what differs from a whole number by the
/// rounding of doubles alone is that number.
double rows_of_epochs(double epochs, int64_t rows);

/// `config` without train.epochs: with the number of steps that reach the last row of the last pass over data.train,
/// said in the log. Steps run on from one pass into the next, so only the run's last step can have rows of a further
/// pass. Opens the files of data.train, loads no weights. ConfigError for data whose rows are not counted: streams of
/// documents and Megatron's files. Without train.epochs `config` as it is.
Config resolve_epochs(const Config& config, const ModelFamily& family, int ranks);

}  // namespace trireme
