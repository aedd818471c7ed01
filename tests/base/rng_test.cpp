// Compares with values from NumPy 2.4 and published XXH3 values.
#include "trireme/base/rng.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "trireme/base/hash.h"

namespace trireme {
namespace {

TEST(DeriveSeed, DependsOnEveryArgumentAndIsStable) {
  std::set<uint64_t> seen;
  for (const uint64_t seed : {0ULL, 1ULL, 1234ULL})
    for (const char* name : {"", "dropout", "init", "order"})
      for (const uint64_t index : {0ULL, 1ULL, 1ULL << 40}) seen.insert(derive_seed(seed, name, index));
  EXPECT_EQ(seen.size(), 36U);
  // Saved runs resume with these seeds: they must not change.
  EXPECT_EQ(derive_seed(1234, "dropout", 7), 0x74ae4b235e375949U);
  EXPECT_EQ(derive_seed(0, ""), 0xf0a390d5a40e58dfU);
  EXPECT_EQ(uniform_draw(0, ""), static_cast<double>(0xf0a390d5a40e58dfU >> 11) / 9007199254740992.0);
}

struct NumpyCase {
  uint32_t seed;
  std::vector<uint32_t> first;
  std::vector<uint32_t> around_1000;  // draws 1000..1002, after one refill of the state
  std::vector<int64_t> shuffled_12;
  int64_t weighted_sum_1000;  // sum of i * a[i] after shuffling arange(1000)
};

const NumpyCase kNumpyCases[] = {
    {0,
     {2357136044, 2546248239, 3071714933, 3626093760, 2588848963},
     {1333075495, 1193028842, 1602172539},
     {6, 11, 4, 10, 2, 8, 1, 7, 9, 3, 0, 5},
     247872640},
    {1234,
     {822569775, 2137449171, 2671936806, 3512589365, 1880026316},
     {3796541357, 317699229, 3184119239},
     {7, 8, 11, 2, 9, 10, 1, 0, 4, 5, 6, 3},
     251398022},
    {4294967295,
     {419326371, 479346978, 3918654476, 2416749639, 3388880820},
     {1661208369, 1977292216, 1862446538},
     {11, 8, 5, 9, 1, 10, 6, 0, 4, 7, 2, 3},
     249935792},
};

TEST(NumpyRandom, EqualsRandomStateDraws) {
  for (const NumpyCase& expected : kNumpyCases) {
    NumpyRandom random(expected.seed);
    for (const uint32_t value : expected.first) EXPECT_EQ(random.next_uint32(), value);
    for (int i = 5; i < 1000; ++i) random.next_uint32();
    for (const uint32_t value : expected.around_1000) EXPECT_EQ(random.next_uint32(), value);
  }
}

TEST(NumpyRandom, EqualsRandomStateShuffle) {
  for (const NumpyCase& expected : kNumpyCases) {
    std::vector<int64_t> values(12);
    std::iota(values.begin(), values.end(), 0);
    NumpyRandom(expected.seed).shuffle(values);
    EXPECT_EQ(values, expected.shuffled_12);

    values.resize(1000);
    std::iota(values.begin(), values.end(), 0);
    NumpyRandom(expected.seed).shuffle(values);
    int64_t sum = 0;
    for (int64_t i = 0; i < 1000; ++i) sum += i * values[static_cast<size_t>(i)];
    EXPECT_EQ(sum, expected.weighted_sum_1000);
  }
}

TEST(NumpyRandom, IntervalEqualsMaskedRejectionOfRandomState) {
  // RandomState(1234).randint(0, max + 1, dtype=uint64), consecutively: 32-bit and 64-bit draws alternate.
  NumpyRandom random(1234);
  const std::pair<uint64_t, uint64_t> expected[] = {{9, 3},
                                                    {1000000, 165158},
                                                    {4294967295, 3512589365},
                                                    {1ULL << 40, 878802328948},
                                                    {(1ULL << 63) - 1, 5263936763381405689},
                                                    {6, 1},
                                                    {6, 1},
                                                    {6, 2}};
  for (const auto& [max, value] : expected) EXPECT_EQ(random.interval(max), value) << max;
  EXPECT_EQ(random.interval(0), 0U);
}

TEST(NumpyRandom, ShufflesEmptyAndSingle) {
  std::vector<int64_t> none, one = {5};
  NumpyRandom(1).shuffle(none);
  NumpyRandom(1).shuffle(one);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(one, std::vector<int64_t>{5});
}

TEST(Hash, EqualsPublishedXxh3) {
  EXPECT_EQ(xxh3_64("", 0), 0x2D06800538D394C2U);  // xxHash's own sanity test, length 0, seed 0
  EXPECT_NE(xxh3_64("a", 1, 1), xxh3_64("a", 1, 2));
  EXPECT_EQ(hex64(0x1f), "000000000000001f");
}

}  // namespace
}  // namespace trireme
