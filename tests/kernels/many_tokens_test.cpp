// More tokens than the limit of grid.y (65,535): lookups, rotary positions, LoRA's products and attention, in bf16,
// against their oracles. For kernels that work by rows see many_rows_test.cpp.

#include "attention_problem.h"
#include "embedding_oracle.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/lora/lora.h"
#include "kernels/rope/rope.h"
#include "lora_oracle.h"
#include "rope_oracle.h"
#include "testing.h"

namespace trireme::kernels::testing::many_tokens_tests {

namespace {

constexpr int64_t kTokens = 65'600;
constexpr Element kElement = Element::kBF16;

template <class Base>
class ManyTokens : public Base {
 protected:
  void SetUp() override {
    Base::SetUp();
    if (!this->IsSkipped() && too_large(kTokens * 64))
      GTEST_SKIP() << "TRIREME_KERNEL_TEST_MAX is less than " << kTokens * 64;
  }
};
using ManyTokensTest = ManyTokens<KernelTest>;
using ManyTokensHopperTest = ManyTokens<HopperKernelTest>;

TEST_F(ManyTokensTest, BertEmbeddingWithATokenASample) {
  constexpr int64_t kColumns = 24, kVocab = 60, kPositions = 40, kTypes = 2;
  const Values word = normal_values(kVocab * kColumns, kElement, 1),
               position = normal_values(kPositions * kColumns, kElement, 2),
               type = normal_values(kTypes * kColumns, kElement, 3), gamma = normal_values(kColumns, kElement, 4),
               beta = normal_values(kColumns, kElement, 5);
  std::vector<int64_t> ids, positions, types, samples;
  for (int64_t t = 0; t < kTokens; ++t) {
    ids.push_back(t * 17 % kVocab), positions.push_back(t % kPositions), types.push_back(t / 3 % kTypes);
    samples.push_back(t * 31 + 7);
  }
  DeviceArray w(word, kElement), p(position, kElement), t(type, kElement), g(gamma, kElement), b(beta, kElement),
      sum(kTokens * kColumns, kElement), y(kTokens * kColumns, kElement), dropped(kTokens * kColumns, kElement),
      again(kTokens * kColumns, kElement);
  DeviceIntegers<int64_t> device_ids(ids), device_positions(positions), device_types(types), device_samples(samples);
  BertEmbedding a;
  a.word = w.data(), a.position = p.data(), a.type = t.data(), a.gamma = g.data(), a.beta = b.data();
  a.ids = device_ids.as<int64_t>(), a.positions = device_positions.as<int64_t>();
  a.types = device_types.as<int64_t>(), a.sum = sum.data(), a.y = y.data(), a.rows = kTokens, a.columns = kColumns;
  a.vocab = kVocab, a.max_positions = kPositions, a.num_types = kTypes, a.eps = 1e-3f, a.element = kElement;
  CUDA_OK(bert_embedding_forward(a, nullptr));
  const Values rounded = sum.values();
  const auto expected =
      oracle::bert_embedding(word, position, type, ids, positions, types, gamma, beta, kColumns, a.eps, &rounded);
  expect_close(y.values(), expected.y, kElement, 1.01, 1e-5, "y");
  const float scale = 65536.0f / (65536 - 6554);
  CUDA_OK(dropout({y.data(), nullptr, dropped.data(), device_samples.as<int64_t>(), kTokens, kColumns, 11, 22, 6554,
                   scale, kElement},
                  nullptr));
  a.sample_ids = device_samples.as<int64_t>(), a.t0 = 11, a.t1 = 22, a.threshold = 6554, a.scale = scale;
  a.y = again.data();
  CUDA_OK(bert_embedding_forward(a, nullptr));
  EXPECT_TRUE(again.values() == dropped.values());
}

/// More tokens than the blocks of one launch process, 32 each. Sums of small integers are exact.
TEST_F(ManyTokensTest, EmbeddingAndItsGradient) {
  constexpr int64_t kColumns = 8;
  for (const auto& [tokens, vocab] : {std::pair<int64_t, int64_t>{kTokens, 300}, {2'100'000, 300}, {2'100'000, 2}}) {
    if (too_large(tokens * kColumns)) continue;
    SCOPED_TRACE(std::to_string(tokens) + " of " + std::to_string(vocab));
    const Values table = normal_values(vocab * kColumns, kElement, 1);
    std::vector<int64_t> ids;
    Values dy, looked_up, expected(static_cast<size_t>(vocab * kColumns), 0.0);
    for (int64_t t = 0; t < tokens; ++t) {
      ids.push_back(t * 7919 % vocab);
      for (int64_t c = 0; c < kColumns; ++c) {
        dy.push_back(static_cast<double>((t + c * 3) % 7) - 3);
        looked_up.push_back(table[static_cast<size_t>(ids.back() * kColumns + c)]);
        expected[static_cast<size_t>(ids.back() * kColumns + c)] += dy.back();
      }
    }
    DeviceArray rows(table, kElement), y(tokens * kColumns, kElement), gradient(dy, kElement),
        d_table(Values(expected.size(), 0.0), Element::kF32);
    DeviceIntegers<int64_t> device_ids(ids);
    DeviceBytes workspace(static_cast<int64_t>(embedding_backward_workspace(tokens, kColumns)));
    EmbeddingForward f;
    f.table = rows.data(), f.ids = device_ids.as<int64_t>(), f.y = y.data();
    f.tokens = tokens, f.vocab = vocab, f.columns = kColumns;
    CUDA_OK(embedding_forward(f, nullptr));
    EXPECT_TRUE(y.values() == looked_up);
    EmbeddingBackward b;
    b.dy = gradient.data(), b.ids = device_ids.as<int64_t>(), b.d_table = d_table.data();
    b.workspace = workspace.data(), b.tokens = tokens, b.vocab = vocab, b.columns = kColumns;
    b.table_element = Element::kF32;
    CUDA_OK(embedding_backward(b, nullptr));
    EXPECT_EQ(d_table.values(), expected);
    workspace.read();
  }
}

TEST_F(ManyTokensTest, Rope) {
  constexpr int kHeads = 3, kTurned = 2, kDim = 16;
  const Values x = normal_values(kTokens * kHeads * kDim, kElement, 1);
  Values cosines, sines;
  for (int64_t t = 0; t < kTokens; ++t)
    for (int i = 0; i < kDim / 2; ++i) {
      const double angle = static_cast<double>(t) * std::pow(10000.0, -2.0 * i / kDim);
      cosines.push_back(round_to(std::cos(angle), kElement)), sines.push_back(round_to(std::sin(angle), kElement));
    }
  DeviceArray heads(x, kElement), cos(cosines, kElement), sin(sines, kElement),
      merged(kTokens * kHeads * kDim, kElement);
  CUDA_OK(rope_rotate(heads.data(), cos.data(), sin.data(), kTokens, kHeads, kTurned, kDim, 1, kElement, nullptr));
  expect_close(heads.values(), oracle::rope(x, cosines, sines, kTokens, kHeads, kTurned, kDim, 1), kElement, 1.05, 1e-6,
               "rotated");
  DeviceArray packed(x, kElement);
  const HeadStrides strides{kHeads * kDim, kDim};
  const auto head = [&](int h) { return packed.as<char>() + int64_t{h} * kDim * 2; };
  CUDA_OK(rope_merge(head(0), strides, head(1), strides, head(2), strides, cos.data(), sin.data(), merged.data(),
                     kTokens, 1, 1, kDim, kElement, nullptr));
  expect_close(merged.values(), oracle::rope(x, cosines, sines, kTokens, kHeads, kTurned, kDim, -1), kElement, 1.05,
               1e-6, "merged");
}

TEST_F(ManyTokensTest, LoraProducts) {
  constexpr int64_t kColumns = 64, kRank = 16;
  const Values x = normal_values(kTokens * kColumns, kElement, 1),
               a = normal_values(kRank * kColumns, kElement, 2, 0.05), d = normal_values(kTokens * kRank, kElement, 3),
               b = normal_values(kColumns * kRank, kElement, 4, 0.3);
  DeviceArray in(x, kElement), in_a(a, kElement), in_d(d, kElement), in_b(b, kElement), t(kTokens * kRank, kElement),
      da(kRank * kColumns, kElement), dx(kTokens * kColumns, kElement), y(kTokens * kColumns, kElement),
      ones(Values(x.size(), 1.0), kElement), kept(kTokens * kColumns, kElement);
  DeviceIntegers<int64_t> ids({5, 6});
  LoraProducts p;
  p.count = 1, p.rank = kRank, p.a[0] = in_a.data(), p.t[0] = t.data(), p.d[0] = in_d.data(), p.da[0] = da.data();
  p.x = in.data(), p.dx = dx.data(), p.adds = false, p.tokens = kTokens, p.columns = kColumns;
  p.sample_ids = ids.as<int64_t>(), p.sample_tokens = kTokens / 2, p.t0[0] = 11, p.t1[0] = 22, p.threshold = 6554;
  p.scale = 65536.0f / (65536 - 6554), p.element = kElement;
  ASSERT_TRUE(lora_fits(p));
  CUDA_OK(dropout(
      {ones.data(), nullptr, kept.data(), p.sample_ids, 2, kTokens / 2 * kColumns, 11, 22, 6554, 1.0f, kElement},
      nullptr));
  Values factor = kept.values(), masked = x;
  for (size_t i = 0; i < x.size(); ++i) factor[i] *= p.scale, masked[i] *= factor[i];
  CUDA_OK(lora_down(p, nullptr));
  const double absolute = 1e-6 * std::sqrt(static_cast<double>(kColumns + kTokens));
  expect_close(t.values(), oracle::lora_down(masked, a, kTokens, kColumns, kRank), kElement, 1, absolute, "t");
  Values expected_dx(x.size(), 0.0);
  oracle::lora_down_dx(expected_dx, factor, d, a, kTokens, kColumns, kRank);
  for (const bool together : {false, true}) {
    da.poison(), dx.poison();
    if (together) {
      CUDA_OK(lora_down_gradients(p, nullptr));
    } else {
      CUDA_OK(lora_down_dw(p, nullptr));
      CUDA_OK(lora_down_dx(p, nullptr));
    }
    expect_close(da.values(), oracle::lora_down_dw(masked, d, kTokens, kColumns, kRank), kElement, 1, 8 * absolute,
                 "dA");
    expect_close(dx.values(), expected_dx, kElement, 1, 1e-5, "dx");
  }

  LoraUpProducts up;
  up.rank = kRank, up.b = in_b.data(), up.t = in_d.data(), up.y = y.data(), up.adds = false, up.dy = in.data();
  up.d = t.data(), up.db = da.data(), up.tokens = kTokens, up.columns = up.stride = kColumns, up.element = kElement;
  DeviceBytes workspace(static_cast<int64_t>(lora_up_gradients_workspace(up)));
  up.workspace = workspace.data();
  CUDA_OK(lora_up(up, nullptr));
  Values expected_y(x.size(), 0.0);
  oracle::lora_up(expected_y, d, b, kTokens, kColumns, kRank, 1.0);
  expect_close(y.values(), expected_y, kElement, 1, 1e-5, "y");
  CUDA_OK(lora_up_gradients(up, nullptr));
  expect_close(t.values(), oracle::lora_up_d(x, b, kTokens, kColumns, kRank, 1.0), kElement, 1, 1e-4, "d");
  expect_close(da.values(), oracle::lora_up_db(x, d, kTokens, kColumns, kRank, 1.0), kElement, 1, 8 * absolute, "dB");
}

TEST_F(ManyTokensHopperTest, Attention) {
  std::vector<int32_t> bounds{0};
  while (bounds.back() <= 65'536) bounds.push_back(bounds.back() + 100 + static_cast<int32_t>(bounds.size() % 3) * 20);
  for (const AttentionCase& c : {AttentionCase{bounds, 1, 1, 64, false, 1, 13}, {bounds, 2, 1, 128, true}}) {
    SCOPED_TRACE(std::to_string(c.d));
    AttentionProblem run(c, kElement);
    CUDA_OK(run.forward());
    const oracle::AttentionOutputs expected = run.expected();
    EXPECT_LT(relative_error(run.o(), expected.o), attention_bound(kElement));
    for (const bool deterministic : {false, true}) {
      run.poison_gradients();
      CUDA_OK(run.backward(deterministic));
      EXPECT_LT(relative_error(run.dq(), expected.dq), 2 * attention_bound(kElement));
      EXPECT_LT(relative_error(run.dk(), expected.dk), 2 * attention_bound(kElement));
      EXPECT_LT(relative_error(run.dv(), expected.dv), attention_bound(kElement));
      EXPECT_TRUE(run.counters_are_zero());
    }
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::many_tokens_tests
