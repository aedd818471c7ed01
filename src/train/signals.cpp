#include "signals.h"

#include <csignal>

namespace trireme {

namespace {
volatile std::sig_atomic_t g_signal = 0;
void record_signal(int signal) { g_signal = signal; }
}  // namespace

void install_signal_handlers() {
  struct sigaction action{};
  action.sa_handler = record_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
}

int stop_signal() { return static_cast<int>(g_signal); }

}  // namespace trireme
