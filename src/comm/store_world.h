#pragma once
// Private to comm/: rendezvous and host values without MPI, through a key store. Rank 0 listens at the launch's master
// address; the others connect. If an agent of torchrun serves that port (TORCHELASTIC_USE_AGENT_STORE), rank 0 listens
// on another port and writes its address into the agent's store.

#include "host_exchange.h"
#include "key_store.h"
#include "trireme/comm/launch.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// Value of a local rank, or number of local ranks, that the launcher's variables do not give.
inline constexpr int kNotTold = -1;
/// Derives numbers that the launcher did not give from the hosts. `identities[i]`: host_identity() of rank i.
void complete_launch(Launch& launch, const std::vector<std::string>& identities);

/// The seconds for which a rank waits for the values of other ranks. After this time, or when such a rank ends, it
/// throws an Error with ExitCode::kHang that names these ranks. 0: without limit, for ranks under a watchdog.
using WaitLimit = std::shared_ptr<const std::atomic<double>>;

/// The exchange of the ranks that use keys with `prefix`. `store`: this rank's connection. `place`: where rank 0
/// listens, for messages. `limit` may be null: none.
std::unique_ptr<HostExchange> make_store_exchange(std::shared_ptr<KeyStore> store, std::string place,
                                                  std::string prefix, int rank, int size, WaitLimit limit = nullptr);

class StoreWorld {
 public:
  virtual ~StoreWorld() = default;
  virtual std::unique_ptr<HostExchange> exchange() = 0;
  /// Call it when a watchdog has started: exchanges then wait without limit.
  virtual void watched() = 0;
  /// The numeric address from which this rank reached rank 0, in the job's network unless rank 0 is on the same host.
  virtual std::string address() const = 0;

  /// A barrier after the last exchange, before leave(). The watchdog sees which rank does not arrive.
  virtual void part() = 0;

  /// Ends the use of the store. Rank 0 waits until every rank has called leave(), at most a minute, so that the store
  /// outlives its last reader.
  virtual void leave() = 0;
};

/// ConfigError when rank 0's port is taken, cannot be reached within TRIREME_RENDEZVOUS_SECONDS (300), or belongs to
/// another job, or when torchrun's agent does not answer. Error with ExitCode::kHang, on all present ranks, if ranks
/// are absent after that time: these are named.
std::unique_ptr<StoreWorld> join_store(const Launch& launch);

}  // namespace trireme
