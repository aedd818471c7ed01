#include "trireme/ops/dropout.h"

#include "dropout_launch.h"
#include "trireme/base/error.h"
#include "trireme/base/rng.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <cmath>
#include <type_traits>

namespace trireme {

namespace {

constexpr uint32_t kFirst = 0x21f0aaad, kSecond = 0x735a2d97, kGolden = 0x9e3779b9;

inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= kFirst;
  x ^= x >> 15;
  x *= kSecond;
  x ^= x >> 15;
  return x;
}

/// The same on an int64 tensor that holds 32-bit values; consumes x.
at::Tensor mix_(at::Tensor x) {
  constexpr int64_t kMask = 0xffffffff;
  x.bitwise_xor_(x.bitwise_right_shift(16));
  x.mul_(static_cast<int64_t>(kFirst)).bitwise_and_(kMask);
  x.bitwise_xor_(x.bitwise_right_shift(15));
  x.mul_(static_cast<int64_t>(kSecond)).bitwise_and_(kMask);
  x.bitwise_xor_(x.bitwise_right_shift(15));
  return x;
}

/// Elements of a sample.
int64_t count_sample(const at::Tensor& x, const Dropout& dropout) {
  const at::Tensor& ids = dropout.sample_ids_B;
  TRIREME_CHECK(ids.defined() && ids.dim() == 1 && ids.numel() > 0 && ids.scalar_type() == at::kLong,
                "dropout needs int64 sample ids");
  TRIREME_CHECK(x.dim() >= 2 && (x.numel() / x.size(-1)) % ids.numel() == 0, "dropout of ", x.sizes(), " with ",
                ids.numel(), " sample ids: the rows do not divide into samples");
  const int64_t sample = x.numel() / ids.numel();
  TRIREME_CHECK(sample <= (int64_t{1} << 33), "a sample of ", sample,
                " elements exceeds the 2^33 that the dropout counter addresses");
  return sample;
}

template <class T>
void drop_rows(const T* in, T* out, const int64_t* ids, int64_t rows, int64_t row_size, const DropoutKey& key) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Wide scale = static_cast<Wide>(key.scale);
  const uint32_t threshold = key.threshold;
  for (int64_t b = 0; b < rows; ++b, in += row_size, out += row_size) {
    const uint64_t id = static_cast<uint64_t>(ids[b]);
    const uint32_t k0 = mix(mix(static_cast<uint32_t>(id) ^ key.t0) ^ static_cast<uint32_t>(id >> 32) ^ key.t1);
    const uint32_t k1 = mix(k0 + kGolden);
    const int64_t words = row_size / 2;
    for (int64_t w = 0; w < words; ++w) {
      const uint32_t h = mix(mix(static_cast<uint32_t>(w) ^ k0) ^ k1);
      out[2 * w] = (h & 0xffff) >= threshold ? static_cast<T>(static_cast<Wide>(in[2 * w]) * scale) : static_cast<T>(0);
      out[2 * w + 1] =
          (h >> 16) >= threshold ? static_cast<T>(static_cast<Wide>(in[2 * w + 1]) * scale) : static_cast<T>(0);
    }
    if (row_size % 2 != 0) {
      const uint32_t h = mix(mix(static_cast<uint32_t>(words) ^ k0) ^ k1);
      out[row_size - 1] =
          (h & 0xffff) >= threshold ? static_cast<T>(static_cast<Wide>(in[row_size - 1]) * scale) : static_cast<T>(0);
    }
  }
}

/// apply_dropout() under autograd; the mask is recomputed, nothing but the ids is kept.
struct DropoutNode {
  Input x;
  Dropout dropout;
  variable_list forward() { return {apply_dropout(std::exchange(x.value, {}), dropout)}; }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    gradients.set(x, apply_dropout(d_outputs[0], dropout));
  }
};

Choice dropout_choice(const at::Tensor& x) { return Dispatch("dropout", x).choice(); }

at::Tensor apply_on_cpu(const at::Tensor& x_any, const Dropout& dropout, int64_t sample) {
  at::NoGradGuard no_grad;
  const DropoutKey key = dropout_key(dropout);
  const at::Tensor x = x_any.contiguous(), ids = dropout.sample_ids_B.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "apply_dropout", [&] {
    drop_rows(x.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), ids.const_data_ptr<int64_t>(),
              ids.numel(), sample, key);
  });
  return out;
}

}  // namespace

DropoutKey dropout_key(const Dropout& dropout) {
  TRIREME_CHECK(dropout.p >= 0 && dropout.p < 1, "dropout probability ", dropout.p, " is not in [0, 1)");
  const uint64_t key = derive_seed(dropout.seed, "dropout", dropout.stream);
  const auto threshold = static_cast<uint32_t>(std::min(65535.0, std::round(dropout.p * 65536)));
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), threshold, 65536.0 / (65536 - threshold)};
}

at::Tensor apply_dropout_tensor_ops(const at::Tensor& x, const Dropout& dropout) {
  const int64_t sample = count_sample(x, dropout), words = (sample + 1) / 2;
  at::NoGradGuard no_grad;
  const DropoutKey key = dropout_key(dropout);
  const at::Tensor& ids = dropout.sample_ids_B;
  constexpr int64_t kMask = 0xffffffff;
  at::Tensor k0_B = mix_(ids.bitwise_and(kMask).bitwise_xor_(static_cast<int64_t>(key.t0)));
  k0_B.bitwise_xor_(ids.bitwise_right_shift(32).bitwise_and_(kMask)).bitwise_xor_(static_cast<int64_t>(key.t1));
  k0_B = mix_(k0_B);
  const at::Tensor k1_B = mix_(k0_B.add(static_cast<int64_t>(kGolden)).bitwise_and_(kMask));

  const at::Tensor counter = at::arange(words, ids.options());
  at::Tensor out = at::empty(x.sizes(), x.options());
  const at::Tensor x_flat = x.reshape({ids.numel(), sample}), out_flat = out.view({ids.numel(), sample});
  for (int64_t b = 0; b < ids.numel(); ++b) {
    const at::Tensor hash = mix_(mix_(counter.bitwise_xor(k0_B[b])).bitwise_xor_(k1_B[b]));
    const at::Tensor kept =
        at::stack({hash.bitwise_and(0xffff), hash.bitwise_right_shift(16)}, 1).ge(static_cast<int64_t>(key.threshold));
    const at::Tensor row = x_flat[b];
    out_flat[b].copy_(at::where(kept.view({-1}).narrow(0, 0, sample), row * key.scale, at::zeros({}, row.options())));
  }
  return out;
}

at::Tensor apply_dropout(const at::Tensor& x, const Dropout& dropout) {
  const int64_t sample = count_sample(x, dropout);
  TRIREME_LAUNCH(dropout_choice(x), dropout(x.contiguous(), dropout));
  return x.is_cpu() ? apply_on_cpu(x, dropout, sample) : apply_dropout_tensor_ops(x, dropout);
}

void add_dropout_(const at::Tensor& sum, const at::Tensor& x, const Dropout& dropout) {
  at::NoGradGuard no_grad;
  count_sample(x, dropout);
  if (sum.is_contiguous()) TRIREME_LAUNCH(dropout_choice(x), add_dropout_(sum, x.contiguous(), dropout));
  sum.add_(apply_dropout(x, dropout));
}

at::Tensor recorded_dropout(const at::Tensor& x, const Dropout& dropout) {
  InputList inputs;
  DropoutNode node{inputs.add(x), dropout};
  return run_node(std::move(node), inputs)[0];
}

}  // namespace trireme
