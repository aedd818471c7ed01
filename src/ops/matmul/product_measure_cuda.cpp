// Which algorithm a product runs by: the library's, until the candidates have been run here.
#include "launch.h"
#include "matmul/cublas_lt.h"
#include "matmul/product.h"
#include "trireme/base/log.h"
#include "trireme/base/time.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::launch {

namespace lt {
namespace {

struct Event {
  cudaEvent_t event = nullptr;
  Event() { launched(cudaEventCreate(&event), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event); }
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

  struct Best {
    int way;
    double ms, first_ms;  // of one run: this way's, and way 0's
  };

  /// The last of those that write the bits of way 0.
  [[nodiscard]] Best last() const { return {left_.empty() ? 0 : left_.back(), 0, 0}; }

  /// The fastest of those that are faster than way 0 by `margin`, a part of its time, in every round; 0 without one.
  Best fastest(double margin) {
    constexpr int kRounds = 3, kRunsInRound = 2;
    std::map<int, double> sums;
    for (int round = 0; round < kRounds; ++round) {
      const double first = milliseconds(0, kRunsInRound), most = first * (1 - margin);
      sums[0] += first;
      std::erase_if(left_, [&](int way) {
        const double ms = milliseconds(way, kRunsInRound);
        sums[way] += ms;
        return ms >= most;
      });
    }
    const int best = least(sums);
    return {best, sums[best] / (kRounds * kRunsInRound), sums[0] / (kRounds * kRunsInRound)};
  }

  /// The one that is the fastest when it runs so long that its power decides its clock; 0 unless another is faster by
  /// kNoise.
  Best fastest_under_load() {
    // A GPU follows its power limit within some tenths of a second.
    constexpr double kHeat = 600, kLead = 200, kTimed = 350, kNoise = 0.005;
    // Of 26 products on an H200 the fastest under load was at most 9 % behind in a brief time, or the library's first.
    constexpr double kSlow = 1.12;
    left_.insert(left_.begin(), 0);
    std::map<int, double> once;
    for (const int way : left_) once[way] = milliseconds(way, 4) / 4;
    const double most = kSlow * once[least(once)];
    std::erase_if(left_, [&](int way) { return way != 0 && once[way] > most; });
    if (left_.size() == 1) return {0, once[0], once[0]};
    const auto runs = [&](int way, double ms) { return 1 + static_cast<int>(ms / once[way]); };
    (void)milliseconds(0, runs(0, kHeat));
    std::map<int, double> hot;
    for (const int way : left_) {
      (void)milliseconds(way, runs(way, kLead));
      hot[way] = milliseconds(way, runs(way, kTimed)) / runs(way, kTimed);
    }
    const int best = least(hot);
    return hot[best] < (1 - kNoise) * hot[0] ? Best{best, hot[best], hot[0]} : Best{0, hot[0], hot[0]};
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

struct Chosen {
  int64_t occurrences = 0;
  Algorithm algorithm;
  std::optional<ProductLoad> measured{};
  bool own = false;  // not the library's choice
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

/// Whether two forms differ only in the number of tokens, by at most an eighth of it. It is m, or k of a weight
/// gradient, and may be a stride.
bool neighbours(const Form& x, const Form& y) {
  const auto [of_x, of_y] = x.m != y.m ? std::pair(x.m, y.m) : std::pair(x.k, y.k);
  if (of_x == of_y || std::abs(of_x - of_y) > of_x / 8) return false;
  Form same = x;
  for (int64_t Form::* const size : {&Form::m, &Form::k, &Form::stride_a, &Form::stride_b, &Form::stride_out})
    if (same.*size == of_x) same.*size = of_y;
  return same == y;
}

/// 16-bit products of longer inner dimensions draw so much power that it decides their time, which a brief time does
/// not show.
constexpr int64_t kShortInner = 1024;

/// The briefly fastest of split FP8 products draw 1 to 2 % more power than the library's first.
bool splits(const Form& form) { return form.fp8() && !form.fast; }

/// Products of fewer operations take up to 0.3 ms in FP8 and 0.6 ms in 16 bits, in which the setting of a counter (4
/// us) shows.
constexpr double kMostAlone = 4e11;

/// Tiles of 128 x 256 elements. On an H200 they draw the least power of those that the library chooses for 16-bit
/// products of long inner dimensions, or up to 2 % more; 192 x 192 and 320 x 128 draw 2 to 4 % more.
bool has_large_tile(const cublasLtMatmulAlgo_t& algorithm) {
  const uint32_t tile = tile_of(algorithm);
  return tile == CUBLASLT_MATMUL_TILE_128x256 || tile == CUBLASLT_MATMUL_TILE_256x128;
}

/// Finds the algorithm for products of a form with random operands. `near`: a measured neighbour; its algorithm is
/// taken if it writes the bits of the library's here too, otherwise the library's. Null: the candidates are timed.
/// `alone`: as for measure_products().
void measure(const Form& form, Chosen& chosen, ProductLoad load, const Chosen* near, bool alone) {
  chosen.measured = load;
  if (near != nullptr && !near->own) return;
  const bool under_load = load == ProductLoad::kSustained;
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
  const bool only_first = !under_load && splits(form);  // its tile, with a counter or without
  const std::vector<cublasLtMatmulAlgo_t> candidates = product.candidates();
  std::vector<Algorithm> algorithms;  // the first: the library's own choice
  if (!form.fp8()) algorithms.emplace_back();
  if (near != nullptr) {
    if (form.fp8()) algorithms.emplace_back(candidates.at(0));
    algorithms.push_back(near->algorithm);
  } else {
    for (const cublasLtMatmulAlgo_t& candidate : candidates)
      if (only_first ? algorithms.empty() : !only_large || has_large_tile(candidate))
        algorithms.emplace_back(candidate);
    if (alone && (form.fp8() || form.k <= kShortInner) && form.operations() < kMostAlone)
      for (const cublasLtMatmulAlgo_t& candidate : product.candidates(Product::Workspace::kNone))
        if (!only_first || tile_of(candidate) == tile_of(candidates.at(0))) algorithms.emplace_back(candidate);
  }
  Ways ways(static_cast<int>(algorithms.size()), out, generator, [&](int way) {
    const Algorithm& algorithm = algorithms[static_cast<size_t>(way)];
    if (algorithm) return product.run(*algorithm, out) == CUBLAS_STATUS_SUCCESS;
    library_product(out, a, b, bias, form.adds);
    return true;
  });
  // In a brief time a candidate of any tile must be clearly faster than LibTorch's choice.
  const double margin = form.fp8() ? 0 : only_large ? 0.01 : 0.04;
  const Ways::Best best = near != nullptr ? ways.last() : under_load ? ways.fastest_under_load() : ways.fastest(margin);
  chosen.algorithm = algorithms[static_cast<size_t>(best.way)];
  chosen.own = best.way != 0;
  if (logs_choices())
    log_info(fmt::format("product of {} [{}, {}] and {} [{}, {}]{}: {}{}", type_name(form.a), form.m, form.k,
                         type_name(form.b), form.k, form.n, form.adds ? ", added" : "",
                         chosen.own ? fmt::format("tile {}", tile_of(*chosen.algorithm)) : "as the library",
                         near != nullptr
                             ? ", as with another number of tokens"
                             : fmt::format(", {:.4g} ms; the library's choice {:.4g} ms", best.ms, best.first_ms)));
}

}  // namespace

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

}  // namespace lt

MeasuredProducts measure_products(at::Device device, ProductLoad load, bool alone) {
  using namespace lt;
  const c10::cuda::CUDAGuard guard(device);
  // Products whose sizes depend on the batch may never occur again.
  constexpr int64_t kOften = 4;
  constexpr int kMostForms = 64;
  constexpr double kMostSeconds = 120, kWorthwhile = 2e10;
  auto& [mutex, all] = choices();
  const std::lock_guard lock(mutex);
  std::vector<std::pair<const Form, Chosen>*> often;
  for (auto& entry : all) {
    const auto& [form, chosen] = entry;
    const bool occurs = form.device == device.index() && chosen.occurrences >= kOften;
    if (occurs && !(chosen.measured >= load) && (chosen.algorithm || !form.fp8())) often.push_back(&entry);
  }
  std::sort(often.begin(), often.end(), [](const auto* x, const auto* y) {
    return x->first.operations() * static_cast<double>(x->second.occurrences) >
           y->first.operations() * static_cast<double>(y->second.occurrences);
  });
  MeasuredProducts result;
  const double begin = steady_seconds();
  for (auto* entry : often) {
    if (steady_seconds() - begin > kMostSeconds || result.count == kMostForms) break;
    auto& [form, chosen] = *entry;
    const auto near = std::find_if(all.begin(), all.end(), [&](const auto& other) {
      return other.second.measured >= load && neighbours(entry->first, other.first);
    });
    const bool skipped = load == ProductLoad::kSustained ? form.operations() < kWorthwhile
                                                         : splits(form) && !(alone && form.operations() < kMostAlone);
    if (skipped && near == all.end()) continue;
    try {
      measure(form, chosen, load, near == all.end() ? nullptr : &near->second, alone);
      ++result.count;
    } catch (const c10::OutOfMemoryError&) {
      continue;  // the library's choice stays
    }
  }
  result.seconds = steady_seconds() - begin;
  return result;
}

}  // namespace trireme::launch
