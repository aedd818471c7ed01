#pragma once
// Private to comm/: reports collectives to the observer and to LibTorch's profiler, and compares them between ranks.

#include "trireme/base/profile_range.h"
#include "trireme/comm/communicator.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// The process's observer; without one collectives are only counted.
CollectiveObserver& collective_observer();
void set_collective_observer(CollectiveObserver& observer);

/// A collective in which the host blocks from its start to its end. When `call` throws, the collective stays unfinished
/// in the records, so that the watchdog's report names it.
template <class Call>
void block_in_collective(const char* kind, int64_t elements, const char* group, const Call& call) {
  CollectiveObserver& observer = collective_observer();
  const uint64_t sequence = observer.begin(kind, elements, group);
  observer.wait(sequence);
  call();
  observer.end(sequence);
}

/// Starts a collective: `launch(sequence)` queues it and returns its Work. The host counts as blocked until then:
/// NCCL's first call on a group waits for the peers.
template <class Launch>
auto launch_collective(const char* kind, int64_t elements, const char* group, const Launch& launch) {
  CollectiveObserver& observer = collective_observer();
  const uint64_t sequence = observer.begin(kind, elements, group);
  observer.wait(sequence);
  auto work = launch(sequence);
  observer.resume(sequence);
  return work;
}

/// True with TRIREME_CHECK_COLLECTIVES=1: before a collective starts, the ranks compare its kind, size and group.
bool checking_collectives();
/// ConfigError unless it is so on all ranks or on none, and all run the same build: their collectives else do not meet.
/// Programs of one commit, that of the last configure step, are the same build; where it is "…-dirty" or "unknown",
/// those whose files are equal. `all_gather` exchanges a text without that comparison.
void check_same_checking(const std::function<std::vector<std::string>(const std::string&)>& all_gather,
                         const std::string& commit);
/// InternalError naming the ranks whose text differs from the others'. `all`: of every rank of the group,
/// "all_reduce[1024] on world" and the like.
void check_same_collective(const std::vector<std::string>& all, uint64_t sequence);

/// The facts of a collective for a trace.
struct CollectiveFacts {
  const char* kind;  // of the Communicator: "all_gather"
  uint64_t sequence = 0;
  int64_t in_elements = 0, out_elements = 0;  // of this rank
  at::ScalarType dtype = at::kByte;
  const char* group = "";  // "world"
  int rank = 0, size = 1;  // in the group
  int first_rank = 0, rank_stride = 1;
};

/// What the groups of several ranks share.
class GroupCommunicator : public Communicator {
 protected:
  GroupCommunicator(int rank, int size, const char* name) : Communicator(rank, size), name_(name) {}
  CollectiveFacts facts(const char* kind, uint64_t sequence = 0, int64_t in = 0, int64_t out = 0,
                        at::ScalarType dtype = at::kByte) const {
    return {kind, sequence, in, out, dtype, name_, rank_, size_, first_rank_, rank_stride_};
  }
  /// InternalError unless `whole` has room for a `part` of every rank.
  void check_sizes(const char* kind, const at::Tensor& in, const at::Tensor& out, const at::Tensor& whole,
                   const at::Tensor& part) const;
  /// InternalError unless both have an equal part for every rank, and no memory in common.
  void check_parts(const at::Tensor& in, const at::Tensor& out) const;
  void check_root(int root) const;

  const char* name_;
};

/// During the lifetime of this object the collective is a `record_param_comms` operation with c10d's arguments
/// (collective name, dtype, numbers of elements, group), which trace tools read. Nothing happens unless a profile is
/// active.
class CollectiveRecord {
 public:
  explicit CollectiveRecord(const CollectiveFacts& facts) {
    if (ranges_recorded()) [[unlikely]]
      begin(facts);
  }
  CollectiveRecord(const CollectiveRecord&) = delete;
  CollectiveRecord& operator=(const CollectiveRecord&) = delete;

 private:
  void begin(const CollectiveFacts& facts);

  std::optional<c10::DebugInfoGuard> info_;
  std::optional<at::RecordFunction> record_;
};

}  // namespace trireme
