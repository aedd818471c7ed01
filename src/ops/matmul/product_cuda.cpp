// Products by cuBLASLt directly: FP8, because LibTorch's interface cannot add the product to a matrix, and 16-bit ones
// for which the library knows a faster algorithm than the one that LibTorch takes.
#include "matmul/product.h"

#include "launch.h"
#include "trireme/base/cuda_libraries.h"
#include "trireme/base/time.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
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

/// What the choice of an algorithm depends on: a [m, k] times b [k, n].
struct Form {
  int device = 0;
  int64_t m = 0, n = 0, k = 0, stride_a = 0, stride_b = 0, stride_out = 0;  // strides: of rows, or of columns
  bool a_by_columns = false, b_by_columns = false, adds = false, bias = false;
  at::ScalarType a = at::kFloat, b = at::kFloat, out = at::kFloat;
  bool scales_by_rows = false, fast = false;  // FP8

  auto operator<=>(const Form&) const = default;
  [[nodiscard]] bool fp8() const { return c10::isFloat8Type(a); }
  [[nodiscard]] double operations() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};
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

  /// FP8 operands: fp32 inverse scales, and fast or split accumulation.
  void scale(const at::Tensor& a_inverse, const at::Tensor& b_inverse, bool by_rows, bool fast) {
    set(operation_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{fast});
    const void *of_a = a_inverse.const_data_ptr(), *of_b = b_inverse.const_data_ptr();
    set(operation_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b);
    set(operation_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a);
#if CUBLAS_VERSION >= 120900
    if (by_rows)
      for (const auto attribute : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
        set(operation_, attribute, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
#endif
  }
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

/// Ways to compute a product, of which way 0 is the library's own choice.
class Ways {
 public:
  /// run(way): computes the product into `out`, or adds it; false if it cannot. `count`: at least one.
  Ways(int count, const at::Tensor& out, const at::Generator& generator, std::function<bool(int)> run)
      : out_(out), run_(std::move(run)) {
    // Only ways that write the bits of way 0 count, so results do not depend on the timing.
    const auto bits_of = [&](int way) {
      out_.normal_(0, 1, generator.clone());  // the same addend each time
      return run_(way) ? bits(out_) : at::Tensor();
    };
    const at::Tensor expected = bits_of(0);
    TRIREME_CHECK(expected.defined(), "the library does not compute a product that it has computed before");
    for (int way = 1; way < count; ++way)
      if (const at::Tensor found = bits_of(way); found.defined() && at::equal(found, expected)) left_.push_back(way);
  }

  /// The fastest of those that are faster than way 0 by `margin`, a part of its time, in every round; 0 without one.
  int fastest(double margin) {
    constexpr int kRounds = 3, kRunsInRound = 2;
    std::map<int, double> sums;
    for (int round = 0; round < kRounds; ++round) {
      const double most = milliseconds(0, kRunsInRound) * (1 - margin);
      std::erase_if(left_, [&](int way) {
        const double ms = milliseconds(way, kRunsInRound);
        sums[way] += ms;
        return ms >= most;
      });
    }
    return least(sums);
  }

  /// The one that is the fastest when it runs so long that its power decides its clock; 0 unless another is faster by
  /// kNoise.
  int fastest_under_load() {
    // A GPU follows its power limit within some tenths of a second.
    constexpr double kHeat = 600, kLead = 200, kTimed = 350, kNoise = 0.005;
    // Of 26 products on an H200 the fastest under load was at most 9 % behind in a brief time, or the library's first.
    constexpr double kSlow = 1.12;
    left_.insert(left_.begin(), 0);
    std::map<int, double> once;
    for (const int way : left_) once[way] = milliseconds(way, 4) / 4;
    const double most = kSlow * once[least(once)];
    std::erase_if(left_, [&](int way) { return way != 0 && once[way] > most; });
    if (left_.size() == 1) return 0;
    const auto runs = [&](int way, double ms) { return 1 + static_cast<int>(ms / once[way]); };
    (void)milliseconds(0, runs(0, kHeat));
    std::map<int, double> hot;
    for (const int way : left_) {
      (void)milliseconds(way, runs(way, kLead));
      hot[way] = milliseconds(way, runs(way, kTimed)) / runs(way, kTimed);
    }
    const int best = least(hot);
    return hot[best] < (1 - kNoise) * hot[0] ? best : 0;
  }

 private:
  /// Of those left; 0 if there is none.
  [[nodiscard]] int least(const std::map<int, double>& of) const {
    const auto best = std::min_element(left_.begin(), left_.end(), [&](int a, int b) { return of.at(a) < of.at(b); });
    return best == left_.end() ? 0 : *best;
  }
  [[nodiscard]] double milliseconds(int way, int runs) const {
    const cudaStream_t stream = stream_of(out_);
    Event begin, end;
    run_(way);  // while it runs, the launches of those that are timed get ahead of the device
    launched(cudaEventRecord(begin.event, stream), "cudaEventRecord");
    for (int i = 0; i < runs; ++i) run_(way);
    launched(cudaEventRecord(end.event, stream), "cudaEventRecord");
    launched(cudaEventSynchronize(end.event), "cudaEventSynchronize");
    float ms = 0;
    launched(cudaEventElapsedTime(&ms, begin.event, end.event), "cudaEventElapsedTime");
    return double{ms};
  }

  const at::Tensor out_;
  const std::function<bool(int)> run_;
  std::vector<int> left_;
};

using Algorithm = std::optional<cublasLtMatmulAlgo_t>;  // none: LibTorch's call
struct Chosen {
  int64_t occurrences = 0;
  Algorithm algorithm;
  bool measured = false;
};
struct Choices {
  static constexpr size_t kMost = 4096;
  std::mutex mutex;
  std::map<Form, Chosen> of;
};
Choices& choices() {
  static Choices all;
  return all;
}

/// The choice for a form; `first`: what it is when the form first occurs.
Algorithm chosen(const Form& form, const std::function<Algorithm()>& first) {
  Choices& all = choices();
  const std::lock_guard lock(all.mutex);
  // Sizes that depend on the batch bring new forms in every step.
  if (all.of.size() >= Choices::kMost) std::erase_if(all.of, [](const auto& entry) { return !entry.second.measured; });
  const auto [entry, is_new] = all.of.try_emplace(form);
  if (is_new) entry->second.algorithm = first();
  ++entry->second.occurrences;
  return entry->second.algorithm;
}

/// 16-bit products of longer inner dimensions draw so much power that it decides their time, which a brief time does
/// not show.
constexpr int64_t kShortInner = 1024;

/// Tiles of 128 x 256 elements. On an H200 they draw the least power of those that the library chooses for 16-bit
/// products of long inner dimensions, or up to 2 % more; 192 x 192 and 320 x 128 draw 2 to 4 % more.
bool has_large_tile(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t tile = 0;
  size_t written = 0;
  succeeded(
      cublas_lt().MatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile), &written),
      "cublasLtMatmulAlgoConfigGetAttribute");
  return tile == CUBLASLT_MATMUL_TILE_128x256 || tile == CUBLASLT_MATMUL_TILE_256x128;
}

/// The algorithm for products of a form, found with random operands.
Algorithm measured(const Form& form, bool under_load) {
  const at::TensorOptions options =
      at::TensorOptions(at::kBFloat16).device(at::kCUDA, static_cast<int8_t>(form.device));
  at::Generator generator = at::globalContext().defaultGenerator(options.device()).clone();  // draws for no one else
  const auto operand = [&](int64_t rows, int64_t columns, int64_t stride, bool by_columns, at::ScalarType dtype) {
    const std::vector<int64_t> strides = by_columns ? std::vector<int64_t>{1, stride} : std::vector<int64_t>{stride, 1};
    const at::Tensor x = at::empty_strided({rows, columns}, strides, options.dtype(dtype));
    if (!form.fp8()) return x.normal_(0, 1, generator);
    return x.copy_(at::empty({rows, columns}, options).normal_(0, 64, generator));
  };
  const at::Tensor a = operand(form.m, form.k, form.stride_a, form.a_by_columns, form.a),
                   b = operand(form.k, form.n, form.stride_b, form.b_by_columns, form.b),
                   bias = form.bias ? operand(1, form.n, form.n, false, form.out)[0] : at::Tensor();
  at::Tensor out = at::empty_strided({form.m, form.n}, {form.stride_out, 1}, options.dtype(form.out));
  Product product(a, b, out, form.adds ? out : at::Tensor(), bias);
  const at::Tensor scales = at::ones({form.scales_by_rows ? std::max(form.m, form.n) : 1}, options.dtype(at::kFloat));
  if (form.fp8()) product.scale(scales, scales, form.scales_by_rows, form.fast);
  const bool only_large = !under_load && !form.fp8() && form.k > kShortInner;
  std::vector<Algorithm> algorithms;
  if (!form.fp8()) algorithms.emplace_back();
  for (const cublasLtMatmulAlgo_t& candidate : product.candidates())
    if (!only_large || has_large_tile(candidate)) algorithms.emplace_back(candidate);
  Ways ways(static_cast<int>(algorithms.size()), out, generator, [&](int way) {
    const Algorithm& algorithm = algorithms[static_cast<size_t>(way)];
    if (algorithm) return product.run(*algorithm, out) == CUBLAS_STATUS_SUCCESS;
    library_product(out, a, b, bias, form.adds);
    return true;
  });
  // In a brief time a candidate of any tile must be clearly faster than LibTorch's choice.
  const double margin = form.fp8() ? 0 : only_large ? 0.01 : 0.04;
  return algorithms[static_cast<size_t>(under_load ? ways.fastest_under_load() : ways.fastest(margin))];
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
  Product product(a, b_KN, out, adds ? sum : at::Tensor(), bias_N);
  const bool fast = accumulate == Accumulate::kFast;
  product.scale(a_MK.inverse, b_NK.inverse, by_rows, fast);
  Form form = form_of(a, b_KN, out, adds, bias_N);
  form.scales_by_rows = by_rows, form.fast = fast;
  const Algorithm algorithm = chosen(form, [&]() -> Algorithm {
    const auto candidates = product.candidates();
    if (candidates.empty()) return {};
    return candidates[0];
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

void product_out(at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N,
                 bool adds) {
  using namespace lt;
  const c10::cuda::CUDAGuard guard(a_MK.device());
  const Algorithm algorithm = chosen(form_of(a_MK, b_KN, out_MN, adds, bias_N), [] { return Algorithm(); });
  if (!algorithm) return library_product(out_MN, a_MK, b_KN, bias_N, adds);
  succeeded(Product(a_MK, b_KN, out_MN, adds ? out_MN : at::Tensor(), bias_N).run(*algorithm, out_MN),
            "cublasLtMatmul");
}

MeasuredProducts measure_products(at::Device device, ProductLoad load) {
  using namespace lt;
  const c10::cuda::CUDAGuard guard(device);
  // Products whose sizes depend on the batch may never occur again.
  constexpr int64_t kOften = 4;
  constexpr double kMostSeconds = 120, kWorthwhile = 2e10;
  const std::lock_guard lock(choices().mutex);
  std::vector<std::pair<const Form, Chosen>*> often;
  for (auto& entry : choices().of) {
    const Form& form = entry.first;
    if (form.device != device.index() || entry.second.occurrences < kOften) continue;
    // Split FP8 products in a brief time: the fastest draw 1 to 2 % more power than the library's first.
    const bool skipped = load == ProductLoad::kSustained ? form.operations() < kWorthwhile : form.fp8() && !form.fast;
    if (skipped || (form.fp8() && !entry.second.algorithm)) continue;
    often.push_back(&entry);
  }
  std::sort(often.begin(), often.end(), [](const auto* x, const auto* y) {
    return x->first.operations() * static_cast<double>(x->second.occurrences) >
           y->first.operations() * static_cast<double>(y->second.occurrences);
  });
  MeasuredProducts result;
  const double begin = steady_seconds();
  for (auto* entry : often) {
    if (steady_seconds() - begin > kMostSeconds) break;
    try {
      entry->second.algorithm = measured(entry->first, load == ProductLoad::kSustained);
      entry->second.measured = true;
      ++result.count;
    } catch (const c10::OutOfMemoryError&) {
      continue;  // the library's choice stays
    }
  }
  result.seconds = steady_seconds() - begin;
  return result;
}

}  // namespace trireme::launch
