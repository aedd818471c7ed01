// The thread that writes a checkpoint, beside a device that is not the first: a stand-in for a second GPU, registered
// with LibTorch, that notes which device a thread has chosen when it waits for the copy.
#include "checkpoint_writer.h"
#include "../base/base_testing.h"

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <thread>

namespace trireme {
namespace {

constexpr auto kStandIn = c10::DeviceType::PrivateUse1;
thread_local c10::DeviceIndex t_device = 0;
std::atomic<int> g_waited_on = -1;

struct StandInGuard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kStandIn;
  StandInGuard() = default;
  explicit StandInGuard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kStandIn; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    t_device = device.index();
    return before;
  }
  c10::Device getDevice() const override { return {kStandIn, t_device}; }
  void setDevice(c10::Device device) const override { t_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { t_device = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = &g_waited_on;
  }
  void synchronizeEvent(void*) const override { g_waited_on = t_device; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, StandInGuard)

at::Tensor& copy_to_host(at::Tensor& target, const at::Tensor& source, bool) {
  std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
  return target;
}
/// Of contiguous tensors, as a vector: all that the writer asks for.
at::Tensor view_of(const at::Tensor& tensor, at::IntArrayRef) {
  return at::for_blob(const_cast<void*>(tensor.const_data_ptr()), {tensor.numel()})
      .target_device(tensor.device())
      .options(tensor.options())
      .make_tensor();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("copy_", copy_to_host);
  library.impl("view", view_of);
}

TEST(CheckpointWriter, WaitsForTheCopyOnTheDeviceOfTheTensors) {
  const TemporaryDirectory directory;
  std::vector<float> values(64, 2.5f);
  const c10::Device second(kStandIn, 1);
  const at::Tensor tensor = at::for_blob(values.data(), {64})
                                .target_device(second)
                                .options(at::TensorOptions(second).dtype(at::kFloat))
                                .make_tensor();
  CheckpointWriter writer;
  writer.snapshot({{{"master", "block", DType::kF32, 0, 64, 0}, tensor}});
  writer.start(directory.path("rank-00000.safetensors"), 0, 1);
  while (!writer.finished()) std::this_thread::yield();
  std::string error;
  const CheckpointFile file = writer.take(error);
  EXPECT_EQ(error, "");
  EXPECT_EQ(file.pieces.size(), 1U);
  EXPECT_EQ(g_waited_on, 1) << "on GPU 0 the wait makes a CUDA context";
}

}  // namespace
}  // namespace trireme
