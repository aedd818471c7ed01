#include "trireme/ops/matmul/nf4.h"

#include "matmul/nf4_launch.h"
#include "trireme/base/error.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

namespace {

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

/// What codes stand for, and the largest number of each code but the last: the middle between it and the next.
struct Nf4Tables {
  at::Tensor book, map, book_bounds, map_bounds;
};

/// A number in the middle itself has the lower code, of scales the even one.
Nf4Tables make_tables() {
  const auto fp32 = at::TensorOptions(at::kFloat);
  // Seven decades, of which decade i has 2^i fractions, the middles of equal parts of [0.1, 1], with both signs; 0 and
  // 1 beside them. (8-bit optimizers via block-wise quantization, section 1.3.)
  std::vector<at::Tensor> parts = {at::tensor({0.0f, 1.0f}, fp32)};
  for (int decade = 0; decade < 7; ++decade) {
    const at::Tensor edges = at::linspace(0.1, 1, (1 << decade) + 1, fp32);
    const at::Tensor middles = edges.slice(0, 0, -1).add(edges.slice(0, 1)).div(2.0);
    parts.push_back(middles.mul(std::pow(10.0, decade - 6)));
    parts.push_back(parts.back().neg());
  }
  Nf4Tables tables{at::tensor(at::ArrayRef<float>(kBook), fp32), std::get<0>(at::cat(parts).sort()), {}, {}};
  const auto middles = [](const at::Tensor& codes) { return codes.slice(0, 0, -1).add(codes.slice(0, 1)).mul(0.5); };
  tables.book_bounds = middles(tables.book);
  tables.map_bounds = middles(tables.map);
  at::Tensor odd = tables.map_bounds.slice(0, 1, std::nullopt, 2);
  odd.copy_(at::nextafter(odd, at::full_like(odd, -2)));
  return tables;
}

const Nf4Tables& tables_on(at::Device device) {
  static std::mutex mutex;
  // Never destroyed: the CUDA driver is gone before static objects are.
  static auto* const known = new std::map<std::string, Nf4Tables>;
  const std::lock_guard lock(mutex);
  const auto [found, fresh] = known->try_emplace(device.str());
  if (fresh) {
    const Nf4Tables host = make_tables();
    found->second = {host.book.to(device), host.map.to(device), host.book_bounds.to(device),
                     host.map_bounds.to(device)};
  }
  return found->second;
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

const at::Tensor& nf4_book(at::Device device) { return tables_on(device).book; }
const at::Tensor& nf4_map(at::Device device) { return tables_on(device).map; }

at::Tensor nf4_quantize_(const at::Tensor& codes, const at::Tensor& values) {
  TRIREME_CHECK(codes.scalar_type() == at::kByte && codes.numel() == nf4_code_bytes(values.numel()), codes.numel(),
                " bytes for the codes of ", values.numel(), " values");
  at::Tensor absmax = at::empty({nf4_blocks(values.numel())}, values.options().dtype(at::kFloat));
  const at::Tensor bounds = tables_on(values.device()).book_bounds, flat = values.view({-1}), bytes = codes.view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kNf4Chunk) {
    const int64_t count = std::min(kNf4Chunk, flat.numel() - begin);
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
  const at::Tensor codes = codes_of(blocks, scales.nested, tables_on(absmax.device()).map_bounds);
  scales.absmax.copy_(codes.view({-1}).narrow(0, 0, absmax.numel()));
}

void nf4_dequantize_(const at::Tensor& target, const at::Tensor& codes, const Nf4Scales& scales) {
  const int64_t count = target.numel(), blocks = nf4_blocks(count);
  TRIREME_CHECK(target.is_contiguous() && codes.numel() == nf4_code_bytes(count) && scales.absmax.numel() == blocks &&
                    scales.nested.numel() == nf4_nested_blocks(count),
                count, " values from ", codes.numel(), " bytes of codes, ", scales.absmax.numel(), " and ",
                scales.nested.numel(), " scales");
  const Choice choice = Dispatch("nf4_dequantize", target)
                            .needs(count % 8 == 0 && reinterpret_cast<uintptr_t>(target.const_data_ptr()) % 16 == 0,
                                   "values are not in aligned groups of eight")
                            .choice();
  TRIREME_RETURN_LAUNCH(choice, nf4_dequantize_(target, codes, scales));
  const at::Tensor out = target.variable_data().view({-1}), book = nf4_book(target.device()),
                   map = nf4_map(target.device());
  const at::Tensor nested = scales.nested.repeat_interleave(kNf4NestedBlock).narrow(0, 0, blocks);
  const at::Tensor absmax = map.index_select(0, scales.absmax.to(at::kInt)).mul_(nested).add_(scales.offset);
  for (int64_t begin = 0; begin < count; begin += kNf4Chunk) {
    const int64_t n = std::min(kNf4Chunk, count - begin);
    const at::Tensor bytes = codes.view({-1}).narrow(0, begin / 2, nf4_code_bytes(n)).to(at::kInt);
    const at::Tensor pairs = at::stack({bytes.div(16, "floor"), bytes.remainder(16)}, 1).view({-1}).narrow(0, 0, n);
    const at::Tensor values = in_blocks(book.index_select(0, pairs), kNf4Block);
    const at::Tensor scaled = values.mul_(absmax.narrow(0, begin / kNf4Block, values.size(0)).unsqueeze(1));
    out.narrow(0, begin, n).copy_(scaled.view({-1}).narrow(0, 0, n));
  }
}

}  // namespace trireme
