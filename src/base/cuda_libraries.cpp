#include "trireme/base/cuda_libraries.h"
#include "trireme/base/process.h"

#include <dlfcn.h>

#include <stdexcept>

namespace trireme {

namespace {

void* load(const char* library, std::string& problem) {
  // RTLD_GLOBAL: the libraries find each other's symbols as if they were linked.
  void* const handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    problem = reason != nullptr ? reason : std::string(library) + " cannot be loaded";
  }
  return handle;
}

std::string load_cuda_libraries() {
  std::string problem;
#ifdef TRIREME_WITH_CUDA
  if (environment("TRIREME_DEVICE") == "cpu") return {};
  if (load("libcuda.so.1", problem) == nullptr) return {};  // no driver, no GPU
  problem.clear();
  load("libtorch_cuda.so", problem);
#endif
  return problem;
}

// LibTorch lists its devices once, so this must precede its first use: initializers of linked libraries have run by
// now, main() has not begun.
const std::string problem_of_start = load_cuda_libraries();

}  // namespace

const std::string& cuda_libraries_problem() { return problem_of_start; }

void* library_function(const char* library, const char* function) {
  std::string problem;
  void* const handle = load(library, problem);
  if (handle == nullptr) throw std::runtime_error(problem);
  void* const address = dlsym(handle, function);
  if (address == nullptr) throw std::runtime_error(std::string(library) + " has no function " + function);
  return address;
}

}  // namespace trireme

/// Linking with -u of this name brings this file's initializer into programs that call nothing of it.
extern "C" void trireme_loads_cuda_libraries() {}
