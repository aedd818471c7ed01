#pragma once
// Device memory of one rank that the other ranks of its host read directly (one-sided).
//
// Every rank of a group owns one block of plain device memory (CUDA IPC takes no other) and maps the blocks of its
// peers once. A gather is then a set of one-sided copies by the copy engines: it occupies no multiprocessor, needs no
// handshake and no collective order. The contents must not change after publish(): frozen shards, for instance.

#include "trireme/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace trireme {

class PeerMemory {
 public:
  /// Collective over `group`: one block of `bytes` on every rank. Null on all ranks, with the reason in `why_not`,
  /// where some rank cannot map the others: on CPUs, on several hosts, where devices have no peer access, or with
  /// TRIREME_PEER_MEMORY=0.
  static std::unique_ptr<PeerMemory> create(Communicator& group, int64_t bytes, at::Device device,
                                            std::string& why_not);
  /// Collective: every rank closes what it maps, waits for its peers to do so (peer_close_seconds() at most, and not
  /// while an exception unwinds) and frees its block. A block that a peer may still map stays until the process ends.
  virtual ~PeerMemory() = default;

  /// This rank's block: uint8 [bytes]. Not the caching allocator's memory.
  virtual at::Tensor block() = 0;
  /// Collective. Makes what the ranks wrote to their blocks visible to later gathers; contents must not change
  /// afterwards.
  virtual void publish() = 0;
  /// out (uint8, contiguous) = bytes [offset, offset + out.numel() / group size) of every rank's block, in rank order.
  /// Starts after the work queued on the current stream; ends before what follows Work::wait().
  virtual WorkPtr gather(at::Tensor out, int64_t offset) = 0;
};

/// How long a rank waits for its peers to close its block. A reference, for tests.
double& peer_close_seconds();

}  // namespace trireme
