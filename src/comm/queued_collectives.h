#pragma once
// Private to comm/: collectives on device streams, from their launch until their end is observed. The watchdog reads
// them, because the host continues after the launch and may hang later, when it waits for the stream. Independent of
// CUDA: the caller defines the events.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace trireme {

/// Recorded after a collective on a stream of `device`. An event can only be recorded on streams of its device.
struct DeviceEvent {
  void* handle = nullptr;
  int device = 0;
};

/// Thread-safe.
class QueuedCollectives {
  struct Queued;

 public:
  using Entry = std::list<Queued>::iterator;
  struct Hooks {
    /// Whether the device has passed the event. Called under this object's lock, from any thread.
    std::function<bool(const DeviceEvent&)> passed;
    /// The collective with this sequence number has finished.
    std::function<void(uint64_t sequence)> ended;
  };
  explicit QueuedCollectives(Hooks hooks) : hooks_(std::move(hooks)) {}

  Entry add(DeviceEvent event, uint64_t sequence, double now);
  /// The entry's Work is destroyed: its event may be reused when the device has passed it.
  void release(Entry entry);
  /// An unused event of `device`, if there is one.
  std::optional<DeviceEvent> take_spare(int device, double now);
  void give_back(DeviceEvent event);
  /// Seconds up to `now` for which collectives have been queued without any of them finishing; 0 when none is queued.
  double stuck_for(double now);

 private:
  struct Queued {
    DeviceEvent event;
    uint64_t sequence;
    double began;
    bool finished = false, released = false;
  };
  /// Queries the events of unfinished collectives. Passed events whose Work is destroyed become spare.
  void collect(double now);

  Hooks hooks_;
  std::mutex mutex_;
  std::list<Queued> queued_;
  std::map<int, std::vector<DeviceEvent>> spare_;  // by device
  double last_progress_ = 0;
};

}  // namespace trireme
