#include "data/prepare/bert_files.h"
#include "data/prepare/bert_instance_file.h"
#include "data/prepare/parallel.h"
#include "data/prepare/progress.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>

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
  return xxh3_64(all.data(), all.size());
}

}  // namespace

std::vector<fs::path> list_parts(const std::vector<fs::path>& inputs, const std::string& prefix,
                                 const std::string& suffix) {
  std::vector<fs::path> parts;
  for (const fs::path& input : inputs) {
    std::error_code error;
    if (!fs::is_directory(input, error)) {
      if (!fs::exists(input, error)) throw DataError(fmt::format("{}: no such file", input.string()));
      parts.push_back(input);
      continue;
    }
    const size_t before = parts.size();
    for (const auto& entry : fs::directory_iterator(input, error)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() && name.starts_with(prefix) && name.ends_with(suffix) &&
          name.find(".tmp-") == std::string::npos)
        parts.push_back(entry.path());
    }
    if (error) throw DataError(fmt::format("{} cannot be listed: {}", input.string(), error.message()));
    if (parts.size() == before)
      throw DataError(fmt::format("{} holds no files named {}*{}", input.string(), prefix, suffix));
  }
  std::sort(parts.begin(), parts.end(),
            [](const fs::path& a, const fs::path& b) { return a.filename() < b.filename(); });
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
  double total = 0;
  for (const fs::path& part : parts) total += static_cast<double>(fs::file_size(part));
  const PartRecords records(output);
  Progress progress("instances", total, "MB", 1e6);
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
      BertTokenizer tokenizer(vocab);
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

}  // namespace trireme
