#include "trireme/nn/init.h"

#include "trireme/base/rng.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace trireme {

namespace {
/// Elements are drawn in blocks of this size, each from its own generator.
constexpr int64_t kBlock = int64_t{1} << 22;
}  // namespace

namespace {

/// Zeroes the rows of a parameter that must start as zeros (padding of a vocabulary). `target` holds elements from
/// `begin` on of the parameter's only part.
void clear_padding(const ParameterSpec& spec, int64_t begin, const at::Tensor& target) {
  if (spec.zero_rows_from < 0) return;
  const int64_t first = std::max<int64_t>(0, spec.zero_rows_from * (spec.numel() / spec.shape[0]) - begin);
  if (first < target.numel()) target.narrow(0, first, target.numel() - first).zero_();
}

}  // namespace

void draw_initial_values(const ParameterSpec& spec, const ParameterPart& part, uint64_t seed, int64_t begin,
                         const at::Tensor& target) {
  at::NoGradGuard no_grad;
  if (spec.init == Init::kOnes || spec.init == Init::kZeros) {
    target.fill_(spec.init == Init::kOnes ? 1.0 : 0.0);
    return;
  }
  at::Generator generator = at::globalContext().defaultGenerator(target.device()).clone();
  const int64_t end = begin + target.numel(), whole = spec.numel() / spec.shape[0] * part.rows;
  for (int64_t block = begin / kBlock; block * kBlock < end; ++block) {
    const int64_t from = std::max(begin, block * kBlock), to = std::min(end, (block + 1) * kBlock);
    generator.set_current_seed(derive_seed(seed, part.name, static_cast<uint64_t>(block)));
    // A generator draws vectors of numbers at a time, so the length of a block depends on the tensor only and never on
    // the range that is requested.
    at::Tensor values = at::empty({std::min(kBlock, whole - block * kBlock)}, target.options().dtype(at::kFloat));
    if (spec.init == Init::kNormal)
      values.normal_(0.0, spec.init_scale, generator);
    else
      values.uniform_(-spec.init_scale, spec.init_scale, generator);
    target.narrow(0, from - begin, to - from).copy_(values.narrow(0, from - block * kBlock, to - from));
  }
  clear_padding(spec, begin, target);
}

}  // namespace trireme
