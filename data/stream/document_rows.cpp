// Rows that are packed from documents while the run reads them.
#include "data/rows.h"
#include "data/stream/documents.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme {

namespace {

/// The settings of config.data for documents.
StreamOptions stream_options(const Config& config, int64_t vocab_size) {
  const DataSection& data = config.data;
  const std::pair<const char*, std::optional<int64_t>> ids[] = {{"data.bos_token", data.bos_token},
                                                                {"data.eos_token", data.eos_token},
                                                                {"data.bol_token", data.bol_token},
                                                                {"data.eol_token", data.eol_token}};
  for (const auto& [key, id] : ids)
    if (id && *id >= vocab_size)
      throw ConfigError(fmt::format("{} {} is outside the model's vocabulary of {}", key, *id, vocab_size));
  return {.seq_length = data.seq_length,
          .vocab_size = vocab_size,
          .logical_shards = data.logical_shards,
          .seed = static_cast<uint64_t>(config.train.seed),
          .shuffle = data.shuffle,
          .bos = data.bos_token,
          .eos = data.eos_token,
          .strip = data.strip_tokens,
          .min_length = data.min_length,
          .bol = data.bol_token,
          .eol = data.eol_token};
}

/// Documents of data.train with weights or names: every entry is a part. Else all entries together are one.
std::shared_ptr<const TokenStream> open_token_stream(const Config& config, Split split, const StreamOptions& options) {
  const SplitKeys keys = split_keys(config, split);
  const std::string column = config.data.column.value_or("");
  const auto texts = text_tokens(config.model.path, column);
  const std::vector<double>& weights = config.data.weights;
  const std::vector<std::string>& names = config.data.names;
  std::vector<StreamPart> parts;
  if (split != Split::kTrain || (weights.empty() && names.empty())) {
    parts.push_back({keys.key, 1, open_documents(to_paths(keys.files), column, texts)});
  } else {
    for (size_t i = 0; i < keys.files.size(); ++i)
      parts.push_back({names.empty() ? std::filesystem::path(keys.files[i]).filename().string() : names[i],
                       weights.empty() ? 1 : weights[i], open_documents({keys.files[i]}, column, texts)});
  }
  return std::make_shared<TokenStream>(std::move(parts), options);
}

/// All documents of all parts, to check before training.
RowSet document_set(const std::string& key, const std::shared_ptr<const TokenStream>& stream) {
  RowSet set;
  set.name = key;
  set.unit = "documents";
  for (const StreamPart& part : stream->parts()) set.rows += part.documents->size();
  set.check = [stream](int64_t document) {
    size_t part = 0;
    while (document >= stream->parts()[part].documents->size()) document -= stream->parts()[part++].documents->size();
    (void)stream->read_document(part, document);
  };
  return set;
}

/// "web (2,000 documents of Arrow, 75.0 %), code (100 documents of Arrow, 25.0 %)".
std::string describe_stream(const TokenStream& stream) {
  std::vector<std::string> texts;
  for (const StreamPart& part : stream.parts()) {
    const std::string share = stream.parts().size() == 1 ? "" : fmt::format(", {:.4g} %", 100 * part.weight);
    texts.push_back(fmt::format("{} ({} of {}{})", part.name, counted(part.documents->size(), "document"),
                                part.documents->kind(), share));
  }
  return fmt::format("{}; {} logical shards", join(texts, ", "), stream.options().logical_shards);
}

/// Rows that one epoch of the documents gives, from the mean length of a few hundred of them; at least 1. DataError for
/// a part without a document that is long enough.
int64_t estimate_rows(const TokenStream& stream) {
  constexpr int64_t kSampled = 256;
  double tokens = 0;
  for (size_t part = 0; part < stream.parts().size(); ++part) {
    const int64_t size = stream.parts()[part].documents->size(), count = std::min(size, kSampled);
    double sampled = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto length = static_cast<int64_t>(stream.read_document(part, size * i / count).size());
      if (length >= stream.options().min_length) sampled += static_cast<double>(length);
    }
    for (int64_t i = 0; sampled == 0; ++i) {
      if (i == size) stream.fail_all_short(part);
      const auto length = static_cast<int64_t>(stream.read_document(part, i).size());
      if (length >= stream.options().min_length) sampled = static_cast<double>(length);
    }
    tokens += sampled / static_cast<double>(count) * static_cast<double>(size);
  }
  return std::max<int64_t>(1, static_cast<int64_t>(tokens / static_cast<double>(stream.options().seq_length)));
}

/// The rows that one pass over a stream's documents in their order gives, the rest after the last whole row dropped;
/// reads all documents once, and keeps places, not tokens.
class PackedOnce {
 public:
  /// `stream`: of one part and one logical shard, not shuffled. DataError if there is no whole row.
  explicit PackedOnce(std::shared_ptr<const TokenStream> stream) : stream_(std::move(stream)) {
    TRIREME_CHECK(stream_->parts().size() == 1 && stream_->options().logical_shards == 1 && !stream_->options().shuffle,
                  "one pass in file order over a stream of several parts or shards");
    const int64_t documents = stream_->parts()[0].documents->size();
    for (ShardState state = stream_->start();;) {
      const ShardState before = state;
      (void)stream_->next_row(0, state);
      if (state.slots[0] > documents || (state.slots[0] == documents && state.offset > 0)) break;
      starts_.push_back(before);
      if (state.slots[0] == documents) break;
    }
    if (starts_.empty())
      throw DataError(fmt::format("{}: {} documents give less than one row of {} tokens", stream_->parts()[0].name,
                                  format_count(documents), stream_->options().seq_length));
  }
  int64_t size() const { return static_cast<int64_t>(starts_.size()); }
  /// Thread-safe.
  std::vector<int64_t> read(int64_t row) const {
    TRIREME_CHECK(row >= 0 && row < size(), "row ", row, " of ", size());
    ShardState state = starts_[static_cast<size_t>(row)];
    return stream_->next_row(0, state);
  }

 private:
  std::shared_ptr<const TokenStream> stream_;
  std::vector<ShardState> starts_;
};

/// A row of one sequence with a loss on every target. Position t predicts token t + 1, so a row of S tokens has S - 1
/// targets: as many as fms-fsdp's row of S + 1 tokens, whose first target it ignores.
Sample stream_sample(std::vector<int64_t> tokens) {
  Sample sample = one_sequence(std::move(tokens));
  sample.loss_mask[0] = 0;
  return sample;
}

/// Row k of a run comes from shard k mod logical_shards, so in a short run shards end before their first document does.
/// What to say then; empty: nothing.
std::string unread_rests(const Config& config, const TokenStream& stream, int64_t epoch_rows, int64_t readers) {
  int64_t documents = 0;
  for (const StreamPart& part : stream.parts()) documents += part.documents->size();
  const int64_t shards = config.data.logical_shards;
  const double of_document = static_cast<double>(epoch_rows) / static_cast<double>(documents);
  const auto run = static_cast<double>(config.train.max_steps * config.batch.global_batch_size);
  const double of_shard = run / static_cast<double>(shards);
  const int64_t fewer = std::max(static_cast<int64_t>(run / (2 * of_document)) / readers, int64_t{1}) * readers;
  if (of_document < 2 || of_shard >= of_document || fewer >= shards) return "";
  const auto rows = [](double n) {
    return n < 10 ? fmt::format("{:.2g} rows", n) : format_count(std::llround(n)) + " rows";
  };
  return fmt::format(
      "data.logical_shards is {}: the run reads about {} of each shard, and a document has {} on average, so "
      "the ends of most documents are not read, and with more shards than documents their beginnings are read several "
      "times. In a run that has not begun, set data.logical_shards: {}",
      shards, rows(of_shard), rows(of_document), fewer);
}

SplitRows<Sample> open_document_rows(const Config& config, Split split, const RowReader& reader) {
  StreamOptions options = stream_options(config, reader.vocab_size);
  SplitRows<Sample> rows;
  if (split == Split::kTrain) {
    const auto stream = open_token_stream(config, split, options);
    rows.stream = std::make_shared<StreamLoader>(stream, reader.rank, reader.readers);
    rows.read = [loader = rows.stream](int64_t position) { return stream_sample(loader->row(position)); };
    rows.sets.push_back(document_set("data.train", stream));
    rows.rows = rows.samples = estimate_rows(*stream);
    rows.description = fmt::format("{}, about {} rows", describe_stream(*stream), format_count(rows.rows));
    if (const std::string unread = unread_rests(config, *stream, rows.rows, reader.readers); !unread.empty())
      log_run_warn(unread);
    int64_t documents = 0;
    for (const StreamPart& part : stream->parts()) documents += part.documents->size();
    if (!config.data.bos_token && !config.data.eos_token && documents > 1 &&
        hold_texts(to_paths(config.data.train), config.data.column.value_or("")))
      log_run_warn(
          "no token stands between documents, as data.bos_token and data.eos_token are null: give one of them "
          "the id that the model's tokenizer has for it");
    return rows;
  }
  options.logical_shards = 1;
  options.shuffle = false;
  const auto stream = open_token_stream(config, split, options);
  const auto packed = std::make_shared<const PackedOnce>(stream);
  rows.read = [packed](int64_t index) { return stream_sample(packed->read(index)); };
  rows.there = packed->size();
  rows.rows = rows.samples = rows_to_evaluate(config, split, rows.there);
  rows.description = fmt::format("{}, {} rows", describe_stream(*stream), format_count(packed->size()));
  return rows;
}

RowContents document_contents(const ContentsRequest& request) {
  StreamPart part{
      request.name, 1,
      open_documents(to_paths(request.entries), request.column, text_tokens(request.tokenizer, request.column))};
  const std::string kind = part.documents->kind();
  const auto stream = std::make_shared<const TokenStream>(
      std::vector<StreamPart>{std::move(part)},
      StreamOptions{.seq_length = request.seq_length, .vocab_size = request.vocab_size});
  RowSet set = document_set(request.name, stream);
  const std::string text = fmt::format("{} of {}", counted(set.rows, "document"), kind);
  return {{std::move(set)}, {text}};
}

}  // namespace

extern const RowFormat kDocumentRows;
const RowFormat kDocumentRows = {
    .what = "documents",
    .keys = kDocumentData,
    .without_target = "every loss_mask is 0",
    .uncounted = "is a stream of documents",
    .holds = [](const std::string& entry) { return holds_documents(entry); },
    .open = open_document_rows,
    .contents = document_contents,
    .files =
        [](const std::string& entry) {
          std::vector<std::string> files;
          for (const std::filesystem::path& file : document_files(entry)) files.push_back(file.string());
          return files;
        },
    .tokenises =
        [](const Config& config) { return hold_texts(to_paths(config.data.train), config.data.column.value_or("")); }};

}  // namespace trireme
