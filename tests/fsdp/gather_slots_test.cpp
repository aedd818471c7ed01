// GatherSlots with gathers that only count: which unit has memory when, and which gathers run ahead.
#include "gather_slots.h"

#include "trireme/base/error.h"
#include "trireme/fsdp/layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

struct Done final : Work {
  explicit Done(int& waits_) : waits(waits_) {}
  void wait() override { ++waits; }
  int& waits;
};

class GatherSlotsTest : public testing::Test {
 protected:
  /// Units of 4, 5, 6, … elements. `kept`: the unit with a slot of its own; `whole`: one that is never in a slot.
  void make(int count, int kept = -1, int whole = -1, int unread = -1) {
    for (int u = 0; u < count; ++u)
      units_.push_back({"unit " + std::to_string(u),
                        u == whole ? at::Tensor() : make_borrowed_tensor(4 + u, at::kFloat, at::kCPU), u == kept,
                        u != unread});
    slots_ = std::make_unique<GatherSlots>(units_, at::kCPU, [this](int unit) {
      units_[static_cast<size_t>(unit)].whole.fill_(unit);
      gathers_.push_back(unit);
      return std::make_unique<Done>(waits_);
    });
  }
  bool has_memory(int unit) const { return units_[static_cast<size_t>(unit)].whole.storage().data() != nullptr; }
  bool has_values(int unit) const {
    return has_memory(unit) && units_[static_cast<size_t>(unit)].whole.eq(unit).all().item<bool>();
  }

  std::vector<GatherSlots::Unit> units_;
  std::vector<int> gathers_;
  int waits_ = 0;
  std::unique_ptr<GatherSlots> slots_;
};

TEST_F(GatherSlotsTest, ForwardAndBackwardGatherEachUnitOnceMoreThanTheSlotsHold) {
  constexpr int kUnits = 6;
  make(kUnits);
  for (int u = 0; u < kUnits; ++u) {
    slots_->use(u);
    slots_->prefetch(u, +1);
    EXPECT_TRUE(has_values(u)) << u;
    slots_->end_use(u);
  }
  EXPECT_EQ(gathers_, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  gathers_.clear();
  for (int u = kUnits - 1; u >= 0; --u) {
    slots_->use(u);
    slots_->prefetch(u, -1);
    EXPECT_TRUE(has_values(u)) << u;
    slots_->end_use(u);
  }
  // The last three were still there.
  EXPECT_EQ(gathers_, (std::vector<int>{2, 1, 0}));
}

TEST_F(GatherSlotsTest, AUnitInUseIsNeverEvicted) {
  make(5);
  for (int u = 0; u < kGatherSlots; ++u) slots_->use(u);
  slots_->prefetch(kGatherSlots - 1, +1);
  for (int u = 0; u < kGatherSlots; ++u) EXPECT_TRUE(has_values(u)) << u;
  EXPECT_THROW(slots_->use(kGatherSlots), InternalError);
  slots_->release();
  slots_->use(kGatherSlots);
  EXPECT_TRUE(has_values(kGatherSlots));
  EXPECT_FALSE(has_memory(0)) << "the one that was used first";
}

TEST_F(GatherSlotsTest, AKeptUnitHasItsOwnSlotUntilItsShardsChange) {
  make(6, /*kept=*/0);
  for (int round = 0; round < 2; ++round)
    for (int u = 0; u < 6; ++u) {
      slots_->use(u);
      slots_->end_use(u);
    }
  EXPECT_EQ(std::count(gathers_.begin(), gathers_.end(), 0), 1);
  EXPECT_TRUE(has_values(0));
  slots_->invalidate(0);
  EXPECT_FALSE(has_memory(0));
  slots_->use(0);
  EXPECT_EQ(std::count(gathers_.begin(), gathers_.end(), 0), 2);
}

TEST_F(GatherSlotsTest, WholeUnitsAndThoseThatBackwardDoesNotReadArePassedOver) {
  make(4, /*kept=*/-1, /*whole=*/2, /*unread=*/1);
  slots_->use(2);
  slots_->prefetch(0, +1);
  EXPECT_EQ(gathers_, (std::vector<int>{1, 3}));
  slots_->invalidate(1);
  gathers_.clear();
  slots_->prefetch(3, -1);
  EXPECT_EQ(gathers_, (std::vector<int>{0}));
  EXPECT_EQ(waits_, 0) << "only a use waits for a gather";
  slots_->use(0);
  EXPECT_EQ(waits_, 1);
}

}  // namespace
}  // namespace trireme
