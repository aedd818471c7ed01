#pragma once
// A rank's share of a TokenStream: row k of the run is a row of logical shard k mod L, so the rows of rank r of a world
// that divides L come from the shards r, r + world, …. Keeps the position of every shard before each of the last steps.

#include "data/stream/token_stream.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

class StreamLoader {
 public:
  /// ConfigError if `world` does not divide the logical shards.
  StreamLoader(std::shared_ptr<const TokenStream> stream, int rank, int world);

  /// Before the rows of step `step` are read: the one after the last, or one of the kKept before, which is then read
  /// again and leaves the places of the steps after it as they are.
  void begin_step(int64_t step);
  /// The row at place `position` of the run; positions of this rank in ascending order, without gaps.
  std::vector<int64_t> row(int64_t position);
  void end_step(int64_t step);

  /// The positions of this rank's shards before step `step`, which is one of the last steps read or the next. The lists
  /// of all ranks, one after the other, are what restore() takes. Numbers are whole and below 2^53. Thread-safe.
  std::vector<double> state(int64_t step) const;
  /// Continues before step `step` from the states of all shards. False, without changes, if the states are of another
  /// number of shards or parts. ModelError for numbers that no state() gives.
  bool restore(int64_t step, const std::vector<double>& numbers);
  /// Starts the documents from the beginning before step `step`.
  void start_anew(int64_t step);

  static constexpr int64_t kKept = 4;

 private:
  using Shards = std::vector<ShardState>;  // entry i: shard rank_ + i * world_
  std::shared_ptr<const TokenStream> stream_;
  int64_t rank_, world_;
  Shards shards_;
  struct History;
  std::shared_ptr<History> history_;
};

}  // namespace trireme
