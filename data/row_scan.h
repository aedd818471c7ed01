#pragma once
// Reads rows of data sets before a run trains on them: on several threads, in chunks spread evenly over all files, for
// as long as the caller waits. Knows no LibTorch, no ranks.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// Rows that are checked by being read.
struct RowSet {
  std::string name;  // "data.train"
  int64_t rows = 0;
  std::vector<int64_t> shard_rows;         // rows of shards that are loaded whole; empty: rows are read one by one
  std::function<void(int64_t row)> check;  // thread-safe; DataError with file, row and value
};

struct RowScanOptions {
  int threads = 1;          // with shards among the sets one is taken: each thread would hold a shard in memory
  int part = 0, parts = 1;  // this scan takes every parts-th chunk: ranks share the rows
  double seconds = std::numeric_limits<double>::infinity();  // after which the threads stop by themselves
  bool all = false;  // go on after a bad row; otherwise rows above it are not read any more
  size_t keep = 1;   // bad rows to tell of
};

struct BadRow {
  size_t set = 0;
  int64_t row = 0;
  std::string what;
};

struct RowScanReport {
  int64_t rows = 0, checked = 0;  // of this part
  int64_t bad_rows = 0;
  std::vector<BadRow> first_bad;  // in the order of sets and rows, at most RowScanOptions::keep
  double seconds = 0;             // since the start
  /// "all 4,000 rows are good (0.2 s)", "1,200 of 4,000 rows checked in 10.0 s, …".
  std::string summary() const;
};

class RowScan {
 public:
  /// Starts the threads.
  RowScan(std::vector<RowSet> sets, const RowScanOptions& options);
  /// Stops where it is.
  ~RowScan();
  /// Waits until the threads are through or `seconds` have passed since the start, ends them, and tells what was found.
  /// `progress(rows checked)` is called every now and then. An error that is no DataError is thrown.
  RowScanReport finish(double seconds, const std::function<void(int64_t)>& progress = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
