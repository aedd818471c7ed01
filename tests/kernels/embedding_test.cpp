#include "kernels/embedding/embedding.h"

#include "testing.h"

#include <algorithm>
#include <array>

namespace trireme::kernels::testing::embedding_tests {

namespace {

struct Shape {
  int64_t tokens, vocab, columns, shift;
};
constexpr Shape kShapes[] = {{1, 1, 1, 0},        {17, 5, 7, 0},      {100, 1000, 8, 0},  {1000, 3, 100, 0},
                             {1000, 50, 1024, 0}, {133, 60, 4096, 0}, {500, 40, 1024, 1}, {64, 64, 2000, 0},
                             {40, 30, 8200, 0},   {1000, 2, 1024, 0}, {4001, 2, 24, 1},   {131077, 40000, 2, 0}};

/// A fraction `share` of all tokens has the first id, like padding; the others have random ids.
std::vector<int64_t> some_ids(const Shape& s, double share = 0.5) {
  std::vector<int64_t> ids;
  std::mt19937 generator(7);
  for (int64_t t = 0; t < s.tokens; ++t)
    ids.push_back(static_cast<double>(generator() % 1000) < 1000 * share
                      ? 0
                      : static_cast<int64_t>(generator() % static_cast<uint64_t>(s.vocab)));
  return ids;
}

class EmbeddingTest : public KernelTest {};

TEST_F(EmbeddingTest, LooksUp) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      if (too_large(s.tokens * s.columns)) continue;
      const Values table = normal_values(s.vocab * s.columns, element, 1);
      std::vector<int64_t> ids = some_ids(s);
      Values expected;
      for (const int64_t id : ids)
        expected.insert(expected.end(), table.begin() + id * s.columns, table.begin() + (id + 1) * s.columns);
      DeviceArray rows(table, element, s.shift), y(s.tokens * s.columns, element, s.shift);
      DeviceIntegers<int64_t> device_ids(ids);
      EmbeddingForward a;
      a.table = rows.data(), a.ids = device_ids.as<int64_t>(), a.y = y.data(), a.tokens = s.tokens, a.vocab = s.vocab,
      a.columns = s.columns, a.element = element;
      CUDA_OK(embedding_forward(a, nullptr));
      EXPECT_EQ(y.values(), expected) << s.tokens << " x " << s.columns;
    }
  }
}

TEST_F(EmbeddingTest, StrayIdsGiveNaNAndNoGradient) {
  const Values table = normal_values(4 * 16, Element::kBF16, 1);
  DeviceArray rows(table, Element::kBF16), y(3 * 16, Element::kBF16), d_table(Values(4 * 16, 0.0), Element::kF32);
  DeviceIntegers<int64_t> ids({-1, 2, 4});
  EmbeddingForward a;
  a.table = rows.data(), a.ids = ids.as<int64_t>(), a.y = y.data(), a.tokens = 3, a.vocab = 4, a.columns = 16;
  CUDA_OK(embedding_forward(a, nullptr));
  const Values out = y.values();
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[47]));
  EXPECT_EQ(Values(out.begin() + 16, out.begin() + 32), Values(table.begin() + 32, table.begin() + 48));
  DeviceArray dy(Values(48, 1.0), Element::kBF16);
  DeviceBytes workspace(static_cast<int64_t>(embedding_backward_workspace(3, 16)));
  EmbeddingBackward b;
  b.dy = dy.data(), b.ids = ids.as<int64_t>(), b.d_table = d_table.data(), b.workspace = workspace.data(), b.tokens = 3,
  b.vocab = 4, b.columns = 16;
  b.table_element = Element::kF32;
  CUDA_OK(embedding_backward(b, nullptr));
  Values expected(64, 0.0);
  for (int c = 32; c < 48; ++c) expected[c] = 1;
  EXPECT_EQ(d_table.values(), expected);
}

TEST_F(EmbeddingTest, GradientSumsEveryToken) {
  for (const Element element : kElements) {
    for (const bool fp32_table : {false, true}) {
      const Element table_element = fp32_table ? Element::kF32 : element;
      for (const Shape& s : kShapes) {
        if (too_large(s.tokens * s.columns)) continue;
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.tokens) + " of " +
                       std::to_string(s.vocab) + " x " + std::to_string(s.columns));
          const Values dy = normal_values(s.tokens * s.columns, element, 1),
                       before = normal_values(s.vocab * s.columns, table_element, 2);
          const std::vector<int64_t> ids = some_ids(s);
          std::vector<bool> seen(s.vocab, false);
          Values expected = before, size(s.vocab * s.columns, 0.0);
          for (int64_t t = 0; t < s.tokens; ++t) {
            for (int64_t c = 0; c < s.columns; ++c) {
              double& sum = expected[ids[t] * s.columns + c];
              if (!seen[ids[t]] && !accumulate) sum = 0;
              sum += dy[t * s.columns + c];
              size[ids[t] * s.columns + c] += std::abs(dy[t * s.columns + c]);
            }
            seen[ids[t]] = true;
          }
          DeviceArray gradient(dy, element, s.shift), table(before, table_element, s.shift);
          DeviceIntegers<int64_t> device_ids(ids);
          DeviceBytes workspace(static_cast<int64_t>(embedding_backward_workspace(s.tokens, s.columns)));
          EmbeddingBackward a;
          a.dy = gradient.data(), a.ids = device_ids.as<int64_t>(), a.d_table = table.data(),
          a.workspace = workspace.data();
          a.tokens = s.tokens, a.vocab = s.vocab, a.columns = s.columns, a.accumulate = accumulate, a.element = element,
          a.table_element = table_element;
          CUDA_OK(embedding_backward(a, nullptr));
          expect_close(table.values(), expected, table_element, 1.01, 1e-4, "d_table");
          workspace.read();
        }
      }
    }
  }
}

/// Runs of every length around group boundaries. Sums of small integers are exact.
TEST_F(EmbeddingTest, RunsOfEveryLength) {
  const int64_t columns = 24;
  std::mt19937 generator(3);
  for (const int first : {0, 1, 5, 31, 32, 33, 95, 96, 97, 127, 128, 129, 160, 300}) {
    for (const int second :
         {1, 2, 30, 31, 32, 33, 95, 96, 97, 126, 127, 128, 129, 130, 159, 160, 161, 191, 192, 193, 500}) {
      std::vector<int64_t> ids;
      for (int i = 0; i < first; ++i) ids.push_back(0);
      for (int i = 0; i < second; ++i) ids.push_back(1);
      for (int i = 0; i < 70; ++i) ids.push_back(2 + i / 3);
      const int64_t tokens = static_cast<int64_t>(ids.size()), vocab = 30;
      std::shuffle(ids.begin(), ids.end(), generator);
      Values dy, expected(vocab * columns, 0.0);
      for (int64_t i = 0; i < tokens * columns; ++i) dy.push_back(static_cast<double>(generator() % 7) - 3);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t c = 0; c < columns; ++c) expected[ids[t] * columns + c] += dy[t * columns + c];
      DeviceArray gradient(dy, Element::kBF16), table(Values(vocab * columns, 0.0), Element::kF32);
      DeviceIntegers<int64_t> device_ids(ids);
      DeviceBytes workspace(static_cast<int64_t>(embedding_backward_workspace(tokens, columns)));
      EmbeddingBackward a;
      a.dy = gradient.data(), a.ids = device_ids.as<int64_t>(), a.d_table = table.data();
      a.workspace = workspace.data(), a.tokens = tokens, a.vocab = vocab, a.columns = columns;
      a.table_element = Element::kF32;
      CUDA_OK(embedding_backward(a, nullptr));
      ASSERT_EQ(table.values(), expected) << first << " and " << second;
    }
  }
}

/// Ids of one to three digits, full and partly filled blocks of the sort, more tokens than the sort supports, ids that
/// are equal but for a few. Sums of small integers are exact.
TEST_F(EmbeddingTest, SortsAnyNumberOfTokens) {
  constexpr int64_t kColumns = 8;
  std::mt19937 generator(5);
  for (const auto& [tokens, vocab, spread] : {std::array<int64_t, 3>{2048, 255, 255},
                                              {2049, 256, 256},
                                              {131072, 30528, 30528},
                                              {131071, 30528, 3},
                                              {32768, 100000, 100000},
                                              {4097, 128256, 128256},
                                              {526000, 300, 300}}) {
    if (too_large(tokens * kColumns)) continue;
    SCOPED_TRACE(std::to_string(tokens) + " of " + std::to_string(vocab));
    std::vector<int64_t> ids;
    Values dy, expected(static_cast<size_t>(vocab * kColumns), 0.0);
    for (int64_t t = 0; t < tokens; ++t) {
      ids.push_back(t % 1000 == 7 ? vocab + t : vocab - 1 - static_cast<int64_t>(generator()) % spread);
      for (int64_t c = 0; c < kColumns; ++c) {
        dy.push_back(static_cast<double>((t + c * 3) % 7) - 3);
        if (ids.back() < vocab) expected[static_cast<size_t>(ids.back() * kColumns + c)] += dy.back();
      }
    }
    DeviceArray gradient(dy, Element::kBF16), table(Values(static_cast<size_t>(vocab * kColumns), 0.0), Element::kF32);
    DeviceIntegers<int64_t> device_ids(ids);
    DeviceBytes workspace(static_cast<int64_t>(embedding_backward_workspace(tokens, kColumns)));
    workspace.poison();
    EmbeddingBackward a;
    a.dy = gradient.data(), a.ids = device_ids.as<int64_t>(), a.d_table = table.data();
    a.workspace = workspace.data(), a.tokens = tokens, a.vocab = vocab, a.columns = kColumns;
    a.table_element = Element::kF32;
    CUDA_OK(embedding_backward(a, nullptr));
    EXPECT_EQ(table.values(), expected);
    workspace.read();
  }
}

/// Tables of few rows are summed without a sort: rows without tokens do not change, ids outside the table add nothing.
TEST_F(EmbeddingTest, RowsWithoutTokensStay) {
  for (const int64_t vocab : {1, 2, 3}) {
    const int64_t tokens = 70, columns = 24, named = vocab - 1;
    std::vector<int64_t> ids(tokens, -1);
    for (int64_t t = 0; t < tokens; t += 3) ids[static_cast<size_t>(t)] = named;
    ids[1] = vocab, ids[2] = int64_t{1} << 40;
    Values expected(static_cast<size_t>(vocab * columns), 7.0);
    for (int64_t c = 0; c < columns; ++c) expected[static_cast<size_t>(named * columns + c)] = 24;
    DeviceArray dy(Values(static_cast<size_t>(tokens * columns), 1.0), Element::kBF16),
        table(Values(static_cast<size_t>(vocab * columns), 7.0), Element::kBF16);
    DeviceIntegers<int64_t> device_ids(ids);
    DeviceBytes workspace(static_cast<int64_t>(embedding_backward_workspace(tokens, columns)));
    EmbeddingBackward a;
    a.dy = dy.data(), a.ids = device_ids.as<int64_t>(), a.d_table = table.data(), a.workspace = workspace.data(),
    a.tokens = tokens, a.vocab = vocab, a.columns = columns;
    CUDA_OK(embedding_backward(a, nullptr));
    EXPECT_EQ(table.values(), expected) << vocab << " rows";
    workspace.read();
  }
}

TEST_F(EmbeddingTest, SameBitsEveryTime) {
  for (const int64_t vocab : {2, 300}) {
    const Shape s{3000, vocab, 1024, 0};
    DeviceArray gradient(normal_values(s.tokens * s.columns, Element::kBF16, 1), Element::kBF16),
        table(s.vocab * s.columns, Element::kF32);
    DeviceIntegers<int64_t> ids(some_ids(s));
    DeviceBytes workspace(static_cast<int64_t>(embedding_backward_workspace(s.tokens, s.columns)));
    EmbeddingBackward a;
    a.dy = gradient.data(), a.ids = ids.as<int64_t>(), a.d_table = table.data(), a.workspace = workspace.data(),
    a.tokens = s.tokens, a.vocab = s.vocab;
    a.columns = s.columns, a.table_element = Element::kF32;
    std::vector<unsigned char> first;
    for (int run = 0; run < 100; ++run) {
      table.poison(), workspace.poison();
      CUDA_OK(embedding_backward(a, nullptr));
      std::vector<unsigned char> now = table.read();
      if (run == 0)
        first = std::move(now);
      else
        ASSERT_TRUE(now == first) << "run " << run << " of " << vocab;
    }
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::embedding_tests
