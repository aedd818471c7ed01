#pragma once
// Makes a problem of one rank known to all ranks.

#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"

#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// The problems of all ranks, in their order, on every rank; an empty `mine` is none. Collective. Texts are exchanged
/// only where there is one.
std::vector<std::string> problems_of_ranks(Communicator& comm, const std::string& mine);

/// An error that every rank throws with the same code and sentence, so that no rank waits for another.
struct CollectiveError : Error {
  using Error::Error;
};

/// Runs `body` on every rank. When it throws an Error on any rank, every rank throws a CollectiveError with the
/// sentence and exit code of the lowest failed rank. Collective.
void collective_check(Communicator& comm, const std::function<void()>& body);

}  // namespace trireme
