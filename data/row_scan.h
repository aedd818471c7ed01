#pragma once
// Reads and checks rows of data sets before training: on several threads, in chunks spread evenly over all files, as
// long as the caller allows. Independent of LibTorch and ranks.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// A data set; check(row) reads a row and checks it.
struct RowSet {
  std::string name;  // "data.train"
  int64_t rows = 0;
  std::vector<int64_t> shard_rows;         // rows of shards that are loaded whole; empty: rows are read one by one
  std::function<void(int64_t row)> check;  // thread-safe; DataError with file, row and value
  std::string unit = "rows";               // what they are called
  std::function<std::string()> lack = {};  // after check() of all rows: what the set needs and no row has; may be empty
};

struct RowScanOptions {
  int threads = 1;          // only one is used if a set has shards, because each thread would hold a shard in memory
  int part = 0, parts = 1;  // this scan takes every parts-th chunk: ranks share the rows
  double seconds = std::numeric_limits<double>::infinity();  // time limit of the scan
  bool all = false;  // continue after a bad row; otherwise later rows are not read
  size_t keep = 1;   // number of bad rows to report
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
  std::string unit = "rows";
  /// "no rows to check: …" (mock rows), "all 4,000 rows are good (0.2 s)", "1,200 of 4,000 rows checked in 10.0 s, …".
  std::string summary() const;
};

class RowScan {
 public:
  /// Starts the threads.
  RowScan(std::vector<RowSet> sets, const RowScanOptions& options);
  /// Stops the scan.
  ~RowScan();
  /// Waits until all rows are read or `seconds` have passed since the start, ends the threads, and returns the
  /// findings. `progress(rows checked)` is called regularly. Errors other than DataError are rethrown.
  RowScanReport finish(double seconds, const std::function<void(int64_t)>& progress = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
