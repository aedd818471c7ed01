// Collectives between ranks: on CPUs through MPI, and the same tests on GPUs through NCCL. Inputs are small integers,
// so every sum is exact and no tolerance is needed.
#include "mpi_communicator.h"
#include "mpi_test_main.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace trireme {
namespace {

Communicator& comm() { return test_world().communicator(); }

at::TensorOptions on_device(at::ScalarType type = at::kFloat) {
  return at::TensorOptions(test_world().device()).dtype(type);
}

at::Tensor own_values(int64_t count, int rank, at::ScalarType type = at::kFloat) {
  return (at::arange(count, on_device()).remainder(13) + rank * 3).to(type);
}

/// Initial values that every collective must overwrite.
at::Tensor garbage(int64_t count, at::ScalarType type = at::kFloat) { return at::full({count}, -77, on_device(type)); }

at::Tensor expected_sum(int64_t count, at::ScalarType type = at::kFloat) {
  at::Tensor sum = at::zeros({count}, on_device());
  for (int rank = 0; rank < comm().size(); ++rank) sum += own_values(count, rank);
  return sum.to(type);
}

class Sizes : public testing::TestWithParam<int64_t> {};

TEST_P(Sizes, AllGatherConcatenatesInRankOrder) {
  const int64_t n = GetParam();
  at::Tensor out = garbage(n * comm().size());
  comm().all_gather(out, own_values(n, comm().rank()))->wait();
  for (int rank = 0; rank < comm().size(); ++rank) EXPECT_TRUE(out.narrow(0, rank * n, n).equal(own_values(n, rank)));
}

TEST_P(Sizes, AllGatherInPlaceOfTheOwnSlice) {
  const int64_t n = GetParam();
  at::Tensor out = garbage(n * comm().size());
  at::Tensor slice = out.narrow(0, comm().rank() * n, n);
  slice.copy_(own_values(n, comm().rank()));
  comm().all_gather(out, slice)->wait();
  for (int rank = 0; rank < comm().size(); ++rank) EXPECT_TRUE(out.narrow(0, rank * n, n).equal(own_values(n, rank)));
}

TEST_P(Sizes, ReduceScatterGivesTheOwnSliceOfTheSum) {
  const int64_t n = GetParam();
  at::Tensor out = garbage(n);
  comm().reduce_scatter(out, own_values(n * comm().size(), comm().rank()))->wait();
  EXPECT_TRUE(out.equal(expected_sum(n * comm().size()).narrow(0, comm().rank() * n, n)));
}

/// What rank `from` sends to rank `to`.
at::Tensor part_for(int64_t count, int from, int to, at::ScalarType type) {
  return own_values(count, from * 7 + to, type);
}
void expect_all_to_all(int64_t n, at::ScalarType type) {
  std::vector<at::Tensor> parts;
  for (int to = 0; to < comm().size(); ++to) parts.push_back(part_for(n, comm().rank(), to, type));
  at::Tensor out = garbage(n * comm().size(), type);
  comm().all_to_all(out, at::cat(parts))->wait();
  for (int from = 0; from < comm().size(); ++from)
    EXPECT_TRUE(out.narrow(0, from * n, n).equal(part_for(n, from, comm().rank(), type))) << c10::toString(type);
}

TEST_P(Sizes, AllToAllDeliversEveryPart) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kByte, at::kLong}) expect_all_to_all(GetParam(), type);
}

TEST_P(Sizes, SixteenBitFloatsAreGatheredAsTheyAreAndReducedInFp32) {
  const int64_t n = GetParam();
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    at::Tensor gathered = garbage(n * comm().size(), type);
    comm().all_gather(gathered, own_values(n, comm().rank(), type))->wait();
    for (int rank = 0; rank < comm().size(); ++rank)
      EXPECT_TRUE(gathered.narrow(0, rank * n, n).equal(own_values(n, rank, type)));
    at::Tensor out = garbage(n, type);
    comm().reduce_scatter(out, own_values(n * comm().size(), comm().rank(), type))->wait();
    EXPECT_TRUE(out.equal(expected_sum(n * comm().size(), type).narrow(0, comm().rank() * n, n)))
        << c10::toString(type);
  }
}

TEST(Communicator, SixteenBitSumsAreRoundedOnce) {
  if (test_world().device().is_cuda()) GTEST_SKIP() << "NCCL rounds after every addition";
  // 1 + 2^-9 rounds to 1 in bf16; the sum over ranks must add the small terms before it rounds.
  at::Tensor values = at::full({3}, comm().rank() == 0 ? 1.0 : 0.001953125, on_device(at::kBFloat16));
  comm().all_reduce(values)->wait();
  EXPECT_TRUE(values.equal(at::full({3}, 1.0 + (comm().size() - 1) * 0.001953125, on_device()).to(at::kBFloat16)));
}

TEST_P(Sizes, AllReduceSumsAndMaximises) {
  const int64_t n = GetParam();
  for (const auto type : {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kBFloat16, at::kHalf}) {
    at::Tensor values = own_values(n, comm().rank(), type);
    comm().all_reduce(values)->wait();
    EXPECT_TRUE(values.equal(expected_sum(n, type))) << c10::toString(type);
  }
  at::Tensor values = own_values(n, comm().rank());
  comm().all_reduce(values, ReduceOp::kMax)->wait();
  EXPECT_TRUE(values.equal(own_values(n, comm().size() - 1)));
}

TEST_P(Sizes, BroadcastFromEveryRoot) {
  const int64_t n = GetParam();
  for (int root = 0; root < comm().size(); ++root) {
    at::Tensor values = own_values(n, comm().rank());
    comm().broadcast(values, root)->wait();
    EXPECT_TRUE(values.equal(own_values(n, root)));
  }
}

INSTANTIATE_TEST_SUITE_P(Communicator, Sizes, testing::Values(0, 1, 7, 1024, 100003));

/// Transfers longer than one MPI call allows, with a small limit.
class Pieces : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { std::swap(elements_, mpi_piece_elements()); }
  void TearDown() override { std::swap(elements_, mpi_piece_elements()); }
  int64_t elements_ = GetParam();
};

TEST_P(Pieces, GiveTheSameResults) {
  constexpr int64_t n = 103;
  const int size = comm().size(), rank = comm().rank();
  at::Tensor gathered = garbage(n * size);
  comm().all_gather(gathered, own_values(n, rank))->wait();
  at::Tensor in_place = garbage(n * size);
  in_place.narrow(0, rank * n, n).copy_(own_values(n, rank));
  comm().all_gather(in_place, in_place.narrow(0, rank * n, n))->wait();
  for (int peer = 0; peer < size; ++peer) {
    EXPECT_TRUE(gathered.narrow(0, peer * n, n).equal(own_values(n, peer)));
    EXPECT_TRUE(in_place.narrow(0, peer * n, n).equal(own_values(n, peer)));
  }
  for (const auto type : {at::kFloat, at::kLong, at::kBFloat16}) {
    at::Tensor slice = garbage(n, type);
    comm().reduce_scatter(slice, own_values(n * size, rank, type))->wait();
    EXPECT_TRUE(slice.equal(expected_sum(n * size, type).narrow(0, rank * n, n))) << c10::toString(type);
    at::Tensor whole = own_values(n, rank, type);
    comm().all_reduce(whole)->wait();
    EXPECT_TRUE(whole.equal(expected_sum(n, type))) << c10::toString(type);
  }
  expect_all_to_all(n, at::kBFloat16);
  at::Tensor sent = own_values(n, rank, at::kDouble);
  comm().broadcast(sent, size - 1)->wait();
  EXPECT_TRUE(sent.equal(own_values(n, size - 1, at::kDouble)));
}

INSTANTIATE_TEST_SUITE_P(Communicator, Pieces, testing::Values(1, 16, 103, 104));

TEST(Communicator, AllToAllsOfOneGroupKeepTheirOrder) {
  const int size = comm().size(), rank = comm().rank();
  std::vector<at::Tensor> out;
  std::vector<WorkPtr> works;
  for (int i = 0; i < 20; ++i) {
    out.push_back(garbage(size * 5));
    works.push_back(comm().all_to_all(out.back(), at::full({size * 5}, 100 * i + rank, on_device())));
  }
  while (!works.empty()) {
    works.back()->wait();
    works.pop_back();
  }
  for (int i = 0; i < 20; ++i)
    EXPECT_TRUE(out[static_cast<size_t>(i)].equal(at::arange(size, on_device()).repeat_interleave(5).add_(100 * i)));
}

TEST(Communicator, ManyCollectivesMayBeUnderWayAtOnce) {
  std::vector<at::Tensor> tensors;
  std::vector<WorkPtr> works;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back(own_values(1000 + i, comm().rank()));
    works.push_back(comm().all_reduce(tensors.back()));
  }
  while (!works.empty()) {
    works.back()->wait();
    works.pop_back();
  }
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(tensors[i].equal(expected_sum(1000 + i)));
}

TEST(Communicator, DestroyingAnUnwaitedWorkWaits) {
  at::Tensor values = own_values(5000, comm().rank());
  {
    const WorkPtr work = comm().all_reduce(values);
  }
  EXPECT_TRUE(values.equal(expected_sum(5000)));
}

TEST(Communicator, SplitGroupsReduceAmongThemselves) {
  const int colour = comm().rank() % 2;
  const auto group = comm().split(colour);
  EXPECT_EQ(group->rank(), comm().rank() / 2);
  at::Tensor values = at::full({3}, comm().rank() + 1.0, on_device());
  group->all_reduce(values)->wait();
  double sum = 0;
  for (int rank = colour; rank < comm().size(); rank += 2) sum += rank + 1.0;
  EXPECT_EQ(values[2].item<double>(), sum);
  EXPECT_EQ(group->all_reduce_host({1.0})[0], group->size());
}

TEST(Communicator, HostValuesTravelWithoutTensors) {
  const auto sums = comm().all_reduce_host({1.0, static_cast<double>(comm().rank())});
  EXPECT_EQ(sums[0], comm().size());
  EXPECT_EQ(sums[1], comm().size() * (comm().size() - 1) / 2.0);
  EXPECT_EQ(comm().all_reduce_host({static_cast<double>(comm().rank())}, ReduceOp::kMax)[0], comm().size() - 1);
  const auto texts = comm().all_gather_host(std::string(static_cast<size_t>(comm().rank()), 'x'));
  for (int rank = 0; rank < comm().size(); ++rank) EXPECT_EQ(texts[rank].size(), static_cast<size_t>(rank));
}

TEST(Communicator, GatheredHostValuesGoToRankZeroOnly) {
  const int rank = comm().rank(), size = comm().size();
  // Empty values and lengths that differ; rank 0 of a sub-group is not rank 0 of the world.
  const auto value_of = [](int peer) {
    return std::string(static_cast<size_t>(3 * peer), static_cast<char>('a' + peer));
  };
  std::vector<std::string> expected;
  for (int peer = 0; peer < size; ++peer) expected.push_back(value_of(peer));
  for (int round = 0; round < 3; ++round)
    EXPECT_EQ(comm().gather_host(value_of(rank)), rank == 0 ? expected : std::vector<std::string>{});
  const auto half = comm().split(rank < size / 2 ? 0 : 1);
  const auto of_half = half->gather_host(value_of(rank));
  ASSERT_EQ(of_half.size(), half->rank() == 0 ? static_cast<size_t>(half->size()) : 0);
  for (size_t i = 0; i < of_half.size(); ++i) EXPECT_EQ(of_half[i], value_of(rank + static_cast<int>(i)));
}

TEST(Communicator, ABarrierWithATimeLimit) {
  EXPECT_TRUE(comm().barrier_within(60));
  if (comm().size() == 1) return;
  const auto group = comm().split(0);  // must not be used after false
  const bool late = comm().rank() == comm().size() - 1;
  const auto comes_at = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  if (late) std::this_thread::sleep_until(comes_at);
  const auto began = std::chrono::steady_clock::now();
  const bool all_came = group->barrier_within(0.3);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(1200));
  EXPECT_TRUE(late || !all_came);
  std::this_thread::sleep_until(comes_at);  // ranks in a barrier poll
  comm().barrier();
}

TEST(Communicator, PartsOverlapWithTheWholeAndWithEachOther) {
  // As in hybrid sharding: a shard group, a replica group and the world, with concurrent collectives in all three.
  const int rank = comm().rank(), size = comm().size();
  const auto pairs = comm().split(rank / 2), stripes = comm().split(rank % 2);
  std::vector<at::Tensor> tensors;
  std::vector<WorkPtr> works;
  for (int i = 0; i < 6; ++i) {
    for (Communicator* group : {pairs.get(), &comm(), stripes.get()}) {
      tensors.push_back(at::full({500 + i}, rank + 1.0, on_device()));
      works.push_back(group->all_reduce(tensors.back()));
    }
  }
  for (auto& work : works) work->wait();
  double pair = 0, world = 0, stripe = 0;
  for (int peer = 0; peer < size; ++peer) {
    world += peer + 1;
    if (peer / 2 == rank / 2) pair += peer + 1;
    if (peer % 2 == rank % 2) stripe += peer + 1;
  }
  for (size_t i = 0; i < tensors.size(); i += 3) {
    EXPECT_EQ(tensors[i][0].item<double>(), pair);
    EXPECT_EQ(tensors[i + 1][0].item<double>(), world);
    EXPECT_EQ(tensors[i + 2][499].item<double>(), stripe);
  }
}

TEST(Communicator, HostsAreOnePerRank) { EXPECT_EQ(test_world().hosts().size(), static_cast<size_t>(comm().size())); }

TEST(Communicator, LargeTensorsAndInputsStayUntouched) {
  const int64_t n = 1'000'001;
  const at::Tensor in = own_values(n * comm().size(), comm().rank());
  at::Tensor out = at::empty({n}, on_device());
  comm().reduce_scatter(out, in)->wait();
  EXPECT_TRUE(out.equal(expected_sum(n * comm().size()).narrow(0, comm().rank() * n, n)));
  EXPECT_TRUE(in.equal(own_values(n * comm().size(), comm().rank())));
}

TEST(Communicator, WrongSizesTypesDevicesAndLayoutsAreRefused) {
  const auto zeros = [](int64_t count, at::ScalarType type = at::kFloat) {
    return at::zeros({count}, on_device(type));
  };
  EXPECT_THROW(comm().all_gather(zeros(5 * comm().size() + 1), zeros(5)), InternalError);
  EXPECT_THROW(comm().reduce_scatter(zeros(5), zeros(5 * comm().size() + 1)), InternalError);
  EXPECT_THROW(comm().all_gather(zeros(5 * comm().size(), at::kDouble), zeros(5)), InternalError);
  EXPECT_THROW(comm().broadcast(zeros(5), comm().size()), InternalError);
  EXPECT_THROW(comm().all_reduce(zeros(16).view({4, 4}).t().narrow(0, 0, 2)), InternalError);
  if (std::string(comm().backend()) == "self") return;  // one rank has nothing to add
  EXPECT_THROW(comm().all_reduce(zeros(4, at::kBool)), InternalError);
  if (test_world().device().is_cuda()) {
    EXPECT_THROW(comm().all_reduce(at::zeros({4})), InternalError);
  }
}

}  // namespace
}  // namespace trireme
