#include "trireme/ops/dropout.h"

#include "dropout_parts.h"
#include "trireme/base/dropout_steps.h"
#include "trireme/base/error.h"
#include "trireme/base/rng.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <type_traits>

namespace trireme {

namespace {

constexpr uint32_t kGolden = 0x9e3779b9;

/// Words of one pair of keys. The n-th run of this many words, counted from 0, uses k1 ^ (n * kGolden).
constexpr int64_t kWordsOfKey = int64_t{1} << 32;
uint32_t key_of_upper(uint32_t k1, int64_t word) {
  return k1 ^ (static_cast<uint32_t>(static_cast<uint64_t>(word) >> 32) * kGolden);
}

/// dropout_mix() on an int64 tensor that holds 32-bit values; overwrites x.
at::Tensor mix_(at::Tensor x) {
  constexpr int64_t kMask = 0xffffffff;
  x.bitwise_xor_(x.bitwise_right_shift(16));
  x.mul_(static_cast<int64_t>(kDropoutMixFirst)).bitwise_and_(kMask);
  x.bitwise_xor_(x.bitwise_right_shift(15));
  x.mul_(static_cast<int64_t>(kDropoutMixSecond)).bitwise_and_(kMask);
  x.bitwise_xor_(x.bitwise_right_shift(15));
  return x;
}

/// `first`: index in the sample of the first element of a row of x; even.
template <class T>
void drop_rows(const T* in, T* out, const int64_t* ids, int64_t rows, int64_t row_size, const DropoutKey& key,
               int64_t first) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Wide scale = static_cast<Wide>(key.scale);
  const uint32_t threshold = key.threshold;
  const auto kept = [&](bool keeps, T x) {
    return keeps ? static_cast<T>(static_cast<Wide>(x) * scale) : static_cast<T>(0);
  };
  const int64_t words = row_size / 2, first_word = first / 2;
  for (int64_t b = 0; b < rows; ++b, in += row_size, out += row_size) {
    const uint64_t id = static_cast<uint64_t>(ids[b]);
    const uint32_t k0 =
        dropout_mix(dropout_mix(static_cast<uint32_t>(id) ^ key.t0) ^ static_cast<uint32_t>(id >> 32) ^ key.t1);
    const uint32_t k1 = dropout_mix(k0 + kGolden);
    // Runs of words with equal upper 32 bits.
    for (int64_t begin = 0, end = 0; begin < words; begin = end) {
      const int64_t word = first_word + begin;
      end = std::min(words, begin + kWordsOfKey - word % kWordsOfKey);
      const uint32_t low = static_cast<uint32_t>(word), upper_k1 = key_of_upper(k1, word);
      for (int64_t w = begin; w < end; ++w) {
        const uint32_t h = dropout_mix(dropout_mix((low + static_cast<uint32_t>(w - begin)) ^ k0) ^ upper_k1);
        out[2 * w] = kept((h & 0xffff) >= threshold, in[2 * w]);
        out[2 * w + 1] = kept((h >> 16) >= threshold, in[2 * w + 1]);
      }
    }
    if (row_size % 2 != 0) {
      const int64_t word = first_word + words;
      const uint32_t h = dropout_mix(dropout_mix(static_cast<uint32_t>(word) ^ k0) ^ key_of_upper(k1, word));
      out[row_size - 1] = kept((h & 0xffff) >= threshold, in[row_size - 1]);
    }
  }
}

/// apply_dropout() with autograd. Backward recomputes the mask; only the ids are kept.
struct DropoutNode {
  Input x;
  Dropout dropout;
  variable_list forward() { return {apply_dropout(std::exchange(x.value, {}), dropout)}; }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    gradients.set(x, apply_dropout(d_outputs[0], dropout));
  }
};

/// f(part of x [samples, rows * D], their ids, first element) for each part, as one tensor of x's shape.
template <class F>
at::Tensor over_parts(const at::Tensor& x, const Dropout& dropout, const F& f) {
  const std::vector<DropoutPart> parts = dropout_parts(x, dropout);
  const int64_t width = x.size(-1);
  const at::Tensor rows = x.reshape({-1, width});
  const auto one = [&](const DropoutPart& part) {
    return f(rows.narrow(0, part.begin, part.samples * part.rows).view({part.samples, part.rows * width}),
             dropout.sample_ids_B.narrow(0, part.first_sample, part.samples), part.first_row * width);
  };
  if (parts.size() == 1) return one(parts[0]).view(x.sizes());
  std::vector<at::Tensor> results;
  for (const DropoutPart& part : parts) results.push_back(one(part).view({-1, width}));
  return at::cat(results).view(x.sizes());
}

Choice dropout_choice(const at::Tensor& x) { return Dispatch("dropout", x).choice(); }

}  // namespace

Dropout Dropout::of_rows(int64_t begin, int64_t count, int64_t tokens) const {
  if (!active()) return *this;
  const int64_t size = sample_rows > 0 ? sample_rows : tokens / samples(), first = first_row + begin;
  TRIREME_CHECK(count > 0 && size > 0 && (sample_rows > 0 || tokens % samples() == 0), "dropout of ", count, " of ",
                tokens, " rows in ", sample_ids_B.numel(), " samples");
  Dropout rows = *this;
  const bool whole = first % size == 0 && count % size == 0;
  if (whole) rows.sample_ids_B = sample_ids_B.narrow(0, first / size, count / size);
  rows.first_row = whole ? 0 : first;
  rows.sample_rows = whole ? 0 : size;
  return rows;
}

Dropout Dropout::of_picked_rows(const at::Tensor& rows_R) const {
  Dropout rows = *this;
  if (active()) rows.sample_ids_B = sample_ids_B.index_select(0, rows_R);
  return rows;
}

std::vector<DropoutPart> dropout_parts(const at::Tensor& x, const Dropout& dropout) {
  const at::Tensor& ids = dropout.sample_ids_B;
  TRIREME_CHECK(ids.defined() && ids.dim() == 1 && ids.numel() > 0 && ids.scalar_type() == at::kLong,
                "dropout needs int64 sample ids");
  TRIREME_CHECK(x.dim() >= 2, "dropout of ", x.sizes());
  const int64_t rows = x.numel() / x.size(-1), samples = ids.numel(), size = dropout.sample_rows;
  if (size == 0) {
    TRIREME_CHECK(rows % samples == 0, "dropout of ", x.sizes(), " with ", samples,
                  " sample ids: the rows do not divide into samples");
    return {{0, samples, rows / samples, 0, 0}};
  }
  const int64_t first = dropout.first_row, end = first + rows;
  TRIREME_CHECK(first >= 0 && end <= samples * size, "dropout of rows ", first, " to ", end, " of ", samples,
                " samples of ", size, " rows");
  std::vector<DropoutPart> parts;
  for (int64_t row = first; row < end;) {
    const int64_t in_sample = row % size;
    DropoutPart part{row - first, 1, std::min(size - in_sample, end - row), row / size, in_sample};
    if (in_sample == 0 && part.rows == size) part.samples = (end - row) / size;
    row += part.samples * part.rows;
    parts.push_back(part);
  }
  return parts;
}

DropoutKey dropout_key(const Dropout& dropout) {
  TRIREME_CHECK(dropout.p >= 0 && dropout.p < 1, "dropout probability ", dropout.p, " is not in [0, 1)");
  const std::string why = dropout_problem(dropout.p, kActivationDropoutSteps);
  TRIREME_CHECK(why.empty(), "dropout probability ", why);
  const uint64_t key = derive_seed(dropout.seed, "dropout", dropout.stream);
  const uint32_t threshold = dropout_threshold(dropout.p, kActivationDropoutSteps);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), threshold, 65536.0 / (65536 - threshold)};
}

at::Tensor dropout_elements::by_loop(const at::Tensor& x_BE, const at::Tensor& ids_B, const DropoutKey& key,
                                     int64_t first) {
  TRIREME_CHECK(first % 2 == 0, "dropout from element ", first, ", which is odd");
  const at::Tensor ids = ids_B.contiguous();
  at::Tensor out = at::empty(x_BE.sizes(), x_BE.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x_BE.scalar_type(), "apply_dropout", [&] {
    drop_rows(x_BE.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), ids.const_data_ptr<int64_t>(),
              x_BE.size(0), x_BE.size(1), key, first);
  });
  return out;
}

namespace {

/// The 16 bits of the hash of each element, as int64: f(first sample, its samples, [samples, E]) for some samples at a
/// time.
template <class F>
void hash_elements(const at::Tensor& ids, uint32_t t0, uint32_t t1, int64_t first, int64_t row_size, const F& f) {
  TRIREME_CHECK(first % 2 == 0, "dropout from element ", first, ", which is odd");
  const int64_t samples = ids.size(0), words = (row_size + 1) / 2, first_word = first / 2;
  constexpr int64_t kMask = 0xffffffff;
  at::Tensor k0_B = mix_(ids.bitwise_and(kMask).bitwise_xor_(static_cast<int64_t>(t0)));
  k0_B.bitwise_xor_(ids.bitwise_right_shift(32).bitwise_and_(kMask)).bitwise_xor_(static_cast<int64_t>(t1));
  k0_B = mix_(k0_B);
  const at::Tensor k1_B = mix_(k0_B.add(static_cast<int64_t>(kGolden)).bitwise_and_(kMask));

  at::Tensor low = at::arange(first_word, first_word + words, ids.options()), upper;
  if (first_word + words > kWordsOfKey) {
    upper = low.bitwise_right_shift(32).mul_(static_cast<int64_t>(kGolden)).bitwise_and_(kMask);
    low.bitwise_and_(kMask);
  }
  // Short samples, such as single tokens, are processed several at a time.
  constexpr int64_t kWordsAtOnce = int64_t{1} << 22;
  const int64_t most = std::max<int64_t>(1, kWordsAtOnce / std::max<int64_t>(1, words));
  for (int64_t begin = 0; begin < samples; begin += most) {
    const int64_t count = std::min(most, samples - begin);
    const auto keys = [&](const at::Tensor& k_B) { return k_B.narrow(0, begin, count).unsqueeze(1); };
    at::Tensor hash = mix_(low.bitwise_xor(keys(k0_B))).bitwise_xor_(keys(k1_B));
    if (upper.defined()) hash.bitwise_xor_(upper);
    hash = mix_(hash);
    f(begin, count,
      at::stack({hash.bitwise_and(0xffff), hash.bitwise_right_shift(16)}, 2)
          .view({count, 2 * words})
          .narrow(1, 0, row_size));
  }
}

}  // namespace

at::Tensor dropout_elements::by_tensor_ops(const at::Tensor& x_BE, const at::Tensor& ids, const DropoutKey& key,
                                           int64_t first) {
  at::Tensor out = at::empty(x_BE.sizes(), x_BE.options());
  hash_elements(ids, key.t0, key.t1, first, x_BE.size(1), [&](int64_t begin, int64_t count, const at::Tensor& bits) {
    const at::Tensor rows = x_BE.narrow(0, begin, count), kept = bits.ge(static_cast<int64_t>(key.threshold));
    out.narrow(0, begin, count).copy_(at::where(kept, rows * key.scale, at::zeros({}, rows.options())));
  });
  return out;
}

at::Tensor add_noise(const at::Tensor& x, const Dropout& samples, double magnitude) {
  constexpr int64_t kElementsAtOnce = int64_t{1} << 21;
  const int64_t width = x.size(-1), tokens = x.numel() / width, most = std::max<int64_t>(1, kElementsAtOnce / width);
  const uint64_t key = derive_seed(samples.seed, "noise", samples.stream);
  Dropout all = samples;
  all.p = 0.5;  // active
  at::Tensor noise;
  {
    at::NoGradGuard no_grad;
    noise = at::empty({tokens, width}, x.options());
    for (int64_t begin = 0; begin < tokens; begin += most) {
      const at::Tensor some = noise.narrow(0, begin, std::min(most, tokens - begin));
      const Dropout rows = all.of_rows(begin, some.size(0), tokens);
      some.copy_(over_parts(some, rows, [&](const at::Tensor& part, const at::Tensor& ids, int64_t first) {
        at::Tensor out = at::empty(part.sizes(), part.options().dtype(at::kFloat));
        hash_elements(ids, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), first, part.size(1),
                      [&](int64_t sample, int64_t count, const at::Tensor& bits) {
                        out.narrow(0, sample, count)
                            .copy_(bits.to(at::kFloat).add_(0.5).mul_(1.0 / 32768).sub_(1).mul_(magnitude));
                      });
        return out;
      }));
    }
  }
  return at::add(x, noise.view(x.sizes()));
}

at::Tensor apply_dropout_tensor_ops(const at::Tensor& x, const Dropout& dropout) {
  at::NoGradGuard no_grad;
  return over_parts(x, dropout, [&](const at::Tensor& part, const at::Tensor& ids, int64_t first) {
    return dropout_elements::by_tensor_ops(part, ids, dropout_key(dropout), first);
  });
}

at::Tensor apply_dropout(const at::Tensor& x, const Dropout& dropout) {
  TRIREME_RETURN_LAUNCH(dropout_choice(x), dropout(x.contiguous(), dropout));
  if (!x.is_cpu()) return apply_dropout_tensor_ops(x, dropout);
  at::NoGradGuard no_grad;
  return over_parts(x.contiguous(), dropout, [&](const at::Tensor& part, const at::Tensor& ids, int64_t first) {
    return dropout_elements::by_loop(part, ids, dropout_key(dropout), first);
  });
}

at::Tensor add_dropout(const at::Tensor& addend, const at::Tensor& x, const Dropout& dropout) {
  at::NoGradGuard no_grad;
  TRIREME_CHECK(addend.sizes() == x.sizes(), "add_dropout: ", addend.sizes(), " + ", x.sizes());
  TRIREME_RETURN_LAUNCH(dropout_choice(x), add_dropout(addend.contiguous(), x.contiguous(), dropout));
  return at::add(addend, apply_dropout(x, dropout));
}

void add_dropout_(const at::Tensor& sum, const at::Tensor& x, const Dropout& dropout) {
  at::NoGradGuard no_grad;
  if (sum.is_contiguous()) TRIREME_RETURN_LAUNCH(dropout_choice(x), add_dropout_(sum, x.contiguous(), dropout));
  sum.add_(apply_dropout(x, dropout));
}

at::Tensor recorded_dropout(const at::Tensor& x, const Dropout& dropout) {
  InputList inputs;
  DropoutNode node{inputs.add(x), dropout};
  return run_node(std::move(node), inputs)[0];
}

}  // namespace trireme
