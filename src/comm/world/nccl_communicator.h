#pragma once
// Private to comm/world/: collectives of GPU tensors through NCCL's own API.

#include "host_exchange.h"
#include "trireme/comm/communicator.h"

#include <memory>

namespace trireme {

/// One communicator per group, with its own high-priority stream. `exchange` transfers the unique id and serves the
/// host-side calls.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<HostExchange> exchange, at::Device device,
                                                     const char* name);

/// Seconds for which collectives have been queued on GPU streams without any of them finishing; 0 when none is queued.
/// Any thread.
double nccl_stuck_for();

/// What NCCL's own threads report (a lost peer, a failed link), or empty. Any thread.
std::string nccl_error();

}  // namespace trireme
