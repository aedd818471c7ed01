#include "data/prepare/bert_files.h"

#include "data/bert/bert_rows.h"
#include "data/prepare/bert_columns.h"
#include "data/prepare/bert_instance_file.h"
#include "data/prepare/md5.h"
#include "data/prepare/outputs.h"
#include "data/prepare/progress.h"
#include "data/prepare/python_random.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/process.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

namespace trireme {

namespace {

namespace fs = std::filesystem;

/// Change this when the same inputs give other instances.
constexpr int kFormatVersion = 1;

uint64_t fingerprint_of(const fs::path& text, const BertVocab& vocab, const BertInstanceOptions& options) {
  const MappedFile file(text, ExitCode::kData);
  const std::string all =
      fmt::format("{} {} {} {} {} {} {} {} {} {}", kFormatVersion, hex64(vocab.hash()), options.seq_length,
                  options.max_predictions, options.masked_lm_prob, options.short_seq_prob, options.dupe_factor,
                  options.seed, file.bytes().size(), hex64(xxh3_64(file.bytes().data(), file.bytes().size())));
  return xxh3_64(all.data(), all.size(), options.cased ? 1 : 0);
}

}  // namespace

std::vector<fs::path> list_parts(const std::vector<fs::path>& inputs, const std::string& prefix,
                                 const std::string& suffix) {
  std::vector<fs::path> parts = files_of(inputs, prefix, suffix);
  std::error_code error;
  for (const fs::path& part : parts)
    if (!fs::exists(part, error)) throw DataError(fmt::format("{}: no such file", part.string()));
  for (size_t i = 1; i < parts.size(); ++i)
    if (parts[i].filename() == parts[i - 1].filename())
      throw ConfigError(fmt::format("{} and {} have the same name, which would be that of both outputs",
                                    parts[i - 1].string(), parts[i].string()));
  return parts;
}

BertInstancesReport create_bert_instances(const std::vector<fs::path>& inputs, const fs::path& vocab_path,
                                          const BertInstanceOptions& options, const fs::path& output,
                                          unsigned threads) {
  options.check();
  const BertVocab vocab(vocab_path);
  const std::vector<fs::path> parts = list_parts(inputs, "part", "");
  BertInstancesReport report;
  report.parts = parts.size();
  const PartRecords records(output);
  Progress progress("instances", total_size(parts), "MB", 1e6);
  std::mutex mutex;
  double done = 0;
  parallel_for(parts.size(), threads, [&](size_t i) {
    const std::string name = parts[i].filename().string() + ".instances";
    const uint64_t fingerprint = fingerprint_of(parts[i], vocab, options);
    const auto size = static_cast<int64_t>(fs::file_size(parts[i]));
    const bool kept = records.is_done(name, fingerprint);
    int64_t count = 0, documents = 0;
    if (kept) {
      count = BertInstanceFile(output / name).size();
    } else {
      BertTokenizer tokenizer(vocab, options.cased);
      const BertDocuments read = read_bert_documents(parts[i], tokenizer);
      documents = static_cast<int64_t>(read.size());
      const BertInstances instances = make_bert_instances(read, vocab, options);
      write_bert_instances(output / name, instances, vocab.size(), fingerprint);
      records.done(name, fingerprint);
      count = static_cast<int64_t>(instances.count);
    }
    const std::scoped_lock lock(mutex);
    report.instances += count;
    report.documents += documents;
    report.kept += kept;
    report.bytes += kept ? 0 : size;
    progress.update(done += static_cast<double>(size));
  });
  if (report.instances == 0)
    throw DataError(fmt::format("{}: no sentences in {} part file(s): expected one sentence in each line",
                                parts.front().string(), parts.size()));
  return report;
}

namespace {

namespace fs = std::filesystem;

constexpr int kExportVersion = 1;
constexpr int kFixedPredictions = 76;  // minimum number of columns of masked_lm_positions, as in the reference

/// Rows of one length, padded with zeros.
class FixedColumns {
 public:
  FixedColumns(int length, int predictions)
      : length_(static_cast<size_t>(length)), predictions_(static_cast<size_t>(predictions)) {}
  void append(const BertInstance& instance) {
    const auto pad = [](auto& column, std::span<const int16_t> values, size_t width) {
      column.insert(column.end(), values.begin(), values.end());
      column.insert(column.end(), width - values.size(), 0);
    };
    const size_t length = instance.input_ids.size(), first = static_cast<size_t>(instance.first_length);
    pad(ids_, instance.input_ids, length_);
    mask_.insert(mask_.end(), length, 1);
    mask_.insert(mask_.end(), length_ - length, 0);
    segments_.insert(segments_.end(), first, 0);
    segments_.insert(segments_.end(), length - first, 1);
    segments_.insert(segments_.end(), length_ - length, 0);
    pad(positions_, instance.masked_positions, predictions_);
    pad(masked_ids_, instance.masked_ids, predictions_);
    labels_.push_back(static_cast<int8_t>(instance.random_next));
  }
  void write(Hdf5RowWriter& writer) const {
    const auto length = static_cast<int64_t>(length_), predictions = static_cast<int64_t>(predictions_);
    writer.write_table("input_ids", ids_, length);
    writer.write_table("input_mask", mask_, length);
    writer.write_table("segment_ids", segments_, length);
    writer.write_table("masked_lm_positions", positions_, predictions);
    writer.write_table("masked_lm_ids", masked_ids_, predictions);
    writer.write_table("next_sentence_labels", labels_);
  }

 private:
  size_t length_, predictions_;
  std::vector<int16_t> ids_, positions_, masked_ids_;
  std::vector<int8_t> mask_, segments_, labels_;
};

/// The instances of all parts in the reference's order.
struct OrderedInstances {
  std::vector<BertInstanceFile> files;
  std::vector<std::vector<BertInstanceFile::Place>> orders;
  std::vector<size_t> first{0};  // [files + 1]
  explicit OrderedInstances(const std::vector<fs::path>& paths) {
    for (const fs::path& path : paths) {
      files.emplace_back(path);
      orders.push_back(files.back().order());
      first.push_back(first.back() + orders.back().size());
    }
  }
  BertInstance get(size_t i) const {
    const auto file = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), i) - first.begin()) - 1;
    const BertInstanceFile::Place place = orders[file][i - first[file]];
    return files[file].get(place.length, place.k);
  }
};

/// First instance of each shard: ceil(N / shards) in the last shards, one less in as many of the first as are needed.
std::vector<size_t> chop(size_t count, size_t shards) {
  const size_t nominal = ceil_div(count, shards), smaller = shards * nominal - count;
  std::vector<size_t> first{0};
  for (size_t i = 0; i < shards; ++i) first.push_back(first.back() + nominal - (i < smaller ? 1 : 0));
  return first;
}

}  // namespace

BertExportReport export_bert(const std::vector<fs::path>& inputs, const fs::path& output,
                             const BertExportOptions& options) {
  if (options.shards < 0 || options.shards > 99999)
    throw ConfigError(fmt::format("--shards {}: expected 0 to 99999", options.shards));
  if (options.shuffle_seed && options.shards == 0)
    throw ConfigError("--shuffle-seed needs --shards: files of one part each are not shuffled");
  const std::vector<fs::path> parts = list_parts(inputs, "", ".instances");
  const OrderedInstances instances(parts);
  const size_t total = instances.first.back();
  const auto shards = static_cast<size_t>(options.shards);
  if (total < shards)
    throw ConfigError(fmt::format("{} instances cannot fill {} shards: give a smaller --shards", total, shards));
  const std::vector<size_t> first = shards == 0 ? instances.first : chop(total, shards);
  std::vector<uint32_t> order;
  if (options.shuffle_seed) {
    TRIREME_CHECK(total < UINT32_MAX, total, " instances");
    order.resize(total);
    std::iota(order.begin(), order.end(), 0u);
    PythonRandom(*options.shuffle_seed).shuffle(order);
  }
  std::string identity = fmt::format("{} {} {} {}", kExportVersion, static_cast<int>(options.layout), shards,
                                     options.shuffle_seed.value_or(0));
  identity += options.shuffle_seed ? "shuffled" : "";
  for (const BertInstanceFile& file : instances.files)
    identity += fmt::format(" {} {}", hex64(file.fingerprint()), file.size());
  const uint64_t fingerprint = xxh3_64(identity.data(), identity.size());
  const PartRecords records(output);
  BertExportReport report{static_cast<int64_t>(total), first.size() - 1, 0};
  Progress progress("export", static_cast<double>(total), "instances");
  std::mutex mutex;
  size_t done = 0;
  parallel_for(first.size() - 1, options.threads, [&](size_t shard) {
    const std::string name =
        shards == 0 ? parts[shard].stem().string() + ".hdf5"
                    : fmt::format("part_{:05}_of_{:05}.{}", shard, shards, options.shuffle_seed ? "hdf" : "hdf5");
    const bool kept = records.is_done(name, fingerprint);
    if (!kept) {
      Hdf5RowWriter writer(output / name);
      const auto each = [&](auto visit) {
        for (size_t i = first[shard]; i < first[shard + 1]; ++i) visit(instances.get(order.empty() ? i : order[i]));
      };
      if (options.layout == BertLayout::kFixed) {
        const int length = instances.files.front().seq_length();
        int predictions = kFixedPredictions;
        for (const BertInstanceFile& file : instances.files) {
          if (file.seq_length() != length)
            throw DataError(fmt::format("{} has sequences of up to {} tokens, {} of {}", file.path().string(),
                                        file.seq_length(), parts.front().string(), length));
          for (int i = 0; i <= length; ++i) predictions = std::max(predictions, file.masks(i));
        }
        FixedColumns columns(length, predictions);
        each([&](const BertInstance& instance) { columns.append(instance); });
        columns.write(writer);
      } else {
        BertColumns columns;
        each([&](const BertInstance& instance) {
          columns.append(instance);
          columns.end_row();
        });
        columns.write(writer, /*packed=*/false);
      }
      writer.commit();
      records.done(name, fingerprint);
    }
    const std::scoped_lock lock(mutex);
    report.kept += kept;
    progress.update(static_cast<double>(done += first[shard + 1] - first[shard]));
  });
  return report;
}

int64_t create_bert_eval(const fs::path& text, const fs::path& vocab_path, const BertInstanceOptions& options,
                         int64_t count, const fs::path& output) {
  options.check();
  if (count < 1) throw ConfigError(fmt::format("--count {}: expected 1 or more", count));
  check_replaceable({output});
  const BertVocab vocab(vocab_path);
  BertTokenizer tokenizer(vocab, options.cased);
  const BertInstances instances = make_bert_instances(read_bert_documents(text, tokenizer), vocab, options);
  const auto all = static_cast<int64_t>(instances.count);
  if (all < count)
    throw ConfigError(fmt::format("{} gives {} instances, fewer than --count {}", text.string(), all, count));
  std::vector<BertInstanceFile::Place> order(instances.count);
  for (size_t length = 0; length < instances.ranks.size(); ++length)
    for (size_t k = 0; k < instances.ranks[length].size(); ++k)
      order[instances.ranks[length][k]] = {static_cast<uint16_t>(length), static_cast<uint32_t>(k)};
  BertColumns columns;
  const double ratio = static_cast<double>(all) / static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    const auto [length, k] = order[static_cast<size_t>(std::floor(static_cast<double>(i) * ratio))];
    const int masks = instances.masks[length];
    columns.append(bert_record(instances.records[length].data() + k * bert_record_size(length, masks), length, masks));
    columns.end_row();
  }
  if (output.has_parent_path()) make_directories(output.parent_path());
  Hdf5RowWriter writer(output);
  columns.write(writer, /*packed=*/false);
  writer.commit();
  return all;
}

BertChecksum checksum_bert_file(const fs::path& path, int64_t max_length, int64_t vocab_size) {
  const auto dataset = open_bert_dataset({path}, max_length, vocab_size);
  BertChecksum result;
  result.rows = dataset->size();
  std::string digests;
  for (int64_t i = 0; i < result.rows; ++i) {
    const BertRow row = dataset->read(i);
    digests += fmt::format("{}'{}'", i == 0 ? "[" : ", ", md5_hex(fmt::format("[{}]", fmt::join(row.input_ids, ", "))));
    result.sequences += static_cast<int64_t>(row.sequence_lengths.size());
    result.tokens += static_cast<int64_t>(row.input_ids.size());
    result.masked += static_cast<int64_t>(row.masked_positions.size());
  }
  result.md5 = md5_hex(digests + "]");
  return result;
}

}  // namespace trireme
