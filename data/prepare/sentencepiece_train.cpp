#include "data/prepare/sentencepiece_train.h"

#include "data/text_file.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <sentencepiece_trainer.h>
#include <algorithm>
#include <regex>
#include <thread>
#include <unordered_map>

namespace trireme {
namespace {

/// Iterates over the checked lines of the input files without copying them from the mapped files.
class Lines : public sentencepiece::SentenceIterator {
 public:
  Lines(const std::vector<std::filesystem::path>& inputs, TrainedTokenizer& report) : report_(report) {
    for (const auto& path : inputs) {
      if (text_kind(path) != TextKind::kPlain)
        throw DataError(path.string() +
                        ": holds JSON, Parquet or Arrow, and a sentencepiece model is trained on plain text: write the "
                        "texts into a text file, or train byte-level BPE (--format byte-level)");
      files_.emplace_back(path);
    }
    Next();
  }
  bool done() const override { return file_ == files_.size(); }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    for (; file_ < files_.size(); ++file_, at_ = 0, number_ = 0) {
      const std::string_view text = files_[file_].text();
      while (at_ < text.size()) {
        const size_t end = std::min(text.find('\n', at_), text.size());
        std::string_view line = text.substr(at_, end - at_);
        at_ = end + 1;
        ++number_;
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty() || !usable(line)) continue;
        line_ = line;
        ++report_.lines;
        report_.bytes += static_cast<int64_t>(line.size());
        return;
      }
    }
  }

 private:
  bool usable(std::string_view line) {
    if (static_cast<int64_t>(line.size()) > kMaxTrainingLine) {
      ++report_.long_lines;
      return false;
    }
    if (is_valid_utf8(line)) return true;
    if (report_.invalid_lines++ == 0)
      report_.first_invalid = fmt::format("{}:{}", files_[file_].path().string(), number_);
    return false;
  }

  TrainedTokenizer& report_;
  std::vector<TextBytes> files_;
  size_t file_ = 0, at_ = 0;
  int64_t number_ = 0;
  std::string line_;
};

[[noreturn]] void explain(const std::string& status, const TokenizerTraining& training,
                          const TrainedTokenizer& report) {
  std::smatch found;
  if (std::regex_search(status, found, std::regex("too high.*value <= ([0-9]+)")))
    throw ConfigError(
        fmt::format("--vocab-size {}: this text supports a vocabulary of at most {}: ask for that, or give more text",
                    training.vocab_size, found[1].str()));
  if (std::regex_search(status, found, std::regex("smaller than required_chars\\. *[0-9]+ vs ([0-9]+)")))
    throw ConfigError(fmt::format(
        "--vocab-size {}: too small: the characters of this text, the 256 bytes and the 3 control pieces alone take {}",
        training.vocab_size, found[1].str()));
  throw DataError(fmt::format("sentencepiece could not train on {} lines ({}): {}", format_count(report.lines),
                              format_bytes(report.bytes), status));
}

}  // namespace

TrainedTokenizer train_tokenizer(const TokenizerTraining& training) {
  if (training.model_type != "bpe" && training.model_type != "unigram")
    throw ConfigError(fmt::format("--model-type {}: expected bpe or unigram", training.model_type));
  constexpr int64_t kSmallest = 3 + 256 + 1;
  if (training.vocab_size < kSmallest || training.vocab_size > (1 << 24))
    throw ConfigError(fmt::format("--vocab-size {}: expected {} (unk, bos, eos, 256 bytes and one more) to {}",
                                  training.vocab_size, kSmallest, 1 << 24));
  TrainedTokenizer result;
  Lines lines(training.inputs, result);
  if (lines.done())
    throw DataError(fmt::format("no text to train on: the input has no line of valid UTF-8 ({} invalid, {} too long)",
                                result.invalid_lines, result.long_lines));
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", training.model_type},
      {"vocab_size", std::to_string(training.vocab_size)},
      {"num_threads", std::to_string(std::min(training.threads == 0 ? cores : training.threads, 128u))},
      {"max_sentence_length", std::to_string(kMaxTrainingLine)},
      {"character_coverage", "0.99995"},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"allow_whitespace_only_pieces", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "true"},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"unk_surface", " \xE2\x81\x87 "},
      {"minloglevel", training.verbose ? "0" : "2"},
  };
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &lines, &result.serialized_model);
  if (!status.ok()) explain(status.ToString(), training, result);
  return result;
}

}  // namespace trireme
