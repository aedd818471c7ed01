// LibTorch's own operations on the shapes of our row kernels, timed in the same process: built into
// kernel_bench_torch only.

#include "kernels/bench/bench.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

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
void time(bench::Recorder& recorder, const char* name, const std::string& label, double bytes,
          const F& run) {
  recorder.time(name, label, Element::kBF16, bytes, kSets, [&](int i) {
    run(i);
    return cudaGetLastError();
  });
}

void norms(bench::Recorder& recorder, int64_t rows, int64_t columns) {
  const double tensor = static_cast<double>(rows * columns * 2);
  const std::string label = bench::shape_text({rows, columns});
  const std::vector<at::Tensor> x = matrices(rows, columns), dy = matrices(rows, columns);
  const at::Tensor w = at::randn({columns}, x[0].options()),
                   b = at::randn({columns}, x[0].options());
  time(recorder, "LibTorch rms_norm forward", label, 2 * tensor,
       [&](int i) { at::_fused_rms_norm(x[i], {columns}, w, 1e-5); });
  const at::Tensor rms = std::get<1>(at::_fused_rms_norm(x[0], {columns}, w, 1e-5));
  time(recorder, "LibTorch rms_norm backward, dx", label, 3 * tensor, [&](int i) {
    at::_fused_rms_norm_backward(dy[i], x[i], {columns}, rms, w, {true, false});
  });
  time(recorder, "LibTorch rms_norm backward, dx + dw", label, 3 * tensor, [&](int i) {
    at::_fused_rms_norm_backward(dy[i], x[i], {columns}, rms, w, {true, true});
  });
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

/// cuDNN's attention on the shapes of attention_bench.cu; TFLOP/s in place of TB/s, as there.
void attention(bench::Recorder& recorder, const char* label, int64_t batch, int64_t length, int64_t heads, int64_t kv_heads, int64_t d, bool causal) {
  const auto make = [&](int64_t n) {
    return at::randn({batch, length, n, d}, at::device(at::kCUDA).dtype(at::kBFloat16)).transpose(1, 2);
  };
  const at::Tensor q = make(heads), k = make(kv_heads), v = make(kv_heads), d_o = make(heads);
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const double work = 4.0 * static_cast<double>(length * length * d * heads * batch) * (causal ? 0.5 : 1);
  const auto forward = [&] { return at::_scaled_dot_product_cudnn_attention(q, k, v, {}, true, 0.0, causal, false, scale); };
  const auto saved = forward();
  time(recorder, "cuDNN attention forward (TFLOP/s)", label, work, [&](int) { forward(); });
  time(recorder, "cuDNN attention backward (TFLOP/s)", label, 2.5 * work, [&](int) {
    at::_scaled_dot_product_cudnn_attention_backward(d_o, q, k, v, std::get<0>(saved), std::get<1>(saved), std::get<6>(saved), std::get<7>(saved),
                                                     {}, std::get<2>(saved), std::get<3>(saved), length, length, 0.0, causal, scale);
  });
}

}  // namespace

TRIREME_BENCH(peers) {
  const c10::InferenceMode no_autograd;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{131072, 1024},
                                      {32768, 4096},
                                      {32768, 5120},
                                      {16384, 8192},
                                      {8192, 16384}})
    norms(recorder, rows, columns);
  attention(recorder, "70B 1 x 8192", 1, 8192, 64, 8, 128, true);
  attention(recorder, "70B 8 x 2048", 8, 2048, 64, 8, 128, true);
  attention(recorder, "7B 2 x 4096", 2, 4096, 32, 32, 128, true);
  attention(recorder, "BERT 48 x 512", 48, 512, 16, 16, 64, false);
  activations(recorder, 49152, 4096);
  activations(recorder, 8192, 28672);
}

}  // namespace trireme::kernels
