// Attention on a GPU, with our kernels or the library's, against fp64 on the CPU.
#include "trireme/ops/attention.h"

#include "gradient_check.h"
#include "trireme/ops/dispatch.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

namespace trireme {
namespace {

using namespace testing;

struct Case {
  std::string name;
  std::vector<int32_t> bounds;
  int64_t heads, kv_heads, head_dim;
  bool causal;
  double p;
  int64_t window = 0;
  bool fp8 = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class AttentionGpu : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  }
};

/// The output and the gradient of the packed heads.
std::vector<at::Tensor> run(const Case& c, const at::Tensor& heads, at::Device device, at::ScalarType dtype,
                            KeptAttention* kept = nullptr) {
  std::vector<int64_t> keys;
  for (size_t i = 0; i + 1 < c.bounds.size(); ++i) keys.push_back(100 + 7 * static_cast<int64_t>(i));
  const Sequences sequences = make_sequences(c.bounds, keys, device);
  const at::Tensor leaf = heads.to(device, dtype).clone().requires_grad_(true);
  const at::Tensor out = attention_of_packed(leaf, c.kv_heads, sequences,
                                             {.scale = 1 / std::sqrt(static_cast<double>(c.head_dim)),
                                              .causal = c.causal,
                                              .window = c.window,
                                              .dropout = c.p > 0 ? Dropout{c.p, 5, {}, 3} : Dropout{},
                                              .fp8 = c.fp8},
                                             kept);
  (out.to(at::kDouble) * random(out.sizes(), 9).to(device)).sum().backward();
  return {out.detach().to(at::kCPU, at::kDouble), leaf.grad().to(at::kCPU, at::kDouble)};
}

TEST_P(AttentionGpu, EqualsFp64WithTheSameDecisions) {
  const Case& c = GetParam();
  if (c.p > 0 && kernel_class(at::Device(at::kCUDA, 0)) != KernelClass::kHopper)
    GTEST_SKIP() << "the library draws dropout itself";
  const char* chosen = std::getenv("TRIREME_ATTENTION");
  const bool ours = chosen != nullptr && std::string(chosen) == "ours";
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < c.bounds.size(); ++i) longest = std::max<int64_t>(longest, c.bounds[i + 1] - c.bounds[i]);
  const bool windowed = c.window > 0 && c.window < longest;
  const at::Tensor heads =
      random({c.bounds.back(), c.heads + 2 * c.kv_heads, c.head_dim}, 1).to(at::kBFloat16).to(at::kDouble);
  const auto expected = run(c, heads, at::kCPU, at::kDouble);
  for (const auto& [dtype, bound] : {std::pair{at::kHalf, 3e-3}, {at::kBFloat16, 2e-2}}) {
    KeptAttention list;
    for (KeptAttention* kept : {static_cast<KeptAttention*>(nullptr), &list, &list}) {
      const bool given = kept != nullptr && !kept->empty();
      const auto got = run(c, heads, at::kCUDA, dtype, kept);
      for (size_t i = 0; i < got.size(); ++i) {
        const double error = ((got[i] - expected[i]).norm() / expected[i].norm()).item<double>();
        // A kernel that multiplies codes rounds probabilities too, which fp64 on the CPU does not.
        const bool codes = c.fp8 && c.head_dim == 128 && !windowed && ours;
        EXPECT_LT(error, codes ? 0.04 : bound)
            << c10::toString(dtype) << (i == 0 ? " output" : " gradient")  // NaN fails too
            << (given ? ", continued" : "");
      }
    }
  }
}

// Results of the rows that are needed, and all gradients, are those of a call that computes all rows.
TEST_P(AttentionGpu, RowsThatAreNotNeededTakeNoPart) {
  const Case& c = GetParam();
  if (c.fp8) GTEST_SKIP() << "with FP8 all rows are computed";
  const at::Tensor heads =
      random({c.bounds.back(), c.heads + 2 * c.kv_heads, c.head_dim}, 1).to(at::kCUDA, at::kBFloat16);
  std::vector<int64_t> keys, rows;
  std::vector<int32_t> needed;
  for (size_t i = 0; i + 1 < c.bounds.size(); ++i) {
    const int32_t length = c.bounds[i + 1] - c.bounds[i];
    keys.push_back(100 + 7 * static_cast<int64_t>(i));
    needed.push_back(i % 4 == 3 ? length : 1 + length * static_cast<int32_t>(i % 4) / 4);
    for (int32_t row = 0; row < needed.back(); ++row) rows.push_back(c.bounds[i] + row);
  }
  const at::Tensor picked = at::tensor(rows, at::TensorOptions(at::kCUDA).dtype(at::kLong)),
                   factor = random({picked.size(0), c.heads, c.head_dim}, 9).to(at::kCUDA);
  const at::Tensor leaf = heads.clone().requires_grad_(true);
  const Sequences sequences = make_sequences(c.bounds, keys, at::kCUDA, needed);
  const auto run = [&](bool only_needed) {
    return attention_of_packed(leaf, c.kv_heads, sequences,
                               {.scale = 1 / std::sqrt(static_cast<double>(c.head_dim)),
                                .causal = c.causal,
                                .window = c.window,
                                .dropout = c.p > 0 ? Dropout{c.p, 5, {}, 3} : Dropout{},
                                .only_needed = only_needed});
  };
  const auto result = [&](const at::Tensor& all) -> std::vector<at::Tensor> {
    leaf.mutable_grad() = at::Tensor();
    const at::Tensor out = all.index_select(0, picked);
    (out.to(at::kDouble) * factor).sum().backward();
    return {out.detach().to(at::kDouble), leaf.grad().to(at::kDouble)};
  };
  const std::vector<at::Tensor> expected = result(run(false));
  run(true).sum().backward();           // makes the work lists
  (run(false) * 1e4).sum().backward();  // sums that a later call must not find in shared memory
  // at::empty() gives the result this memory.
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
    (void)at::full({c.bounds.back(), c.heads, type == at::kFloat ? 1 : c.head_dim}, std::nan(""),
                   heads.options().dtype(type));
  const std::vector<at::Tensor> got = result(run(true));
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = ((got[i] - expected[i]).norm() / expected[i].norm()).item<double>();
    EXPECT_LT(error, 2e-3) << (i == 0 ? "output" : "gradient");  // NaN fails too
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<int32_t> pack{0, 130, 131, 400, 700}, equal{0, 256, 512};
  std::vector<int32_t> short_ones{0};  // several of backward's ranges, a long sequence in one of them
  for (int i = 0; i < 120; ++i) short_ones.push_back(short_ones.back() + (i == 70 ? 300 : 3 + i % 16));
  for (const int64_t d : {64, 128}) {
    const std::string size = "d" + std::to_string(d);
    for (const bool causal : {false, true}) {
      const std::string mask = causal ? "_causal" : "_full";
      all.push_back({size + mask + "_pack", pack, 4, 2, d, causal, 0});
      all.push_back({size + mask + "_equal", equal, 4, 4, d, causal, 0});
      all.push_back({size + mask + "_short", short_ones, 4, 2, d, causal, 0});
      if (causal) all.push_back({size + mask + "_equal_grouped", {0, 512, 1024, 1536}, 4, 2, d, causal, 0});
      // Without a mask and with dropout the library runs heads of 128, with its own dropout decisions.
      if (causal || d == 64) all.push_back({size + mask + "_pack_dropout", pack, 4, 2, d, causal, 0.1});
      if (causal || d == 64)
        all.push_back({size + mask + "_equal_heads_dropout", {0, 400, 912, 1030}, 4, 4, d, causal, 0.1});
      if (causal || d == 64) all.push_back({size + mask + "_long_dropout", {0, 700, 912}, 4, 4, d, causal, 0.1});
      if (causal || d == 64) all.push_back({size + mask + "_short_dropout", short_ones, 4, 2, d, causal, 0.1});
    }
  }
  for (const int64_t d : {80, 96, 256}) {
    const std::string size = "d" + std::to_string(d);
    all.push_back({size + "_causal_pack", pack, 4, 2, d, true, 0});
    all.push_back({size + "_causal_equal", equal, 4, 4, d, true, 0});
    all.push_back({size + "_causal_equal_grouped", equal, 4, 2, d, true, 0});
  }
  for (const int64_t d : {64, 96, 128, 256})
    for (const int64_t window : {1, 100, 256}) {
      const std::string name = "d" + std::to_string(d) + "_window" + std::to_string(window);
      all.push_back({name + "_pack", pack, 4, 2, d, true, 0, window});
      all.push_back({name + "_equal", equal, 4, 4, d, true, 0, window});
    }
  // Heads that flash attention does not have.
  for (const int64_t d : {100, 320}) {
    const std::string size = "d" + std::to_string(d);
    for (const bool causal : {false, true}) {
      all.push_back({size + (causal ? "_causal" : "_full") + "_pack", pack, 4, 2, d, causal, 0});
      all.push_back({size + (causal ? "_causal" : "_full") + "_equal", equal, 4, 4, d, causal, 0});
    }
    all.push_back({size + "_window", pack, 4, 2, d, true, 0, 100});
  }
  for (Case c : std::vector<Case>(all)) {
    if (c.p > 0) continue;
    c.name += "_fp8";
    c.fp8 = true;
    all.push_back(c);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, AttentionGpu, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

TEST(AttentionGpuDropout, IsTheSameAgainAndKeepsTheMean) {
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  for (const bool causal : {false, true}) {
    at::Tensor heads = random({512, 12, 64}, 1);
    heads.narrow(1, 8, 4).fill_(1.0);  // with values of one, attention gives the sum of the kept probabilities
    const at::Tensor x = heads.to(at::kCUDA, at::kHalf);
    const Sequences sequences = make_sequences({0, 200, 512}, {9, 10}, at::kCUDA);
    const auto at_stream = [&](uint64_t stream) {
      return attention_of_packed(x, 4, sequences, {.scale = 0.125, .causal = causal, .dropout = {0.1, 5, {}, stream}});
    };
    const at::Tensor a = at_stream(3), b = at_stream(3), other = at_stream(4);
    EXPECT_EQ(max_difference(a, b), 0);
    EXPECT_GT(max_difference(a, other), 0.01);
    EXPECT_NEAR(a.to(at::kDouble).mean().item<double>(), 1.0, 0.01);
  }
}

/// The output and the gradients of q, k and v of causal attention, [T, 1 or heads, H] in fp64 on the GPU, in ranges of
/// queries.
std::vector<at::Tensor> causal_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                         const at::Tensor& d_out, double scale) {
  constexpr int64_t kRange = 2048;
  const int64_t tokens = q.size(0), heads = q.size(1);
  const at::Tensor keys = k.select(1, 0), values = v.select(1, 0);
  std::vector<at::Tensor> result{at::zeros_like(q), at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
  for (int64_t begin = 0; begin < tokens; begin += kRange) {
    const int64_t count = std::min(kRange, tokens - begin), end = begin + count;
    const at::Tensor seen_keys = keys.narrow(0, 0, end), seen_values = values.narrow(0, 0, end);
    for (int64_t head = 0; head < heads; ++head) {
      const auto of = [&](const at::Tensor& x) { return x.select(1, head).narrow(0, begin, count); };
      at::Tensor p = at::matmul(of(q), seen_keys.t()).mul_(scale);
      p.narrow(1, begin, count)
          .masked_fill_(at::ones({count, count}, p.options().dtype(at::kBool)).triu_(1),
                        -std::numeric_limits<double>::infinity());
      p.sub_(at::logsumexp(p, {1}, true)).exp_();
      const at::Tensor out = at::matmul(p, seen_values);
      of(result[0]).copy_(out);
      result[3].select(1, 0).narrow(0, 0, end).addmm_(p.t(), of(d_out));
      at::Tensor d_scores = at::matmul(of(d_out), seen_values.t());
      d_scores.sub_((out * of(d_out)).sum(1, true)).mul_(p).mul_(scale);
      of(result[1]).copy_(at::matmul(d_scores, seen_keys));
      result[2].select(1, 0).narrow(0, 0, end).addmm_(d_scores.t(), of(q));
    }
  }
  return result;
}

TEST(AttentionGpuLong, EveryRangeOfTokensEqualsFp64) {
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  constexpr int64_t kRange = 4096;
  const char* const names[] = {"output", "dq", "dk", "dv"};
  for (const int64_t tokens : {131072, 524288}) {
    at::manual_seed(11);
    const auto random_heads = [&](int64_t heads) {
      return at::randn({tokens, heads, 128}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
    };
    const at::Tensor q = random_heads(2).requires_grad_(), k = random_heads(1).requires_grad_(),
                     v = random_heads(1).requires_grad_(), d_out = random_heads(2);
    const Sequences sequences = make_sequences({0, static_cast<int32_t>(tokens)}, {}, at::kCUDA);
    const double scale = 1 / std::sqrt(128.0);
    const at::Tensor out = attention(q, k, v, sequences, {.scale = scale, .causal = true});
    out.backward(d_out);
    at::NoGradGuard no_grad;
    const auto exact = [](const at::Tensor& x) { return x.detach().to(at::kDouble); };
    const auto expected = causal_reference(exact(q), exact(k), exact(v), exact(d_out), scale);
    const std::vector<at::Tensor> got{exact(out), exact(q.grad()), exact(k.grad()), exact(v.grad())};
    for (size_t i = 0; i < got.size(); ++i) {
      const auto norms = [&](const at::Tensor& x) { return x.reshape({tokens / kRange, -1}).norm(2, {1}); };
      // Of all ranges the worst: late outputs are means of many values, late gradients sums of few.
      const double error = (norms(got[i] - expected[i]) / norms(expected[i])).max().item<double>();
      EXPECT_LT(error, 2e-2) << tokens << " tokens, " << names[i];  // NaN fails too
      RecordProperty(std::to_string(tokens) + names[i], std::to_string(error));
    }
  }
}

}  // namespace
}  // namespace trireme
