// FP8 products by cuBLASLt directly, because LibTorch's interface cannot add the product to a matrix.
#include "matmul/product.h"

#include "launch.h"
#include "trireme/base/cuda_libraries.h"

#include <c10/cuda/CUDAGuard.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>

namespace trireme::launch {

namespace lt {
namespace {

// cuBLASLt's functions, looked up in the library that LibTorch's CUDA libraries have loaded. Programs do not link it:
// include/trireme/base/cuda_libraries.h says why.

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
const CublasLt& cublas_lt() {
  static const CublasLt functions;
  return functions;
}

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 8, kTimedRuns = 4;

/// Whether to time the library's first candidates when a shape first occurs and use the fastest on this machine. Only
/// candidates whose results equal the first one's bit for bit are considered, so results do not depend on the timing.
/// TRIREME_FP8_PRODUCTS=first always uses the library's first candidate.
bool measures() {
  static const char* choice = std::getenv("TRIREME_FP8_PRODUCTS");
  return choice == nullptr || std::string_view(choice) != "first";
}

void succeeded(cublasStatus_t status, const char* call) {
  TRIREME_CHECK(status == CUBLAS_STATUS_SUCCESS, call, " of cuBLASLt: ", cublas_lt().GetStatusString(status));
}

template <class Handle, cublasStatus_t (*CublasLt::*kDestroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle != nullptr) (cublas_lt().*kDestroy)(handle);
  }
};
using Operation = Owned<cublasLtMatmulDesc_t, &CublasLt::MatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, &CublasLt::MatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, &CublasLt::MatmulPreferenceDestroy>;

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  succeeded(cublas_lt().MatmulDescSetAttribute(operation.handle, attribute, &value, sizeof(T)),
            "cublasLtMatmulDescSetAttribute");
}

cudaDataType_t type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat8_e4m3fn: return CUDA_R_8F_E4M3;
    case at::kFloat8_e5m2: return CUDA_R_8F_E5M2;
    case at::kHalf: return CUDA_R_16F;
    case at::kBFloat16: return CUDA_R_16BF;
    default:
      TRIREME_CHECK(x.scalar_type() == at::kFloat, "no FP8 product with operand, bias or result of dtype ",
                    c10::toString(x.scalar_type()));
      return CUDA_R_32F;
  }
}

/// A row-major matrix [rows, columns] is a transposed, column-major one for cuBLASLt.
void describe(Layout& layout, const at::Tensor& x) {
  succeeded(cublas_lt().MatrixLayoutCreate(&layout.handle, type_of(x), static_cast<uint64_t>(x.size(1)),
                                           static_cast<uint64_t>(x.size(0)), x.size(1)),
            "cublasLtMatrixLayoutCreate");
}

/// The key for the choice of an algorithm: sizes, types, bias, addend, scales per row, accumulation.
using Shape = std::tuple<int, int64_t, int64_t, int64_t, int, int, int, bool, bool, bool, Accumulate>;

cublasLtHandle_t handle_of(int device) {
  static std::mutex mutex;
  // never destroyed: the library frees its resources at the end of the process
  static std::map<int, cublasLtHandle_t> handles;
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (handle == nullptr) succeeded(cublas_lt().Create(&handle), "cublasLtCreate");
  return handle;
}

struct Event {
  cudaEvent_t event = nullptr;
  Event() { launched(cudaEventCreate(&event), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event); }
};

using Candidates = std::array<cublasLtMatmulHeuristicResult_t, kCandidates>;

/// The index of the fastest candidate that writes the same bits to `out` as the first one.
int fastest(const Candidates& candidates, int count, const at::Tensor& out,
            const std::function<bool(const cublasLtMatmulAlgo_t&)>& run) {
  if (!run(candidates[0].algo)) return 0;  // the caller reports the error
  const at::Tensor expected = out.clone();
  const cudaStream_t stream = stream_of(out);
  int best = 0;
  float least = 0;
  for (int i = 0; i < count; ++i) {
    const auto& algorithm = candidates[static_cast<size_t>(i)].algo;
    if (!run(algorithm) || !at::equal(out, expected)) continue;
    Event begin, end;
    launched(cudaEventRecord(begin.event, stream), "cudaEventRecord");
    for (int repeat = 0; repeat < kTimedRuns; ++repeat) run(algorithm);
    launched(cudaEventRecord(end.event, stream), "cudaEventRecord");
    launched(cudaEventSynchronize(end.event), "cudaEventSynchronize");
    float ms = 0;
    launched(cudaEventElapsedTime(&ms, begin.event, end.event), "cudaEventElapsedTime");
    if (least == 0 || ms < least) best = i, least = ms;
  }
  return best;
}

}  // namespace
}  // namespace lt

at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, Accumulate accumulate, at::ScalarType dtype,
                       const at::Tensor& bias_N, const Addend& addend, const at::Tensor& into) {
  using namespace lt;
  const at::Tensor &a = a_MK.codes, &b = b_NK.codes;
  const c10::cuda::CUDAGuard guard(a.device());
  const bool adds = addend.sum.defined();
  TRIREME_CHECK(!addend.overwritten || (adds && addend.sum.is_contiguous()),
                "a product can overwrite contiguous addends only");
  const at::Tensor out = addend.overwritten ? addend.sum
                         : into.defined()   ? into
                                            : at::empty({a.size(0), b.size(0)}, a.options().dtype(dtype));
  const at::Tensor sum = adds ? addend.sum.contiguous() : out;
  TRIREME_CHECK(out.is_contiguous() && out.size(0) == a.size(0) && out.size(1) == b.size(0), "an FP8 product of ",
                a.sizes(), " and ", b.sizes(), " into ", out.sizes());
  TRIREME_CHECK(sum.size(0) == a.size(0) && sum.size(1) == b.size(0) && sum.scalar_type() == dtype,
                "an FP8 product of ", a.sizes(), " and ", b.sizes(), " in ", dtype, " is to be added to ", sum.sizes(),
                " of ", sum.scalar_type());
  TRIREME_CHECK(a.is_contiguous() && b.is_contiguous(), "operands of an FP8 product must be contiguous");
  const bool by_rows = a_MK.inverse.dim() == 1;
  TRIREME_CHECK(a_MK.inverse.numel() == (by_rows ? a.size(0) : 1) && b_NK.inverse.numel() == (by_rows ? b.size(0) : 1),
                "an FP8 product of ", a.sizes(), " and ", b.sizes(), " with scales ", a_MK.inverse.sizes(), " and ",
                b_NK.inverse.sizes());
#if CUBLAS_VERSION < 120900
  if (by_rows) {  // cuBLASLt has no scales per row for these types yet
    const at::Tensor product = at::_scaled_mm(a, b.t(), a_MK.inverse.view({-1, 1}), b_NK.inverse.view({1, -1}), bias_N,
                                              {}, dtype, accumulate == Accumulate::kFast);
    if (!adds) return into.defined() ? out.copy_(product) : product;
    return addend.overwritten ? addend.sum.add_(product) : product.add_(addend.sum);
  }
#endif
  Operation operation;
  succeeded(cublas_lt().MatmulDescCreate(&operation.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "cublasLtMatmulDescCreate");
  // out^T = b a^T; in both operands the inner dimension is the contiguous one.
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{accumulate == Accumulate::kFast});
  const void *b_inverse = b_NK.inverse.const_data_ptr(), *a_inverse = a_MK.inverse.const_data_ptr();
  set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b_inverse);
  set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a_inverse);
#if CUBLAS_VERSION >= 120900
  if (by_rows)
    for (const auto attribute : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
      set(operation, attribute, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
#endif
  if (bias_N.defined()) {
    TRIREME_CHECK(bias_N.numel() == b.size(0) && bias_N.scalar_type() == dtype, "an FP8 product ", out.sizes(), " of ",
                  dtype, " with a bias ", bias_N.sizes(), " of ", bias_N.scalar_type());
    const void* bias = bias_N.const_data_ptr();
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(bias_N));
  }
  Layout layout_b, layout_a, layout_out;
  describe(layout_b, b);
  describe(layout_a, a);
  describe(layout_out, out);

  const int device = a.device().index();
  const cublasLtHandle_t handle = handle_of(device);
  static std::mutex mutex;
  static std::map<Shape, std::optional<cublasLtMatmulAlgo_t>> chosen;  // nullopt: the library offers none
  const Shape shape{device,       a.size(0),        b.size(0), a.size(1), type_of(a), type_of(b),
                    type_of(out), bias_N.defined(), adds,      by_rows,   accumulate};
  const at::Tensor workspace = at::empty({static_cast<int64_t>(kWorkspaceBytes)}, a.options().dtype(at::kByte));
  const float one = 1, beta = adds ? 1.0f : 0.0f;
  const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm, const at::Tensor& result) {
    return cublas_lt().Matmul(handle, operation.handle, &one, b.const_data_ptr(), layout_b.handle, a.const_data_ptr(),
                              layout_a.handle, &beta, sum.const_data_ptr(), layout_out.handle,
                              result.mutable_data_ptr(), layout_out.handle, &algorithm, workspace.mutable_data_ptr(),
                              kWorkspaceBytes, stream_of(a));
  };
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  {
    const std::lock_guard lock(mutex);
    auto found = chosen.find(shape);
    if (found == chosen.end()) {
      Preference preference;
      succeeded(cublas_lt().MatmulPreferenceCreate(&preference.handle), "cublasLtMatmulPreferenceCreate");
      succeeded(cublas_lt().MatmulPreferenceSetAttribute(preference.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
                "cublasLtMatmulPreferenceSetAttribute");
      Candidates candidates{};
      int count = 0;
      const cublasStatus_t status = cublas_lt().MatmulAlgoGetHeuristic(
          handle, operation.handle, layout_b.handle, layout_a.handle, layout_out.handle, layout_out.handle,
          preference.handle, measures() ? kCandidates : 1, candidates.data(), &count);
      if (status == CUBLAS_STATUS_NOT_SUPPORTED)
        count = 0;
      else
        succeeded(status, "cublasLtMatmulAlgoGetHeuristic");
      int best = 0;
      if (measures() && count > 1) {
        // Timing repeats the product, which must not accumulate in an addend.
        const at::Tensor scratch = addend.overwritten ? at::empty_like(out) : out;
        best = fastest(candidates, count, scratch,
                       [&](const auto& one_of) { return multiply(one_of, scratch) == CUBLAS_STATUS_SUCCESS; });
      }
      found = chosen.emplace(shape, std::nullopt).first;
      if (count > 0) found->second = candidates[static_cast<size_t>(best)].algo;
    }
    algorithm = found->second;
  }
  if (!algorithm) {
    // Not every version of the library writes fp32 or fp16 results of products with scales per row.
    TRIREME_CHECK(by_rows && dtype != at::kBFloat16, "cuBLASLt offers no algorithm for the FP8 product of ", a.sizes(),
                  " and ", b.sizes(), " in ", dtype);
    at::Tensor product = fp8_product(a_MK, b_NK, accumulate, at::kBFloat16, {}, {}, {}).to(at::kFloat);
    if (bias_N.defined()) product.add_(bias_N);
    if (adds) product.add_(sum);
    return out.copy_(product);
  }
  succeeded(multiply(*algorithm, out), "cublasLtMatmul");
  return out;
}

}  // namespace trireme::launch
