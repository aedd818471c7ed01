// Time limits of collectives on device streams, with events that the test controls.
#include "queued_collectives.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace trireme {
namespace {

/// A device whose events pass when the test says so.
class FakeDevice {
 public:
  QueuedCollectives queue{{.passed = [this](const DeviceEvent& event) { return passed_.contains(event.handle); },
                           .ended = [this](uint64_t sequence) { ended.push_back(sequence); }}};
  std::vector<uint64_t> ended;

  DeviceEvent event(int number, int device = 0) { return {&events_[number], device}; }
  void pass(int number) { passed_.insert(&events_[number]); }

 private:
  char events_[8] = {};
  std::set<const void*> passed_;
};

TEST(QueuedCollectives, TheClockRunsFromTheLaunchAndFromTheLastThatFinished) {
  FakeDevice device;
  EXPECT_EQ(device.queue.stuck_for(5), 0);
  const auto first = device.queue.add(device.event(0), 11, 10);
  const auto second = device.queue.add(device.event(1), 12, 11);
  EXPECT_EQ(device.queue.stuck_for(14), 4);
  device.queue.release(first);
  device.queue.release(second);
  device.pass(0);
  EXPECT_EQ(device.queue.stuck_for(20), 0) << "the first has just finished";
  EXPECT_EQ(device.queue.stuck_for(27), 7);
  device.pass(1);
  EXPECT_EQ(device.queue.stuck_for(28), 0);
  EXPECT_EQ(device.queue.stuck_for(99), 0) << "nothing is queued";
  EXPECT_EQ(device.ended, (std::vector<uint64_t>{11, 12}));
}

/// A prefetched gather keeps its Work while the rank waits for something else.
TEST(QueuedCollectives, AFinishedOneThatIsStillHeldStopsNoClock) {
  FakeDevice device;
  const auto held = device.queue.add(device.event(0), 1, 10);
  device.queue.add(device.event(1), 2, 10);
  device.pass(0);
  EXPECT_EQ(device.queue.stuck_for(12), 0);
  for (const double now : {13.0, 20.0, 71.0}) EXPECT_EQ(device.queue.stuck_for(now), now - 12) << "polled at " << now;
  EXPECT_EQ(device.ended, std::vector<uint64_t>{1}) << "a collective ends once";
  device.queue.release(held);
  EXPECT_EQ(device.queue.stuck_for(80), 68);
}

TEST(QueuedCollectives, EventsServeAgainWhenTheirWorkIsGoneAndTheyHavePassed) {
  FakeDevice device;
  const auto entry = device.queue.add(device.event(0), 1, 0);
  EXPECT_FALSE(device.queue.take_spare(0, 1)) << "queued and held";
  device.queue.release(entry);
  EXPECT_FALSE(device.queue.take_spare(0, 1)) << "queued";
  device.pass(0);
  const auto spare = device.queue.take_spare(0, 2);
  ASSERT_TRUE(spare);
  EXPECT_EQ(spare->handle, device.event(0).handle);
  EXPECT_FALSE(device.queue.take_spare(0, 3));
}

/// CUDA refuses to record an event of one device on a stream of another.
TEST(QueuedCollectives, AnEventServesItsOwnDeviceOnly) {
  FakeDevice device;
  device.queue.give_back(device.event(0, 0));
  device.queue.give_back(device.event(1, 1));
  device.queue.give_back(device.event(2, 0));
  for (int i = 0; i < 2; ++i) {
    const auto event = device.queue.take_spare(0, 0);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->device, 0);
  }
  EXPECT_FALSE(device.queue.take_spare(0, 0));
  ASSERT_TRUE(device.queue.take_spare(1, 0));
}

}  // namespace
}  // namespace trireme
