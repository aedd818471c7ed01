// PythonRandom compared with Python's random.Random.

#include "data/prepare/python_random.h"

#include "prepare_testing.h"

#include <numeric>

namespace trireme {
namespace {

using PythonRandomParity = Scratch;

TEST_F(PythonRandomParity, ShufflesAndDrawsAlike) {
  if (!python_has("random")) GTEST_SKIP() << "no Python";
  const uint64_t seeds[] = {0, 100, 4294967295, 4294967296, ~uint64_t{0}};
  std::string ours;
  for (const uint64_t seed : seeds) {
    PythonRandom random(seed);
    for (const int n : {1, 2, 10, 1000}) {
      std::vector<int> values(static_cast<size_t>(n));
      std::iota(values.begin(), values.end(), 0);
      random.shuffle(values);
      ours += fmt::format("{}\n", fmt::join(values, " "));
    }
    for (int i = 1; i < 1500; ++i)
      ours += fmt::format("{} ", random.below(static_cast<uint64_t>(i) * 2863311u % 4294967291u + 1));
  }
  const std::string theirs = python(
      "import random, sys\n"
      "for seed in map(int, sys.argv[1:]):\n"
      "    r = random.Random(seed)\n"
      "    for n in (1, 2, 10, 1000):\n"
      "        v = list(range(n)); r.shuffle(v); print(*v)\n"
      "    for i in range(1, 1500):\n"
      "        print(r.randrange(i * 2863311 % 4294967291 + 1), end=' ')\n",
      fmt::format("{}", fmt::join(seeds, " ")));
  EXPECT_EQ(ours, theirs);
}

}  // namespace
}  // namespace trireme
