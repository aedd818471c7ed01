#pragma once
// Private to ops/: what device_cuda.cpp provides where CUDA is compiled in.

#include "trireme/ops/device.h"

namespace trireme::gpu {

/// Number of GPUs that CUDA reports; `reason`: its error message, if any.
int count(std::string& reason);
DeviceInfo describe(at::Device device, at::ScalarType compute_dtype);
void limit_memory(at::Device device, int64_t bytes);
int64_t peak_allocated(at::Device device);
int64_t peak_reserved(at::Device device);
std::string library_versions();
std::string memory_state(at::Device device);
void start_capture();
void stop_capture();

}  // namespace trireme::gpu
