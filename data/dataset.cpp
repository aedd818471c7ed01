#include "data/dataset.h"

#include "data/row_file.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <algorithm>

namespace trireme {
namespace {

class ConcatenatedDataset : public TokenDataset {
 public:
  ConcatenatedDataset(const std::vector<std::filesystem::path>& files, int64_t seq_length, int64_t vocab_size)
      : seq_length_(seq_length), vocab_size_(vocab_size) {
    for (const auto& path : files) {
      files_.push_back(open_row_file(path, seq_length));
      if (files_.back()->rows() == 0)
        throw DataError(fmt::format("{}: holds no rows: pack more text, or a shorter --seq-length", path.string()));
      ends_.push_back(size() + files_.back()->rows());
    }
  }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

  Sample read(int64_t index) const override {
    TRIREME_CHECK(index >= 0 && index < size(), "row ", index, " of a dataset of ", size());
    const auto file = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const int64_t row = index - (file == 0 ? 0 : ends_[file - 1]);
    StoredRow stored = files_[file]->read(row);
    check(*files_[file], row, stored);
    Sample sample;
    sample.input_ids = std::move(stored.input_ids);
    sample.sequence_starts = stored.has_sequence_starts ? std::move(stored.sequence_starts) : std::vector<int64_t>{0};
    sample.loss_mask =
        stored.has_loss_mask ? std::move(stored.loss_mask) : std::vector<uint8_t>(static_cast<size_t>(seq_length_), 1);
    for (const int64_t start : sample.sequence_starts) sample.loss_mask[static_cast<size_t>(start)] = 0;
    return sample;
  }

  std::string description() const override {
    std::vector<std::string> parts;
    for (const auto& file : files_)
      parts.push_back(fmt::format("{} ({}, {} row{})", file->path().filename().string(), file->kind(),
                                  format_count(file->rows()), file->rows() == 1 ? "" : "s"));
    return join(parts, ", ");
  }

 private:
  [[noreturn]] static void fail(const RowFile& file, int64_t row, int64_t position, const std::string& what) {
    const std::string place = position < 0 ? "" : fmt::format(", position {}", position);
    throw DataError(
        fmt::format("{}: row {}{} ({}): {}", file.path().string(), row, place, file.where(row, position), what));
  }

  void check(const RowFile& file, int64_t row, const StoredRow& stored) const {
    const auto length = static_cast<int64_t>(stored.input_ids.size());
    if (length != seq_length_)
      fail(file, row, -1,
           fmt::format("{} tokens, but data.seq_length is {}: rows must be exactly that long", length, seq_length_));
    for (int64_t t = 0; t < length; ++t) {
      const int64_t id = stored.input_ids[static_cast<size_t>(t)];
      if (id < 0 || id >= vocab_size_)
        fail(file, row, t,
             fmt::format("token id {} is outside the model's vocabulary of {} (0 to {}){}", id, vocab_size_,
                         vocab_size_ - 1, vocabulary_remedy(id)));
    }
    if (stored.has_loss_mask) check_mask(file, row, stored.loss_mask);
    if (stored.has_sequence_starts) check_starts(file, row, stored.sequence_starts);
  }

  /// Ids just above the vocabulary are likely to be added tokens; other ids belong to another tokenizer.
  std::string vocabulary_remedy(int64_t id) const {
    if (id < 0 || id >= 2 * vocab_size_ + 65536) return ": was the data made with another tokenizer?";
    return fmt::format(
        ": where tokens were added to the tokenizer, set model.vocab_size to {} or more, or write the "
        "model with as many rows once (trireme model resize-vocab)",
        id + 1);
  }

  void check_mask(const RowFile& file, int64_t row, const std::vector<uint8_t>& mask) const {
    if (static_cast<int64_t>(mask.size()) != seq_length_)
      fail(file, row, -1, fmt::format("loss_mask has {} entries for {} tokens", mask.size(), seq_length_));
    const auto bad = std::find_if(mask.begin(), mask.end(), [](uint8_t value) { return value > 1; });
    if (bad != mask.end())
      fail(file, row, -1, fmt::format("loss_mask[{}] is {}, expected 0 or 1", bad - mask.begin(), *bad));
  }

  void check_starts(const RowFile& file, int64_t row, const std::vector<int64_t>& starts) const {
    if (starts.empty()) fail(file, row, -1, "seq_start_id is empty: the first sequence of a row starts at 0");
    if (starts[0] != 0) fail(file, row, -1, fmt::format("seq_start_id begins with {}, expected 0", starts[0]));
    for (size_t i = 1; i < starts.size(); ++i)
      if (starts[i] <= starts[i - 1])
        fail(file, row, -1,
             fmt::format("seq_start_id[{}] is {} after {}: starts must ascend", i, starts[i], starts[i - 1]));
    if (starts.back() >= seq_length_)
      fail(file, row, -1,
           fmt::format("seq_start_id[{}] is {}, past the row's {} tokens", starts.size() - 1, starts.back(),
                       seq_length_));
  }

  int64_t seq_length_, vocab_size_;
  std::vector<std::unique_ptr<RowFile>> files_;
  std::vector<int64_t> ends_;  // rows through file i
};

}  // namespace

int64_t Sample::num_targets() const { return std::count(loss_mask.begin(), loss_mask.end(), uint8_t{1}); }

std::unique_ptr<TokenDataset> open_token_dataset(const std::vector<std::filesystem::path>& files, int64_t seq_length,
                                                 int64_t vocab_size) {
  TRIREME_CHECK(!files.empty(), "no data file given");
  TRIREME_CHECK(seq_length >= 2, "seq_length is ", seq_length, ", but a row of fewer than 2 tokens predicts nothing");
  TRIREME_CHECK(vocab_size > 0, "vocabulary of ", vocab_size);
  return std::make_unique<ConcatenatedDataset>(files, seq_length, vocab_size);
}

}  // namespace trireme
