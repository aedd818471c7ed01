#include "trireme/ops/pack_attention.h"

#include "capsule.h"
#include "trireme/base/error.h"
#include "trireme/base/rng.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Plan {
  PackLayout layout;
  double scale;
  Dropout dropout;
  uint64_t stream;
};

/// x * mask for probabilities [N, S, S] of the query tokens begin … begin + S.
at::Tensor drop_probabilities(const at::Tensor& p_NSS, const Plan& plan, int64_t begin) {
  if (!plan.dropout.active()) return p_NSS;
  Dropout dropout = plan.dropout;
  dropout.sample_ids_B = plan.dropout.sample_ids_B.narrow(0, begin, p_NSS.size(1));
  return apply_dropout(p_NSS.transpose(0, 1), dropout, plan.stream).transpose(0, 1);
}

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
    for_each(plan, [&](int64_t begin, int64_t length) {
      const at::Tensor heads = qkv.narrow(0, begin, length).permute({1, 2, 0, 3});  // [3, N, S, H]
      const at::Tensor p = drop_probabilities(probabilities(heads[0], heads[1], plan.scale), plan, begin);
      out.narrow(0, begin, length).copy_(at::matmul(p, heads[2]).transpose(0, 1));
    });
    return out.view({qkv.size(0), -1});
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::Tensor qkv = ctx->get_saved_variables()[0];
    const Plan& plan = from_capsule<Plan>(ctx->saved_data["plan"]);
    const at::Tensor dy = gradients[0].reshape({qkv.size(0), qkv.size(2), qkv.size(3)});
    at::Tensor d_qkv = at::empty_like(qkv);
    for_each(plan, [&](int64_t begin, int64_t length) {
      const at::Tensor heads = qkv.narrow(0, begin, length).permute({1, 2, 0, 3});
      const at::Tensor out = dy.narrow(0, begin, length).transpose(0, 1);  // [N, S, H]
      const at::Tensor p = probabilities(heads[0], heads[1], plan.scale);
      const at::Tensor dv = at::matmul(drop_probabilities(p, plan, begin).transpose(1, 2), out);
      const at::Tensor dp = drop_probabilities(at::matmul(out, heads[2].transpose(1, 2)), plan, begin);
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
    for (size_t i = 0; i + 1 < bounds.size(); ++i) f(bounds[i], bounds[i + 1] - bounds[i]);
  }
};

struct Flash : torch::autograd::Function<Flash> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const Plan& plan) {
    const double p = plan.dropout.active() ? plan.dropout.p : 0.0;
    if (p > 0) {
      at::Generator generator = at::globalContext().defaultGenerator(qkv.device());
      const std::scoped_lock lock(generator.mutex());
      generator.set_current_seed(derive_seed(plan.dropout.seed ^ plan.layout.key, "attention dropout", plan.stream));
    }
    const at::Tensor& bounds = plan.layout.boundaries_device;
    const auto [out, log_sum, rng_state, unused, mask] =
        at::_flash_attention_forward(qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2), bounds, bounds, plan.layout.longest,
                                     plan.layout.longest, p, /*is_causal=*/false, /*return_debug_mask=*/false, plan.scale);
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
        dy, qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2), saved[1], saved[2], bounds, bounds, plan.layout.longest,
        plan.layout.longest, plan.dropout.active() ? plan.dropout.p : 0.0, /*is_causal=*/false, saved[3], saved[4], plan.scale);
    return {at::stack({dq, dk, dv}, 1), at::Tensor()};
  }
};

}  // namespace

PackLayout make_pack_layout(std::vector<int32_t> boundaries, uint64_t key, at::Device device) {
  TRIREME_CHECK(boundaries.size() >= 2 && boundaries.front() == 0, "a pack needs boundaries from 0, got ", boundaries.size());
  PackLayout layout;
  layout.key = key;
  for (size_t i = 1; i < boundaries.size(); ++i) {
    TRIREME_CHECK(boundaries[i] > boundaries[i - 1], "sequence boundary ", boundaries[i], " follows ", boundaries[i - 1]);
    layout.longest = std::max<int64_t>(layout.longest, boundaries[i] - boundaries[i - 1]);
  }
  if (device.is_cuda()) {
    const at::Tensor host = at::empty({static_cast<int64_t>(boundaries.size())}, at::TensorOptions(at::kInt).pinned_memory(true));
    std::copy(boundaries.begin(), boundaries.end(), host.mutable_data_ptr<int32_t>());
    layout.boundaries_device = host.to(device, /*non_blocking=*/true);
  }
  layout.boundaries = std::move(boundaries);
  return layout;
}

at::Tensor pack_attention(const at::Tensor& qkv, const PackLayout& layout, double scale, const Dropout& dropout, uint64_t stream) {
  TRIREME_CHECK(qkv.dim() == 4 && qkv.size(1) == 3 && qkv.is_contiguous(), "pack attention: qkv ", qkv.sizes());
  TRIREME_CHECK(!layout.boundaries.empty() && layout.boundaries.back() == qkv.size(0), "pack attention: sequences end at ",
                layout.boundaries.empty() ? -1 : layout.boundaries.back(), ", there are ", qkv.size(0), " tokens");
  const Plan plan{layout, scale, dropout, stream};
  if (qkv.is_cuda() && qkv.element_size() == 2) return Flash::apply(qkv, plan);
  return EachSequence::apply(qkv, plan);
}

}  // namespace trireme
