#include "trireme/ops/attention.h"

#include "attention_node.h"
#include "dropout_parts.h"
#include "matmul/operand.h"
#include "trireme/base/dropout_steps.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/ops/device.h"
#include "trireme/ops/dispatch.h"
#include "trireme/ops/matmul/fp8.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

namespace {

enum class Preference { kMeasured, kLibrary, kFlash, kKernels };

Preference preference() {
  static const Preference chosen = [] {
    const char* value = std::getenv("TRIREME_ATTENTION");
    if (value == nullptr || std::string_view(value) == "measured") return Preference::kMeasured;
    if (std::string_view(value) == "library") return Preference::kLibrary;
    if (std::string_view(value) == "flash") return Preference::kFlash;
    if (std::string_view(value) == "ours") return Preference::kKernels;
    throw ConfigError(std::string("TRIREME_ATTENTION is '") + value + "'; use measured, library, flash or ours");
  }();
  return chosen;
}

}  // namespace

void check_attention_setting() { (void)preference(); }

namespace {

/// Causal shapes without dropout for which our kernels were measured to be faster than the library's in one process
/// (docs/benchmarks.md; scripts/bench/attention.sh --torch measures again). The library's implementation is cuDNN for
/// sequences of equal length and LibTorch's variable-length flash attention for others. Full attention and attention
/// with dropout were faster in our kernels for every mix of sequences tried. Windows are not measured.
struct MeasuredShape {
  int64_t head_dim;
  bool equal_lengths;
  int64_t least_mean_length;
};
constexpr MeasuredShape kKernelsFaster[] = {{128, true, 2048}, {128, false, 200}};

bool measured_faster(const Heads& heads, const Sequences& sequences, const AttentionOptions& options) {
  if (preference() != Preference::kMeasured) return preference() == Preference::kKernels;
  if (multiplies_codes(heads, sequences, options)) return true;
  if (options.window > 0) return false;
  if (!options.causal || options.dropout.active()) return true;
  // The library's fastest kernel, cuDNN's, is not deterministic; flash attention would run in its place.
  if (at::globalContext().deterministicAlgorithms()) return true;
  const int64_t mean = sequences.tokens() / sequences.count();
  return std::any_of(std::begin(kKernelsFaster), std::end(kKernelsFaster), [&](const MeasuredShape& m) {
    return m.head_dim == heads.q.size(2) && m.equal_lengths == sequences.equal_lengths && mean >= m.least_mean_length;
  });
}

Choice attention_choice(const Heads& heads, const Sequences& sequences, const AttentionOptions& options) {
  const bool dropout = options.dropout.active(), two_bytes = heads.q.element_size() == 2;
  bool fits = false;
  if constexpr (kCudaBuild) fits = heads.q.is_cuda() && launch::attention_fits(heads);
  const Runs otherwise =
      (heads.q.is_cuda() && two_bytes) || (options.causal && !dropout) ? Runs::kLibrary : Runs::kComposition;
  const char* name = multiplies_codes(heads, sequences, options) ? "attention in FP8"
                     : options.fp8                               ? "attention with values rounded to FP8"
                                                                 : "attention";
  return Dispatch(name, heads.q, KernelClass::kHopper)
      .needs(two_bytes, "heads are not bf16 or fp16")
      .needs(fits, "the head size is neither 64 nor 128, or heads are not 16-byte aligned")
      .needs(!dropout || options.window == 0, "with dropout the kernels support no window")
      .needs(!dropout || options.causal || heads.q.size(2) == 64,
             "without a causal mask the kernels support dropout for head size 64 only")
      .needs(!dropout || sequences.longest <= kLongestWithDropout,
             "sequences with dropout are longer than 65,536 tokens")
      .needs(measured_faster(heads, sequences, options),
             "the library was measured to be faster, or TRIREME_ATTENTION selects it")
      .choice(otherwise);
}

/// Whether the row sees the column [rows, rows], under a causal mask and a window.
at::Tensor visible(int64_t rows, int64_t window, at::Device device) {
  const at::Tensor before = at::ones({rows, rows}, at::TensorOptions(at::kBool).device(device)).tril_();
  return window > 0 ? before.triu_(1 - window) : before;
}

/// What LibTorch's flash attention runs on.
bool flash_fits(const at::Tensor& q) {
  return compute_capability(q.device()) >= 80 && q.element_size() == 2 && q.size(-1) % 8 == 0 && q.size(-1) <= 256;
}

/// Whether cuDNN's attention runs: on the GPUs for which LibTorch prefers it (9.x and 10.x), from the version on that
/// is right for lengths that 128 does not divide. It adds in no fixed order. `kept`: what a first call has left says
/// which attention continues.
bool cudnn_fits(const Heads& heads, const Sequences& sequences, const AttentionOptions& options,
                const KeptAttention* kept) {
  constexpr long kLeastVersion = 91501;
  const int capability = compute_capability(heads.q.device());
  if (capability < 90 || capability >= 110 || at::detail::getCUDAHooks().versionCuDNN() < kLeastVersion ||
      preference() == Preference::kFlash || at::globalContext().deterministicAlgorithms() ||
      heads.q.element_size() != 2 || !sequences.equal_lengths || !options.causal || options.window > 0 ||
      options.dropout.active())
    return false;
  if (kept != nullptr && !kept->empty()) return kept->at(1).dim() == 4;  // flash attention's has two dimensions
  using B = at::SDPBackend;
  [[maybe_unused]] static const bool once = [] {
    at::globalContext().setSDPPriorityOrder(
        {static_cast<int64_t>(B::cudnn_attention), static_cast<int64_t>(B::flash_attention),
         static_cast<int64_t>(B::efficient_attention), static_cast<int64_t>(B::math)});
    return true;
  }();
  const Heads rows = rows_of(heads, sequences);
  return at::_fused_sdp_choice(rows.q, rows.k, rows.v, {}, 0.0, /*is_causal=*/true, options.scale,
                               heads.q.size(1) != heads.k.size(1)) == static_cast<int64_t>(B::cudnn_attention);
}

/// q, k, v [B, S, heads, H] with one sequence per row, through LibTorch's dispatcher, which records autograd.
at::Tensor library_rows(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOptions& options) {
  // LibTorch's memory-efficient kernel (fp32, and before compute capability 8.0) does not support grouped queries.
  const bool grouped = q.element_size() == 2 && compute_capability(q.device()) >= 80;
  const auto for_queries = [&](const at::Tensor& x) {
    if (grouped || x.size(2) == q.size(2)) return x;
    return repeat_heads(x.flatten(0, 1), q.size(2)).view(q.sizes());
  };
  const at::Tensor keys = for_queries(k), values = for_queries(v);
  const bool windowed = options.window > 0 && options.window < q.size(1);
  const std::optional<at::Tensor> mask =
      windowed ? std::optional(visible(q.size(1), options.window, q.device())) : std::nullopt;
  return at::scaled_dot_product_attention(q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), mask, 0.0,
                                          options.causal && !windowed, options.scale, grouped && q.size(2) != k.size(2))
      .transpose(1, 2);
}

/// On a GPU.
at::Tensor library_attention(const Heads& heads, const Sequences& sequences, const AttentionOptions& options) {
  if (sequences.equal_lengths) {
    const auto rows = [&](const at::Tensor& x) { return x.unflatten(0, {sequences.count(), sequences.longest}); };
    return library_rows(rows(heads.q), rows(heads.k), rows(heads.v), options).flatten(0, 1);
  }
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < sequences.count(); ++i) {
    const int64_t begin = sequences.boundaries[static_cast<size_t>(i)],
                  length = sequences.boundaries[static_cast<size_t>(i) + 1] - begin;
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, length).unsqueeze(0); };
    parts.push_back(library_rows(part(heads.q), part(heads.k), part(heads.v), options));
  }
  return at::cat(parts, 1).squeeze(0);
}

void check_heads(const Heads& heads, const Sequences& sequences, const AttentionOptions& options) {
  const at::Tensor &q = heads.q, &k = heads.k, &v = heads.v;
  TRIREME_CHECK(q.dim() == 3 && k.dim() == 3 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                    q.size(2) == k.size(2) && q.size(1) % k.size(1) == 0,
                "attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  TRIREME_CHECK(!sequences.boundaries.empty() && sequences.tokens() == q.size(0), "attention: sequences end at ",
                sequences.boundaries.empty() ? -1 : sequences.tokens(), ", but q has ", q.size(0), " tokens");
  TRIREME_CHECK(!options.dropout.active() || !sequences.keys.empty(),
                "attention with dropout needs a key for each sequence");
  TRIREME_CHECK(options.window >= 0 && (options.window == 0 || options.causal), "attention: a window of ",
                options.window, " tokens, causal ", options.causal);
}

at::Tensor run_attention(const Heads& heads, HeadInputs node_inputs, InputList& inputs, const Sequences& sequences,
                         AttentionOptions options, KeptAttention* kept) {
  const ProfileRange range("attention");
  check_heads(heads, sequences, options);
  if (options.window >= sequences.longest) options.window = 0;
  const Choice choice = attention_choice(heads, sequences, options);
  AttentionCall call{std::move(node_inputs), sequences, options, kept};
  if constexpr (kCudaBuild)
    if (choice.kernel()) return kernel_attention(std::move(call), inputs);
  if (choice.who == Runs::kComposition) return composed_attention(std::move(call), inputs);
  if (heads.q.is_cpu()) return cpu_attention(std::move(call), inputs);
  if (cudnn_fits(heads, sequences, options, kept)) return cudnn_attention(std::move(call), inputs);
  if (flash_fits(heads.q)) return flash_attention(std::move(call), inputs);
  if (options.dropout.active()) return composed_attention(std::move(call), inputs);
  return library_attention(heads, sequences, options);
}

/// fp8_values() of heads, whose gradients are those of the values.
struct RoundedHeads {
  Input heads;
  int64_t rows;

  variable_list forward() {
    const at::Tensor values = fp8_values(heads.value, rows);
    heads.value.reset();
    return {values};
  }
  void backward(const variable_list& d_outputs, Gradients& gradients) { gradients.set(heads, d_outputs[0]); }
};

at::Tensor rounded_heads(const at::Tensor& heads, int64_t rows) {
  const ProfileRange range("attention");
  InputList inputs;
  const Input input = inputs.add(heads);
  return run_node(RoundedHeads{input, rows}, inputs)[0];
}

}  // namespace

const char* fp8_obstacle(at::Device device, at::ScalarType dtype, int64_t head_dim, bool dropout, bool window,
                         int64_t mean_length) {
  if (kernel_class(device) != KernelClass::kHopper) return "the GPU does not run the kernel for it";
  if (preference() == Preference::kLibrary || preference() == Preference::kFlash)
    return "TRIREME_ATTENTION selects the library";
  if (at::elementSize(dtype) != 2) return "its kernel is for bf16 and fp16";
  if (head_dim != 128) return "its kernel is for heads of 128";
  if (dropout) return "its kernel has no dropout";
  if (window) return "its kernel has no window";
  // Shorter sequences were measured to take longer in codes (docs/design/attention-kernels.md).
  if (mean_length < 8192 && preference() != Preference::kKernels)
    return "its kernel is for sequences of 8,192 tokens on average or more";
  return nullptr;
}

bool multiplies_codes(const Heads& heads, const Sequences& sequences, const AttentionOptions& options) {
  if constexpr (kCudaBuild)
    return options.fp8 &&
           fp8_obstacle(heads.q.device(), heads.q.scalar_type(), heads.q.size(2), options.dropout.active(),
                        options.window > 0, sequences.tokens() / sequences.count()) == nullptr &&
           launch::attention_fits(heads);
  return false;
}

at::Tensor fp8_values(const at::Tensor& heads, int64_t rows) {
  if constexpr (kCudaBuild)
    if (launch::attention_rounds(heads)) return launch::attention_round(heads, rows);
  // One scale over the dimensions `of`. The exponent e comes from the bits of the amax, so that 2^e is exact: 448 is
  // 1.75 * 2^8.
  const auto rounded = [](const at::Tensor& x, at::IntArrayRef of) {
    const at::Tensor numbers = x.to(at::kFloat), amax = numbers.abs().amax(of, /*keepdim=*/true);
    const at::Tensor largest = (amax.view(at::kInt) + 0x1fffff).bitwise_right_shift(23);
    const at::Tensor exponent =
        at::where(amax.gt(0).logical_and(amax.isfinite()), 127 + 8 - largest, 0).clamp_(-126, 126);
    const auto power = [](const at::Tensor& e) { return (e + 127).to(at::kInt).mul(1 << 23).view(at::kFloat); };
    const at::Tensor codes = numbers.mul(power(exponent)).clamp_(-kLargestE4m3, kLargestE4m3).to(at::kFloat8_e4m3fn);
    // An infinity is not 448.
    return codes.to(at::kFloat).mul_(power(-exponent)).add_(numbers - numbers).to(x.scalar_type());
  };
  const int64_t others = heads.size(1) - rows;
  if (others == 0) return rounded(heads, {2});
  if (rows == 0) return rounded(heads, {0, 2});
  return at::cat({rounded(heads.narrow(1, 0, rows), {2}), rounded(heads.narrow(1, rows, others), {0, 2})}, 1);
}

at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  const int64_t group = heads / x.size(1);
  if (group == 1) return x;
  return x.unsqueeze(2).expand({x.size(0), x.size(1), group, x.size(2)}).reshape({x.size(0), heads, x.size(2)});
}

Sequences make_sequences(std::vector<int32_t> boundaries, std::vector<int64_t> keys, at::Device device,
                         std::vector<int32_t> needed) {
  TRIREME_CHECK(boundaries.size() >= 2 && boundaries.front() == 0, "sequences need boundaries from 0, got ",
                boundaries.size());
  TRIREME_CHECK(keys.empty() || keys.size() + 1 == boundaries.size(), "sequences need a key each: ", keys.size(),
                " keys, ", boundaries.size(), " boundaries");
  TRIREME_CHECK(needed.empty() || needed.size() + 1 == boundaries.size(), needed.size(), " counts of needed rows, ",
                boundaries.size(), " boundaries");
  Sequences result;
  result.equal_lengths = true;
  for (size_t i = 1; i < boundaries.size(); ++i) {
    const int64_t length = int64_t{boundaries[i]} - boundaries[i - 1];
    TRIREME_CHECK(length > 0, "sequence boundary ", boundaries[i], " follows ", boundaries[i - 1]);
    TRIREME_CHECK(needed.empty() || (needed[i - 1] >= 1 && needed[i - 1] <= length), needed[i - 1],
                  " rows of a sequence of ", length, " are needed");
    result.longest = std::max(result.longest, length);
    result.equal_lengths = result.equal_lengths && length == boundaries[1];
  }
  result.boundaries = std::move(boundaries);
  result.keys = std::move(keys);
  result.needed = std::move(needed);
  if constexpr (kCudaBuild) {
    if (device.is_cuda()) {
      result.boundaries_device = copy_to_device(result.boundaries, device);
      if (!result.keys.empty()) result.keys_device = copy_to_device(result.keys, device);
      result.work = std::make_shared<AttentionWork>();
    }
  }
  return result;
}

std::vector<int64_t> cut_backward(const std::vector<int32_t>& boundaries) {
  constexpr int64_t kMoreRows = 128, kLeastRows = 1024;  // sums of few rows are not worth a launch
  const int64_t most = std::max(kLeastRows, attention_sum_rows(boundaries.back()));
  std::vector<int64_t> cuts{0};
  int64_t rows = 0;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
    const int64_t more = boundaries[i + 1] - boundaries[i] + kMoreRows;
    if (rows > 0 && rows + more > most) {
      cuts.push_back(static_cast<int64_t>(i));
      rows = 0;
    }
    rows += more;
  }
  cuts.push_back(static_cast<int64_t>(boundaries.size()) - 1);
  return cuts;
}

const std::vector<SequenceRange>& backward_ranges(const Sequences& sequences) {
  std::vector<SequenceRange>& ranges = sequences.work->ranges;
  if (!ranges.empty()) return ranges;
  const std::vector<int64_t> cuts = cut_backward(sequences.boundaries);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const int32_t first = sequences.boundaries[static_cast<size_t>(cuts[i])];
    std::vector<int32_t> boundaries(sequences.boundaries.begin() + cuts[i],
                                    sequences.boundaries.begin() + cuts[i + 1] + 1);
    for (int32_t& boundary : boundaries) boundary -= first;
    const auto part_of = [&]<class T>(const std::vector<T>& all) {
      return all.empty() ? all : std::vector<T>(all.begin() + cuts[i], all.begin() + cuts[i + 1]);
    };
    ranges.push_back({first, make_sequences(std::move(boundaries), part_of(sequences.keys),
                                            sequences.boundaries_device.device(), part_of(sequences.needed))});
  }
  return ranges;
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& sequences,
                     const AttentionOptions& options, KeptAttention* kept) {
  InputList inputs;
  const Heads heads =
      options.fp8 ? Heads{rounded_heads(q, q.size(1)), rounded_heads(k, 0), rounded_heads(v, 0)} : Heads{q, k, v};
  const HeadInputs node_inputs = HeadInputs::apart(heads, inputs);
  return run_attention(heads, node_inputs, inputs, sequences, options, kept);
}

at::Tensor attention_of_packed(const at::Tensor& qkv, int64_t kv_heads, const Sequences& sequences,
                               const AttentionOptions& options, KeptAttention* kept) {
  TRIREME_CHECK(qkv.dim() == 3 && qkv.is_contiguous() && qkv.size(1) > 2 * kv_heads, "attention: qkv ", qkv.sizes(),
                " with ", kv_heads, " key heads");
  InputList inputs;
  const at::Tensor heads = options.fp8 ? rounded_heads(qkv, qkv.size(1) - 2 * kv_heads) : qkv;
  const HeadInputs node_inputs = HeadInputs::together(heads, kv_heads, inputs);
  return run_attention(split_heads(heads, kv_heads), node_inputs, inputs, sequences, options, kept);
}

namespace {

/// Multiplies in the factors' type; the result has that of x.
at::Tensor times(const at::Tensor& x, const at::Tensor& factors) {
  return factors.defined() ? (x * factors).to(x.scalar_type()) : x;
}

struct ComposedAttention : AttentionCall {
  /// One sequence's heads as [N, S, H]; keys and values are repeated for their groups.
  struct Part {
    at::Tensor q, k, v;
    int64_t begin, length;
    at::Tensor factors;  // dropout factors [N, S, S], at least fp32; undefined: no dropout
  };

  Part part(const Heads& heads, int64_t sequence) const {
    const auto i = static_cast<size_t>(sequence);
    const int64_t begin = sequences.boundaries[i], length = sequences.boundaries[i + 1] - begin, n = heads.q.size(1);
    const auto of = [&](const at::Tensor& x) { return repeat_heads(x.narrow(0, begin, length), n).transpose(0, 1); };
    return {of(heads.q), of(heads.k), of(heads.v), begin, length, dropout_factors(heads.q, i, length)};
  }

  at::Tensor dropout_factors(const at::Tensor& q, size_t sequence, int64_t length) const {
    if (!options.dropout.active()) return {};
    const DropoutKey key = dropout_key(options.dropout);
    const uint32_t threshold = attention_dropout_threshold(options.dropout.p);
    at::Tensor keeps = at::empty({q.size(1), length, length}, at::TensorOptions(at::kBool));
    for (int64_t head = 0; head < q.size(1); ++head)
      attention_keeps(key, sequences.keys[sequence], static_cast<uint32_t>(options.first_head + head), length,
                      threshold, keeps.mutable_data_ptr<bool>() + head * length * length);
    return keeps.to(q.options().dtype(accumulate_type(q))).mul_(128.0 / (128 - threshold));
  }

  /// Softmax in at least fp32, then converted to the dtype of the products.
  at::Tensor probabilities(const Part& p) const {
    at::Tensor scores = at::matmul(p.q, p.k.transpose(1, 2)).mul_(options.scale);
    if (options.causal)
      scores.masked_fill_(visible(p.length, options.window, p.q.device()).logical_not_(),
                          -std::numeric_limits<double>::infinity());
    const at::ScalarType type = accumulate_type(p.q);
    return at::softmax(scores, -1, type).to(p.q.scalar_type());
  }

  variable_list forward() {
    const Heads heads = inputs.heads();
    at::Tensor out;
    if (take_kept(kept, {&out})) return {out.detach()};
    out = at::empty(heads.q.sizes(), heads.q.options());
    for (int64_t i = 0; i < sequences.count(); ++i) {
      const Part p = part(heads, i);
      out.narrow(0, p.begin, p.length).copy_(at::matmul(times(probabilities(p), p.factors), p.v).transpose(0, 1));
    }
    if (kept != nullptr) *kept = {out};
    return {out.detach()};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("attention");
    const Heads heads = inputs.heads(), d = inputs.allocate_gradients();
    const int64_t kv_heads = heads.k.size(1), group = heads.q.size(1) / kv_heads;
    // [N, S, H] into [S, K, H]: a key head's gradient is the sum over its group of query heads.
    const auto put = [&](const at::Tensor& target, const at::Tensor& value, const Part& p) {
      const at::Tensor grouped =
          group == 1 || target.size(1) != kv_heads ? value : value.unflatten(0, {kv_heads, group}).sum(1);
      target.narrow(0, p.begin, p.length).copy_(grouped.transpose(0, 1));
    };
    for (int64_t i = 0; i < sequences.count(); ++i) {
      const Part part_i = part(heads, i);
      const at::Tensor out = d_outputs[0].narrow(0, part_i.begin, part_i.length).transpose(0, 1);  // [N, S, H]
      const at::Tensor p = probabilities(part_i);
      const at::Tensor dv = at::matmul(times(p, part_i.factors).transpose(1, 2), out);
      const at::Tensor dp = times(at::matmul(out, part_i.v.transpose(1, 2)), part_i.factors);
      const at::Tensor ds = (dp - dp.mul(p).sum(-1, true)).mul(p).mul_(options.scale);
      d.q.narrow(0, part_i.begin, part_i.length).copy_(at::matmul(ds, part_i.k).transpose(0, 1));
      put(d.k, at::matmul(ds.transpose(1, 2), part_i.q), part_i);
      put(d.v, dv, part_i);
    }
    inputs.set(d, gradients);
  }
};

/// LibTorch's flash attention of the CPU: causal, without dropout. Its kernel for fp64 supports no grouped queries.
struct CpuAttention : AttentionCall {
  at::Tensor out, sums;  // [T, N, H]; the log-sum-exp [T, N]

  /// Calls run(first token, number of sequences, their length), once if all lengths are equal.
  template <class Run>
  void each(const Run& run) const {
    if (sequences.equal_lengths) return run(0, sequences.count(), sequences.longest);
    for (size_t i = 0; i + 1 < sequences.boundaries.size(); ++i)
      run(sequences.boundaries[i], 1, sequences.boundaries[i + 1] - sequences.boundaries[i]);
  }

  /// `count` sequences of [T, heads, ..] as [count, N, length, ..].
  at::Tensor rows(const at::Tensor& x, int64_t first, int64_t count, int64_t length) const {
    const at::Tensor part = x.narrow(0, first, count * length);
    const int64_t heads = inputs.heads().q.size(1);
    return (x.dim() == 3 ? repeat_heads(part, heads) : part).unflatten(0, {count, length}).transpose(1, 2);
  }

  /// What is added to the scores of a sequence that is longer than the window; else the causal mask alone is enough.
  std::optional<at::Tensor> mask(const at::Tensor& q, int64_t length) const {
    if (options.window == 0 || options.window >= length) return std::nullopt;
    const at::Tensor hidden = visible(length, options.window, q.device()).logical_not_();
    return at::zeros({length, length}, q.options()).masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }

  variable_list forward() {
    if (take_kept(kept, {&out, &sums})) return {out.detach()};
    const Heads heads = inputs.heads();
    std::vector<at::Tensor> outs, all_sums;
    each([&](int64_t first, int64_t count, int64_t length) {
      const auto of = [&](const at::Tensor& x) { return rows(x, first, count, length); };
      const auto window = mask(heads.q, length);
      const auto [o, sum] = at::_scaled_dot_product_flash_attention_for_cpu(
          of(heads.q), of(heads.k), of(heads.v), 0.0, options.causal && !window, window, options.scale);
      outs.push_back(o.transpose(1, 2).flatten(0, 1));
      all_sums.push_back(sum.transpose(1, 2).flatten(0, 1));
    });
    out = outs.size() == 1 ? outs[0] : at::cat(outs);
    sums = all_sums.size() == 1 ? all_sums[0] : at::cat(all_sums);
    if (kept != nullptr) *kept = {out, sums};
    return {out.detach()};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("attention");
    const Heads heads = inputs.heads(), d = inputs.allocate_gradients();
    const at::Tensor d_out = d_outputs[0].contiguous();
    each([&](int64_t first, int64_t count, int64_t length) {
      const auto of = [&](const at::Tensor& x) { return rows(x, first, count, length); };
      const auto window = mask(heads.q, length);
      const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          of(d_out), of(heads.q), of(heads.k), of(heads.v), of(out), of(sums), 0.0, options.causal && !window, window,
          options.scale);
      // A key head's gradient is the sum over its group of query heads.
      const auto put = [&, first = first, count = count, length = length](const at::Tensor& target,
                                                                          const at::Tensor& value) {
        const at::Tensor of_heads = value.transpose(1, 2).flatten(0, 1);
        const int64_t own = target.size(1), all = of_heads.size(1);
        target.narrow(0, first, count * length)
            .copy_(own == all ? of_heads : of_heads.unflatten(1, {own, all / own}).sum(2));
      };
      put(d.q, dq);
      put(d.k, dk);
      put(d.v, dv);
    });
    inputs.set(d, gradients);
  }
};

}  // namespace

at::Tensor composed_attention(AttentionCall call, InputList& inputs) {
  return run_node(ComposedAttention{std::move(call)}, inputs)[0];
}

at::Tensor cpu_attention(AttentionCall call, InputList& inputs) {
  return run_node(CpuAttention{std::move(call), {}, {}}, inputs)[0];
}

uint32_t attention_dropout_threshold(double p) {
  TRIREME_CHECK(p >= 0 && p < 1, "dropout probability ", p, " is not in [0, 1)");
  const std::string why = dropout_problem(p, kAttentionDropoutSteps);
  TRIREME_CHECK(why.empty(), "attention dropout probability ", why);
  return dropout_threshold(p, kAttentionDropoutSteps);
}

void attention_keeps(const DropoutKey& key, int64_t sequence_key, uint32_t head, int64_t length, uint32_t threshold,
                     bool* out) {
  TRIREME_CHECK(length <= kLongestWithDropout, "attention dropout uses 16-bit row and column numbers: a sequence of ",
                length, " tokens is longer than ", kLongestWithDropout);
  const auto sample = static_cast<uint64_t>(sequence_key);
  const uint32_t h0 =
      dropout_mix(dropout_mix(static_cast<uint32_t>(sample) ^ key.t0) ^ static_cast<uint32_t>(sample >> 32) ^ key.t1);
  const uint32_t h1 = dropout_mix(h0 + 0x9e3779b9);
  const uint32_t k0 = dropout_mix(h0 ^ (head * 0x9e3779b9 + 1)), k1 = dropout_mix(k0 ^ h1);
  for (int64_t row = 0; row < length; ++row) {
    for (int64_t column = 0; column < length; ++column) {
      uint32_t x = (static_cast<uint32_t>(row & ~8) << 16 | static_cast<uint32_t>(column & ~8)) ^ k0;
      x ^= x >> 16;
      x *= 0x21f0aaad;
      x ^= x >> 15 ^ k1;
      x *= 0x735a2d97;
      x ^= x >> 15;
      const int64_t byte = (row >> 3 & 1) + 2 * (column >> 3 & 1);
      out[row * length + column] = (x >> (8 * byte) & 0x7f) >= threshold;
    }
  }
}

}  // namespace trireme
