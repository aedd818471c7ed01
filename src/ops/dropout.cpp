#include "trireme/ops/dropout.h"

#include "kernel_bridge.h"
#include "trireme/base/error.h"
#include "trireme/base/rng.h"

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

void check_arguments(const at::Tensor& x, const Dropout& dropout) {
  TRIREME_CHECK(x.dim() == 3, "dropout wants [B, S, D], got ", x.dim(), " dimensions");
  TRIREME_CHECK(dropout.sample_ids_B.defined() && dropout.sample_ids_B.dim() == 1 &&
                    dropout.sample_ids_B.size(0) == x.size(0) && dropout.sample_ids_B.scalar_type() == at::kLong,
                "dropout needs one int64 sample id per row, ", x.size(0), " rows");
  TRIREME_CHECK(x.size(1) * x.size(2) <= (int64_t{1} << 33), "a sample of ", x.size(1), " x ", x.size(2),
                " elements exceeds the 2^33 that the dropout counter addresses");
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

}  // namespace

DropoutKey dropout_key(const Dropout& dropout, uint64_t stream) {
  TRIREME_CHECK(dropout.p >= 0 && dropout.p < 1, "dropout probability ", dropout.p, " is not in [0, 1)");
  const uint64_t key = derive_seed(dropout.seed, "dropout", stream);
  const auto threshold = static_cast<uint32_t>(std::min(65535.0, std::round(dropout.p * 65536)));
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), threshold, 65536.0 / (65536 - threshold)};
}

at::Tensor apply_dropout_tensor_ops(const at::Tensor& x_BSD, const Dropout& dropout, uint64_t stream) {
  check_arguments(x_BSD, dropout);
  at::NoGradGuard no_grad;
  const DropoutKey key = dropout_key(dropout, stream);
  const int64_t row_size = x_BSD.size(1) * x_BSD.size(2), words = (row_size + 1) / 2;
  const at::Tensor& ids = dropout.sample_ids_B;
  constexpr int64_t kMask = 0xffffffff;
  at::Tensor k0_B = mix_(ids.bitwise_and(kMask).bitwise_xor_(static_cast<int64_t>(key.t0)));
  k0_B.bitwise_xor_(ids.bitwise_right_shift(32).bitwise_and_(kMask)).bitwise_xor_(static_cast<int64_t>(key.t1));
  k0_B = mix_(k0_B);
  const at::Tensor k1_B = mix_(k0_B.add(static_cast<int64_t>(kGolden)).bitwise_and_(kMask));

  const at::Tensor counter = at::arange(words, ids.options());
  at::Tensor out = at::empty(x_BSD.sizes(), x_BSD.options());
  const at::Tensor x_flat = x_BSD.reshape({x_BSD.size(0), row_size}), out_flat = out.view({x_BSD.size(0), row_size});
  for (int64_t b = 0; b < x_BSD.size(0); ++b) {
    const at::Tensor hash = mix_(mix_(counter.bitwise_xor(k0_B[b])).bitwise_xor_(k1_B[b]));
    const at::Tensor kept =
        at::stack({hash.bitwise_and(0xffff), hash.bitwise_right_shift(16)}, 1).ge(static_cast<int64_t>(key.threshold));
    const at::Tensor row = x_flat[b];
    out_flat[b].copy_(at::where(kept.view({-1}).narrow(0, 0, row_size), row * key.scale, at::zeros({}, row.options())));
  }
  return out;
}

at::Tensor apply_dropout(const at::Tensor& x_BSD, const Dropout& dropout, uint64_t stream) {
  if (bridge::has_kernels(x_BSD)) {
    check_arguments(x_BSD, dropout);
    const at::Tensor x = x_BSD.contiguous();
    at::Tensor out = at::empty(x.sizes(), x.options());
    bridge::dropout(x, out, dropout.sample_ids_B, dropout_key(dropout, stream),
                    /*accumulate=*/false);
    return out;
  }
  if (!x_BSD.is_cpu()) return apply_dropout_tensor_ops(x_BSD, dropout, stream);
  check_arguments(x_BSD, dropout);
  at::NoGradGuard no_grad;
  const DropoutKey key = dropout_key(dropout, stream);
  const at::Tensor x = x_BSD.contiguous(), ids = dropout.sample_ids_B.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "apply_dropout", [&] {
    drop_rows(x.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), ids.const_data_ptr<int64_t>(), x.size(0),
              x.size(1) * x.size(2), key);
  });
  return out;
}

void add_dropout_(at::Tensor& sum_BSD, const at::Tensor& x_BSD, const Dropout& dropout, uint64_t stream) {
  at::NoGradGuard no_grad;
  if (bridge::has_kernels(x_BSD) && sum_BSD.is_contiguous()) {
    check_arguments(x_BSD, dropout);
    bridge::dropout(x_BSD.contiguous(), sum_BSD, dropout.sample_ids_B, dropout_key(dropout, stream),
                    /*accumulate=*/true);
    return;
  }
  sum_BSD.add_(apply_dropout(x_BSD, dropout, stream));
}

}  // namespace trireme
