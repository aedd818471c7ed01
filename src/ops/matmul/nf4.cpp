#include "trireme/ops/matmul/nf4.h"

#include "matmul/nf4_launch.h"
#include "trireme/base/error.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

namespace trireme {

namespace {

/// Values quantised at a time: the temporaries of more would take too much memory.
constexpr int64_t kChunk = int64_t{1} << 24;

/// Quantiles of a normal distribution, with a zero, divided by the largest (QLoRA, appendix E).
constexpr float kBook[16] = {-1.0f,
                             -0.6961928009986877f,
                             -0.5250730514526367f,
                             -0.39491748809814453f,
                             -0.28444138169288635f,
                             -0.18477343022823334f,
                             -0.09105003625154495f,
                             0.0f,
                             0.07958029955625534f,
                             0.16093020141124725f,
                             0.24611230194568634f,
                             0.33791524171829224f,
                             0.44070982933044434f,
                             0.5626170039176941f,
                             0.7229568362236023f,
                             1.0f};

std::vector<float> book() { return {std::begin(kBook), std::end(kBook)}; }

/// The dynamic map: seven decades, of which decade i has 2^i fractions, the middles of equal parts of [0.1, 1], with
/// both signs; 0 and 1 beside them. (8-bit optimizers via block-wise quantization, section 1.3.)
std::vector<float> dynamic_map() {
  std::vector<float> map = {0.0f, 1.0f};
  for (int decade = 0; decade < 7; ++decade) {
    const at::Tensor edges = at::linspace(0.1, 1, (1 << decade) + 1, at::TensorOptions(at::kFloat));
    for (int64_t i = 0; i + 1 < edges.numel(); ++i) {
      const float middle = (edges[i].item<float>() + edges[i + 1].item<float>()) / 2.0f;
      const float value = static_cast<float>(std::pow(10.0, decade - 6)) * middle;
      map.insert(map.end(), {value, -value});
    }
  }
  std::sort(map.begin(), map.end());
  return map;
}

/// The largest number of each code: the middle between it and the next. A middle itself has the lower code, or with
/// `to_even` the even one.
std::vector<float> bounds_of(const std::vector<float>& codes, bool to_even) {
  std::vector<float> bounds;
  for (size_t i = 0; i + 1 < codes.size(); ++i) {
    const float middle = (codes[i] + codes[i + 1]) * 0.5f;
    bounds.push_back(to_even && i % 2 == 1 ? std::nextafter(middle, -std::numeric_limits<float>::infinity()) : middle);
  }
  return bounds;
}

/// A table on a device, copied there once.
const at::Tensor& table(const std::vector<float>& (*values)(), at::Device device) {
  static std::mutex mutex;
  // Never destroyed: the CUDA driver is gone before static objects are.
  static auto* const tables = new std::map<std::pair<const void*, std::string>, at::Tensor>;
  const std::lock_guard lock(mutex);
  at::Tensor& known = (*tables)[{reinterpret_cast<const void*>(values), device.str()}];
  if (!known.defined()) known = at::tensor(values(), at::TensorOptions(at::kFloat)).to(device);
  return known;
}

const std::vector<float>& book_values() {
  static const std::vector<float> values = book();
  return values;
}
const std::vector<float>& map_values() {
  static const std::vector<float> values = dynamic_map();
  return values;
}
const std::vector<float>& book_bounds() {
  static const std::vector<float> values = bounds_of(book(), /*to_even=*/false);
  return values;
}
const std::vector<float>& map_bounds() {
  static const std::vector<float> values = bounds_of(dynamic_map(), /*to_even=*/true);
  return values;
}

/// x [n] in rows of `block`, with zeros at the end.
at::Tensor in_blocks(const at::Tensor& x, int64_t block) {
  const int64_t rest = x.numel() % block;
  return (rest == 0 ? x : at::constant_pad_nd(x, {0, block - rest})).view({-1, block});
}

/// Codes, int32 [blocks, size], of fp32 blocks with their largest magnitudes [blocks]. Smaller ones than 1e-38 count as
/// 1e-38, which keeps the reciprocal finite.
at::Tensor codes_of(const at::Tensor& blocks, const at::Tensor& absmax, const at::Tensor& bounds) {
  const at::Tensor scaled = blocks.mul(absmax.clamp_min(1e-38f).reciprocal().unsqueeze(1));
  return at::bucketize(scaled, bounds, /*out_int32=*/true);
}

}  // namespace

const at::Tensor& nf4_book(at::Device device) { return table(book_values, device); }
const at::Tensor& nf4_map(at::Device device) { return table(map_values, device); }

at::Tensor nf4_quantize_(const at::Tensor& codes, const at::Tensor& values) {
  TRIREME_CHECK(codes.scalar_type() == at::kByte && codes.numel() == nf4_code_bytes(values.numel()), codes.numel(),
                " bytes for the codes of ", values.numel(), " values");
  at::Tensor absmax = at::empty({nf4_blocks(values.numel())}, values.options().dtype(at::kFloat));
  const at::Tensor bounds = table(book_bounds, values.device()), flat = values.view({-1}), bytes = codes.view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kChunk) {
    const int64_t count = std::min(kChunk, flat.numel() - begin);
    const at::Tensor blocks = in_blocks(flat.narrow(0, begin, count).to(at::kFloat), kNf4Block);
    const at::Tensor largest = absmax.narrow(0, begin / kNf4Block, blocks.size(0));
    at::amax_out(const_cast<at::Tensor&>(largest), blocks.abs(), {1});
    const at::Tensor pairs = codes_of(blocks, largest, bounds).view({-1, 2});
    const at::Tensor packed = pairs.select(1, 0).mul(16).add_(pairs.select(1, 1));
    const int64_t size = nf4_code_bytes(count);
    bytes.narrow(0, begin / 2, size).copy_(packed.narrow(0, 0, size));
  }
  return absmax;
}

void nf4_quantize_scales_(const Nf4Scales& scales, const at::Tensor& absmax) {
  scales.offset.copy_(absmax.mean());
  const at::Tensor blocks = in_blocks(absmax.sub(scales.offset), kNf4NestedBlock);
  scales.nested.copy_(blocks.abs().amax({1}));
  const at::Tensor codes = codes_of(blocks, scales.nested, table(map_bounds, absmax.device()));
  scales.absmax.copy_(codes.view({-1}).narrow(0, 0, absmax.numel()));
}

void nf4_dequantize_(const at::Tensor& target, const at::Tensor& codes, const Nf4Scales& scales) {
  const int64_t count = target.numel(), blocks = nf4_blocks(count);
  TRIREME_CHECK(target.is_contiguous() && codes.numel() == nf4_code_bytes(count) && scales.absmax.numel() == blocks &&
                    scales.nested.numel() == nf4_nested_blocks(count),
                count, " values from ", codes.numel(), " bytes of codes, ", scales.absmax.numel(), " and ",
                scales.nested.numel(), " scales");
  const Choice choice = Dispatch("nf4_dequantize", target).choice();
  TRIREME_RETURN_LAUNCH(choice, nf4_dequantize_(target, codes, scales));
  const at::Tensor out = target.variable_data().view({-1}), book = nf4_book(target.device()),
                   map = nf4_map(target.device());
  const at::Tensor nested = scales.nested.repeat_interleave(kNf4NestedBlock).narrow(0, 0, blocks);
  const at::Tensor absmax = map.index_select(0, scales.absmax.to(at::kInt)).mul_(nested).add_(scales.offset);
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t n = std::min(kChunk, count - begin);
    const at::Tensor bytes = codes.view({-1}).narrow(0, begin / 2, nf4_code_bytes(n)).to(at::kInt);
    const at::Tensor pairs = at::stack({bytes.div(16, "floor"), bytes.remainder(16)}, 1).view({-1}).narrow(0, 0, n);
    const at::Tensor values = in_blocks(book.index_select(0, pairs), kNf4Block);
    const at::Tensor scaled = values.mul_(absmax.narrow(0, begin / kNf4Block, values.size(0)).unsqueeze(1));
    out.narrow(0, begin, n).copy_(scaled.view({-1}).narrow(0, 0, n));
  }
}

}  // namespace trireme
