#include "queued_collectives.h"

#include <algorithm>

namespace trireme {

QueuedCollectives::Entry QueuedCollectives::add(DeviceEvent event, uint64_t sequence, double now) {
  const std::lock_guard lock(mutex_);
  return queued_.insert(queued_.end(), {event, sequence, now});
}

void QueuedCollectives::release(Entry entry) {
  const std::lock_guard lock(mutex_);
  entry->released = true;
}

std::optional<DeviceEvent> QueuedCollectives::take_spare(int device, double now) {
  const std::lock_guard lock(mutex_);
  std::vector<DeviceEvent>& spare = spare_[device];
  if (spare.empty()) collect(now);
  if (spare.empty()) return std::nullopt;
  const DeviceEvent event = spare.back();
  spare.pop_back();
  return event;
}

void QueuedCollectives::give_back(DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  spare_[event.device].push_back(event);
}

double QueuedCollectives::stuck_for(double now) {
  const std::lock_guard lock(mutex_);
  collect(now);
  for (const Queued& entry : queued_)
    if (!entry.finished) return now - std::max(entry.began, last_progress_);
  return 0;
}

void QueuedCollectives::collect(double now) {
  for (auto entry = queued_.begin(); entry != queued_.end();) {
    if (!entry->finished && hooks_.passed(entry->event)) {
      entry->finished = true;
      hooks_.ended(entry->sequence);
      last_progress_ = now;
    }
    if (!entry->finished || !entry->released) {
      ++entry;
      continue;
    }
    spare_[entry->event.device].push_back(entry->event);
    entry = queued_.erase(entry);
  }
}

}  // namespace trireme
