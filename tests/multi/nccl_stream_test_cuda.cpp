// GPU only: a collective starts after the work queued on the caller's stream, later work waits for it, and the host
// does not block.
#include "mpi_test_main.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>

namespace trireme {
namespace {

class NcclStream : public testing::Test {
 protected:
  void SetUp() override {
    if (!test_world().device().is_cuda()) GTEST_SKIP() << "the ranks have no GPUs";
  }
  Communicator& comm() { return test_world().communicator(); }
  at::TensorOptions options() { return at::TensorOptions(test_world().device()).dtype(at::kFloat); }
  double sum_of_ranks() { return comm().size() * (comm().size() + 1) / 2.0; }

  /// Keeps the current stream busy for some hundred milliseconds.
  void keep_busy() {
    if (!big_.defined()) big_ = at::rand({8192, 8192}, options());
    for (int i = 0; i < 10; ++i) at::mm(big_, big_);
  }
  at::Tensor big_;
};

TEST_F(NcclStream, StartsAfterTheCallersStreamAndTheHostGoesOn) {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  at::Tensor values = at::zeros({1 << 20}, options());
  // Everything once before: the driver loads a kernel's code when it is first launched, and waits for the device then.
  keep_busy();
  comm().all_reduce(values)->wait();
  EXPECT_EQ((values * 2).min().item<double>(), 0);
  cudaStreamSynchronize(stream);
  keep_busy();
  values.fill_(comm().rank() + 1.0);  // after the products: a collective that does not wait would sum zeros
  const WorkPtr work = comm().all_reduce(values);
  work->wait();
  const at::Tensor doubled = values * 2;  // after the collective
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady) << "the host waited for the device";
  EXPECT_EQ(doubled.min().item<double>(), 2 * sum_of_ranks());
  EXPECT_EQ(doubled.max().item<double>(), 2 * sum_of_ranks());
}

TEST_F(NcclStream, WaitsOnTheStreamThatIsCurrentAtTheWait) {
  at::Tensor values = at::full({1 << 24}, comm().rank() + 1.0, options());
  const WorkPtr work = comm().all_reduce(values);
  const auto side = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, test_world().device().index());
  const c10::cuda::CUDAStreamGuard guard(side);
  work->wait();
  EXPECT_EQ(values.max().item<double>(), sum_of_ranks());
}

TEST_F(NcclStream, MemoryOfDroppedTensorsIsReusedSafely) {
  // Tensors and Works are destroyed at once; the allocator reuses their memory for the next round while the device
  // still works on earlier ones.
  std::vector<at::Tensor> sums;
  keep_busy();
  for (int round = 0; round < 200; ++round) {
    at::Tensor gathered = at::empty({comm().size() * 65536}, options());
    {
      const at::Tensor own = at::full({65536}, round + comm().rank(), options());
      comm().all_gather(gathered, own)->wait();
    }
    const at::Tensor spoiled = at::full({65536}, -1e6, options());
    sums.push_back(gathered.sum(at::kDouble));
  }
  for (int round = 0; round < 200; ++round) {
    double expected = 0;
    for (int rank = 0; rank < comm().size(); ++rank) expected += 65536.0 * (round + rank);
    ASSERT_EQ(sums[static_cast<size_t>(round)].item<double>(), expected) << "round " << round;
  }
}

TEST_F(NcclStream, ManyCollectivesReuseTheirEvents) {
  at::Tensor value = at::ones({16}, options());
  for (int i = 0; i < 3000; ++i) {
    comm().all_reduce(value)->wait();
    value.div_(comm().size());
  }
  EXPECT_EQ(value.sum().item<double>(), 16.0);
}

/// Prints the bus bandwidth as defined by nccl-tests; no limit is checked.
TEST_F(NcclStream, BusBandwidth) {
  const int64_t count = int64_t{256} << 20;  // 512 MiB of bf16 in all
  const auto bf16 = options().dtype(at::kBFloat16);
  at::Tensor out = at::zeros({count}, bf16), in = at::zeros({count / comm().size()}, bf16);
  const auto rate = [&](const auto& collective) {
    for (int i = 0; i < 3; ++i) collective();
    cudaDeviceSynchronize();
    comm().barrier();
    const auto start = std::chrono::steady_clock::now();
    constexpr int kRounds = 20;
    for (int i = 0; i < kRounds; ++i) collective();
    cudaDeviceSynchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRounds;
    return 2.0 * static_cast<double>(count) * (comm().size() - 1) / comm().size() / seconds / 1e9;
  };
  const double gather = rate([&] { comm().all_gather(out, in)->wait(); });
  const double scatter = rate([&] { comm().reduce_scatter(in, out)->wait(); });
  if (comm().rank() == 0)
    std::printf("bus bandwidth over %d GPUs, 512 MiB: all-gather %.0f GB/s, reduce-scatter %.0f GB/s\n", comm().size(),
                gather, scatter);
  EXPECT_GT(gather, 0);
}

}  // namespace
}  // namespace trireme
