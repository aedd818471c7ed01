#include "stop.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <csignal>

namespace trireme {

namespace {
/// The handler may run in any thread.
std::atomic<int> g_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not wait");
void record_signal(int signal) { g_signal = signal; }
}  // namespace

void install_signal_handlers() {
  struct sigaction action{};
  action.sa_handler = record_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
  // nohup ignores SIGHUP, and a shell may ignore the others.
  for (const int signal : {SIGHUP, SIGUSR2, SIGXCPU})
    if (struct sigaction now{}; sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
      sigaction(signal, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // a closed stdout is said, and the run goes on
}

int stop_signal() { return g_signal; }

StopVote::StopVote(Communicator& comm, at::Device device)
    : comm_(comm),
      device_(device),
      vote_(at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device))),
      host_(device.is_cuda() ? at::zeros({1}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true)) : vote_) {}

void StopVote::start(bool stop) {
  if (comm_.size() == 1) {
    stop_ = stop_ || stop;
    return;
  }
  at::NoGradGuard no_grad;
  vote_.fill_(stop ? 1.0 : 0.0);
  comm_.all_reduce(vote_, ReduceOp::kMax)->wait();
  if (!device_.is_cuda()) {
    stop_ = stop_ || host_.const_data_ptr<float>()[0] > 0;
    return;
  }
  host_.copy_(vote_, /*non_blocking=*/true);
  copied_ = std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  copied_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

bool StopVote::outcome() {
  if (copied_) {
    copied_->synchronize();
    copied_.reset();
    stop_ = stop_ || host_.const_data_ptr<float>()[0] > 0;
  }
  return stop_;
}

bool StopVote::cast(bool stop) {
  const bool before = outcome();
  start(stop);
  return before || stop_;
}

bool StopVote::decide(bool stop) {
  (void)outcome();
  start(stop);
  return outcome();
}

}  // namespace trireme
