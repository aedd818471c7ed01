#pragma once
// The watchdog of this process: it names lost and hung ranks, and ends all ranks when one fails.

#include "trireme/comm/watch.h"

namespace trireme {

/// For World::join(). The ranks' guards connect to each other over TCP. TRIREME_HANG_SECONDS replaces the time limit of
/// a collective; guard() throws ConfigError when it is not a number of seconds.
Watchdog& rank_watchdog();

}  // namespace trireme
