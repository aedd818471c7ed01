#pragma once
// Private to comm/: reports collectives to the observer, and compares them between ranks.

#include "trireme/comm/watch.h"

#include <cstdint>
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
/// InternalError naming the ranks whose text differs from the others'. `all`: of every rank of the group,
/// "all_reduce[1024] on world" and the like.
void check_same_collective(const std::vector<std::string>& all, uint64_t sequence);

}  // namespace trireme
