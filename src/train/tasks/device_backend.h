#pragma once
// Private to train/: what device_cuda.cpp provides where CUDA is compiled in.

#include "trireme/train/device.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <functional>

namespace trireme::gpu {

/// GPUs that CUDA reports; `reason`: its error message, where it has one.
int count(std::string& reason);
DeviceInfo describe(at::Device device, at::ScalarType compute_dtype);
int64_t peak_allocated(at::Device device);
int64_t peak_reserved(at::Device device);
std::string library_versions();
std::string memory_state(at::Device device);
/// The allocator's snapshot as pickle_memory_snapshot() writes it.
std::string memory_snapshot();
void record_memory_history(c10::CachingDeviceAllocator::CreateContextFn context, size_t entries);
/// `react` is called by the thread whose allocation fails, before the exception.
void on_out_of_memory(std::function<void()> react);
void start_capture();
void stop_capture();

}  // namespace trireme::gpu
