#pragma once
// Private to comm/: host values through a key store that rank 0 serves.

#include "host_exchange.h"
#include "key_store.h"

#include <atomic>
#include <memory>
#include <string>

namespace trireme {

/// The seconds for which a rank waits for the values of others, after which, or when one of them ends, it throws an
/// Error with ExitCode::kHang that names them. 0: without limit, for ranks that a watchdog looks after.
using WaitLimit = std::shared_ptr<const std::atomic<double>>;

/// The exchange of the ranks that use keys with `prefix`. `store`: this rank's connection. `place`: where rank 0
/// listens, for messages. `limit` may be null: none.
std::unique_ptr<HostExchange> make_store_exchange(std::shared_ptr<KeyStore> store, std::string place,
                                                  std::string prefix, int rank, int size, WaitLimit limit = nullptr);

}  // namespace trireme
