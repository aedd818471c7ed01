#pragma once
// Private to comm/: collectives in the traces of LibTorch's profiler, as c10d records its own.

#include "trireme/base/profile_range.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <optional>

namespace trireme {

/// What a trace says about a collective.
struct CollectiveFacts {
  const char* kind;  // of the Communicator: "all_gather"
  uint64_t sequence = 0;
  int64_t in_elements = 0, out_elements = 0;  // of this rank
  at::ScalarType dtype = at::kByte;
  const char* group = "";  // "world"
  int rank = 0, size = 1;  // in the group
  int first_rank = 0, rank_stride = 1;
};

/// While it lives the collective is a `record_param_comms` operation with the arguments of c10d's (collective name,
/// dtype, numbers of elements, group), which trace tools read. Nothing happens unless a profile is active.
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
