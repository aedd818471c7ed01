#include "data/row_scan.h"

#include "../base/base_testing.h"
#include "trireme/base/time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace trireme {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

/// Rows that count how often they are read; some are bad.
struct Rows {
  std::mutex mutex;
  std::map<std::pair<size_t, int64_t>, int> reads;
  std::set<std::pair<size_t, int64_t>> bad;

  RowSet set(size_t number, int64_t rows, std::vector<int64_t> shard_rows = {}) {
    return {"set " + std::to_string(number), rows, std::move(shard_rows), [this, number](int64_t row) {
              const std::lock_guard lock(mutex);
              ++reads[{number, row}];
              if (bad.contains({number, row}))
                throw DataError("set " + std::to_string(number) + " row " + std::to_string(row));
            }};
  }
};

TEST(RowScan, ReadsEveryRowOnceWhateverThreadsAndParts) {
  for (const int threads : {1, 3}) {
    for (const int parts : {1, 2, 5}) {
      Rows rows;
      int64_t checked = 0;
      for (int part = 0; part < parts; ++part) {
        // Shards are read by one thread, also if options ask for more.
        std::vector<int64_t> shards = threads == 1 ? std::vector<int64_t>{7, 0, 50, 3} : std::vector<int64_t>{};
        RowScan scan({rows.set(0, 1000), rows.set(1, 1), rows.set(2, 60, std::move(shards)), rows.set(3, 128)},
                     {.threads = threads, .part = part, .parts = parts});
        const RowScanReport report = scan.finish(kForever);
        EXPECT_EQ(report.rows, report.checked);
        checked += report.checked;
      }
      EXPECT_EQ(checked, 1189);
      EXPECT_EQ(rows.reads.size(), 1189U);
      for (const auto& [row, times] : rows.reads) EXPECT_EQ(times, 1) << row.first << " " << row.second;
    }
  }
}

TEST(RowScan, TellsOfTheFirstBadRowInTheOrderOfTheFiles) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    Rows rows;
    rows.bad = {{1, 3}, {0, 4999}, {0, 700}, {0, 701}, {1, 0}};
    RowScan scan({rows.set(0, 5000), rows.set(1, 100)}, {.threads = 4});
    const RowScanReport report = scan.finish(kForever);
    ASSERT_EQ(report.first_bad.size(), 1U);
    EXPECT_EQ(report.first_bad[0].what, "set 0 row 700");
  }
}

TEST(RowScan, CountsAllBadRowsWhereAsked) {
  Rows rows;
  for (int64_t row = 0; row < 500; row += 5) rows.bad.insert({0, row});
  RowScan scan({rows.set(0, 500)}, {.threads = 2, .all = true, .keep = 3});
  const RowScanReport report = scan.finish(kForever);
  EXPECT_EQ(report.bad_rows, 100);
  EXPECT_EQ(report.checked, 500);
  ASSERT_EQ(report.first_bad.size(), 3U);
  EXPECT_EQ(report.first_bad[2].row, 10);
}

TEST(RowScan, EndsInTimeAndHasLookedEverywhere) {
  std::mutex mutex;
  std::vector<int64_t> seen;
  const RowSet slow{"slow", 64 * 10000, {}, [&](int64_t row) {
                      std::this_thread::sleep_for(std::chrono::microseconds(20));
                      const std::lock_guard lock(mutex);
                      seen.push_back(row);
                    }};
  const double begin = steady_seconds();
  RowScan scan({slow}, {.threads = 2});
  const RowScanReport report = scan.finish(0.4);
  EXPECT_LT(steady_seconds() - begin, 1.5);
  EXPECT_EQ(report.checked, static_cast<int64_t>(seen.size()));
  EXPECT_LT(report.checked, report.rows);
  ASSERT_GT(report.checked, 64 * 20);
  EXPECT_TRUE(contains(report.summary(), "trireme data verify"));
  // Chunks of 64 rows, in every tenth of the file.
  std::set<int64_t> tenths;
  for (const int64_t row : seen) tenths.insert(row / (64 * 1000));
  EXPECT_EQ(tenths.size(), 10U);
}

TEST(RowScan, StopsByItselfWhileNobodyWaits) {
  std::atomic<int64_t> reads = 0;
  const RowSet endless{"endless", 1 << 30, {}, [&](int64_t) { ++reads; }};
  RowScan scan({endless}, {.threads = 1, .seconds = 0.05});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const int64_t then = reads;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(reads, then);
  EXPECT_EQ(scan.finish(kForever).checked, then);
}

TEST(RowScan, ABugIsNoBadRow) {
  const RowSet broken{"broken", 10, {}, [](int64_t) { throw InternalError("a bug"); }};
  RowScan scan({broken}, {.threads = 2});
  EXPECT_THROW(scan.finish(kForever), InternalError);
}

}  // namespace
}  // namespace trireme
