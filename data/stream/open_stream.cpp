#include "data/stream/open_stream.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace trireme {

bool are_documents(const std::string& key, const std::vector<std::filesystem::path>& paths) {
  std::vector<std::string> documents, rows;
  for (const auto& path : paths) (holds_documents(path) ? documents : rows).push_back(path.string());
  if (documents.empty() || rows.empty()) return rows.empty();
  throw ConfigError(fmt::format("{} has documents ({}) and rows ({}): a run reads one or the other", key,
                                documents.front(), rows.front()));
}

std::shared_ptr<const TokenStream> open_token_stream(const StreamFiles& files, const StreamOptions& options) {
  const auto texts = text_tokens(files.tokenizer, files.column);
  std::vector<StreamPart> parts;
  if (files.weights.empty() && files.names.empty()) {
    std::vector<std::unique_ptr<DocumentSet>> sets;
    for (const auto& path : files.paths) sets.push_back(open_documents(path, files.column, texts));
    parts.push_back({files.key, 1, std::make_shared<ConcatenatedDocuments>(std::move(sets))});
  } else {
    for (size_t i = 0; i < files.paths.size(); ++i)
      parts.push_back({files.names.empty() ? files.paths[i].filename().string() : files.names[i],
                       files.weights.empty() ? 1 : files.weights[i],
                       open_documents(files.paths[i], files.column, texts)});
  }
  return std::make_shared<TokenStream>(std::move(parts), options);
}

RowSet document_rows(const std::string& key, const std::shared_ptr<const TokenStream>& stream) {
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

std::string describe_stream(const TokenStream& stream) {
  std::vector<std::string> texts;
  for (const StreamPart& part : stream.parts()) {
    const std::string share = stream.parts().size() == 1 ? "" : fmt::format(", {:.4g} %", 100 * part.weight);
    texts.push_back(fmt::format("{} ({} document{} of {}{})", part.name, format_count(part.documents->size()),
                                part.documents->size() == 1 ? "" : "s", part.documents->kind(), share));
  }
  return fmt::format("{}; {} logical shards", join(texts, ", "), stream.options().logical_shards);
}

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

PackedOnce::PackedOnce(std::shared_ptr<const TokenStream> stream) : stream_(std::move(stream)) {
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

std::vector<int64_t> PackedOnce::read(int64_t row) const {
  TRIREME_CHECK(row >= 0 && row < size(), "row ", row, " of ", size());
  ShardState state = starts_[static_cast<size_t>(row)];
  return stream_->next_row(0, state);
}

}  // namespace trireme
