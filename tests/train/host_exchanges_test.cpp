// What the training loop exchanges between hosts: with many ranks each such exchange is a wait for rank 0.
#include "checkpoint_saver.h"
#include "mpi_test_main.h"
#include "stop.h"
#include "train_step.h"
#include "trireme/comm/collective_check.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <memory>

namespace trireme {
namespace {

/// The world's communicator, with its host exchanges counted.
class CountedCommunicator final : public Communicator {
 public:
  explicit CountedCommunicator(Communicator& inner) : Communicator(inner.rank(), inner.size()), inner_(inner) {}
  const char* backend() const override { return inner_.backend(); }
  WorkPtr all_gather(at::Tensor out, const at::Tensor& in) override { return inner_.all_gather(out, in); }
  WorkPtr reduce_scatter(at::Tensor out, const at::Tensor& in, ReduceOp op) override {
    return inner_.reduce_scatter(out, in, op);
  }
  WorkPtr all_to_all(at::Tensor out, const at::Tensor& in) override { return inner_.all_to_all(out, in); }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override { return inner_.all_reduce(tensor, op); }
  WorkPtr broadcast(at::Tensor tensor, int root) override { return inner_.broadcast(tensor, root); }
  void barrier() override { inner_.barrier(); }
  bool barrier_within(double seconds) override { return inner_.barrier_within(seconds); }
  std::vector<double> all_reduce_host(std::vector<double> values, ReduceOp op) override {
    ++reductions;
    return inner_.all_reduce_host(std::move(values), op);
  }
  std::vector<std::string> all_gather_host(const std::string& value) override {
    ++gathers_by_all;
    return inner_.all_gather_host(value);
  }
  std::vector<std::string> gather_host(const std::string& mine) override {
    gathered_bytes += mine.size();
    return inner_.gather_host(mine);
  }
  std::unique_ptr<Communicator> split(int colour, int multiprocessors) override {
    return inner_.split(colour, multiprocessors);
  }

  int reductions = 0, gathers_by_all = 0;
  size_t gathered_bytes = 0;

 private:
  Communicator& inner_;
};

Communicator& world() { return test_world().communicator(); }

TEST(StopVote, OneRanksVoteReachesAllWithoutAHostExchange) {
  CountedCommunicator comm(world());
  StopVote vote(comm, test_world().device());
  for (int pass = 0; pass < 4; ++pass) EXPECT_FALSE(vote.cast(false)) << pass;
  EXPECT_FALSE(vote.decide(false));
  EXPECT_FALSE(vote.outcome());
  const bool last = comm.rank() == comm.size() - 1;
  (void)vote.cast(last);
  EXPECT_TRUE(vote.outcome());
  EXPECT_TRUE(vote.cast(false)) << "a vote to stop is not taken back";
  StopVote other(comm, test_world().device());
  EXPECT_TRUE(other.decide(last));
  EXPECT_EQ(comm.reductions + comm.gathers_by_all, 0);
  EXPECT_EQ(comm.gathered_bytes, 0U);
}

TEST(StopVote, TakesInAVoteThatCameWithAStep) {
  CountedCommunicator comm(world());
  StopVote vote(comm, test_world().device());
  vote.record(false);
  EXPECT_FALSE(vote.stopping());
  vote.record(true);
  vote.record(false);
  EXPECT_TRUE(vote.stopping());
  EXPECT_TRUE(vote.decide(false)) << "a vote to stop is not taken back";
}

TEST(FindNonfiniteState, NamesTensorAndRankAndIgnoresIntegers) {
  CountedCommunicator comm(world());
  const bool last = comm.rank() == comm.size() - 1;
  TrainedShard a, b;
  a.name = "a";
  b.name = "b";
  std::vector<StateTensor> state = {{StateKind::kGrowthTracker, nullptr, at::zeros({}, at::kInt)},
                                    {StateKind::kMaster, &a, at::ones({5})}};
  EXPECT_EQ(find_nonfinite_state(state, comm), "");
  EXPECT_EQ(comm.gathers_by_all, 0) << "no text is exchanged where nothing is wrong";
  if (last) state.push_back({StateKind::kMaster, &b, at::full({3}, std::numeric_limits<double>::infinity())});
  EXPECT_EQ(find_nonfinite_state(state, comm), "master.b on rank " + std::to_string(comm.size() - 1) + " is not finite")
      << "every rank must know";
}

class SaveTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "trireme-exchange-XXXXXX").string();
    if (world().rank() == 0) {
      ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    }
    directory_ = world().all_gather_host(pattern)[0];
    shard_.name = "block";
    shard_.master = at::full({64 * 64}, 3.0);
    shard_.unit_numel = 64 * 64;
    shard_.copy = world().rank();
    shard_.copies = world().size();
    state_ = {{StateKind::kMaster, &shard_, shard_.master}, {StateKind::kLossScale, nullptr, at::ones({})}};
    run_.manifest.run_id = "0123456789abcdef";
    run_.manifest.world_size = world().size();
    run_.manifest.units = {{"block", 64 * 64, {{"weight", {64, 64}, 0}}}};
    run_.samples_after = [](int64_t steps) { return 4 * steps; };
    folder_ = std::make_unique<CheckpointFolder>(directory_ / "checkpoints", run_.manifest.run_id, 2);
    collective_check(world(), [&] {
      if (world().rank() == 0) folder_->open();
    });
  }
  void TearDown() override {
    world().barrier();
    if (world().rank() == 0) std::filesystem::remove_all(directory_);
  }
  LoopState after(int64_t step) const { return {.progress = {.completed = step}}; }

  std::filesystem::path directory_;
  TrainedShard shard_;
  std::vector<StateTensor> state_;
  CheckpointRun run_;
  std::unique_ptr<CheckpointFolder> folder_;
  std::string events_;
  std::function<void(const std::string&)> event_ = [this](const std::string& event) { events_ += event; };
};

TEST_F(SaveTest, PiecesGoToRankZeroAlone) {
  CountedCommunicator comm(world());
  CheckpointSaver saves(*folder_, run_, comm, event_);
  EXPECT_FALSE(saves.holds(2));
  comm.gathers_by_all = 0;
  saves.start(state_, after(2));
  saves.complete();
  EXPECT_EQ(saves.committed(), 2);
  EXPECT_TRUE(saves.holds(2));
  EXPECT_FALSE(saves.holds(3));
  EXPECT_EQ(comm.gathers_by_all, 0) << "every rank got every rank's pieces";
  EXPECT_GT(comm.gathered_bytes, 0U);
  EXPECT_EQ(events_.find("\"event\":\"save\"") != std::string::npos, world().rank() == 0) << events_;
}

TEST_F(SaveTest, OneRanksFailureIsThatOfAllWithItsReason) {
  CountedCommunicator comm(world());
  CheckpointSaver saves(*folder_, run_, comm, event_);
  if (world().rank() == 0) std::filesystem::remove_all(directory_ / "checkpoints");
  saves.start(state_, after(2));
  saves.complete();
  EXPECT_EQ(saves.committed(), -1);
  EXPECT_FALSE(saves.holds(2));
  EXPECT_EQ(events_.find("cannot create directory") != std::string::npos, world().rank() == 0) << events_;
}

}  // namespace
}  // namespace trireme
