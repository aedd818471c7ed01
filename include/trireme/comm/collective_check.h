#pragma once
// An error of one rank becomes an error of all ranks.

#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"

#include <functional>

namespace trireme {

/// An error that every rank throws, with the same code and sentence: no rank waits for another, and none is aborted.
struct CollectiveError : Error {
  using Error::Error;
};

/// Runs `body` on every rank. When it throws an Error on any of them, every rank throws a CollectiveError with the
/// sentence and exit code of the lowest such rank. Collective.
void collective_check(Communicator& comm, const std::function<void()>& body);

}  // namespace trireme
