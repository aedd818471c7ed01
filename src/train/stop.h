#pragma once
// Private to train/: decides whether the run stops because of a signal to any rank; asked between forward passes.

#include "trireme/comm/communicator.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace trireme {

/// SIGTERM, SIGINT and SIGUSR1 are recorded from now on, and SIGHUP, SIGUSR2 and SIGXCPU where nothing ignores or
/// handles them.
void install_signal_handlers();
/// The last of these signals that this process has received; 0: none.
int stop_signal();

/// All-reduces one number on the device. An exchange between the hosts would make every rank wait for rank 0 once per
/// forward pass. cast(), decide() and outcome() are collective and return the same on all ranks.
class StopVote {
 public:
  StopVote(Communicator& comm, at::Device device);
  /// Adds this rank's vote. Returns whether a rank has voted to stop, without waiting for queued work: on a GPU votes
  /// up to the previous call count, on a CPU also the votes of this call.
  bool cast(bool stop);
  /// As cast(), but waits for the device, so that the votes of this call count.
  bool decide(bool stop);
  /// Waits for the outcome of the last cast() and records it.
  bool outcome();
  /// Records the outcome of another vote, equal on all ranks: that in the sums of a step.
  void record(bool stop) { stop_ = stop_ || stop; }
  /// Whether a recorded outcome stops the run. Once true it stays true. Not collective.
  bool stopping() const { return stop_; }

 private:
  void start(bool stop);
  Communicator& comm_;
  at::Device device_;
  at::Tensor vote_;                     // fp32 scalar on the device
  at::Tensor host_;                     // on GPUs: pinned copy of vote_
  std::unique_ptr<c10::Event> copied_;  // on GPUs: set while an all-reduce runs
  bool stop_ = false;
};

}  // namespace trireme
