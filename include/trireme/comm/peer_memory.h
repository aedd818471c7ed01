#pragma once
// Device memory of one rank that the other ranks of its host read directly (one-sided).
//
// Every rank of a group owns one block of memory from cudaMalloc, as CUDA IPC requires, and maps the blocks of its
// peers once. A gather is then a set of one-sided copies by the copy engines: it occupies no multiprocessor, needs no
// handshake and no collective order. The contents must not change after publish(), so it serves frozen shards.

#include "trireme/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace trireme {

class PeerMemory {
 public:
  /// Collective over `group`: one block of `bytes` on every rank. Null on all ranks, with the reason in `why_not`, if a
  /// rank cannot map the others: on CPUs, on several hosts, where devices have no peer access, or with
  /// TRIREME_PEER_MEMORY=0.
  static std::unique_ptr<PeerMemory> create(Communicator& group, int64_t bytes, at::Device device,
                                            std::string& why_not);
  /// Collective: every rank unmaps the blocks of its peers, waits until they have done so (at most
  /// peer_close_seconds(), and not while an exception unwinds) and frees its block. A block that a peer may still map
  /// is not freed.
  virtual ~PeerMemory() = default;

  /// This rank's block: uint8 [bytes]. Not the caching allocator's memory.
  virtual at::Tensor block() = 0;
  /// Collective. Makes the contents of the blocks visible to later gathers; they must not change afterwards.
  virtual void publish() = 0;
  /// out (uint8, contiguous) = bytes [offset, offset + out.numel() / group size) of every rank's block, in rank order.
  /// Starts after the work queued on the current stream; ends before what follows Work::wait().
  virtual WorkPtr gather(at::Tensor out, int64_t offset) = 0;
};

/// How long a rank waits for its peers to close its block. A reference, for tests.
double& peer_close_seconds();

}  // namespace trireme
