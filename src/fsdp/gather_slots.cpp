#include "gather_slots.h"

#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/fsdp/layout.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace trireme {

at::Tensor make_borrowed_tensor(int64_t numel, at::ScalarType dtype, at::Device device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device), nullptr, /*resizable=*/false));
  at::Tensor tensor = at::empty({0}, options);
  tensor.set_(storage, 0, {numel}, {1});
  return tensor;
}

GatherSlots::GatherSlots(std::vector<Unit> units, at::Device device, std::function<WorkPtr(int)> gather)
    : units_(std::move(units)), gather_(std::move(gather)), own_(units_.size(), -1), in_(units_.size(), -1) {
  const auto add = [&](int64_t bytes) {
    slots_.emplace_back().memory = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
    return static_cast<int>(slots_.size()) - 1;
  };
  const auto bytes_of = [](const Unit& unit) {
    return unit.whole.numel() * static_cast<int64_t>(unit.whole.element_size());
  };
  int64_t largest = 0;
  for (const Unit& unit : units_) {
    if (!unit.whole.defined() || unit.keep) continue;
    largest = std::max(largest, bytes_of(unit));
    if (shared_ < kGatherSlots) ++shared_;
  }
  for (size_t slot = 0; slot < shared_; ++slot) add(largest);
  for (size_t u = 0; u < units_.size(); ++u)
    if (units_[u].whole.defined() && units_[u].keep) own_[u] = add(bytes_of(units_[u]));
}

void GatherSlots::lend(const at::Tensor& whole, void* memory) {
  whole.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(memory, whole.device()));
}

GatherSlots::Slot* GatherSlots::slot_of(int unit) {
  const int slot = in_.at(static_cast<size_t>(unit));
  return slot < 0 ? nullptr : &slots_[static_cast<size_t>(slot)];
}

void GatherSlots::evict(Slot& slot) {
  if (slot.unit < 0) return;
  slot.gather.reset();
  lend(units_[static_cast<size_t>(slot.unit)].whole, nullptr);
  in_[static_cast<size_t>(slot.unit)] = -1;
  slot.unit = -1;
}

GatherSlots::Slot* GatherSlots::free_slot() {
  Slot* best = nullptr;
  for (size_t i = 0; i < shared_; ++i)
    if (!slots_[i].in_use && (best == nullptr || slots_[i].last_use < best->last_use)) best = &slots_[i];
  return best;
}

void GatherSlots::start(int unit) {
  const auto u = static_cast<size_t>(unit);
  const ProfileRange range("all_gather", units_[u].name);
  Slot* slot = own_[u] >= 0 ? &slots_[static_cast<size_t>(own_[u])] : free_slot();
  TRIREME_CHECK(slot != nullptr, "all gather slots are in use, none is free for unit ", units_[u].name);
  evict(*slot);
  lend(units_[u].whole, slot->memory.data_ptr());
  slot->unit = unit;
  in_[u] = static_cast<int>(slot - slots_.data());
  slot->last_use = ++clock_;
  slot->gather = gather_(unit);
}

void GatherSlots::use(int unit) {
  if (!units_.at(static_cast<size_t>(unit)).whole.defined()) return;
  if (slot_of(unit) == nullptr) start(unit);
  Slot& slot = *slot_of(unit);
  if (slot.gather) {
    slot.gather->wait();
    slot.gather.reset();
  }
  slot.in_use = true;
}

void GatherSlots::end_use(int unit) {
  if (Slot* slot = slot_of(unit); slot != nullptr && !units_[static_cast<size_t>(unit)].keep) slot->in_use = false;
}

void GatherSlots::prefetch(int unit, int direction) {
  int ahead = 0;
  for (int next = unit + direction; next >= 0 && next < static_cast<int>(units_.size()) && ahead < kGatherSlots - 1;
       next += direction) {
    const auto n = static_cast<size_t>(next);
    if (!units_[n].whole.defined()) continue;
    if (direction < 0 && !units_[n].backward_reads_weights) continue;
    ++ahead;
    if (Slot* slot = slot_of(next)) {
      // Already gathered or being gathered: marked as used, so that the gathers that follow do not evict it.
      slot->last_use = ++clock_;
      continue;
    }
    if (own_[n] < 0 && free_slot() == nullptr) return;
    start(next);
  }
}

void GatherSlots::release() {
  for (Slot& slot : slots_) slot.in_use = false;
}

void GatherSlots::invalidate(int unit) {
  if (Slot* slot = slot_of(unit)) evict(*slot);
}

}  // namespace trireme
