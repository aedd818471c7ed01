#include "matmul/cublas_lt.h"

#include "launch.h"
#include "trireme/base/cuda_libraries.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>

namespace trireme::launch::lt {

namespace {

// cuBLASLt's functions, looked up in the library that LibTorch's CUDA libraries have loaded. Programs do not link it:
// include/trireme/base/cuda_libraries.h says why.

#define TRIREME_CUBLASLT_FUNCTIONS(X) \
  X(Create)                           \
  X(GetStatusString)                  \
  X(Matmul)                           \
  X(MatmulAlgoConfigGetAttribute)     \
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
const CublasLt& cublas_lt() {
  static const CublasLt functions;
  return functions;
}

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 8;

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  succeeded(cublas_lt().MatmulDescSetAttribute(operation, attribute, &value, sizeof(T)),
            "cublasLtMatmulDescSetAttribute");
}

cudaDataType_t type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat8_e4m3fn: return CUDA_R_8F_E4M3;
    case at::kFloat8_e5m2: return CUDA_R_8F_E5M2;
    case at::kHalf: return CUDA_R_16F;
    case at::kBFloat16: return CUDA_R_16BF;
    default:
      TRIREME_CHECK(x.scalar_type() == at::kFloat, "no product by cuBLASLt with operand, bias or result of dtype ",
                    c10::toString(x.scalar_type()));
      return CUDA_R_32F;
  }
}

/// Whether the columns of a matrix are contiguous in memory, not its rows. One row is by rows.
bool by_columns(const at::Tensor& x) { return x.stride(0) == 1 && x.size(0) > 1; }

/// A row-major matrix [rows, columns] is a transposed, column-major one for cuBLASLt. The stride of a dimension of size
/// 1 may be any number.
void describe(cublasLtMatrixLayout_t& layout, const at::Tensor& x, bool columns) {
  const int64_t inner = x.size(columns ? 0 : 1), outer = x.size(columns ? 1 : 0);
  succeeded(cublas_lt().MatrixLayoutCreate(&layout, type_of(x), static_cast<uint64_t>(inner),
                                           static_cast<uint64_t>(outer), std::max(x.stride(columns ? 1 : 0), inner)),
            "cublasLtMatrixLayoutCreate");
}

cublasLtHandle_t handle_of(int device) {
  static std::mutex mutex;
  // never destroyed: the library frees its resources at the end of the process
  static std::map<int, cublasLtHandle_t> handles;
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (handle == nullptr) succeeded(cublas_lt().Create(&handle), "cublasLtCreate");
  return handle;
}

}  // namespace

void succeeded(cublasStatus_t status, const char* call) {
  TRIREME_CHECK(status == CUBLAS_STATUS_SUCCESS, call, " of cuBLASLt: ", cublas_lt().GetStatusString(status));
}

Product::Handles::~Handles() {
  if (operation != nullptr) cublas_lt().MatmulDescDestroy(operation);
  for (const cublasLtMatrixLayout_t layout : {a, b, out})
    if (layout != nullptr) cublas_lt().MatrixLayoutDestroy(layout);
}

Form form_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool adds, const at::Tensor& bias) {
  const bool a_columns = by_columns(a), b_columns = by_columns(b);
  return {.device = a.device().index(),
          .m = a.size(0),
          .n = b.size(1),
          .k = a.size(1),
          .stride_a = a.stride(a_columns),
          .stride_b = b.stride(b_columns),
          .stride_out = out.stride(0),
          .a_by_columns = a_columns,
          .b_by_columns = b_columns,
          .adds = adds,
          .bias = bias.defined(),
          .a = a.scalar_type(),
          .b = b.scalar_type(),
          .out = out.scalar_type()};
}

Product::Product(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& out_MN, const at::Tensor& sum_MN,
                 const at::Tensor& bias_N)
    : a_(a_MK), b_(b_KN), sum_(sum_MN.defined() ? sum_MN : out_MN), bias_(bias_N), adds_(sum_MN.defined()) {
  succeeded(cublas_lt().MatmulDescCreate(&handles_.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "cublasLtMatmulDescCreate");
  set(handles_.operation, CUBLASLT_MATMUL_DESC_TRANSA, by_columns(b_) ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(handles_.operation, CUBLASLT_MATMUL_DESC_TRANSB, by_columns(a_) ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (bias_.defined()) {
    const void* bias = bias_.const_data_ptr();
    set(handles_.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(handles_.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(handles_.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(bias_));
  }
  describe(handles_.b, b_, by_columns(b_));
  describe(handles_.a, a_, by_columns(a_));
  describe(handles_.out, sum_, false);
}

void Product::scale(const at::Tensor& a_inverse, const at::Tensor& b_inverse, bool by_rows, bool fast) {
  set(handles_.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{fast});
  const void *of_a = a_inverse.const_data_ptr(), *of_b = b_inverse.const_data_ptr();
  set(handles_.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b);
  set(handles_.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a);
#if CUBLAS_VERSION >= 120900
  if (by_rows)
    for (const auto attribute : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
      set(handles_.operation, attribute, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
#endif
}

cublasStatus_t Product::run(const cublasLtMatmulAlgo_t& algorithm, const at::Tensor& out) const {
  const float one = 1, beta = adds_ ? 1.0f : 0.0f;
  const at::Tensor workspace = at::empty({static_cast<int64_t>(kWorkspaceBytes)}, a_.options().dtype(at::kByte));
  return cublas_lt().Matmul(handle_of(a_.device().index()), handles_.operation, &one, b_.const_data_ptr(), handles_.b,
                            a_.const_data_ptr(), handles_.a, &beta, sum_.const_data_ptr(), handles_.out,
                            out.mutable_data_ptr(), handles_.out, &algorithm, workspace.mutable_data_ptr(),
                            kWorkspaceBytes, stream_of(a_));
}

std::vector<cublasLtMatmulAlgo_t> Product::candidates(Workspace workspace) const {
  cublasLtMatmulPreference_t preference = nullptr;
  succeeded(cublas_lt().MatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, cublasStatus_t (*)(cublasLtMatmulPreference_t)> owner(
      preference, cublas_lt().MatmulPreferenceDestroy);
  const size_t bytes = workspace == Workspace::kAny ? kWorkspaceBytes : 0;
  succeeded(cublas_lt().MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                     sizeof(bytes)),
            "cublasLtMatmulPreferenceSetAttribute");
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
  int count = 0;
  const cublasStatus_t status =
      cublas_lt().MatmulAlgoGetHeuristic(handle_of(a_.device().index()), handles_.operation, handles_.b, handles_.a,
                                         handles_.out, handles_.out, preference, kCandidates, found.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return algorithms;
  succeeded(status, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < count; ++i) algorithms.push_back(found[static_cast<size_t>(i)].algo);
  return algorithms;
}

uint32_t tile_of(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t tile = 0;
  size_t written = 0;
  succeeded(
      cublas_lt().MatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile), &written),
      "cublasLtMatmulAlgoConfigGetAttribute");
  return tile;
}

}  // namespace trireme::launch::lt
