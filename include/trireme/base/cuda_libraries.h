#pragma once
// LibTorch's CUDA libraries, loaded where they can be used.
//
// libtorch_cuda registers the CUDA operators when it is loaded. This library and its dependencies (cuBLASLt, cuDNN,
// cuFFT, cuSPARSE …) cost 0.2 s of processor time and 130 MiB of memory at each start. Programs therefore do not link
// it: it is loaded before main() if the machine has a driver (libcuda.so.1) and TRIREME_DEVICE is not "cpu".

#include <string>

namespace trireme {

/// Why the CUDA libraries were not loaded although the machine has a driver; empty if they were loaded or there is no
/// driver. Known before main() begins.
const std::string& cuda_libraries_problem();

/// The address of `function` in the shared library `library` (a soname), which is loaded if necessary. Throws
/// std::runtime_error with the loader's reason.
void* library_function(const char* library, const char* function);

}  // namespace trireme
