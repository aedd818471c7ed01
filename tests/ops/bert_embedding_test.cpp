#include "trireme/ops/embedding.h"

#include "gradient_check.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

const auto kIndices = at::TensorOptions(at::kLong);

TEST(Embedding, GivesItsGradientToASink) {
  const at::Tensor ids = at::tensor({4, 0, 4, 6}, at::kLong), dy = random({4, 3}, 2, at::kFloat);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor table = random({8, 3}, 1, type);
    const auto d = gradients([&](const auto& t) { return (embed(t[0], ids) * dy.to(type)).sum(); }, {table})[0];
    for (const bool adds : {false, true}) {
      CountingSink sink(at::ones({8, 3}, at::kFloat), adds);
      const at::Tensor y = embed(table, ids, &sink);
      EXPECT_TRUE(y.detach().equal(at::embedding(table, ids)));
      (y * dy.to(type)).sum().backward();
      EXPECT_TRUE(sink.result.sum.equal(adds ? d.to(at::kFloat) + 1 : d.to(at::kFloat)));
      EXPECT_EQ(sink.targets, 1);
      EXPECT_EQ(sink.writes, 1);
      at::NoGradGuard no_grad;
      EXPECT_FALSE(embed(table, ids, &sink).requires_grad());
    }
  }
}

TEST(Embedding, GivesNoGradientToTheRowOfPadding) {
  const at::Tensor ids = at::tensor({4, 0, 4, 6}, at::kLong), dy = random({4, 3}, 2, at::kFloat);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor table = random({8, 3}, 1, type);
    const auto gradient = [&](int64_t padding) {
      return gradients([&](const auto& t) { return (embed(t[0], ids, nullptr, padding) * dy.to(type)).sum(); },
                       {table})[0];
    };
    at::Tensor expected = gradient(-1).clone();
    EXPECT_NE(expected.select(0, 4).abs().max().item<double>(), 0);
    expected.select(0, 4).zero_();
    EXPECT_TRUE(gradient(4).equal(expected));
    CountingSink sink(at::ones({8, 3}, at::kFloat), /*adds=*/false);
    (embed(table, ids, &sink, 4) * dy.to(type)).sum().backward();
    EXPECT_TRUE(sink.result.sum.equal(expected.to(at::kFloat)));
  }
}

/// 0.01 added 2,000 times in bf16 ends at 4.
TEST(Embedding, SumsFrequentTokensOf16BitsInFp32) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor table = random({3, 8}, 1, at::kFloat).to(dtype).requires_grad_(true);
    embed(table, at::ones({2000}, at::kLong)).backward(at::full({2000, 8}, 0.01, dtype));
    const double term = at::full({}, 0.01, dtype).item<double>();
    EXPECT_NEAR(table.grad()[1][0].item<double>(), 2000 * term, 0.1) << c10::toString(dtype);
    EXPECT_EQ(table.grad()[0].abs().max().item<double>(), 0);
  }
}

TEST(BertEmbedding, ValueAndGradientsWithDropout) {
  const at::Tensor ids = at::tensor({3, 1, 1, 0, 4, 3}, kIndices), types = at::tensor({0, 1, 1, 0, 0, 1}, kIndices),
                   positions = at::arange(3, kIndices).repeat({2});
  const std::vector<at::Tensor> tables = {random({5, 6}, 1), random({3, 6}, 2), random({2, 6}, 3), random({6}, 4),
                                          random({6}, 5)};
  const Dropout dropout{0.3, 7, at::tensor({11, 12}, kIndices)};
  const auto with = [&](const Dropout& d) {
    return [&, d](const std::vector<at::Tensor>& t) {
      return bert_embedding({t[0], t[1], t[2], t[3], t[4]}, {ids, positions, types}, 1e-3, d.at(5));
    };
  };
  const at::Tensor sum = tables[0].index({ids}) + tables[1].index({positions}) + tables[2].index({types});
  const at::Tensor centred = sum - sum.mean(-1, true);
  const at::Tensor normed = centred / (centred.square().mean(-1, true) + 1e-3).sqrt() * tables[3] + tables[4];
  EXPECT_LT(max_difference(with({})(tables), normed), 1e-12);
  EXPECT_LT(max_difference(with(dropout)(tables), apply_dropout(normed, dropout.at(5))), 1e-12);
  const auto square = [&](const std::vector<at::Tensor>& t) { return with(dropout)(t).square().sum(); };
  EXPECT_LT(gradient_error(square, tables), 1e-6);
  const auto padded = [&](const std::vector<at::Tensor>& t) {
    return bert_embedding({t[0], t[1], t[2], t[3], t[4], nullptr, /*padding=*/1}, {ids, positions, types}, 1e-3,
                          dropout.at(5))
        .square()
        .sum();
  };
  std::vector<at::Tensor> expected = gradients(square, tables);
  expected[0] = expected[0].clone();
  expected[0].select(0, 1).zero_();
  for (size_t i = 0; i < tables.size(); ++i) EXPECT_TRUE(gradients(padded, tables)[i].equal(expected[i])) << i;
}

TEST(TrainRows, OfManyRowsGetTheSumsOfTheirTokens) {
  const int64_t begin = 7, count = 70000;  // with 64 tokens more than one product
  const at::Tensor row_ids = at::arange(begin, begin + count, kIndices);
  at::Tensor ids = at::randint(begin + count + 9, {64}, kIndices);
  ids.narrow(0, 0, 6).copy_(at::tensor({6, 7, 7, 70006, 70006, 70007}, kIndices));
  const at::Tensor x = random({64, 3}, 1).requires_grad_(), rows = at::zeros({count, 3}, x.options()).requires_grad_();
  train_rows(x * 1, ids, {rows, row_ids, begin}).square().sum().backward();
  const at::Tensor trained = ids.ge(begin).logical_and(ids.lt(begin + count)), d = 2 * x.detach();
  const at::Tensor expected =
      at::zeros({count, 3}, d.options()).index_add(0, ids.masked_select(trained) - begin, d.index({trained}));
  EXPECT_LT(max_difference(rows.grad(), expected), 1e-12);
  EXPECT_EQ(max_difference(x.grad(), d), 0);
}

TEST(TrainRows, MayBeAnyRows) {
  const at::Tensor ids = at::tensor({5, 2, 9, 2, 4}, kIndices), row_ids = at::tensor({2, 5, 7}, kIndices);
  const at::Tensor x = random({5, 3}, 1), values = random({3, 3}, 2).requires_grad_(), table = random({10, 3}, 3);
  const TrainedRows rows{values, row_ids};
  train_rows(x * 1, ids, rows).square().sum().backward();
  const at::Tensor d = 2 * x;
  EXPECT_LT(max_difference(values.grad(), at::stack({d[1] + d[3], d[0], at::zeros({3}, d.options())})), 1e-12);
  at::Tensor put = table.clone();
  rows.put_into(put);
  EXPECT_EQ(max_difference(put.index_select(0, row_ids), values), 0);
  EXPECT_EQ(max_difference(put.index_select(0, at::tensor({0, 1, 3, 4, 6, 8, 9}, kIndices)),
                           table.index_select(0, at::tensor({0, 1, 3, 4, 6, 8, 9}, kIndices))),
            0);
  EXPECT_EQ(max_difference(rows.columns_of(table.t()), table.t().index_select(1, row_ids)), 0);
}

TEST(GatherRows, AddsTheGradientsOfRowsTakenTwice) {
  const at::Tensor rows = at::tensor({2, 0, 2}, kIndices);
  const std::vector<at::Tensor> x = {random({4, 3}, 1)};
  const auto taken = [&](const std::vector<at::Tensor>& t) { return gather_rows(t[0], rows).square().sum(); };
  EXPECT_EQ(max_difference(gather_rows(x[0], rows), x[0].index_select(0, rows)), 0);
  const at::Tensor d = gradients(taken, x)[0], factor = at::tensor({1.0, 0.0, 2.0, 0.0}, at::kDouble).view({4, 1});
  EXPECT_LT(max_difference(d, 2 * x[0] * factor), 1e-12);
}

}  // namespace
}  // namespace trireme
