#include "data/prepare/megatron_pack.h"

#include "data/prepare/outputs.h"
#include "data/prepare/progress.h"
#include "data/text_file.h"
#include "data/tokenizer/packed_with.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/formats/megatron/indexed_file.h"

#include <fmt/format.h>

#include <memory>
#include <sstream>

namespace trireme {

namespace {

namespace fs = std::filesystem;

constexpr size_t kBatchBytes = size_t{4} << 20;  // texts that are tokenised at a time

/// A document before it is tokenised.
struct RawDocument {
  std::string text;    // a line of JSON, or a text
  int64_t number = 0;  // line from 1, or row from 0
  bool is_json = false;
};

/// Counts of the documents of a part, in the order of the inputs; its note is what a later run needs to go on.
struct PartCounts {
  int64_t read = 0;  // documents of all inputs through the end of this part, whatever became of them
  int64_t bytes = 0, empty = 0, invalid = 0;
  std::string first_invalid;

  std::string note() const { return fmt::format("{} {} {} {} {}", read, bytes, empty, invalid, first_invalid); }
  static PartCounts parse(const std::string& note) {
    PartCounts counts;
    std::istringstream text(note);
    text >> counts.read >> counts.bytes >> counts.empty >> counts.invalid;
    std::getline(text >> std::ws, counts.first_invalid);
    return counts;
  }
};

/// Calls `visit(document, bytes of the file so far)` for every document of a file, in order.
void visit_file(const fs::path& path, const std::string& key, const std::function<void(RawDocument&&, double)>& visit) {
  if (text_kind(path) != TextKind::kJson || is_one_json(path))
    return for_each_document(path, DocumentUnit::kFile, key, [&](const Document& document) {
      visit({std::string(document.text), document.number, false}, document.bytes_done);
    });
  for_each_line(path, [&](std::string_view line, int64_t number, double done) {
    visit({std::string(line), number, true}, done);
  });
}

class Packer {
 public:
  Packer(const DocumentEncoder& encoder, const MegatronPackOptions& options, const fs::path& prefix)
      : encoder_(encoder),
        options_(options),
        folder_(prefix.string() + ".parts"),
        records_(folder_),
        type_(megatron_type_for(encoder.vocab_size)),
        fingerprint_(fingerprint()) {
    while (records_.is_done(name(parts_) + ".idx", part_fingerprint())) {
      counts_ = PartCounts::parse(records_.note(name(parts_) + ".idx"));
      add(report, counts_);
      ++parts_;
    }
    report.kept_parts = parts_;
    skip_ = counts_.read;
    counts_ = {.read = skip_, .first_invalid = {}};
  }

  void add(const fs::path& path, RawDocument&& document) {
    if (++seen_ <= skip_) return;
    batch_bytes_ += document.text.size();
    batch_.push_back(std::move(document));
    if (batch_bytes_ >= kBatchBytes) flush(path);
  }

  /// Tokenises what has gathered: all of it is of `path`.
  void flush(const fs::path& path) {
    if (batch_.empty()) return;
    struct Result {
      std::vector<int32_t> ids;
      int64_t bytes = 0;
      bool valid = true;
    };
    std::vector<Result> results(batch_.size());
    parallel_for(batch_.size(), options_.workers, [&](size_t i) {
      const RawDocument& document = batch_[i];
      std::optional<std::string> text = document.text;
      if (document.is_json && is_valid_utf8(document.text))
        text = json_line_text(path, document.number, document.text, options_.text_key);
      results[i].valid = text && is_valid_utf8(*text);
      if (!results[i].valid) return;
      results[i].bytes = static_cast<int64_t>(text->size());
      results[i].ids = encoder_.encode(*text);
    });
    if (!writer_) writer_ = std::make_unique<MegatronWriter>(folder_ / name(parts_), type_);
    for (size_t i = 0; i < results.size(); ++i) {
      Result& result = results[i];
      ++counts_.read;
      counts_.bytes += result.bytes;
      if (!result.valid && counts_.invalid++ == 0)
        counts_.first_invalid =
            document_place(path, {.text = {}, .number = batch_[i].number, .is_row = !batch_[i].is_json});
      counts_.empty += result.valid && result.ids.empty() ? 1 : 0;
      if (result.ids.empty()) continue;  // as Megatron's tool: no sequence without a token
      if (options_.append_eod) result.ids.push_back(*encoder_.eod);
      writer_->append(result.ids);
    }
    batch_.clear();
    part_bytes_ += static_cast<int64_t>(batch_bytes_);
    batch_bytes_ = 0;
    if (part_bytes_ >= options_.part_bytes) finish_part();
  }

  void finish_part() {
    if (!writer_) return;
    writer_->commit();
    writer_.reset();
    records_.done(name(parts_) + ".idx", part_fingerprint(), counts_.note());
    add(report, counts_);
    counts_ = {.read = counts_.read, .first_invalid = {}};
    part_bytes_ = 0;
    ++parts_;
  }

  /// All parts as one, in the place where the user expects it.
  void finish(const fs::path& prefix) {
    finish_part();
    report.parts = parts_;
    report.prefix = prefix;
    MegatronWriter all(prefix, type_);
    for (int64_t part = 0; part < parts_; ++part) all.append(MegatronFile(folder_ / name(part)));
    report.documents = all.documents();
    report.tokens = all.tokens();
    if (report.documents == 0)
      throw DataError(fmt::format("{}: no document with a token in the input{}: nothing is written", prefix.string(),
                                  report.invalid_utf8 > 0 ? " (" + report.first_invalid + " is not UTF-8)" : ""));
    all.commit();
  }

  void remove_parts() const {
    std::error_code ignored;
    for (int64_t part = 0; part < parts_; ++part)
      for (const char* end : {".bin", ".idx"}) fs::remove(folder_ / (name(part) + end), ignored);
    fs::remove_all(folder_ / ".done", ignored);
    fs::remove(folder_, ignored);  // unless something else lies there
  }

  MegatronPackReport report;

 private:
  static std::string name(int64_t part) { return fmt::format("part-{:06}", part); }
  static void add(MegatronPackReport& report, const PartCounts& counts) {
    report.bytes += counts.bytes;
    report.empty += counts.empty;
    if (report.invalid_utf8 == 0) report.first_invalid = counts.first_invalid;
    report.invalid_utf8 += counts.invalid;
  }
  uint64_t part_fingerprint() const { return derived(fingerprint_, parts_); }
  static uint64_t derived(uint64_t seed, int64_t part) { return xxh3_64(&part, sizeof part, seed); }
  /// Hash of all settings that determine the content of the parts.
  uint64_t fingerprint() const {
    std::string text = fmt::format("{} {} {} {} {}\n", encoder_.fingerprint, encoder_.vocab_size, options_.append_eod,
                                   options_.part_bytes, options_.text_key);
    for (const fs::path& input : options_.inputs) {
      std::error_code error;
      text += fmt::format("{} {} {}\n", fs::absolute(input).string(), fs::file_size(input, error),
                          fs::last_write_time(input, error).time_since_epoch().count());
    }
    return xxh3_64(text.data(), text.size(), 0);
  }

  const DocumentEncoder& encoder_;
  const MegatronPackOptions& options_;
  const fs::path folder_;
  const PartRecords records_;
  const MegatronType type_;
  const uint64_t fingerprint_;
  int64_t parts_ = 0, seen_ = 0, skip_ = 0, part_bytes_ = 0;
  PartCounts counts_;
  std::vector<RawDocument> batch_;
  size_t batch_bytes_ = 0;
  std::unique_ptr<MegatronWriter> writer_;
};

void check_options(const DocumentEncoder& encoder, const MegatronPackOptions& options) {
  if (options.append_eod && !encoder.eod)
    throw ConfigError("--append-eod: this tokenizer has no token that ends a document");
  for (const fs::path& input : options.inputs) {
    std::error_code error;
    if (!fs::is_regular_file(input, error)) throw DataError(fmt::format("{}: is not a file", input.string()));
    if (text_kind(input) == TextKind::kPlain)
      throw DataError(
          fmt::format("{}: neither JSON lines (.json, .jsonl, .ndjson, also with .gz, .zst or .bz2) nor Parquet nor "
                      "Arrow: Megatron's "
                      "files are made of texts in a field",
                      input.string()));
  }
  if (options.output_prefix.filename().empty())
    throw ConfigError(fmt::format("--output-prefix '{}' names a directory; the prefix goes on with a name",
                                  options.output_prefix.string()));
}

/// ConfigError where a file that is there is not Megatron's. `continued`: a stopped run has left the file of tokens.
void check_outputs(const fs::path& prefix, bool continued = false) {
  const std::string bin = prefix.string() + ".bin", idx = prefix.string() + ".idx";
  const bool indexed = !file_head(idx, 1).empty();
  if (indexed && !megatron_index_path(idx))
    throw ConfigError(fmt::format("{} is there and is no file of Megatron's: choose another --output-prefix", idx));
  if (!indexed && !continued && !file_head(bin, 1).empty())
    throw ConfigError(
        fmt::format("{} is there without an index, so it may be no file of Megatron's: remove it, or choose another "
                    "--output-prefix",
                    bin));
}

}  // namespace

MegatronPackReport pack_megatron(const DocumentEncoder& encoder, const MegatronPackOptions& options) {
  check_options(encoder, options);
  const fs::path prefix = fmt::format("{}_{}_document", options.output_prefix.string(), options.text_key);
  check_outputs(prefix, fs::exists(prefix.string() + ".parts"));
  Packer packer(encoder, options, prefix);
  Progress progress("tokenising", total_size(options.inputs), "MB", 1e6);
  double before = 0;
  for (const fs::path& path : options.inputs) {
    visit_file(path, options.text_key, [&](RawDocument&& document, double done) {
      packer.add(path, std::move(document));
      progress.update(before + done);
    });
    packer.flush(path);  // messages name the file of a batch
    before += static_cast<double>(fs::file_size(path));
  }
  progress.finish();
  packer.finish(prefix);
  packer.remove_parts();
  return packer.report;
}

int64_t merge_megatron(const std::vector<fs::path>& prefixes, const fs::path& output) {
  std::vector<std::unique_ptr<MegatronFile>> files;
  for (const fs::path& prefix : prefixes) {
    files.push_back(std::make_unique<MegatronFile>(prefix));
    std::error_code error;
    if (fs::equivalent(files.back()->index_path(), output.string() + ".idx", error))
      throw ConfigError(fmt::format("{} is an input and the output of --merge", output.string()));
  }
  check_packed_alike(prefixes);
  check_outputs(output);
  MegatronWriter writer(output, files.at(0)->type());
  for (const auto& file : files) writer.append(*file);
  writer.commit();
  merge_packed_with(prefixes, output);
  return writer.documents();
}

}  // namespace trireme
