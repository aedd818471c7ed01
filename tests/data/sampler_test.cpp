// The order of samples: equal to NumPy's, and independent of the order of access.

#include "data/dataset.h"
#include "trireme/base/error.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cstdio>
#include <sstream>

namespace trireme {
namespace {

std::vector<int64_t> stream(Sampler sampler, int64_t from, int64_t to) {
  std::vector<int64_t> result;
  for (int64_t position = from; position < to; ++position) result.push_back(sampler.at(position));
  return result;
}

/// The integers that a Python program prints; empty if Python or a package is missing.
std::vector<int64_t> python_integers(const std::string& program) {
  std::string output;
  FILE* pipe = popen(fmt::format("'{}' -c '{}' 2>/dev/null", TRIREME_PYTHON, program).c_str(), "r");
  if (!pipe) return {};
  char block[4096];
  while (const size_t n = fread(block, 1, sizeof(block), pipe)) output.append(block, n);
  if (pclose(pipe) != 0) return {};
  std::istringstream in(output);
  std::vector<int64_t> values;
  for (int64_t value; in >> value;) values.push_back(value);
  return values;
}

TEST(Sampler, EqualsNumpyEpochByEpoch) {
  const std::vector<std::pair<int64_t, uint64_t>> cases = {{3901, 1234}, {173, 0}, {5, 4294967295}, {1, 7}};
  std::string program = "import numpy as np\nfor size, seed in (";
  for (const auto& [size, seed] : cases) program += fmt::format("({}, {}), ", size, seed);
  program += "):\n r=np.random.RandomState(seed)\n for e in range(3):\n  m=np.arange(size);r.shuffle(m);print(*m)";
  const auto all = python_integers(program);
  if (all.empty()) GTEST_SKIP() << "no Python with NumPy: order not compared";
  auto at = all.begin();
  for (const auto& [size, seed] : cases) {
    ASSERT_GE(all.end() - at, 3 * size);
    EXPECT_EQ(stream(Sampler(size, seed, true), 0, 3 * size), std::vector<int64_t>(at, at + 3 * size))
        << size << " rows, seed " << seed;
    at += 3 * size;
  }
  EXPECT_EQ(at, all.end());
}

TEST(Sampler, AnyPositionCanBeReachedDirectly) {
  const auto whole = stream(Sampler(100, 42, true), 0, 500);
  EXPECT_EQ(stream(Sampler(100, 42, true), 250, 500), std::vector<int64_t>(whole.begin() + 250, whole.end()));
  Sampler sampler(100, 42, true);
  for (const int64_t position : {499, 0, 199, 200, 99, 100, 300, 1})  // forwards, backwards, across epochs
    EXPECT_EQ(sampler.at(position), whole[static_cast<size_t>(position)]) << position;
}

TEST(Sampler, CopiesDoNotDisturbEachOther) {
  const auto whole = stream(Sampler(10, 3, true), 0, 40);
  Sampler first(10, 3, true);
  EXPECT_EQ(first.at(0), whole[0]);
  Sampler second = first;
  EXPECT_EQ(second.at(35), whole[35]);
  EXPECT_EQ(first.at(10), whole[10]);
  EXPECT_EQ(second.at(19), whole[19]);
  EXPECT_EQ(first.at(29), whole[29]);
}

TEST(Sampler, EveryEpochIsAPermutationAndEpochsDiffer) {
  auto first = stream(Sampler(64, 9, true), 0, 64), second = stream(Sampler(64, 9, true), 64, 128);
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
  EXPECT_EQ(first, stream(Sampler(64, 0, false), 0, 64));
}

TEST(Sampler, FileOrderRepeats) {
  EXPECT_EQ(stream(Sampler(3, 1, false), 1, 8), (std::vector<int64_t>{1, 2, 0, 1, 2, 0, 1}));
}

TEST(Sampler, RefusesSeedsThatNumpyCannotTake) {
  EXPECT_THROW(Sampler(10, uint64_t{1} << 32, true), InternalError);
  EXPECT_THROW(Sampler(0, 1, true), InternalError);
  EXPECT_THROW(Sampler(10, 1, true).at(-1), InternalError);
}

}  // namespace
}  // namespace trireme
