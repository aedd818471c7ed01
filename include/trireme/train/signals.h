#pragma once
// SIGTERM, SIGINT and SIGUSR1 ask for an orderly stop: the handler only sets a flag, the loop agrees on it over all
// ranks.

namespace trireme {

void install_signal_handlers();
/// The signal asked for, or 0.
int stop_signal();

}  // namespace trireme
