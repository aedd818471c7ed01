// Release of peer memory, on GPUs with peer access.
#include "mpi_test_main.h"
#include "trireme/comm/peer_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

namespace trireme {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class PeerMemoryEnd : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 4 << 20;
  void SetUp() override {
    if (!test_world().device().is_cuda()) GTEST_SKIP() << "the ranks have no GPUs";
    group_ = test_world().communicator().split(0);
    std::string why_not;
    memory_ = PeerMemory::create(*group_, kBytes, test_world().device(), why_not);
    if (!memory_) GTEST_SKIP() << why_not;
    memory_->block().fill_(group_->rank() + 1);
    memory_->publish();
  }
  /// What this rank reads from all blocks.
  void expect_all_blocks() {
    at::Tensor all = at::zeros({kBytes * group_->size()}, at::TensorOptions(test_world().device()).dtype(at::kByte));
    memory_->gather(all, 0)->wait();
    for (int rank = 0; rank < group_->size(); ++rank) {
      const at::Tensor part = all.narrow(0, rank * kBytes, kBytes);
      EXPECT_EQ(part.min().item<int>(), rank + 1);
      EXPECT_EQ(part.max().item<int>(), rank + 1);
    }
  }
  std::unique_ptr<Communicator> group_;
  std::unique_ptr<PeerMemory> memory_;
};

TEST_F(PeerMemoryEnd, AnOwnerWaitsUntilItsPeersHaveClosed) {
  const auto began = Clock::now();
  if (group_->rank() != 0) {
    std::this_thread::sleep_for(milliseconds(1000));
    expect_all_blocks();
  }
  memory_.reset();
  EXPECT_GT(Clock::now() - began, milliseconds(900));
}

TEST_F(PeerMemoryEnd, ABlockOutlivesAnOwnerThatGaveUp) {
  const double before = peer_close_seconds();
  peer_close_seconds() = 0.3;
  const auto began = Clock::now();
  if (group_->rank() == 0) {
    memory_.reset();
    EXPECT_LT(Clock::now() - began, milliseconds(900)) << "waits for a peer that does not arrive";
  } else {
    std::this_thread::sleep_for(milliseconds(1200));
    expect_all_blocks();
    memory_.reset();
  }
  peer_close_seconds() = before;
  test_world().communicator().barrier();
}

}  // namespace
}  // namespace trireme
