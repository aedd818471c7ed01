// Two GPUs in one process, with one thread and one communicator each. They share the pool of events and the watchdog's
// list.
#include "key_server.h"
#include "store_world.h"
#include "world_backend.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <vector>

namespace trireme {
namespace {

constexpr int kDevices = 2;

class TwoDevices : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() < kDevices) GTEST_SKIP() << "needs two GPUs";
  }
  static void on_devices(const std::function<void(Communicator&, at::Device)>& body) {
    const KeyServer server("127.0.0.1", 0, "test");
    std::vector<std::future<void>> ranks;
    for (int rank = 0; rank < kDevices; ++rank)
      ranks.push_back(std::async(std::launch::async, [&, rank] {
        const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(rank));
        const c10::cuda::CUDAGuard guard(device);
        const auto comm = make_nccl_communicator(
            make_store_exchange(connect_key_store("127.0.0.1", server.port(), "test", rank, kDevices, 20),
                                "this process", "world", rank, kDevices),
            device, "world");
        body(*comm, device);
      }));
    for (auto& rank : ranks) rank.get();
  }
};

TEST_F(TwoDevices, EventsAreNotSharedBetweenThem) {
  on_devices([](Communicator& comm, at::Device device) {
    at::Tensor value = at::ones({1024}, at::TensorOptions(device));
    for (int i = 0; i < 500; ++i) {
      comm.all_reduce(value)->wait();
      value.div_(kDevices);
    }
    EXPECT_EQ(value.sum().item<double>(), 1024);
  });
}

TEST_F(TwoDevices, AWorkIsWaitedForOnItsOwnDeviceWhateverIsCurrent) {
  on_devices([](Communicator& comm, at::Device device) {
    const at::Device other(at::kCUDA, static_cast<c10::DeviceIndex>(1 - device.index()));
    for (int round = 0; round < 20; ++round) {
      at::Tensor value = at::full({1 << 24}, device.index() + 1.0, at::TensorOptions(device));
      {
        const c10::cuda::CUDAGuard guard(other);
        comm.all_reduce(value)->wait();
      }
      const at::Tensor doubled = value * 2;  // on this device's stream, after the collective
      EXPECT_EQ(doubled.min().item<double>(), 6);
      EXPECT_EQ(doubled.max().item<double>(), 6);
    }
  });
}

TEST_F(TwoDevices, TheWatchdogSeesBothQueuesEnd) {
  on_devices([](Communicator& comm, at::Device device) {
    at::Tensor value = at::ones({1024}, at::TensorOptions(device));
    const WorkPtr held = comm.all_reduce(value);
    held->wait();
    EXPECT_EQ(value.sum().item<double>(), 2048);
    comm.barrier();
    EXPECT_EQ(nccl_stuck_for(), 0);
    comm.barrier();
  });
}

}  // namespace
}  // namespace trireme
