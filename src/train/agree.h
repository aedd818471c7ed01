#pragma once
// Private to train/: a failure on one rank becomes the same failure on all.

#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"

#include <functional>

namespace trireme {

/// Every rank throws the same one of these: nobody has to be brought down.
struct AgreedError : Error {
  using Error::Error;
};

/// Runs `body` on every rank; when it throws an Error anywhere, every rank throws an AgreedError with
/// the first rank's sentence and exit code. Collective.
void agree(Communicator& comm, const std::function<void()>& body);

}  // namespace trireme
