#include "data/prepare/pack.h"

#include "data/prepare/outputs.h"
#include "data/prepare/progress.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/rng.h"
#include "trireme/base/text.h"
#include "trireme/formats/hdf5/hdf5_tokens.h"
#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>
#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// Tokens of whole documents, in reading order.
struct TokenisedDocuments {
  std::vector<int32_t> tokens;
  std::vector<size_t> ends;      // of document i in tokens
  std::vector<int64_t> numbers;  // of document i in the input, dropped ones counted
  size_t size() const { return ends.size(); }
  std::span<const int32_t> document(size_t i) const {
    const size_t begin = i == 0 ? 0 : ends[i - 1];
    return std::span(tokens).subspan(begin, ends[i] - begin);
  }
};

void check_options(const Tokenizer& tokenizer, const PackOptions& options) {
  if (options.seq_length < 2)
    throw ConfigError(fmt::format("--seq-length {}: a row needs at least 2 tokens", options.seq_length));
  if (options.bos && !tokenizer.bos_id()) throw ConfigError("--bos: this tokenizer has no BOS piece");
  if (options.eos && !tokenizer.eos_id()) throw ConfigError("--eos: this tokenizer has no EOS piece");
  if (options.batch_documents < 0)
    throw ConfigError(fmt::format("--batch-documents {}: expected 0 or more", options.batch_documents));
  if (options.batch_documents > 0 && options.shuffle_seed)
    throw ConfigError("--batch-documents cuts in the order of the input: give no --shuffle-seed with it");
  for (const fs::path& input : options.inputs) {
    std::error_code error;
    if (fs::is_directory(input, error))
      throw DataError(fmt::format("{}: is a directory: name its files one by one, as {} or {}", input.string(),
                                  (input / "*.jsonl").string(), (input / "*.arrow").string()));
    (void)text_kind(input, options.field);
  }
  check_row_outputs(options.inputs, options.output, options.valid_output, options.valid_fraction);
}

/// Reads, tokenises in batches on all cores, and sorts documents into the two splits.
class Collector {
 public:
  Collector(const Tokenizer& tokenizer, const PackOptions& options, PackReport& report)
      : tokenizer_(tokenizer), options_(options), report_(report) {}

  void add(const fs::path& path, const Document& document) {
    ++report_.documents;
    report_.bytes += static_cast<int64_t>(document.text.size());
    if (!is_valid_utf8(document.text)) {
      if (report_.invalid_utf8++ == 0) report_.first_invalid = document_place(path, document);
    } else if (document.text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos) {
      ++report_.empty;
    } else {
      batch_.emplace_back(document.text);
      numbers_.push_back(report_.documents - 1);
      batch_bytes_ += document.text.size();
      if (batch_bytes_ >= kBatchBytes) flush();
    }
  }

  void flush() {
    const std::vector<std::string_view> views(batch_.begin(), batch_.end());
    const auto encoded = tokenizer_.encode_all(views, options_.threads);
    for (size_t i = 0; i < encoded.size(); ++i) append(numbers_[i], encoded[i]);
    batch_.clear();
    numbers_.clear();
    batch_bytes_ = 0;
  }

  TokenisedDocuments train, valid;

 private:
  static constexpr size_t kBatchBytes = size_t{2} << 20;

  void append(int64_t number, const std::vector<int32_t>& ids) {
    // Texts with a template's BOS and EOS in them get no second ones.
    const bool bos = options_.bos && (ids.empty() || ids.front() != tokenizer_.bos_id()),
               eos = options_.eos && (ids.empty() || ids.back() != tokenizer_.eos_id());
    const int64_t length = static_cast<int64_t>(ids.size()) + bos + eos;
    if (length < options_.min_tokens) {
      ++report_.too_short;
      report_.short_tokens += length;
      return;
    }
    TokenisedDocuments& split =
        in_valid_split(options_.shuffle_seed.value_or(0), number, options_.valid_fraction) ? valid : train;
    if (bos) split.tokens.push_back(*tokenizer_.bos_id());
    split.tokens.insert(split.tokens.end(), ids.begin(), ids.end());
    if (eos) split.tokens.push_back(*tokenizer_.eos_id());
    split.ends.push_back(split.tokens.size());
    split.numbers.push_back(number);
  }

  const Tokenizer& tokenizer_;
  const PackOptions& options_;
  PackReport& report_;
  std::vector<std::string> batch_;
  std::vector<int64_t> numbers_;
  size_t batch_bytes_ = 0;
};

/// Documents concatenated and cut into rows. starts[r]: the positions in row r where a sequence starts; always contains
/// 0.
struct Rows {
  std::vector<int32_t> tokens;  // [rows * seq_length]
  std::vector<std::vector<int32_t>> starts;
};

Rows cut_rows(const TokenisedDocuments& documents, const PackOptions& options, PackedSplit& report) {
  std::vector<int64_t> order(documents.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  if (options.shuffle_seed) NumpyRandom(*options.shuffle_seed).shuffle(order);
  const auto length = static_cast<size_t>(options.seq_length);
  Rows rows;
  rows.tokens.reserve(documents.tokens.size());
  const auto drop_tail = [&] {
    rows.tokens.resize(rows.tokens.size() / length * length);
    if (options.separate_documents) rows.starts.resize(rows.tokens.size() / length);
  };
  int64_t batch = 0;
  for (const int64_t index : order) {
    if (options.batch_documents > 0) {
      const int64_t next = documents.numbers[static_cast<size_t>(index)] / options.batch_documents;
      if (std::exchange(batch, next) != next) drop_tail();
    }
    const auto document = documents.document(static_cast<size_t>(index));
    if (document.empty()) continue;
    const size_t begin = rows.tokens.size();
    for (size_t row = begin / length; options.separate_documents && row <= (begin + document.size() - 1) / length;
         ++row) {
      if (row == rows.starts.size()) rows.starts.push_back({0});
      if (row == begin / length && begin % length != 0)
        rows.starts[row].push_back(static_cast<int32_t>(begin % length));
    }
    rows.tokens.insert(rows.tokens.end(), document.begin(), document.end());
  }
  report.documents = static_cast<int64_t>(documents.size());
  report.tokens = static_cast<int64_t>(documents.tokens.size());
  drop_tail();
  report.rows = static_cast<int64_t>(rows.tokens.size() / length);
  report.tail_tokens = report.tokens - report.rows * options.seq_length;
  return rows;
}

void write_rows(const fs::path& path, const Rows& rows, const PackOptions& options) {
  const auto length = static_cast<size_t>(options.seq_length);
  const size_t count = rows.tokens.size() / length;
  const auto row_tokens = [&](size_t row) { return std::span(rows.tokens).subspan(row * length, length); };
  const auto row_mask = [&](size_t row) {
    std::vector<uint8_t> mask(length, 1);
    for (const int32_t start : rows.starts[row])
      mask[static_cast<size_t>(start)] = 0;  // its prediction would come from another document
    return mask;
  };
  if (options.separate_documents) {
    write_masked_rows(path, options.seq_length, static_cast<int64_t>(count), [&](int64_t index) -> PackedRecord {
      const auto row = static_cast<size_t>(index);
      const auto tokens = row_tokens(row);
      return {{tokens.begin(), tokens.end()}, row_mask(row), rows.starts[row]};
    });
  } else if (is_hdf5_name(path)) {
    Hdf5TokenWriter writer(path, options.seq_length, {});
    for (size_t row = 0; row < count; ++row) writer.append(row_tokens(row), {}, {});
    writer.commit();
  } else {
    write_npy_int32(path, rows.tokens, static_cast<int64_t>(count), options.seq_length);
  }
}

/// DataError when every document was dropped.
void require_document(const PackReport& report, const PackOptions& options) {
  if (report.train.documents + report.valid.documents > 0) return;
  if (report.documents == 0)
    throw DataError(options.output.string() + ": the input holds no document: nothing is written");
  std::vector<std::string> dropped;
  if (report.invalid_utf8 > 0)
    dropped.push_back(fmt::format("{} not encoded in UTF-8 (the first at {})", format_count(report.invalid_utf8),
                                  report.first_invalid));
  if (report.empty > 0) dropped.push_back(format_count(report.empty) + " empty");
  if (report.too_short > 0)
    dropped.push_back(fmt::format("{} of fewer than {} tokens", format_count(report.too_short), options.min_tokens));
  throw DataError(fmt::format("{}: no document is left of {}: {}: nothing is written", options.output.string(),
                              format_count(report.documents), join(dropped, ", ")));
}

void require_row(const PackedSplit& split, const fs::path& path, const PackOptions& options) {
  if (split.rows > 0) return;
  throw DataError(fmt::format(
      "{}: {} documents gave {} tokens, less than one row of {}: give more text{} or a shorter --seq-length",
      path.string(), format_count(split.documents), format_count(split.tokens), options.seq_length,
      options.valid_output.empty() ? "" : ", another --valid-fraction"));
}

}  // namespace

PackReport pack_documents(const Tokenizer& tokenizer, const PackOptions& options) {
  check_options(tokenizer, options);
  PackReport report;
  Collector collector(tokenizer, options, report);
  Progress progress("tokenising", total_size(options.inputs), "MB", 1e6);
  double before = 0;
  for (const fs::path& path : options.inputs) {
    for_each_document(path, options.unit, options.field, [&](const Document& document) {
      collector.add(path, document);
      progress.update(before + document.bytes_done);
    });
    before += static_cast<double>(fs::file_size(path));
  }
  collector.flush();
  progress.finish();

  const Rows train = cut_rows(collector.train, options, report.train);
  const Rows valid = cut_rows(collector.valid, options, report.valid);
  require_document(report, options);
  require_row(report.train, options.output, options);
  if (!options.valid_output.empty()) require_row(report.valid, options.valid_output, options);
  write_rows(options.output, train, options);
  if (!options.valid_output.empty()) write_rows(options.valid_output, valid, options);

  for (int64_t i = 0; i < std::min<int64_t>(3, report.train.rows); ++i) {
    const auto row = static_cast<size_t>(i * report.train.rows / std::min<int64_t>(3, report.train.rows));
    const auto length = static_cast<size_t>(options.seq_length);
    report.samples.push_back(tokenizer.decode(std::span(train.tokens).subspan(row * length, length)));
  }
  return report;
}

}  // namespace trireme
