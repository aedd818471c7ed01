#include "data/prepare/bert_packing.h"

#include "data/prepare/nnls.h"
#include "data/prepare/python_random.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trireme {
namespace {

constexpr int kCheapLengths = 8;  // short sequences fit into any row, so their residuals get a small weight
constexpr int kMaxRounds = 20;
constexpr int64_t kFewLeft = 100;  // fewer sequences do not need another round

/// The least-squares problem of one round, with weighted rows.
class Problem {
 public:
  Problem(const std::vector<PackStrategy>& strategies, int max_length)
      : strategies_(strategies), weights_(static_cast<size_t>(max_length) + 1, 1.0) {
    for (int length = 1; length <= std::min(kCheapLengths, max_length); ++length)
      weights_[static_cast<size_t>(length)] = std::sqrt(kCheapLengths / (2.0 * max_length));
    matrix_.rows = weights_.size() - 1;
    for (const PackStrategy& strategy : strategies) {
      for (size_t i = 0; i < strategy.size() && strategy[i] != 0; ++i) {
        const auto row = static_cast<uint32_t>(strategy[i] - 1);
        const bool again = i > 0 && strategy[i] == strategy[i - 1];
        if (again)
          matrix_.entries.back().value += weights_[strategy[i]];
        else
          matrix_.entries.push_back({row, weights_[strategy[i]]});
      }
      matrix_.starts.push_back(matrix_.entries.size());
    }
  }

  NnlsResult solve(const std::vector<int64_t>& left) const {
    std::vector<double> b(matrix_.rows);
    for (size_t i = 0; i < b.size(); ++i) b[i] = weights_[i + 1] * static_cast<double>(left[i + 1]);
    return solve_nnls(matrix_, b);
  }

  /// Rounds to integers. If all are 0: one row each of the strategies that use the most tokens of the remaining
  /// sequences.
  std::vector<int64_t> round(const std::vector<double>& solution, const std::vector<int64_t>& left) const {
    std::vector<int64_t> rows(solution.size());
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = static_cast<int64_t>(solution[i] < 2 ? std::nearbyint(solution[i]) : std::floor(solution[i]));
    if (std::any_of(rows.begin(), rows.end(), [](int64_t count) { return count > 0; })) return rows;
    std::vector<int64_t> tokens(rows.size());
    for (size_t i = 0; i < rows.size(); ++i)
      for (const uint16_t length : strategies_[i]) tokens[i] += left[length] * length;
    std::vector<size_t> best(rows.size());
    std::iota(best.begin(), best.end(), size_t{0});
    std::stable_sort(best.begin(), best.end(), [&](size_t a, size_t b) { return tokens[a] > tokens[b]; });
    const auto take = static_cast<size_t>(std::accumulate(left.begin(), left.end(), int64_t{0}) / 2 + 1);
    for (size_t i = 0; i < std::min(take, best.size()); ++i) ++rows[best[i]];
    return rows;
  }

 private:
  const std::vector<PackStrategy>& strategies_;
  std::vector<double> weights_;  // [max_length + 1] square roots
  SparseColumns matrix_;
};

/// counts minus the sequences that `mixture` uses, by length.
std::vector<int64_t> what_is_left(const std::vector<int64_t>& counts, const PackPlan& plan) {
  std::vector<int64_t> left = counts;
  for (size_t i = 0; i < plan.strategies.size(); ++i)
    for (const uint16_t length : plan.strategies[i])
      if (length != 0) left[length] -= plan.mixture[i];
  return left;
}

/// Slots without a sequence become padding.
void pad(std::vector<int64_t>& left, std::vector<int64_t>& padding) {
  for (size_t length = 1; length < left.size(); ++length) {
    padding[length] = std::max<int64_t>(0, -left[length]);
    left[length] = std::max<int64_t>(0, left[length]);
  }
}

}  // namespace

std::vector<PackStrategy> pack_strategies(int max_length) {
  std::vector<PackStrategy> strategies;
  const auto add = [&](int a, int b, int c) {
    strategies.push_back({static_cast<uint16_t>(a), static_cast<uint16_t>(b), static_cast<uint16_t>(c)});
  };
  for (int a = 1; a < max_length; ++a) {
    for (int b = a; b <= max_length - a; ++b) {
      const int c = max_length - a - b;
      if (c == 0 || c >= b) add(a, b, c);
    }
  }
  add(max_length, 0, 0);
  return strategies;
}

int64_t PackPlan::rows() const { return std::accumulate(mixture.begin(), mixture.end(), int64_t{0}); }

PackPlan plan_packing(const std::vector<int64_t>& counts, int max_length) {
  TRIREME_CHECK(static_cast<int>(counts.size()) == max_length + 1, counts.size(), " counts for lengths to ",
                max_length);
  if (std::accumulate(counts.begin() + 1, counts.end(), int64_t{0}) == 0)
    throw ConfigError("there are no sequences to pack");
  PackPlan plan;
  plan.max_length = max_length;
  plan.strategies = pack_strategies(max_length);
  plan.mixture.resize(plan.strategies.size());
  plan.padding.resize(counts.size());
  const Problem problem(plan.strategies, max_length);
  std::vector<int64_t> left = counts;
  left[0] = 0;
  while (plan.rounds < kMaxRounds) {
    const NnlsResult solution = problem.solve(left);
    if (plan.rounds++ == 0) plan.first_residual_norm = solution.residual_norm;
    const std::vector<int64_t> rows = problem.round(solution.x, left);
    for (size_t i = 0; i < rows.size(); ++i) plan.mixture[i] += rows[i];
    left = what_is_left(counts, plan);
    left[0] = 0;
    pad(left, plan.padding);
    if (std::accumulate(left.begin(), left.end(), int64_t{0}) < kFewLeft) break;
  }
  // Each remaining sequence gets its own row; the second length fills it up.
  for (int length = 1; length <= max_length; ++length) {
    if (left[static_cast<size_t>(length)] == 0) continue;
    const int other = max_length - length;
    const PackStrategy filled = other == 0 ? PackStrategy{static_cast<uint16_t>(length), 0, 0}
                                           : PackStrategy{static_cast<uint16_t>(std::min(length, other)),
                                                          static_cast<uint16_t>(std::max(length, other)), 0};
    const auto found = std::find(plan.strategies.begin(), plan.strategies.end(), filled);
    TRIREME_CHECK(found != plan.strategies.end(), "no strategy for length ", length);
    plan.mixture[static_cast<size_t>(found - plan.strategies.begin())] += left[static_cast<size_t>(length)];
  }
  left = what_is_left(counts, plan);
  left[0] = 0;
  pad(left, plan.padding);
  return plan;
}

Packing::Packing(PackPlan plan, const std::vector<int64_t>& counts, uint32_t seed, int shards)
    : plan_(std::move(plan)) {
  PythonRandom random(seed);
  sequences_.resize(counts.size());
  for (size_t length = 1; length < counts.size(); ++length) {
    std::vector<uint32_t>& list = sequences_[length];
    TRIREME_CHECK(counts[length] + plan_.padding[length] < kEmpty, counts[length], " sequences of length ", length);
    list.assign(static_cast<size_t>(counts[length] + plan_.padding[length]), kEmpty);
    std::iota(list.begin(), list.begin() + counts[length], 0u);
    random.shuffle(list);
  }
  order_.reserve(static_cast<size_t>(plan_.rows()));
  for (size_t i = 0; i < plan_.mixture.size(); ++i)
    order_.insert(order_.end(), static_cast<size_t>(plan_.mixture[i]), static_cast<uint16_t>(i));
  random.shuffle(order_);

  const Cursor start{0, std::vector<uint32_t>(counts.size(), 0)};
  std::array<PackMember, 3> members;
  for (Cursor cursor = start; !deal(cursor, members).empty();) ++rows_;
  if (rows_ < shards)
    throw ConfigError(
        fmt::format("{} rows cannot fill {} shards: give a smaller --shards", format_count(rows_), shards));
  first_row_.push_back(0);
  const int64_t base = rows_ / shards, more = rows_ % shards;
  Cursor cursor = start;
  for (int shard = 0; shard < shards; ++shard) {
    shard_starts_.push_back(cursor);
    const int64_t rows = base + (shard < more ? 1 : 0);
    for (int64_t i = 0; i < rows; ++i) deal(cursor, members);
    first_row_.push_back(first_row_.back() + rows);
  }
}

/// The next row with a sequence; empty after the last.
std::span<const PackMember> Packing::deal(Cursor& cursor, std::array<PackMember, 3>& members) const {
  size_t count = 0;
  while (count == 0 && cursor.strategy < order_.size()) {
    for (const uint16_t length : plan_.strategies[order_[cursor.strategy++]]) {
      if (length == 0) break;
      const uint32_t index = sequences_[length][cursor.places[length]++];
      if (index != kEmpty) members[count++] = {length, index};
    }
  }
  return std::span(members).first(count);
}

void Packing::visit(size_t shard, const std::function<void(std::span<const PackMember>)>& row) const {
  Cursor cursor = shard_starts_[shard];
  std::array<PackMember, 3> members;
  for (int64_t i = 0; i < rows(shard); ++i) row(deal(cursor, members));
}

}  // namespace trireme
