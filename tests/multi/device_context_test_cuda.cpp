// A rank creates no context on the GPUs of other ranks: it would take half a GiB that the memory plan does not count.
#include "mpi_test_main.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace trireme {
namespace {

TEST(DeviceContext, NoThreadOfARankMakesOneOnAnotherGpu) {
  const at::Device device = test_world().device();
  if (!device.is_cuda()) GTEST_SKIP() << "the ranks have no GPUs";
  Communicator& comm = test_world().communicator();
  const auto expect_own_only = [&](const char* when) {
    for (c10::DeviceIndex other = 0; other < c10::cuda::device_count(); ++other)
      EXPECT_EQ(c10::cuda::hasPrimaryContext(other), other == device.index())
          << "GPU " << static_cast<int>(other) << ", rank " << comm.rank() << " on " << device << ", " << when;
  };
  at::Tensor values = at::ones({1 << 20}, at::TensorOptions(device));
  comm.all_reduce(values)->wait();
  EXPECT_EQ(values[0].item<double>(), comm.size());
  expect_own_only("after a collective");
  // The watchdog queries the queued collectives every second: with a collective in progress, and without one.
  const WorkPtr held = comm.all_reduce(values);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  expect_own_only("after the watchdog's rounds");
  comm.barrier();
}

}  // namespace
}  // namespace trireme
