#pragma once
// The watchdog of this process: lost and hung ranks are named, and no rank outlives another's failure.

#include "trireme/comm/watch.h"

namespace trireme {

/// For World::join(). Its ranks find each other over TCP; TRIREME_HANG_SECONDS is the time after which a collective
/// counts as hung (ConfigError from guard() when it is not a number of seconds).
Watchdog& rank_watchdog();

}  // namespace trireme
