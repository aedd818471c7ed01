#pragma once
// Private to fsdp/: the memory into which sharded units are gathered for each use.

#include "trireme/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// A flat tensor without memory of its own: it has a slot's memory while it is in that slot.
at::Tensor make_borrowed_tensor(int64_t numel, at::ScalarType dtype, at::Device device);

/// A few slots, each with room for one unit. A slot keeps its unit until another unit needs the slot, so the last unit
/// of forward is still gathered when backward starts. While a unit is in use, the gathers of the next units run.
class GatherSlots {
 public:
  struct Unit {
    std::string name;
    at::Tensor whole;                    // make_borrowed_tensor(); undefined: the unit is never in a slot
    bool keep = false;                   // has its own slot, and stays in use until release()
    bool backward_reads_weights = true;  // false: prefetch() towards the front skips it
  };
  /// All units in the order of forward. `gather(unit)` starts to fill the unit's `whole`, which has memory then.
  GatherSlots(std::vector<Unit> units, at::Device device, std::function<WorkPtr(int unit)> gather);

  /// The unit is whole for what is queued from now on, and stays so until end_use(). Starts its gather if none runs.
  /// InternalError when all slots are in use.
  void use(int unit);
  void end_use(int unit);
  /// Starts the gathers of the next units in `direction` (+1 or -1), as far as slots are free.
  void prefetch(int unit, int direction);
  /// After this call no unit is in use.
  void release();
  /// The unit's shards have changed: it is gathered again at its next use.
  void invalidate(int unit);

 private:
  struct Slot {
    at::Tensor memory;  // bytes
    int unit = -1;      // the unit whose weights it holds or receives; -1: none
    WorkPtr gather;     // running gather; null: none
    bool in_use = false;
    int64_t last_use = 0;
  };
  Slot* slot_of(int unit);
  Slot* free_slot();
  void start(int unit);
  static void lend(const at::Tensor& whole, void* memory);
  void evict(Slot& slot);

  std::vector<Unit> units_;
  std::function<WorkPtr(int)> gather_;
  std::vector<Slot> slots_;
  std::vector<int> own_, in_;  // per unit: its own slot, and the slot that it is in; -1: none
  size_t shared_ = 0;          // slots_[0, shared_) serve all units without their own slot
  int64_t clock_ = 0;
};

}  // namespace trireme
