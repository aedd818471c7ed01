#pragma once
// Private to optim/: one factory function per optimizer.

#include "trireme/optim/optimizer.h"

namespace trireme {

std::unique_ptr<Optimizer> make_adamw(const OptimizerSection& options, std::vector<TrainedShard>& shards);
std::unique_ptr<Optimizer> make_lamb(const OptimizerSection& options, std::vector<TrainedShard>& shards,
                                     Communicator& world);

}  // namespace trireme
