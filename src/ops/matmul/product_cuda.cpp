// Products by cuBLASLt directly: FP8, because LibTorch's interface cannot add the product to a matrix, and 16-bit ones
// for which the library knows a faster algorithm than the one that LibTorch takes.
#include "matmul/product.h"

#include "launch.h"
#include "trireme/base/cuda_libraries.h"

#include <c10/cuda/CUDAGuard.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

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
constexpr int kCandidates = 8, kRounds = 3, kRunsInRound = 2;
/// A product is timed when it occurs so often. Its size may depend on the batch and never occur again.
constexpr int kTimedAt = 4;

/// Whether to time the library's first candidates and use the fastest on this machine.
/// TRIREME_PRODUCTS=first: use the library's first candidate for FP8 and LibTorch's choice for 16 bits.
bool measures() {
  static const char* choice = std::getenv("TRIREME_PRODUCTS");
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
      TRIREME_CHECK(x.scalar_type() == at::kFloat, "no product by cuBLASLt with operand, bias or result of dtype ",
                    c10::toString(x.scalar_type()));
      return CUDA_R_32F;
  }
}

/// Whether the columns of a matrix are contiguous in memory, not its rows. One row is by rows.
bool by_columns(const at::Tensor& x) { return x.stride(0) == 1 && x.size(0) > 1; }

/// A row-major matrix [rows, columns] is a transposed, column-major one for cuBLASLt. The stride of a dimension of size
/// 1 may be any number.
void describe(Layout& layout, const at::Tensor& x, bool columns) {
  const int64_t inner = x.size(columns ? 0 : 1), outer = x.size(columns ? 1 : 0);
  succeeded(cublas_lt().MatrixLayoutCreate(&layout.handle, type_of(x), static_cast<uint64_t>(inner),
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

struct Event {
  cudaEvent_t event = nullptr;
  Event() { launched(cudaEventCreate(&event), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event); }
};

/// What the choice of an algorithm depends on: device, sizes and strides, layouts, types, bias, addend, and `more`,
/// which holds what the operation's further attributes depend on.
using Key = std::tuple<int, std::array<int64_t, 6>, std::array<bool, 4>, std::array<int, 3>, int>;
Key key_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool adds, const at::Tensor& bias,
           int more) {
  return {a.device().index(),
          {a.size(0), b.size(1), a.size(1), a.stride(by_columns(a)), b.stride(by_columns(b)), out.stride(0)},
          {by_columns(a), by_columns(b), adds, bias.defined()},
          {type_of(a), type_of(b), type_of(out)},
          more};
}

/// a b (+ sum) (+ bias) for cuBLASLt: out^T = b^T a^T. Operands and result of any row stride, operands also transposed.
class Product {
 public:
  Product(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& out_MN, const at::Tensor& sum_MN,
          const at::Tensor& bias_N)
      : a_(a_MK), b_(b_KN), sum_(sum_MN.defined() ? sum_MN : out_MN), bias_(bias_N), adds_(sum_MN.defined()) {
    succeeded(cublas_lt().MatmulDescCreate(&operation_.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "cublasLtMatmulDescCreate");
    set(operation_, CUBLASLT_MATMUL_DESC_TRANSA, by_columns(b_) ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation_, CUBLASLT_MATMUL_DESC_TRANSB, by_columns(a_) ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (bias_.defined()) {
      const void* bias = bias_.const_data_ptr();
      set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
      set(operation_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(bias_));
    }
    describe(layout_b_, b_, by_columns(b_));
    describe(layout_a_, a_, by_columns(a_));
    describe(layout_out_, sum_, false);
  }

  [[nodiscard]] const Operation& operation() const { return operation_; }
  [[nodiscard]] cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm, const at::Tensor& out) const {
    const float one = 1, beta = adds_ ? 1.0f : 0.0f;
    const at::Tensor workspace = at::empty({static_cast<int64_t>(kWorkspaceBytes)}, a_.options().dtype(at::kByte));
    return cublas_lt().Matmul(handle_of(a_.device().index()), operation_.handle, &one, b_.const_data_ptr(),
                              layout_b_.handle, a_.const_data_ptr(), layout_a_.handle, &beta, sum_.const_data_ptr(),
                              layout_out_.handle, out.mutable_data_ptr(), layout_out_.handle, &algorithm,
                              workspace.mutable_data_ptr(), kWorkspaceBytes, stream_of(a_));
  }

  /// The library's first candidates, the one it believes fastest first; none if it has no such product.
  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> candidates() const {
    Preference preference;
    succeeded(cublas_lt().MatmulPreferenceCreate(&preference.handle), "cublasLtMatmulPreferenceCreate");
    succeeded(cublas_lt().MatmulPreferenceSetAttribute(preference.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                       &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
              "cublasLtMatmulPreferenceSetAttribute");
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
    int count = 0;
    const cublasStatus_t status = cublas_lt().MatmulAlgoGetHeuristic(
        handle_of(a_.device().index()), operation_.handle, layout_b_.handle, layout_a_.handle, layout_out_.handle,
        layout_out_.handle, preference.handle, kCandidates, found.data(), &count);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return algorithms;
    succeeded(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i) algorithms.push_back(found[static_cast<size_t>(i)].algo);
    return algorithms;
  }

 private:
  const at::Tensor a_, b_, sum_, bias_;
  const bool adds_;
  Operation operation_;
  Layout layout_b_, layout_a_, layout_out_;
};

/// The sums of each row's and of each column's elements as integers: other bits have others, but for elements that
/// cancel in both. In parts, because a sum widens its part first.
at::Tensor bits(const at::Tensor& out) {
  const at::Tensor words = out.view(out.element_size() == 2 ? at::kShort : at::kInt);
  const int64_t rows = out.size(0), part = std::max<int64_t>(1, (int64_t{1} << 22) / out.size(1));
  at::Tensor sums = at::zeros({rows + out.size(1)}, out.options().dtype(at::kLong));
  at::Tensor of_columns = sums.narrow(0, rows, out.size(1));
  for (int64_t begin = 0; begin < rows; begin += part) {
    const at::Tensor wide = words.narrow(0, begin, std::min(part, rows - begin)).to(at::kLong);
    sums.narrow(0, begin, wide.size(0)).copy_(at::sum(wide, {1}));
    of_columns.add_(at::sum(wide, {0}));
  }
  return sums;
}

/// The way to compute `out` that is faster than way 0 by `margin`, a part of its time, in every round, and the fastest
/// of these; 0 if there is none. Only ways that write the bits of way 0 count, so results do not depend on the timing.
int fastest(int ways, double margin, const at::Tensor& out, const std::function<bool(int)>& run) {
  if (!run(0)) return 0;  // the caller reports the error
  const at::Tensor expected = bits(out);
  std::vector<int> left;
  for (int way = 1; way < ways; ++way)
    if (run(way) && at::equal(bits(out), expected)) left.push_back(way);
  const cudaStream_t stream = stream_of(out);
  const auto time = [&](int way) {
    Event begin, end;
    run(way);  // while it runs, the launches of those that are timed get ahead of the device
    launched(cudaEventRecord(begin.event, stream), "cudaEventRecord");
    for (int repeat = 0; repeat < kRunsInRound; ++repeat) run(way);
    launched(cudaEventRecord(end.event, stream), "cudaEventRecord");
    launched(cudaEventSynchronize(end.event), "cudaEventSynchronize");
    float ms = 0;
    launched(cudaEventElapsedTime(&ms, begin.event, end.event), "cudaEventElapsedTime");
    return double{ms};
  };
  std::map<int, double> sums;
  for (int round = 0; round < kRounds; ++round) {
    const double most = time(0) * (1 - margin);
    std::erase_if(left, [&](int way) {
      const double ms = time(way);
      sums[way] += ms;
      return ms >= most;
    });
  }
  const auto best = std::min_element(left.begin(), left.end(), [&](int a, int b) { return sums[a] < sums[b]; });
  return best == left.end() ? 0 : *best;
}

using Algorithm = std::optional<cublasLtMatmulAlgo_t>;

/// What `choose` returned for the key: without timing when the key first occurred, and with it when it occurred so
/// often as kTimedAt says.
Algorithm chosen(const Key& key, const std::function<Algorithm(bool timed)>& choose) {
  struct Entry {
    int occurrences = 0;
    Algorithm algorithm;
  };
  static std::mutex mutex;
  static std::map<Key, Entry> entries;
  const std::lock_guard lock(mutex);
  Entry& entry = entries[key];
  if (entry.occurrences < kTimedAt) {
    const bool timed = entry.occurrences + 1 == kTimedAt && measures();
    if (timed || entry.occurrences == 0) entry.algorithm = choose(timed);
    ++entry.occurrences;
  }
  return entry.algorithm;
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
  TRIREME_CHECK(!bias_N.defined() || (bias_N.numel() == b.size(0) && bias_N.scalar_type() == dtype), "an FP8 product ",
                out.sizes(), " of ", dtype, " with a bias ", bias_N.sizes(), " of ", bias_N.scalar_type());
  // In both operands the inner dimension is the contiguous one.
  const at::Tensor b_KN = b.t();
  const Product product(a, b_KN, out, adds ? sum : at::Tensor(), bias_N);
  const Operation& operation = product.operation();
  set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{accumulate == Accumulate::kFast});
  const void *b_inverse = b_NK.inverse.const_data_ptr(), *a_inverse = a_MK.inverse.const_data_ptr();
  set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b_inverse);
  set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a_inverse);
#if CUBLAS_VERSION >= 120900
  if (by_rows)
    for (const auto attribute : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
      set(operation, attribute, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
#endif
  const int more = (by_rows ? 2 : 0) + (accumulate == Accumulate::kFast ? 1 : 0);
  const Algorithm algorithm = chosen(key_of(a, b_KN, out, adds, bias_N, more), [&](bool timed) -> Algorithm {
    const auto candidates = product.candidates();
    if (candidates.empty()) return {};
    if (!timed) return candidates[0];
    // Timing repeats the product, which must not accumulate in an addend.
    const at::Tensor scratch = addend.overwritten ? at::empty_like(out) : out;
    return candidates[static_cast<size_t>(fastest(static_cast<int>(candidates.size()), 0, scratch, [&](int way) {
      return product.run(candidates[static_cast<size_t>(way)], scratch) == CUBLAS_STATUS_SUCCESS;
    }))];
  });
  if (!algorithm) {
    // Not every version of the library writes fp32 or fp16 results of products with scales per row.
    TRIREME_CHECK(by_rows && dtype != at::kBFloat16, "cuBLASLt offers no algorithm for the FP8 product of ", a.sizes(),
                  " and ", b.sizes(), " in ", dtype);
    at::Tensor rounded = fp8_product(a_MK, b_NK, accumulate, at::kBFloat16, {}, {}, {}).to(at::kFloat);
    if (bias_N.defined()) rounded.add_(bias_N);
    if (adds) rounded.add_(sum);
    return out.copy_(rounded);
  }
  succeeded(product.run(*algorithm, out), "cublasLtMatmul");
  return out;
}

void product_out(const at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N,
                 const std::function<void()>& by_library) {
  using namespace lt;
  // A replacement must be clearly faster: close ones are decided by the power that they draw, which this does not show.
  constexpr double kMargin = 0.04;
  const c10::cuda::CUDAGuard guard(a_MK.device());
  const Algorithm algorithm = chosen(key_of(a_MK, b_KN, out_MN, false, bias_N, 0), [&](bool timed) -> Algorithm {
    if (!timed) return {};
    const Product product(a_MK, b_KN, out_MN, {}, bias_N);
    const auto candidates = product.candidates();
    const int way = fastest(static_cast<int>(candidates.size()) + 1, kMargin, out_MN, [&](int i) {
      if (i > 0) return product.run(candidates[static_cast<size_t>(i - 1)], out_MN) == CUBLAS_STATUS_SUCCESS;
      by_library();
      return true;
    });
    if (way == 0) return {};
    return candidates[static_cast<size_t>(way - 1)];
  });
  if (!algorithm) return by_library();
  succeeded(Product(a_MK, b_KN, out_MN, {}, bias_N).run(*algorithm, out_MN), "cublasLtMatmul");
}

}  // namespace trireme::launch
