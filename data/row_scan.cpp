#include "data/row_scan.h"

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

namespace trireme {

namespace {

constexpr int64_t kRowsPerChunk = 64;

/// A step that visits each of 0 … count-1 once (modulo count), near the golden section of count: at any time the
/// visited ones are spread evenly.
int64_t spreading_stride(int64_t count) {
  auto stride = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(count) * 0.6180339887498949));
  while (std::gcd(stride, count) != 1) ++stride;
  return stride;
}

}  // namespace

struct RowScan::State {
  /// The chunks of one set, and the number of its first chunk among all sets.
  struct Chunks {
    int64_t first = 0, count = 0;
    std::vector<int64_t> begins;  // of shards; empty: chunks of kRowsPerChunk
  };
  std::vector<RowSet> sets;
  RowScanOptions options;
  std::vector<Chunks> chunks;
  int64_t total_chunks = 0, stride = 1, part_chunks = 0;
  double begin = steady_seconds();
  std::atomic<int64_t> next = 0, checked = 0;
  std::atomic<bool> stopping = false;
  std::mutex mutex;
  std::condition_variable ended;
  int running = 0;
  std::vector<BadRow> bad;  // ascending, at most options.keep
  int64_t bad_rows = 0;
  std::exception_ptr failure;
  std::vector<std::thread> threads;

  /// The set of the i-th chunk of this part, and the chunk's rows [begin, end) in it.
  std::pair<size_t, std::pair<int64_t, int64_t>> chunk(int64_t i) const {
    const int64_t number = (i * options.parts + options.part) % total_chunks * stride % total_chunks;
    size_t set = 0;
    while (set + 1 < sets.size() && number >= chunks[set + 1].first) ++set;
    const int64_t within = number - chunks[set].first;
    if (!chunks[set].begins.empty())
      return {set,
              {chunks[set].begins[static_cast<size_t>(within)], chunks[set].begins[static_cast<size_t>(within) + 1]}};
    return {set, {within * kRowsPerChunk, std::min(sets[set].rows, (within + 1) * kRowsPerChunk)}};
  }

  /// Whether a bad row at or after this one could still be among those to report.
  bool of_interest(size_t set, int64_t row) {
    if (options.all) return true;
    const std::lock_guard lock(mutex);
    return bad.empty() || std::pair(set, row) < std::pair(bad.back().set, bad.back().row);
  }

  void add(size_t set, int64_t row, const std::string& what) {
    const std::lock_guard lock(mutex);
    ++bad_rows;
    const auto place = std::upper_bound(bad.begin(), bad.end(), std::pair(set, row),
                                        [](const auto& key, const BadRow& b) { return key < std::pair(b.set, b.row); });
    bad.insert(place, {set, row, what});
    if (bad.size() > options.keep) bad.pop_back();
  }

  bool over() const { return stopping || steady_seconds() - begin > options.seconds; }

  void work() {
    try {
      for (int64_t i = next++; i < part_chunks && !over(); i = next++) {
        const auto [set, rows] = chunk(i);
        if (!of_interest(set, rows.first)) continue;
        for (int64_t row = rows.first; row < rows.second && !over(); ++row) {
          try {
            sets[set].check(row);
          } catch (const DataError& error) {
            add(set, row, error.what());
            if (!options.all) break;
          }
          ++checked;
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      stopping = true;
    }
    const std::lock_guard lock(mutex);
    if (--running == 0) ended.notify_all();
  }

  void join() {
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

std::string RowScanReport::summary() const {
  if (rows == 0) return "no rows to check: they are drawn, not read";
  if (checked >= rows)
    return fmt::format("all {} {} are good ({})", format_count(rows), unit, format_duration(seconds));
  return fmt::format("{} of {} {} checked in {}, spread over all files; `trireme data verify` checks all",
                     format_count(checked), format_count(rows), unit, format_duration(seconds));
}

RowScan::RowScan(std::vector<RowSet> sets, const RowScanOptions& options) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.sets = std::move(sets);
  s.options = options;
  TRIREME_CHECK(options.threads >= 1 && options.parts >= 1 && options.part < options.parts && options.keep >= 1,
                options.threads, " threads, part ", options.part, " of ", options.parts, ", keep ", options.keep);
  for (const RowSet& set : s.sets) {
    State::Chunks chunks{s.total_chunks, ceil_div(set.rows, kRowsPerChunk), {}};
    if (!set.shard_rows.empty()) {
      chunks.begins.push_back(0);
      for (const int64_t rows : set.shard_rows) chunks.begins.push_back(chunks.begins.back() + rows);
      chunks.count = static_cast<int64_t>(set.shard_rows.size());
    }
    s.total_chunks += chunks.count;
    s.chunks.push_back(std::move(chunks));
  }
  s.stride = spreading_stride(std::max<int64_t>(1, s.total_chunks));
  s.part_chunks = ceil_div(s.total_chunks - options.part, options.parts);
  const bool sharded =
      std::any_of(s.sets.begin(), s.sets.end(), [](const RowSet& set) { return !set.shard_rows.empty(); });
  s.running = sharded ? 1 : options.threads;
  for (int i = s.running; i > 0; --i) s.threads.emplace_back([&s] { s.work(); });
}

RowScan::~RowScan() {
  state_->stopping = true;
  state_->join();
}

RowScanReport RowScan::finish(double seconds, const std::function<void(int64_t)>& progress) {
  State& s = *state_;
  {
    std::unique_lock lock(s.mutex);
    while (s.running > 0) {
      const double left = s.begin + seconds - steady_seconds();
      if (left <= 0) break;
      s.ended.wait_for(lock, std::chrono::duration<double>(std::min(left, 0.2)));
      if (progress) progress(s.checked);
    }
  }
  s.stopping = true;
  s.join();
  if (s.failure) std::rethrow_exception(s.failure);
  RowScanReport report;
  for (const RowSet& set : s.sets)
    if (set.unit != s.sets.front().unit)
      report.unit = "rows and documents";
    else if (&set == &s.sets.front())
      report.unit = set.unit;
  if (s.options.parts == 1) {
    for (const RowSet& set : s.sets) report.rows += set.rows;
  } else {
    for (int64_t i = 0; i < s.part_chunks; ++i) {
      const auto rows = s.chunk(i).second;
      report.rows += rows.second - rows.first;
    }
  }
  report.checked = s.checked;
  report.bad_rows = s.bad_rows;
  report.first_bad = s.bad;
  report.seconds = steady_seconds() - s.begin;
  return report;
}

}  // namespace trireme
