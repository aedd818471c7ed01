#pragma once
// Private to comm/: the group of one rank.

#include "trireme/comm/communicator.h"

namespace trireme {

std::unique_ptr<Communicator> make_self_communicator();

/// A collective that has already happened.
struct DoneWork final : Work {
  void wait() override {}
};

}  // namespace trireme
