#pragma once
// SIGTERM, SIGINT and SIGUSR1 ask for an orderly stop: the handler only sets a flag, which the training loop
// combines over all ranks.

namespace trireme {

void install_signal_handlers();
/// The last of these signals that this process got; 0: none.
int stop_signal();

}  // namespace trireme
