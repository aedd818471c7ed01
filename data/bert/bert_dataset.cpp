#include "data/bert/bert_shard.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <optional>

namespace trireme {

namespace {

namespace fs = std::filesystem;

constexpr size_t kShardsInMemory = 3;  // the current one, the next one, and one more for reads at a shard boundary
constexpr const char* kIndexName = "index.txt";

/// Numbers of rows and sequences by shard name, from the index file that the preparation writes into the shards'
/// directory: opening thousands of files for their headers would delay the start. A shard with another number of rows
/// is refused when it is read.
struct ShardCounts {
  int64_t rows, sequences;
};

std::map<std::string, ShardCounts> read_index(const fs::path& directory) {
  std::map<std::string, ShardCounts> counts;
  std::ifstream file(directory / kIndexName);
  std::string name;
  ShardCounts entry{};
  while (file >> name >> entry.rows >> entry.sequences)
    if (entry.rows >= 0 && entry.sequences >= entry.rows) counts[name] = entry;
  return counts;
}

class ShardedBertDataset final : public BertDataset {
 public:
  ShardedBertDataset(std::vector<fs::path> shards, BertLimits limits) : shards_(std::move(shards)), limits_(limits) {
    packed_ = read_bert_header(shards_.front()).packed;
    std::map<fs::path, std::map<std::string, ShardCounts>> indices;
    int64_t sequences = 0;
    bool all_indexed = true;
    for (const fs::path& path : shards_) {
      const fs::path parent = path.parent_path();
      if (!indices.contains(parent)) indices[parent] = read_index(parent);
      const auto& index = indices[parent];
      if (const auto found = index.find(path.filename().string());
          packed_ && found != index.end() && fs::exists(path)) {
        rows_.push_back(found->second.rows);
        sequences += found->second.sequences;
      } else {
        const BertShardHeader header = read_bert_header(path);
        if (header.packed != packed_)
          throw DataError(fmt::format("{} is a {} file and {} a {} one: give files of one kind",
                                      shards_.front().string(), kind(packed_), path.string(), kind(header.packed)));
        rows_.push_back(header.rows);
        all_indexed = false;
      }
      first_.push_back(first_.back() + rows_.back());
    }
    if (first_.back() == 0)
      throw DataError(fmt::format("{}{} no rows", shards_.front().string(),
                                  shards_.size() > 1 ? " and the files after it hold" : " holds"));
    if (all_indexed) sequences_ = sequences;
    if (!packed_) sequences_ = first_.back();
  }

  int64_t size() const override { return first_.back(); }

  int64_t sequences() const override {
    std::unique_lock lock(mutex_);
    if (sequences_) return *sequences_;
    lock.unlock();
    int64_t total = 0;
    for (const fs::path& path : shards_) total += count_bert_sequences(path);
    lock.lock();
    sequences_ = total;
    return total;
  }

  BertRow read(int64_t index) const override {
    TRIREME_CHECK(index >= 0 && index < size(), "row ", index, " of ", size());
    const auto shard = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), index) - first_.begin()) - 1;
    return get(shard)->read(index - first_[shard]);
  }

  std::string description() const override {
    const std::string where =
        shards_.size() == 1 ? shards_.front().string()
                            : fmt::format("{} to {}", shards_.front().string(), shards_.back().filename().string());
    return fmt::format("{} ({}, {} rows)", where, counted(shards_.size(), std::string(kind(packed_)) + " file"),
                       format_count(size()));
  }

  const std::vector<int64_t>& shard_rows() const override { return rows_; }

  void will_need(int64_t shard) const override {
    TRIREME_CHECK(shard >= 0 && shard < static_cast<int64_t>(shards_.size()), "shard ", shard, " of ", shards_.size());
    bool started = false;
    (void)start(static_cast<size_t>(shard), started);
  }

 private:
  using Shard = std::shared_ptr<const BertShard>;
  struct Slot {
    size_t shard;
    std::shared_future<Shard> data;
    uint64_t used;
  };

  static const char* kind(bool packed) { return packed ? "packed" : "variable-length"; }
  static bool is_read(const Slot& slot) {
    return slot.data.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  /// The shard as it is read, or was. `started`: it was not in memory, and a new thread reads it.
  std::shared_future<Shard> start(size_t shard, bool& started) const {
    const std::scoped_lock lock(mutex_);
    const auto found = std::ranges::find(slots_, shard, &Slot::shard);
    started = found == slots_.end();
    if (!started) {
      found->used = ++clock_;
      return found->data;
    }
    make_room();
    slots_.push_back({shard, std::async(std::launch::async, [this, shard] { return load(shard); }).share(), ++clock_});
    return slots_.back().data;
  }

  /// The shard. One whose reading failed for another caller is read again.
  Shard get(size_t shard) const {
    for (;;) {
      bool started = false;
      const std::shared_future<Shard> data = start(shard, started);
      try {
        return data.get();
      } catch (...) {
        const std::scoped_lock lock(mutex_);
        std::erase_if(slots_, [&](const Slot& slot) { return slot.shard == shard && is_read(slot); });
        if (started) throw;
      }
    }
  }

  Shard load(size_t shard) const {
    auto loaded = std::make_shared<BertShard>(shards_[shard], limits_);
    if (loaded->packed() != packed_ || loaded->size() != rows_[shard])
      throw DataError(
          fmt::format("{} holds {} rows, expected {}: remove a stale {} in its directory, or prepare the shard again",
                      shards_[shard].string(), loaded->size(), rows_[shard], kIndexName));
    return loaded;
  }

  /// Drops the shards that were used the longest time ago, of those that have been read.
  void make_room() const {
    while (slots_.size() >= kShardsInMemory) {
      auto oldest = slots_.end();
      for (auto slot = slots_.begin(); slot != slots_.end(); ++slot)
        if (is_read(*slot) && (oldest == slots_.end() || slot->used < oldest->used)) oldest = slot;
      if (oldest == slots_.end()) return;
      slots_.erase(oldest);
    }
  }

  std::vector<fs::path> shards_;
  BertLimits limits_;
  bool packed_ = false;
  std::vector<int64_t> rows_, first_{0};  // [shards], [shards + 1]
  mutable std::mutex mutex_;
  mutable uint64_t clock_ = 0;
  mutable std::optional<int64_t> sequences_;
  mutable std::vector<Slot> slots_;  // last: its threads end before the other members
};

}  // namespace

std::vector<fs::path> bert_shards(const std::vector<fs::path>& files) {
  std::vector<fs::path> shards =
      files_of(files, "part_", "", ": expected packed shards or a variable-length evaluation set");
  if (shards.empty()) throw DataError("no BERT data files given");
  const auto twin = std::adjacent_find(shards.begin(), shards.end());
  if (twin != shards.end()) throw DataError(fmt::format("{} is given twice", twin->string()));
  return shards;
}

std::unique_ptr<BertDataset> open_bert_dataset(const std::vector<fs::path>& files, int64_t max_length,
                                               int64_t vocab_size, int64_t segments) {
  TRIREME_CHECK(max_length > 0 && vocab_size > 0, "max_length ", max_length, ", vocab_size ", vocab_size);
  return std::make_unique<ShardedBertDataset>(bert_shards(files), BertLimits{max_length, vocab_size, segments});
}

}  // namespace trireme
