#include "kernels/embedding/embedding.h"

#include "embedding_oracle.h"
#include "kernels/dropout/dropout.h"
#include "testing.h"

namespace trireme::kernels::testing::bert_embedding_tests {

namespace {

class BertEmbeddingTest : public KernelTest {};

TEST_F(BertEmbeddingTest, MatchesTheOracleAndDropsAsDropoutDoes) {
  struct Shape {
    int64_t samples, length, columns, shift;
  };
  constexpr int64_t kVocab = 60, kPositions = 40, kTypes = 2;
  for (const Element element : kElements) {
    for (const Shape& s : {Shape{1, 1, 1, 0},
                           {2, 7, 24, 0},
                           {3, 11, 77, 0},
                           {2, 20, 768, 0},
                           {2, 33, 1024, 0},
                           {1, 9, 512, 1},
                           {1, 5, 2048, 0},
                           {1, 3, 1032, 0}}) {
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.samples * s.length) + " x " +
                   std::to_string(s.columns));
      const int64_t rows = s.samples * s.length;
      const Values word = normal_values(kVocab * s.columns, element, 1),
                   position = normal_values(kPositions * s.columns, element, 2),
                   type = normal_values(kTypes * s.columns, element, 3), gamma = normal_values(s.columns, element, 4),
                   beta = normal_values(s.columns, element, 5);
      std::vector<int64_t> ids, positions, types, samples;
      for (int64_t r = 0; r < rows; ++r) {
        ids.push_back(r * 17 % kVocab);
        positions.push_back(r % s.length);
        types.push_back(r / 3 % kTypes);
      }
      for (int64_t b = 0; b < s.samples; ++b) samples.push_back(b * 0x1234567890ll + 5);
      DeviceArray w(word, element, s.shift), p(position, element, s.shift), t(type, element, s.shift),
          g(gamma, element, s.shift), b(beta, element, s.shift), sum(rows * s.columns, element, s.shift),
          y(rows * s.columns, element, s.shift), mean(rows, Element::kF32), rstd(rows, Element::kF32),
          dropped(rows * s.columns, element, s.shift), again(rows * s.columns, element, s.shift);
      DeviceIntegers<int64_t> device_ids(ids), device_positions(positions), device_types(types),
          device_samples(samples);
      BertEmbedding a;
      a.word = w.data(), a.position = p.data(), a.type = t.data(), a.gamma = g.data();
      a.beta = b.data(), a.ids = device_ids.as<int64_t>();
      a.positions = device_positions.as<int64_t>(), a.types = device_types.as<int64_t>();
      a.sum = sum.data(), a.y = y.data(), a.mean = mean.fp32(), a.rstd = rstd.fp32();
      a.rows = rows, a.columns = s.columns, a.vocab = kVocab, a.max_positions = kPositions;
      a.num_types = kTypes, a.eps = 1e-3f, a.element = element;
      CUDA_OK(bert_embedding_forward(a, nullptr));
      const auto exact =
          oracle::bert_embedding(word, position, type, ids, positions, types, gamma, beta, s.columns, a.eps);
      // Below 2^-14 fp16 has an absolute spacing of 2^-24.
      expect_close(sum.values(), exact.sum, element, 1.01, 1e-6, "sum");
      const Values rounded = sum.values();
      const auto expected =
          oracle::bert_embedding(word, position, type, ids, positions, types, gamma, beta, s.columns, a.eps, &rounded);
      expect_close(y.values(), expected.y, element, 1.01, 1e-5, "y");
      expect_close(mean.values(), expected.mean, Element::kF32, 0, 1e-5, "mean");
      expect_close(rstd.values(), expected.rstd, Element::kF32, 64, 1e-5, "rstd");

      // With dropout: the same as the dropout kernel applied to y; no other outputs.
      const float scale = 65536.0f / (65536 - 6554);
      CUDA_OK(dropout({y.data(), nullptr, dropped.data(), device_samples.as<int64_t>(), s.samples, s.length * s.columns,
                       11, 22, 6554, scale, element},
                      nullptr));
      a.sample_ids = device_samples.as<int64_t>(), a.rows_per_sample = s.length, a.t0 = 11;
      a.t1 = 22, a.threshold = 6554, a.scale = scale, a.y = again.data();
      a.sum = nullptr, a.mean = a.rstd = nullptr;
      CUDA_OK(bert_embedding_forward(a, nullptr));
      EXPECT_EQ(again.values(), dropped.values());
    }
  }
}

TEST_F(BertEmbeddingTest, SameBitsEveryTime) {
  const int64_t rows = 512, columns = 1024;
  const Element element = Element::kBF16;
  DeviceArray w(normal_values(100 * columns, element, 1), element),
      p(normal_values(512 * columns, element, 2), element), t(normal_values(2 * columns, element, 3), element),
      g(normal_values(columns, element, 4), element), b(normal_values(columns, element, 5), element),
      sum(rows * columns, element), y(rows * columns, element), mean(rows, Element::kF32), rstd(rows, Element::kF32);
  std::vector<int64_t> ids, positions, types;
  for (int64_t r = 0; r < rows; ++r) ids.push_back(r * 17 % 100), positions.push_back(r), types.push_back(r % 2);
  DeviceIntegers<int64_t> device_ids(ids), device_positions(positions), device_types(types), samples({7});
  BertEmbedding a;
  a.word = w.data(), a.position = p.data(), a.type = t.data(), a.gamma = g.data(), a.beta = b.data();
  a.ids = device_ids.as<int64_t>(), a.positions = device_positions.as<int64_t>();
  a.types = device_types.as<int64_t>(), a.sum = sum.data(), a.y = y.data(), a.mean = mean.fp32();
  a.rstd = rstd.fp32(), a.sample_ids = samples.as<int64_t>(), a.rows_per_sample = rows;
  a.threshold = 6554, a.scale = 1.1f, a.rows = rows, a.columns = columns, a.vocab = 100;
  a.max_positions = 512, a.num_types = 2, a.eps = 1e-12f;
  std::vector<std::vector<unsigned char>> first;
  for (int run = 0; run < 100; ++run) {
    sum.poison(), y.poison(), mean.poison(), rstd.poison();
    CUDA_OK(bert_embedding_forward(a, nullptr));
    std::vector<std::vector<unsigned char>> now = {sum.read(), y.read(), mean.read(), rstd.read()};
    if (run == 0)
      first = std::move(now);
    else
      ASSERT_TRUE(now == first) << "run " << run;
  }
}

TEST_F(BertEmbeddingTest, StrayIndicesGiveNaN) {
  const Values table = normal_values(4 * 16, Element::kBF16, 1);
  DeviceArray w(table, Element::kBF16), p(table, Element::kBF16), t(table, Element::kBF16),
      g(Values(16, 1.0), Element::kBF16), b(Values(16, 0.0), Element::kBF16), y(4 * 16, Element::kBF16);
  DeviceIntegers<int64_t> ids({4, 1, 1, 1}), positions({1, -1, 1, 1}), types({1, 1, 9, 1});
  BertEmbedding a;
  a.word = w.data(), a.position = p.data(), a.type = t.data(), a.gamma = g.data();
  a.beta = b.data(), a.ids = ids.as<int64_t>(), a.positions = positions.as<int64_t>();
  a.types = types.as<int64_t>(), a.y = y.data(), a.rows = 4, a.columns = 16;
  a.vocab = a.max_positions = a.num_types = 4, a.eps = 1e-5f;
  CUDA_OK(bert_embedding_forward(a, nullptr));
  const Values out = y.values();
  for (int i = 0; i < 48; ++i) ASSERT_TRUE(std::isnan(out[i])) << i;
  for (int i = 48; i < 64; ++i) ASSERT_FALSE(std::isnan(out[i])) << i;
}

}  // namespace

}  // namespace trireme::kernels::testing::bert_embedding_tests
