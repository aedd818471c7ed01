#include "data/prepare/bert_columns.h"
#include "data/prepare/bert_files.h"
#include "data/prepare/bert_instance_file.h"
#include "data/prepare/bert_packing.h"
#include "data/prepare/outputs.h"
#include "data/prepare/progress.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/process.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <mutex>

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr int kPackVersion = 1;

/// The instances of several parts as one list per length.
class InstanceCollection {
 public:
  explicit InstanceCollection(const std::vector<fs::path>& paths) {
    for (const fs::path& path : paths) {
      files_.emplace_back(path);
      const BertInstanceFile& first = files_.front();
      if (files_.back().seq_length() != first.seq_length() || files_.back().vocab_size() != first.vocab_size())
        throw DataError(fmt::format("{} and {} were made with other lengths or vocabularies", first.path().string(),
                                    path.string()));
    }
    ends_.resize(static_cast<size_t>(seq_length()) + 1);
    for (int length = 1; length <= seq_length(); ++length) {
      uint64_t total = 0;
      for (const BertInstanceFile& file : files_)
        ends_[static_cast<size_t>(length)].push_back(total += static_cast<uint64_t>(file.count(length)));
    }
  }

  int seq_length() const { return files_.front().seq_length(); }
  std::vector<int64_t> counts() const {
    std::vector<int64_t> result{0};
    for (size_t length = 1; length < ends_.size(); ++length)
      result.push_back(static_cast<int64_t>(ends_[length].back()));
    return result;
  }
  BertInstance get(PackMember member) const {
    const std::vector<uint64_t>& ends = ends_[member.length];
    const auto file = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), member.index) - ends.begin());
    return files_[file].get(member.length, static_cast<int64_t>(member.index - (file == 0 ? 0 : ends[file - 1])));
  }
  uint64_t fingerprint(int shards, uint32_t seed) const {
    std::string all = fmt::format("{} {} {}", kPackVersion, shards, seed);
    for (const BertInstanceFile& file : files_) all += fmt::format(" {} {}", hex64(file.fingerprint()), file.size());
    return xxh3_64(all.data(), all.size());
  }

 private:
  std::vector<BertInstanceFile> files_;
  std::vector<std::vector<uint64_t>> ends_;  // [seq_length + 1][files] instances of a length up to this file
};

std::string shard_name(size_t shard) { return fmt::format("part_{:05}", shard); }

/// Shards in the directory that this packing does not write would be read as part of it.
void refuse_other_shards(const fs::path& output, int shards) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("part_")) continue;
    bool ours = false;
    for (int shard = 0; shard < shards && !ours; ++shard) ours = name == shard_name(static_cast<size_t>(shard));
    if (!ours)
      throw WriteError(fmt::format(
          "{} holds {}, which is not of this packing into {} shards: choose another directory, or empty this one",
          output.string(), name, shards));
  }
}

void write_plan(const fs::path& path, const Packing& packing, const std::vector<int64_t>& counts, uint32_t seed) {
  const PackPlan& plan = packing.plan();
  nlohmann::ordered_json json;
  json["max_length"] = plan.max_length;
  json["seed"] = seed;
  json["rows"] = packing.rows();
  json["rounds"] = plan.rounds;
  json["first_residual_norm"] = plan.first_residual_norm;
  auto& used = json["strategies"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < plan.mixture.size(); ++i) {
    if (plan.mixture[i] == 0) continue;
    std::vector<int> lengths;
    for (const uint16_t length : plan.strategies[i])
      if (length != 0) lengths.push_back(length);
    used.push_back({{"lengths", lengths}, {"rows", plan.mixture[i]}});
  }
  json["counts"] = std::vector<int64_t>(counts.begin() + 1, counts.end());
  json["padding"] = std::vector<int64_t>(plan.padding.begin() + 1, plan.padding.end());
  write_file_atomic(path, json.dump() + "\n");
}

}  // namespace

BertPackReport pack_bert(const std::vector<fs::path>& inputs, const fs::path& output, int shards, uint32_t seed,
                         unsigned threads) {
  if (shards < 1 || shards > 99999) throw ConfigError(fmt::format("--shards {}: expected 1 to 99999", shards));
  const InstanceCollection instances(list_parts(inputs, "", ".instances"));
  const std::vector<int64_t> counts = instances.counts();
  const Packing packing(plan_packing(counts, instances.seq_length()), counts, seed, shards);
  const PartRecords records(output);
  refuse_other_shards(output, shards);
  const uint64_t fingerprint = instances.fingerprint(shards, seed);
  Progress progress("packing", static_cast<double>(packing.rows()), "rows");
  std::mutex mutex;
  BertPackReport report;
  int64_t done = 0;
  parallel_for(static_cast<size_t>(shards), threads, [&](size_t shard) {
    const std::string name = shard_name(shard);
    const bool kept = records.is_done(name, fingerprint);
    if (!kept) {
      BertColumns columns;
      packing.visit(shard, [&](std::span<const PackMember> members) {
        for (const PackMember member : members) columns.append(instances.get(member));
        columns.end_row();
      });
      Hdf5RowWriter writer(output / name);
      columns.write(writer, /*packed=*/true);
      writer.commit();
      records.done(name, fingerprint, fmt::format("{} {}\n", columns.rows(), columns.sequences()));
    }
    const std::scoped_lock lock(mutex);
    report.kept += kept;
    progress.update(static_cast<double>(done += packing.rows(shard)));
  });
  std::string index;
  for (size_t shard = 0; shard < static_cast<size_t>(shards); ++shard)
    index += fmt::format("{} {}", shard_name(shard), records.note(shard_name(shard)));
  write_file_atomic(output / "index.txt", index);
  write_plan(output / "packing.json", packing, counts, seed);
  const PackPlan& plan = packing.plan();
  report.max_length = plan.max_length;
  report.rows = packing.rows();
  report.rounds = plan.rounds;
  for (const int64_t rows : plan.mixture) report.strategies_used += rows > 0;
  for (size_t length = 1; length < counts.size(); ++length) {
    report.sequences += counts[length];
    report.tokens += counts[length] * static_cast<int64_t>(length);
    report.padding_slots += plan.padding[length];
  }
  return report;
}

}  // namespace trireme
