#pragma once
// Private to comm/: host values through a key store that rank 0 serves.

#include "host_exchange.h"
#include "key_store.h"

#include <memory>
#include <string>

namespace trireme {

/// The exchange of the ranks that use keys with `prefix`. `store`: this rank's connection. `place`: where rank 0
/// listens, for messages.
std::unique_ptr<HostExchange> make_store_exchange(std::shared_ptr<KeyStore> store, std::string place,
                                                  std::string prefix, int rank, int size);

}  // namespace trireme
