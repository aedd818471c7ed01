#include "data/bert/bert_rows.h"
#include "trireme/base/error.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace trireme {

namespace {

/// SplitMix64 (Steele, Lea, Flood 2014): one stream for each (seed, epoch, shard), so that an order does not depend on
/// those before it.
class Stream {
 public:
  Stream(uint64_t seed, int64_t epoch, int64_t shard) {
    for (const uint64_t part : {seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(shard + 1)})
      state_ = next() ^ part;
  }
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, bound), by rejection.
  uint64_t below(uint64_t bound) {
    const uint64_t limit = std::numeric_limits<uint64_t>::max() / bound * bound;
    uint64_t value = next();
    while (value >= limit) value = next();
    return value % bound;
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[static_cast<size_t>(below(i))]);
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace

BertSampler::BertSampler(const BertDataset& dataset, uint64_t seed, bool shuffle)
    : dataset_(dataset), seed_(seed), shuffle_(shuffle), first_row_{0} {
  TRIREME_CHECK(dataset.size() > 0, "cannot sample from ", dataset.size(), " rows");
  for (const int64_t rows : dataset.shard_rows()) {
    TRIREME_CHECK(rows <= std::numeric_limits<int32_t>::max(), "a shard of ", rows, " rows");
    first_row_.push_back(first_row_.back() + rows);
  }
}

int64_t BertSampler::at(int64_t position) {
  TRIREME_CHECK(position >= 0, "position ", position);
  const int64_t epoch = position / dataset_.size(), within = position % dataset_.size();
  if (epoch != epoch_) set_epoch(epoch);
  if (slot_ < 0 || within < first_position_[static_cast<size_t>(slot_)] ||
      within >= first_position_[static_cast<size_t>(slot_) + 1])
    set_slot(std::upper_bound(first_position_.begin(), first_position_.end(), within) - first_position_.begin() - 1);
  const auto slot = static_cast<size_t>(slot_);
  const int64_t row = within - first_position_[slot];
  return first_row_[static_cast<size_t>(shards_[slot])] + (shuffle_ ? rows_[static_cast<size_t>(row)] : row);
}

void BertSampler::set_epoch(int64_t epoch) {
  const std::vector<int64_t>& rows = dataset_.shard_rows();
  shards_.resize(rows.size());
  std::iota(shards_.begin(), shards_.end(), int64_t{0});
  if (shuffle_) Stream(seed_, epoch, -1).shuffle(shards_);
  first_position_.assign(1, 0);
  for (const int64_t shard : shards_)
    first_position_.push_back(first_position_.back() + rows[static_cast<size_t>(shard)]);
  epoch_ = epoch;
  slot_ = -1;
}

void BertSampler::set_slot(int64_t slot) {
  slot_ = slot;
  const int64_t shard = shards_[static_cast<size_t>(slot)];
  if (shuffle_) {
    rows_.resize(static_cast<size_t>(dataset_.shard_rows()[static_cast<size_t>(shard)]));
    std::iota(rows_.begin(), rows_.end(), 0);
    Stream(seed_, epoch_, shard).shuffle(rows_);
  }
  if (static_cast<size_t>(slot) + 1 < shards_.size()) dataset_.will_need(shards_[static_cast<size_t>(slot) + 1]);
}

}  // namespace trireme
