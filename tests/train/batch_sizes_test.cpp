// BatchSizes against Megatron's rule, step by step.
#include "trireme/config/batch_sizes.h"
#include "run_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace trireme {
namespace {

BatchSection ramp(int64_t start, int64_t increment, int64_t samples, int64_t global) {
  BatchSection batch;
  batch.global_batch_size = global;
  batch.rampup = {start, increment, samples};
  return batch;
}

std::vector<int64_t> first_sizes(const BatchSizes& batches, int64_t steps) {
  std::vector<int64_t> sizes;
  for (int64_t step = 0; step < steps; ++step) sizes.push_back(batches.of(step));
  return sizes;
}

TEST(BatchSizes, WithoutARampAreAllTheSame) {
  BatchSection batch;
  batch.global_batch_size = 8;
  const BatchSizes batches(batch);
  EXPECT_FALSE(batches.ramps());
  EXPECT_EQ(batches.of(0), 8);
  EXPECT_EQ(batches.before(1000000000), 8000000000);
  EXPECT_EQ(batches.first_largest(), 0);
}

TEST(BatchSizes, GrowByMegatronsRule) {
  // Increments after 12, 24 and 36 samples.
  const BatchSizes small(ramp(4, 4, 36, 16));
  EXPECT_EQ(first_sizes(small, 9), (std::vector<int64_t>{4, 4, 4, 8, 8, 12, 16, 16, 16}));
  EXPECT_EQ(small.before(7), 56);
  EXPECT_EQ(small.first_largest(), 6);
  // 142.857 samples each: not a multiple of any batch.
  EXPECT_EQ(first_sizes(BatchSizes(ramp(32, 32, 1000, 256)), 14),
            (std::vector<int64_t>{32, 32, 32, 32, 32, 64, 64, 96, 96, 128, 160, 192, 224, 256}));
  // An increment of 5.7 samples is less than a step: sizes are skipped.
  EXPECT_EQ(first_sizes(BatchSizes(ramp(16, 16, 40, 128)), 4), (std::vector<int64_t>{16, 48, 128, 128}));
}

TEST(BatchSizes, EqualTheRuleStepByStep) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const auto draw = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
    const int64_t start = draw(64), increment = draw(32), count = draw(40), samples = draw(20000);
    const int64_t global = start + increment * count;
    const BatchSizes batches(ramp(start, increment, samples, global));
    const double each = static_cast<double>(samples) / static_cast<double>(count);
    int64_t seen = 0, step = 0;
    for (int past = 0; past < 3; ++step) {
      const int64_t size =
          seen > samples ? global : start + static_cast<int64_t>(static_cast<double>(seen) / each) * increment;
      ASSERT_EQ(batches.of(step), size) << start << ' ' << increment << ' ' << samples << ' ' << global << ", " << step;
      ASSERT_EQ(batches.before(step), seen);
      past += size == global;
      seen += size;
    }
    EXPECT_TRUE(batches.ramps());
    EXPECT_EQ(batches.largest(), global);
    EXPECT_EQ(batches.of(batches.first_largest()), global);
    EXPECT_LT(batches.of(batches.first_largest() - 1), global);
  }
}

TEST(BatchSizes, ALongRampIsFewStages) {
  // Megatron's example: 32 to 1024 in 97.7 million samples.
  const BatchSizes batches(ramp(32, 32, 97656250, 1024));
  EXPECT_EQ(batches.of(0), 32);
  EXPECT_EQ(batches.of(98443), 32);
  EXPECT_EQ(batches.before(98444), 3150208);
  EXPECT_EQ(batches.of(98444), 64) << "the first step behind 97656250 / 31 = 3150201.6 samples";
}

TEST(RunLength, RowsOfEpochsAreThoseOfTheDecimalNumber) {
  for (const int64_t rows : {100, 400, 1000, 700000}) {
    for (int64_t hundredths = 1; hundredths < 1000; ++hundredths) {
      const double epochs = static_cast<double>(hundredths) / 100;
      ASSERT_EQ(rows_of_epochs(epochs, rows), (hundredths * rows + 99) / 100) << epochs << " of " << rows;
    }
  }
  EXPECT_EQ(rows_of_epochs(1.1, 100), 110);
  EXPECT_EQ(rows_of_epochs(1.0001, 100), 101) << "part of a row is a row";
  EXPECT_EQ(rows_of_epochs(1e-6, 1), 1);
  EXPECT_EQ(rows_of_epochs(61.0 / 40, 40), 61);
}

}  // namespace
}  // namespace trireme
