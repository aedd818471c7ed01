#pragma once
// LibTorch's CUDA libraries, loaded where they can be used.
//
// libtorch_cuda registers the CUDA operators when it is loaded. It and what it needs (cuBLASLt, cuDNN, cuFFT, cuSPARSE
// …) cost 0.2 s of processor time and 130 MiB of memory at each start, so programs do not link it: before main() it is
// loaded if the machine has a driver (libcuda.so.1) and TRIREME_DEVICE is not "cpu".

#include <string>

namespace trireme {

/// Why the CUDA libraries were not loaded although the machine has a driver; empty where they were, or where there is
/// no driver. Known before main() begins.
const std::string& cuda_libraries_problem();

/// The address of `function` in the shared library `library` (a soname), which is loaded if it is not yet. Throws
/// std::runtime_error with the loader's reason.
void* library_function(const char* library, const char* function);

}  // namespace trireme
