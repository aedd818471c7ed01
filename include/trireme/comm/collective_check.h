#pragma once
// Makes an error of one rank an error of all ranks.

#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"

#include <functional>

namespace trireme {

/// An error that every rank throws with the same code and sentence, so that no rank waits for another.
struct CollectiveError : Error {
  using Error::Error;
};

/// Runs `body` on every rank. When it throws an Error on any rank, every rank throws a CollectiveError with the
/// sentence and exit code of the lowest failed rank. Collective.
void collective_check(Communicator& comm, const std::function<void()>& body);

}  // namespace trireme
