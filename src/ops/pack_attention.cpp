#include "trireme/ops/pack_attention.h"

#include "attention_bridge.h"
#include "attention_choice.h"
#include "capsule.h"
#include "trireme/base/dropout_steps.h"
#include "trireme/base/error.h"
#include "trireme/base/rng.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>
#include <string>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A decision's word has 16 bits for the row and 16 for the column.
constexpr int64_t kLongestDropped = 65536;

struct Plan {
  PackLayout layout;
  double scale;
  Dropout dropout;
  uint64_t stream;
};

uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaad;
  x ^= x >> 15;
  x *= 0x735a2d97;
  return x ^ x >> 15;
}

/// What probabilities [N, S, S] of a sequence are multiplied with; undefined without dropout.
at::Tensor dropout_factors(const at::Tensor& qkv, const Plan& plan, size_t sequence, int64_t length) {
  if (!plan.dropout.active()) return {};
  const DropoutKey key = dropout_key(plan.dropout, plan.stream);
  const uint32_t threshold = attention_dropout_threshold(plan.dropout.p);
  at::Tensor kept = at::empty({qkv.size(2), length, length}, at::TensorOptions(at::kBool));
  for (int64_t head = 0; head < qkv.size(2); ++head)
    attention_keeps(key, plan.layout.sequence_keys[sequence], static_cast<uint32_t>(head), length, threshold,
                    kept.mutable_data_ptr<bool>() + head * length * length);
  return kept.to(qkv.options()).mul_(128.0 / (128 - threshold));
}

at::Tensor times(const at::Tensor& x, const at::Tensor& factors) { return factors.defined() ? x * factors : x; }

/// softmax in at least fp32, in the dtype of the products afterwards.
at::Tensor probabilities(const at::Tensor& q_NSH, const at::Tensor& k_NSH, double scale) {
  const at::Tensor scores = at::matmul(q_NSH, k_NSH.transpose(1, 2)).mul_(scale);
  const at::ScalarType type = q_NSH.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::softmax(scores, -1, type).to(q_NSH.scalar_type());
}

/// One sequence at a time; backward forms the probabilities again.
struct EachSequence : torch::autograd::Function<EachSequence> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const Plan& plan) {
    ctx->save_for_backward({qkv});
    ctx->saved_data["plan"] = to_capsule(plan);
    at::Tensor out = at::empty({qkv.size(0), qkv.size(2), qkv.size(3)}, qkv.options());
    for_each(plan, [&](size_t sequence, int64_t begin, int64_t length) {
      const at::Tensor heads = qkv.narrow(0, begin, length).permute({1, 2, 0, 3});  // [3, N, S, H]
      const at::Tensor p =
          times(probabilities(heads[0], heads[1], plan.scale), dropout_factors(qkv, plan, sequence, length));
      out.narrow(0, begin, length).copy_(at::matmul(p, heads[2]).transpose(0, 1));
    });
    return out.view({qkv.size(0), -1});
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::Tensor qkv = ctx->get_saved_variables()[0];
    const Plan& plan = from_capsule<Plan>(ctx->saved_data["plan"]);
    const at::Tensor dy = gradients[0].reshape({qkv.size(0), qkv.size(2), qkv.size(3)});
    at::Tensor d_qkv = at::empty_like(qkv);
    for_each(plan, [&](size_t sequence, int64_t begin, int64_t length) {
      const at::Tensor factors = dropout_factors(qkv, plan, sequence, length);
      const at::Tensor heads = qkv.narrow(0, begin, length).permute({1, 2, 0, 3});
      const at::Tensor out = dy.narrow(0, begin, length).transpose(0, 1);  // [N, S, H]
      const at::Tensor p = probabilities(heads[0], heads[1], plan.scale);
      const at::Tensor dv = at::matmul(times(p, factors).transpose(1, 2), out);
      const at::Tensor dp = times(at::matmul(out, heads[2].transpose(1, 2)), factors);
      const at::Tensor ds = (dp - dp.mul(p).sum(-1, true)).mul(p).mul_(plan.scale);
      at::Tensor d = d_qkv.narrow(0, begin, length).permute({1, 2, 0, 3});
      d[0].copy_(at::matmul(ds, heads[1]));
      d[1].copy_(at::matmul(ds.transpose(1, 2), heads[0]));
      d[2].copy_(dv);
    });
    return {d_qkv, at::Tensor()};
  }

  template <class F>
  static void for_each(const Plan& plan, const F& f) {
    const std::vector<int32_t>& bounds = plan.layout.boundaries;
    for (size_t i = 0; i + 1 < bounds.size(); ++i) f(i, bounds[i], bounds[i + 1] - bounds[i]);
  }
};

/// What the bridge takes of a pack; heads [T, N, H] of qkv as they lie.
bridge::AttentionProblem problem_of(const at::Tensor& qkv, const Plan& plan) {
  const PackLayout& layout = plan.layout;
  TRIREME_CHECK(layout.work != nullptr, "the layout of a pack was not made by make_pack_layout()");
  bridge::AttentionProblem problem;
  problem.lists = bridge::attention_lists(*layout.work, layout.boundaries, qkv.size(3), /*causal=*/false, qkv.device());
  problem.causal = false;
  problem.scale = plan.scale;
  if (plan.dropout.active()) {
    const DropoutKey key = dropout_key(plan.dropout, plan.stream);
    problem.drops = {attention_dropout_threshold(plan.dropout.p), key.t0, key.t1, layout.sequence_keys_device};
  }
  return problem;
}

struct Hopper : torch::autograd::Function<Hopper> {
  static bool serves(const at::Tensor& qkv, const PackLayout& layout, const Dropout& dropout) {
    return bridge::serves_attention(qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2)) &&
           (!dropout.active() || (qkv.size(3) == 64 && layout.longest <= kLongestDropped));
  }

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const Plan& plan) {
    const auto [out, lse] =
        bridge::attention_forward(qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2), problem_of(qkv, plan));
    ctx->save_for_backward({qkv, out, lse});
    ctx->saved_data["plan"] = to_capsule(plan);
    return out.view({qkv.size(0), -1});
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const Plan& plan = from_capsule<Plan>(ctx->saved_data["plan"]);
    const at::Tensor &qkv = saved[0], &out = saved[1], &lse = saved[2];
    const at::Tensor d_qkv = at::empty_like(qkv);
    bridge::attention_backward(gradients[0].contiguous().view(out.sizes()), qkv.select(1, 0), qkv.select(1, 1),
                               qkv.select(1, 2), out, lse, problem_of(qkv, plan),
                               at::globalContext().deterministicAlgorithms(),
                               {d_qkv.select(1, 0), d_qkv.select(1, 1), d_qkv.select(1, 2)});
    return {d_qkv, at::Tensor()};
  }
};

struct Flash : torch::autograd::Function<Flash> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const Plan& plan) {
    const double p = plan.dropout.active() ? plan.dropout.p : 0.0;
    if (p > 0) {
      at::Generator generator = at::globalContext().defaultGenerator(qkv.device());
      const std::scoped_lock lock(generator.mutex());
      generator.set_current_seed(derive_seed(plan.dropout.seed ^ static_cast<uint64_t>(plan.layout.sequence_keys[0]),
                                             "attention dropout", plan.stream));
    }
    const at::Tensor& bounds = plan.layout.boundaries_device;
    const auto [out, log_sum, rng_state, unused, mask] = at::_flash_attention_forward(
        qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2), bounds, bounds, plan.layout.longest, plan.layout.longest,
        p, /*is_causal=*/false, /*return_debug_mask=*/false, plan.scale);
    ctx->save_for_backward({qkv, out, log_sum, rng_state, unused});
    ctx->saved_data["plan"] = to_capsule(plan);
    return out.view({qkv.size(0), -1});
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const Plan& plan = from_capsule<Plan>(ctx->saved_data["plan"]);
    const at::Tensor& qkv = saved[0];
    const at::Tensor& bounds = plan.layout.boundaries_device;
    const at::Tensor dy = gradients[0].contiguous().view(saved[1].sizes());
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        dy, qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2), saved[1], saved[2], bounds, bounds,
        plan.layout.longest, plan.layout.longest, plan.dropout.active() ? plan.dropout.p : 0.0, /*is_causal=*/false,
        saved[3], saved[4], plan.scale);
    return {at::stack({dq, dk, dv}, 1), at::Tensor()};
  }
};

template <class T>
at::Tensor on_device(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  const at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(type).pinned_memory(true));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return host.to(device, /*non_blocking=*/true);
}

}  // namespace

uint32_t attention_dropout_threshold(double p) {
  TRIREME_CHECK(p >= 0 && p < 1, "dropout probability ", p, " is not in [0, 1)");
  const std::string why = dropout_problem(p, kAttentionDropoutSteps);
  TRIREME_CHECK(why.empty(), "attention dropout probability ", why);
  return dropout_threshold(p, kAttentionDropoutSteps);
}

void attention_keeps(const DropoutKey& key, int64_t sequence_key, uint32_t head, int64_t length, uint32_t threshold,
                     bool* out) {
  TRIREME_CHECK(length <= kLongestDropped,
                "dropout's decisions on attention name rows and columns with 16 bits: ", "a sequence of ", length,
                " tokens is longer than ", kLongestDropped);
  const auto sample = static_cast<uint64_t>(sequence_key);
  const uint32_t h0 = mix(mix(static_cast<uint32_t>(sample) ^ key.t0) ^ static_cast<uint32_t>(sample >> 32) ^ key.t1);
  const uint32_t h1 = mix(h0 + 0x9e3779b9);
  const uint32_t k0 = mix(h0 ^ (head * 0x9e3779b9 + 1)), k1 = mix(k0 ^ h1);
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

PackLayout make_pack_layout(std::vector<int32_t> boundaries, std::vector<int64_t> sequence_keys, at::Device device) {
  TRIREME_CHECK(boundaries.size() >= 2 && boundaries.front() == 0 && sequence_keys.size() + 1 == boundaries.size(),
                "a pack needs boundaries from 0 and a key for each sequence, got ", boundaries.size(), " and ",
                sequence_keys.size());
  PackLayout layout;
  for (size_t i = 1; i < boundaries.size(); ++i) {
    TRIREME_CHECK(boundaries[i] > boundaries[i - 1], "sequence boundary ", boundaries[i], " follows ",
                  boundaries[i - 1]);
    layout.longest = std::max<int64_t>(layout.longest, boundaries[i] - boundaries[i - 1]);
  }
  if (device.is_cuda()) {
    layout.boundaries_device = on_device(boundaries, at::kInt, device);
    layout.sequence_keys_device = on_device(sequence_keys, at::kLong, device);
    layout.work = std::make_shared<AttentionWork>();
  }
  layout.boundaries = std::move(boundaries);
  layout.sequence_keys = std::move(sequence_keys);
  return layout;
}

at::Tensor pack_attention(const at::Tensor& qkv, const PackLayout& layout, double scale, const Dropout& dropout,
                          uint64_t stream) {
  TRIREME_CHECK(qkv.dim() == 4 && qkv.size(1) == 3 && qkv.is_contiguous(), "pack attention: qkv ", qkv.sizes());
  TRIREME_CHECK(!layout.boundaries.empty() && layout.boundaries.back() == qkv.size(0),
                "pack attention: sequences end at ", layout.boundaries.empty() ? -1 : layout.boundaries.back(),
                ", there are ", qkv.size(0), " tokens");
  const Plan plan{layout, scale, dropout, stream};
  // Measured faster than LibTorch's kernels on every mix of packs tried (docs/benchmarks.md).
  if (attention_choice() != AttentionChoice::kLibrary && Hopper::serves(qkv, layout, dropout))
    return Hopper::apply(qkv, plan);
  if (qkv.is_cuda() && qkv.element_size() == 2) return Flash::apply(qkv, plan);
  return EachSequence::apply(qkv, plan);
}

}  // namespace trireme
