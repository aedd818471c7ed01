// LibTorch's operations on the shapes of our row kernels, timed in the same process. Part of kernel_bench_torch only.

#include "kernels/bench/attention_peer.h"
#include "kernels/bench/bench.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace trireme::kernels {

namespace {

constexpr int kSets = 3;

std::vector<at::Tensor> matrices(int64_t rows, int64_t columns) {
  std::vector<at::Tensor> sets;
  for (int i = 0; i < kSets; ++i)
    sets.push_back(at::randn({rows, columns}, at::device(at::kCUDA).dtype(at::kBFloat16)));
  return sets;
}

template <class F>
void time(bench::Recorder& recorder, const char* name, const std::string& label, double bytes, const F& run) {
  recorder.time(name, label, Element::kBF16, bytes, kSets, [&](int i) {
    run(i);
    return cudaGetLastError();
  });
}

void norms(bench::Recorder& recorder, int64_t rows, int64_t columns) {
  const double tensor = static_cast<double>(rows * columns * 2);
  const std::string label = bench::shape_text({rows, columns});
  const std::vector<at::Tensor> x = matrices(rows, columns), dy = matrices(rows, columns);
  const at::Tensor w = at::randn({columns}, x[0].options()), b = at::randn({columns}, x[0].options());
  time(recorder, "LibTorch rms_norm forward", label, 2 * tensor,
       [&](int i) { at::_fused_rms_norm(x[i], {columns}, w, 1e-5); });
  const at::Tensor rms = std::get<1>(at::_fused_rms_norm(x[0], {columns}, w, 1e-5));
  time(recorder, "LibTorch rms_norm backward, dx", label, 3 * tensor,
       [&](int i) { at::_fused_rms_norm_backward(dy[i], x[i], {columns}, rms, w, {true, false}); });
  time(recorder, "LibTorch rms_norm backward, dx + dw", label, 3 * tensor,
       [&](int i) { at::_fused_rms_norm_backward(dy[i], x[i], {columns}, rms, w, {true, true}); });
  time(recorder, "LibTorch layer_norm forward", label, 2 * tensor,
       [&](int i) { at::native_layer_norm(x[i], {columns}, w, b, 1e-5); });
  const auto [y, mean, rstd] = at::native_layer_norm(x[0], {columns}, w, b, 1e-5);
  time(recorder, "LibTorch layer_norm backward, dx + d_gamma + d_beta", label, 3 * tensor,
       [&, &m = mean, &r = rstd](int i) {
         at::native_layer_norm_backward(dy[i], x[i], {columns}, m, r, w, b, {true, true, true});
       });
}

void activations(bench::Recorder& recorder, int64_t rows, int64_t columns) {
  const double tensor = static_cast<double>(rows * columns * 2);
  const std::string label = bench::shape_text({rows, columns});
  const std::vector<at::Tensor> gate_up = matrices(rows, 2 * columns), dy = matrices(rows, columns);
  const auto half = [&](int i, int64_t h) { return gate_up[i].narrow(1, h * columns, columns); };
  time(recorder, "LibTorch swiglu forward (silu, mul)", label, 3 * tensor,
       [&](int i) { at::silu(half(i, 0)).mul_(half(i, 1)); });
  time(recorder, "LibTorch gelu forward", label, 2 * tensor, [&](int i) { at::gelu(dy[i]); });
  time(recorder, "LibTorch gelu backward", label, 3 * tensor,
       [&](int i) { at::gelu_backward(dy[i], dy[(i + 1) % kSets]); });
}

at::Tensor heads(std::vector<int64_t> extents) {
  return at::randn(extents, at::device(at::kCUDA).dtype(at::kBFloat16));
}

/// A call of an AttentionPeer.
template <class F>
std::function<cudaError_t()> without_autograd(F call) {
  return [call] {
    const c10::InferenceMode no_autograd;
    call();
    return cudaGetLastError();
  };
}

/// Rows of equal length.
bench::AttentionPeer cudnn_attention(const bench::AttentionProblem& p) {
  const int64_t length = p.bounds[1], batch = p.bounds.back() / length;
  const auto make = [&](int64_t n) { return heads({batch, length, n, p.d}).transpose(1, 2); };
  const at::Tensor q = make(p.q_heads), k = make(p.kv_heads), v = make(p.kv_heads), d_o = make(p.q_heads);
  const double scale = 1 / std::sqrt(static_cast<double>(p.d));
  const bool causal = p.causal;
  const auto forward = [=] {
    return at::_scaled_dot_product_cudnn_attention(q, k, v, {}, true, 0.0, causal, false, scale);
  };
  const auto saved = forward();
  return {"cuDNN", without_autograd(forward), without_autograd([=] {
            at::_scaled_dot_product_cudnn_attention_backward(
                d_o, q, k, v, std::get<0>(saved), std::get<1>(saved), std::get<6>(saved), std::get<7>(saved), {},
                std::get<2>(saved), std::get<3>(saved), length, length, 0.0, causal, scale);
          })};
}

/// Packed sequences, and dropout.
bench::AttentionPeer flash_attention(const bench::AttentionProblem& p) {
  const int64_t tokens = p.bounds.back();
  const at::Tensor q = heads({tokens, p.q_heads, p.d}), k = heads({tokens, p.kv_heads, p.d}),
                   v = heads({tokens, p.kv_heads, p.d}), d_o = heads({tokens, p.q_heads, p.d}),
                   bounds = at::tensor(p.bounds, at::kInt).to(at::kCUDA);
  int64_t longest = 0;
  for (size_t i = 1; i < p.bounds.size(); ++i) longest = std::max<int64_t>(longest, p.bounds[i] - p.bounds[i - 1]);
  const double scale = 1 / std::sqrt(static_cast<double>(p.d)), dropout = p.dropout;
  const bool causal = p.causal;
  const auto forward = [=] {
    return at::_flash_attention_forward(q, k, v, bounds, bounds, longest, longest, dropout, causal, false, scale);
  };
  const auto saved = forward();
  return {"flash", without_autograd(forward), without_autograd([=] {
            at::_flash_attention_backward(d_o, q, k, v, std::get<0>(saved), std::get<1>(saved), bounds, bounds, longest,
                                          longest, dropout, causal, std::get<2>(saved), std::get<3>(saved), scale);
          })};
}

[[maybe_unused]] const bool provided = [] {
  bench::attention_peer = [](const bench::AttentionProblem& p) {
    const c10::InferenceMode no_autograd;
    return p.equal_lengths && p.dropout == 0 ? cudnn_attention(p) : flash_attention(p);
  };
  return true;
}();

}  // namespace

TRIREME_BENCH(peers) {
  const c10::InferenceMode no_autograd;
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{131072, 1024}, {32768, 4096}, {32768, 5120}, {16384, 8192}, {8192, 16384}})
    norms(recorder, rows, columns);
  activations(recorder, 49152, 4096);
  activations(recorder, 8192, 28672);
}

}  // namespace trireme::kernels
