#pragma once
// cuBLASLt's functions, looked up in the library that LibTorch's CUDA libraries have loaded. Programs do not link it:
// include/trireme/base/cuda_libraries.h says why.

#include "trireme/base/cuda_libraries.h"

#include <cublasLt.h>
#include <fmt/format.h>

namespace trireme::launch::lt {

#define TRIREME_CUBLASLT_FUNCTIONS(X) \
  X(Create)                           \
  X(GetStatusString)                  \
  X(Matmul)                           \
  X(MatmulAlgoGetHeuristic)           \
  X(MatmulDescCreate)                 \
  X(MatmulDescDestroy)                \
  X(MatmulDescSetAttribute)           \
  X(MatmulPreferenceCreate)           \
  X(MatmulPreferenceDestroy)          \
  X(MatmulPreferenceSetAttribute)     \
  X(MatrixLayoutCreate)               \
  X(MatrixLayoutDestroy)

/// Members are named as the functions without "cublasLt".
struct CublasLt {
#define TRIREME_MEMBER(name) \
  decltype(&cublasLt##name) name = reinterpret_cast<decltype(&cublasLt##name)>(function("cublasLt" #name));
  TRIREME_CUBLASLT_FUNCTIONS(TRIREME_MEMBER)
#undef TRIREME_MEMBER

 private:
  static void* function(const char* name) {
    static const std::string library = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
    return library_function(library.c_str(), name);
  }
};
#undef TRIREME_CUBLASLT_FUNCTIONS

/// Throws std::runtime_error if the library or one of the functions is missing.
inline const CublasLt& cublas_lt() {
  static const CublasLt functions;
  return functions;
}

}  // namespace trireme::launch::lt
