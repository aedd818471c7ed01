// Gathering of sharded units: slots, and gathers ahead of use.
#include <ATen/core/grad_mode.h>
#include "backward_range.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/fsdp/sharded_units.h"
#include "unit_state.h"

#include <algorithm>

namespace trireme {

void ShardedUnits::evict(Slot& slot) {
  if (slot.unit < 0) return;
  slot.gather.reset();
  UnitState& state = *states_[slot.unit];
  lend_memory(state.full, nullptr);
  state.slot = nullptr;
  slot.unit = -1;
}

ShardedUnits::Slot* ShardedUnits::free_slot() {
  Slot* best = nullptr;
  for (auto& slot : slots_)
    if (!slot->in_use && (best == nullptr || slot->last_use < best->last_use)) best = slot.get();
  return best;
}

void ShardedUnits::start_gather(int unit) {
  const ProfileRange range("all_gather", specs_[unit].name);
  UnitState& state = *states_[unit];
  Slot* slot = state.own_slot ? state.own_slot.get() : free_slot();
  TRIREME_CHECK(slot != nullptr, "all gather slots are in use, none is free for unit ", specs_[unit].name);
  evict(*slot);
  lend_memory(state.full, slot->memory.data_ptr());
  slot->unit = unit;
  state.slot = slot;
  slot->last_use = ++gather_clock_;
  if (state.peer_offset >= 0) {
    slot->gather = peers_->gather(state.full.view(at::kByte), state.peer_offset);
    return;
  }
  slot->gather = gather_whole(state);
}

WorkPtr ShardedUnits::gather_whole(const UnitState& state) {
  // Codes as bytes, because the communicator has no FP8 type.
  return state.full.scalar_type() == at::kFloat8_e4m3fn
             ? shard_group_->all_gather(state.full.view(at::kByte), state.shard.view(at::kByte))
             : shard_group_->all_gather(state.full, state.shard);
}

void ShardedUnits::use(int unit) {
  UnitState& state = *states_[unit];
  if (state.arriving) {
    state.arriving->wait();
    state.arriving.reset();
  }
  if (!state.gathered) return;
  at::NoGradGuard no_grad;
  if (state.slot == nullptr) start_gather(unit);
  if (state.slot->gather) {
    state.slot->gather->wait();
    state.slot->gather.reset();
  }
  state.slot->in_use = true;
}

void ShardedUnits::prefetch(int unit, int direction) {
  at::NoGradGuard no_grad;
  int ahead = 0;
  for (int next = unit + direction; next >= 0 && next < static_cast<int>(states_.size()) && ahead < kGatherSlots - 1;
       next += direction) {
    if (!states_[next]->gathered) continue;
    if (direction < 0 && !specs_[next].backward_reads_weights) continue;
    ++ahead;
    if (states_[next]->slot != nullptr) {
      // Already gathered or being gathered: marked as used, so that the gathers that follow do not evict it.
      states_[next]->slot->last_use = ++gather_clock_;
      continue;
    }
    if (!states_[next]->own_slot && free_slot() == nullptr) return;
    start_gather(next);
  }
}

void ShardedUnits::pre_forward(int unit) {
  use(unit);
  prefetch(unit, +1);
}

void ShardedUnits::post_forward(int unit) {
  UnitState& state = *states_[unit];
  if (state.slot != nullptr && !specs_[unit].keep) state.slot->in_use = false;
}

void ShardedUnits::pre_backward(int unit) {
  if (specs_[unit].backward_reads_weights) use(unit);
  prefetch(unit, -1);
  begin_backward_range(specs_[unit].name);
}

void ShardedUnits::post_backward(int unit) {
  end_backward_range();
  post_forward(unit);
}

void ShardedUnits::release() {
  for (auto& state : states_)
    if (state->slot != nullptr) state->slot->in_use = false;
}

void ShardedUnits::weights_changed() {
  at::NoGradGuard no_grad;
  if (codes_) find_code_scales();
  for (size_t u = 0; u < states_.size(); ++u) {
    UnitState& state = *states_[u];
    if (!specs_[u].trained) continue;
    if (state.slot != nullptr) evict(*state.slot);
    if (state.trained_codes) write_codes(static_cast<int>(u));
    // In the order in which forward uses the units.
    if (!state.divided || state.gathered) continue;
    const ProfileRange range("all_gather", specs_[u].name);
    state.arriving = gather_whole(state);
  }
}

}  // namespace trireme
