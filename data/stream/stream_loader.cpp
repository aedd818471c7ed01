#include "data/stream/stream_loader.h"

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"

#include <fmt/format.h>

#include <cmath>
#include <mutex>
#include <utility>

namespace trireme {

namespace {

/// Header of a rank's list: version, logical shards, parts, shards that follow.
constexpr size_t kStreamHeader = 4;
constexpr double kStreamVersion = 1;

/// The largest number of ranks up to `world` that divides `shards`, and the smallest above it (0: none).
std::pair<int64_t, int64_t> nearest_divisors(int64_t shards, int64_t world) {
  int64_t below = world, above = world;
  while (shards % below != 0) --below;
  while (above <= shards && shards % above != 0) ++above;
  return {below, above <= shards ? above : 0};
}

}  // namespace

struct StreamLoader::History {
  std::mutex mutex;
  std::map<int64_t, Shards> before;  // step: where the shards stood before it
};

StreamLoader::StreamLoader(std::shared_ptr<const TokenStream> stream, int rank, int world)
    : stream_(std::move(stream)), rank_(rank), world_(world), history_(std::make_shared<History>()) {
  const int64_t shards = stream_->options().logical_shards;
  if (shards % world != 0) {
    const auto [below, above] = nearest_divisors(shards, world);
    throw ConfigError(fmt::format(
        "data.logical_shards {} does not divide over {} ranks: run {}{}, or, in a run that has not begun, "
        "set data.logical_shards to a multiple of {} such as {}",
        shards, world, below, above > 0 ? fmt::format(" or {}", above) : "", world, round_up(shards, world)));
  }
  shards_.assign(static_cast<size_t>(shards / world), stream_->start());
  history_->before[0] = shards_;
}

void StreamLoader::begin_step(int64_t step) {
  const std::lock_guard lock(history_->mutex);
  const auto found = history_->before.find(step);
  TRIREME_CHECK(found != history_->before.end(), "the data stream was asked for step ", step, ", but it stands at ",
                history_->before.rbegin()->first);
  shards_ = found->second;
}

std::vector<int64_t> StreamLoader::row(int64_t position) {
  const int64_t shard = position % stream_->options().logical_shards;
  TRIREME_CHECK(shard % world_ == rank_, "row ", position, " is not rank ", rank_, "'s of ", world_);
  return stream_->next_row(shard, shards_[static_cast<size_t>(shard / world_)]);
}

void StreamLoader::end_step(int64_t step) {
  const std::lock_guard lock(history_->mutex);
  auto& before = history_->before;
  // A step that is read again ends where it ended before: the places of later steps stay.
  before[step + 1] = shards_;
  before.erase(before.begin(), before.lower_bound(before.rbegin()->first - kKept));
}

std::vector<double> StreamLoader::state(int64_t step) const {
  const std::lock_guard lock(history_->mutex);
  const auto found = history_->before.find(step);
  TRIREME_CHECK(found != history_->before.end(), "the data stream does not know its place before step ", step);
  const size_t parts = stream_->parts().size();
  std::vector<double> numbers = {kStreamVersion, static_cast<double>(stream_->options().logical_shards),
                                 static_cast<double>(parts), static_cast<double>(shards_.size())};
  for (size_t i = 0; i < found->second.size(); ++i) {
    const ShardState& shard = found->second[i];
    for (const int64_t number : {rank_ + static_cast<int64_t>(i) * world_, shard.part, shard.offset})
      numbers.push_back(static_cast<double>(number));
    for (const auto* list : {&shard.slots, &shard.tokens}) numbers.insert(numbers.end(), list->begin(), list->end());
  }
  return numbers;
}

void StreamLoader::start_anew(int64_t step) {
  const std::lock_guard lock(history_->mutex);
  shards_.assign(shards_.size(), stream_->start());
  history_->before = {{step, shards_}};
}

bool StreamLoader::restore(int64_t step, const std::vector<double>& numbers) {
  const size_t parts = stream_->parts().size();
  const int64_t logical = stream_->options().logical_shards;
  const auto damaged = [](const std::string& what) {
    return ModelError("the checkpoint's place in the data is damaged: " + what);
  };
  std::vector<bool> seen(static_cast<size_t>(logical), false);
  Shards shards(shards_.size(), stream_->start());
  size_t at = 0;
  const auto next = [&](double least) {
    if (at >= numbers.size()) throw damaged(fmt::format("it ends after {} numbers", numbers.size()));
    const double value = numbers[at++];
    if (!(value >= least && value < 9007199254740992.0) || value != std::floor(value))
      throw damaged(fmt::format("number {} is {}", at - 1, value));
    return static_cast<int64_t>(value);
  };
  while (at < numbers.size()) {
    if (numbers.size() - at < kStreamHeader || numbers[at] != kStreamVersion)
      throw damaged(fmt::format("no list of shards begins at number {}", at));
    ++at;
    if (next(1) != logical || next(1) != static_cast<int64_t>(parts)) return false;
    for (int64_t left = next(0); left > 0; --left) {
      const int64_t shard = next(0);
      if (shard >= logical || seen[static_cast<size_t>(shard)])
        throw damaged(fmt::format("logical shard {} of {} comes twice or is not there", shard, logical));
      seen[static_cast<size_t>(shard)] = true;
      ShardState state = stream_->start();
      state.part = next(-1);
      if (state.part >= static_cast<int64_t>(parts)) throw damaged(fmt::format("part {} of {}", state.part, parts));
      state.offset = next(0);
      for (auto* list : {&state.slots, &state.tokens})
        for (int64_t& number : *list) number = next(0);
      if (shard % world_ == rank_) shards[static_cast<size_t>(shard / world_)] = std::move(state);
    }
  }
  for (size_t shard = 0; shard < seen.size(); ++shard)
    if (!seen[shard]) throw damaged(fmt::format("logical shard {} is missing", shard));
  const std::lock_guard lock(history_->mutex);
  shards_ = std::move(shards);
  history_->before = {{step, shards_}};
  return true;
}

}  // namespace trireme
