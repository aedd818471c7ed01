#pragma once
// Private to train/: whether the run stops: a signal to any rank, asked for between forward passes.

#include "trireme/comm/communicator.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace trireme {

/// SIGTERM, SIGINT and SIGUSR1 are recorded from now on.
void install_signal_handlers();
/// The last of them that this process has received; 0: none.
int stop_signal();

/// One number, all-reduced on the device: an exchange between the hosts would make every rank wait for rank 0 once per
/// forward pass. cast(), decide() and outcome() are collective and return the same on all ranks.
class StopVote {
 public:
  StopVote(Communicator& comm, at::Device device);
  /// Whether a rank has voted to stop, as far as the host knows without waiting for work that it has just queued: on a
  /// GPU up to the call before this one, on a CPU this one included.
  bool cast(bool stop);
  /// The same, this call included: the host waits for the device.
  bool decide(bool stop);
  /// Takes in the outcome of the last cast(), waiting for it.
  bool outcome();
  /// Takes in a vote that came another way, the same on all ranks: with the sums of a step.
  void record(bool stop) { stop_ = stop_ || stop; }
  /// Whether the run stops, as far as votes have been taken in. Never taken back. Not collective.
  bool stopping() const { return stop_; }

 private:
  void start(bool stop);
  Communicator& comm_;
  at::Device device_;
  at::Tensor vote_;                     // fp32 scalar on the device
  at::Tensor host_;                     // on GPUs: its pinned copy
  std::unique_ptr<c10::Event> copied_;  // on GPUs: set while a vote is under way
  bool stop_ = false;
};

}  // namespace trireme
