#pragma once
// Private to comm/: rendezvous without MPI, through a key store. Rank 0 listens at the launch's master address; the
// others connect.

#include "host_exchange.h"
#include "trireme/comm/launch.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

class StoreWorld {
 public:
  virtual ~StoreWorld() = default;
  virtual std::unique_ptr<HostExchange> exchange() = 0;
  /// The numeric address from which this rank reached rank 0, in the job's network unless rank 0 is on the same host.
  virtual std::string address() const = 0;

  /// A barrier after the last exchange, before leave(). The watchdog sees which rank does not arrive.
  virtual void part() = 0;

  /// Ends the use of the store. Rank 0 waits until every rank has called it, a minute at most, so that the store
  /// outlives its last reader.
  virtual void leave() = 0;
};

/// ConfigError when rank 0's port is taken, cannot be reached within TRIREME_RENDEZVOUS_SECONDS (300), or belongs to
/// another job. Error with ExitCode::kHang, on all ranks that are there, when ranks are absent after that time: these
/// are named.
std::unique_ptr<StoreWorld> join_store(const Launch& launch);

}  // namespace trireme
