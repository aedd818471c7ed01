#include "data/prepare/ultrachat.h"

#include "data/prepare/outputs.h"
#include "data/prepare/progress.h"
#include "data/prepare/python_random.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"
#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>
#include <algorithm>
#include <numeric>

namespace trireme {
namespace {

namespace fs = std::filesystem;

bool name_has(const fs::path& path, std::string_view word) {
  return path.filename().string().find(word) != std::string::npos;
}

/// One split's buffer and rows.
class SplitPacker {
 public:
  SplitPacker(const Tokenizer& tokenizer, const UltrachatOptions& options, PythonRandom& random, UltrachatSplit& report)
      : tokenizer_(tokenizer),
        options_(options),
        random_(random),
        report_(report),
        threshold_(static_cast<double>(options.seq_length) * 3.6 * 1024) {}

  void add(std::string text) {
    const auto characters = static_cast<int64_t>(character_count(text));
    ++report_.conversations;
    report_.characters += characters;
    buffered_ += characters;
    buffer_.push_back(std::move(text));
    if (static_cast<double>(buffered_) >= threshold_) flush();
  }

  void flush() {
    if (buffer_.empty()) return;
    ++report_.buffers;
    const std::vector<std::string_view> views(buffer_.begin(), buffer_.end());
    std::vector<int32_t> ids;
    for (const auto& part : tokenizer_.encode_all(views, options_.threads))
      ids.insert(ids.end(), part.begin(), part.end());
    const auto length = static_cast<size_t>(options_.seq_length);
    std::vector<size_t> chunks(ids.size() / length);
    std::iota(chunks.begin(), chunks.end(), size_t{0});
    random_.shuffle(chunks);
    for (const size_t chunk : chunks) {
      const auto begin = ids.begin() + static_cast<int64_t>(chunk * length);
      rows.insert(rows.end(), begin, begin + options_.seq_length);
    }
    report_.tokens += static_cast<int64_t>(ids.size());
    report_.rows += static_cast<int64_t>(chunks.size());
    report_.tail_tokens += static_cast<int64_t>(ids.size() % length);
    buffer_.clear();
    buffered_ = 0;
  }

  std::vector<int32_t> rows;

 private:
  const Tokenizer& tokenizer_;
  const UltrachatOptions& options_;
  PythonRandom& random_;
  UltrachatSplit& report_;
  double threshold_;
  std::vector<std::string> buffer_;
  int64_t buffered_ = 0;
};

std::vector<int32_t> pack_split(const Tokenizer& tokenizer, const UltrachatOptions& options, PythonRandom& random,
                                UltrachatSplit& split) {
  std::vector<ParquetFile> files;
  int64_t total = 0;
  for (const fs::path& path : split.files) total += files.emplace_back(path).rows();
  SplitPacker packer(tokenizer, options, random, split);
  Progress progress(split.output.filename().string(), static_cast<double>(total), "k rows", 1e3);
  for (size_t i = 0; i < files.size(); ++i)
    files[i].read_messages("messages", [&](int64_t row, std::span<const ChatMessage> messages) {
      std::string text = render_chatml(messages);
      if (!is_valid_utf8(text)) throw DataError(fmt::format("{}: row {}: not UTF-8", split.files[i].string(), row));
      packer.add(std::move(text));
      progress.update(static_cast<double>(split.conversations));
    });
  packer.flush();
  if (split.rows == 0)
    throw DataError(fmt::format("{} conversations from {} gave {} tokens, less than one row of {}", split.conversations,
                                split.files[0].string(), split.tokens, options.seq_length));
  return std::move(packer.rows);
}

}  // namespace

std::string render_chatml(std::span<const ChatMessage> messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    text += "<|im_start|>";
    text += message.role;
    text += '\n';
    text += message.content;
    text += "<|im_end|>\n";
  }
  return text;
}

std::vector<std::pair<std::string, int32_t>> add_chatml_specials(Tokenizer& tokenizer) {
  std::vector<std::pair<std::string, int32_t>> specials;
  for (const char* text : {"<unk>", "<s>", "</s>", "<|im_end|>", "<pad>", "<|im_start|>user", "<|im_start|>assistant",
                           "<|im_start|>system"})
    specials.emplace_back(text, tokenizer.add_special(text));
  return specials;
}

UltrachatReport convert_ultrachat(Tokenizer& tokenizer, const UltrachatOptions& options) {
  if (options.seq_length < 2 || options.seq_length > (1 << 24))
    throw ConfigError(fmt::format("--seq-length {}: expected 2 to {}", options.seq_length, 1 << 24));
  UltrachatReport report;
  report.specials = add_chatml_specials(tokenizer);
  report.vocab_size = tokenizer.vocab_size();
  report.padded_vocab_size = round_up(report.vocab_size, 8);
  // The datasets library sorts by name, too: train_gen comes before train_sft.
  for (const fs::path& path : files_of(options.inputs, "", ".parquet")) {
    const bool train = name_has(path, "train"), test = name_has(path, "test");
    if (train == test)
      throw DataError(fmt::format(
          "{}: the name tells the split and must contain either 'train' or 'test' (train_sft-00000…)", path.string()));
    if (options.sft_only && !name_has(path, "sft")) continue;
    (train ? report.train : report.valid).files.push_back(path);
  }
  if (report.train.files.empty())
    throw DataError(fmt::format("no {} file among the inputs", options.sft_only ? "train_sft" : "train"));
  report.train.output = options.output_directory / "train.npy";
  if (!report.valid.files.empty()) report.valid.output = options.output_directory / "validation.npy";
  check_replaceable({report.train.output, report.valid.output});
  make_directories(options.output_directory);
  PythonRandom random(options.seed);
  const auto train = pack_split(tokenizer, options, random, report.train);
  std::vector<int32_t> valid;
  if (!report.valid.files.empty()) valid = pack_split(tokenizer, options, random, report.valid);
  write_npy_int32(report.train.output, train, report.train.rows, options.seq_length);
  if (!valid.empty()) write_npy_int32(report.valid.output, valid, report.valid.rows, options.seq_length);
  for (int64_t i = 0; i < std::min<int64_t>(3, report.train.rows); ++i)
    report.samples.push_back(tokenizer.decode(std::span(train).subspan(static_cast<size_t>(i * options.seq_length),
                                                                       static_cast<size_t>(options.seq_length))));
  return report;
}

}  // namespace trireme
