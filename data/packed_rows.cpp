// Rows that are packed already: npy arrays, MLPerf's records and HDF5.
#include "data/megatron/index_maps.h"
#include "data/rows.h"
#include "data/text_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/rng.h"
#include "trireme/base/text.h"
#include "trireme/formats/hdf5/hdf5_tokens.h"
#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

namespace trireme {

namespace {

namespace fs = std::filesystem;

/// What a row is without mask and starts in its file, before its ids are read.
Sample plain_row(int64_t length) { return one_sequence(std::vector<int64_t>(static_cast<size_t>(length))); }

class RowFile {
 public:
  virtual ~RowFile() = default;
  virtual int64_t rows() const = 0;
  /// A row as stored in the file, unchecked: in loss_mask 2 is the target of a rejected answer.
  virtual Sample read(int64_t row) const = 0;
  /// The location of a token (position >= 0) or of the row (position < 0) in the file: "byte 4,224" or "dataset
  /// input_ids".
  virtual std::string where(int64_t row, int64_t position) const = 0;
  virtual std::string kind() const = 0;  // "npy [N, S] int32", "MLPerf records", "HDF5"
  const std::filesystem::path& path() const { return path_; }

 protected:
  explicit RowFile(std::filesystem::path path) : path_(std::move(path)) {}

 private:
  std::filesystem::path path_;
};

constexpr std::string_view kNpyMagic{"\x93NUMPY", 6};
constexpr std::string_view kHdf5Magic{"\x89HDF\r\n\x1a\n", 8};

bool starts_with(std::span<const std::byte> bytes, size_t offset, std::string_view magic) {
  return bytes.size() >= offset + magic.size() && std::memcmp(bytes.data() + offset, magic.data(), magic.size()) == 0;
}

// HDF5 allows a user block: the signature is at 0, 512, 1024, 2048, …
bool is_hdf5(std::span<const std::byte> bytes) {
  if (starts_with(bytes, 0, kHdf5Magic)) return true;
  for (size_t offset = 512; offset < bytes.size(); offset *= 2)
    if (starts_with(bytes, offset, kHdf5Magic)) return true;
  return false;
}

void check_row_length(const fs::path& path, int64_t columns, int64_t seq_length) {
  if (columns != seq_length)
    throw DataError(
        fmt::format("{}: rows hold {} tokens, but data.seq_length is {}: set data.seq_length to {} or pack the "
                    "text again with `trireme data pack --seq-length {}`",
                    path.string(), columns, seq_length, columns, seq_length));
}

class NpyIntegerRows : public RowFile {
 public:
  NpyIntegerRows(const fs::path& path, MappedFile file, const NpyHeader& header, int64_t seq_length)
      : RowFile(path), header_(header), array_(std::move(file), header) {
    check_row_length(path, array_.columns(), seq_length);
  }
  int64_t rows() const override { return array_.rows(); }
  Sample read(int64_t row) const override {
    Sample result = plain_row(array_.columns());
    array_.read_row(row, result.input_ids);
    return result;
  }
  std::string where(int64_t row, int64_t position) const override {
    const int64_t item = header_.descr.back() - '0';
    const int64_t column = std::max<int64_t>(position, 0);
    const int64_t element = header_.fortran_order ? column * array_.rows() + row : row * array_.columns() + column;
    return fmt::format("byte {}", static_cast<int64_t>(header_.data_offset) + element * item);
  }
  std::string kind() const override { return fmt::format("npy {}", header_.descr); }

 private:
  NpyHeader header_;
  NpyIntegerArray array_;
};

class RecordRows : public RowFile {
 public:
  RecordRows(const fs::path& path, MappedFile file, const NpyHeader& header)
      : RowFile(path), records_(std::move(file), header) {}
  int64_t rows() const override { return records_.size(); }
  Sample read(int64_t row) const override {
    const PackedRecord record = records_.read(row);
    Sample result;
    result.input_ids.assign(record.input_ids.begin(), record.input_ids.end());
    result.loss_mask = record.loss_mask;
    result.sequence_starts.assign(record.seq_start_id.begin(), record.seq_start_id.end());
    return result;
  }
  std::string where(int64_t row, int64_t) const override {
    return fmt::format("record at byte {}", records_.record_offset(row));
  }
  std::string kind() const override { return "MLPerf records"; }

 private:
  NpyPackedRecords records_;
};

class Hdf5Rows : public RowFile {
 public:
  Hdf5Rows(const fs::path& path, int64_t seq_length) : RowFile(path), file_(path) {
    check_row_length(path, file_.columns(), seq_length);
  }
  int64_t rows() const override { return file_.rows(); }
  Sample read(int64_t row) const override {
    Sample result = plain_row(file_.columns());
    file_.read_row(row, result.input_ids);
    if (file_.has_loss_mask()) file_.read_loss_mask(row, result.loss_mask);
    if (file_.has_seq_start_id()) result.sequence_starts = file_.read_seq_start_id(row);
    return result;
  }
  // An element in a chunked or filtered dataset has no byte offset: its coordinates are given instead, as HDF5 tools
  // take them.
  std::string where(int64_t row, int64_t position) const override {
    return position < 0 ? fmt::format("dataset input_ids[{}]", row)
                        : fmt::format("dataset input_ids[{}, {}]", row, position);
  }
  std::string kind() const override { return "HDF5"; }

 private:
  Hdf5TokenFile file_;
};

/// A guess of the format of a file, with advice: "Parquet: convert it with `trireme data pack …`".
std::string describe_unknown_content(const fs::path& path, std::span<const std::byte> bytes) {
  const auto is = [&](std::string_view magic, size_t offset = 0) { return starts_with(bytes, offset, magic); };
  constexpr const char* kPack = "turn it into rows with `trireme data pack --tokenizer tokenizer.model --input FILE …`";
  if (bytes.empty()) return "an empty file: write it again";
  if (is("PAR1")) return std::string("Parquet: ") + kPack + " (or `trireme data mlperf`, `trireme data ultrachat`)";
  if (std::string archive = archive_of(as_text(bytes.first(std::min(bytes.size(), kArchiveHead)))); !archive.empty())
    return archive;
  if (is("ARROW1")) return "an Arrow file, which holds documents, not rows: train_llama reads it as it is";
  if (is(std::string_view("MMIDIDX\0\0", 9)))
    return "a Megatron index (.idx), which holds documents, not rows: train_llama reads it as it is";
  const auto byte = [&](size_t i) { return i < bytes.size() ? std::to_integer<unsigned>(bytes[i]) : 0u; };
  if (byte(0) == 0x80 && byte(1) >= 2 && byte(1) <= 5)
    return "a bare Python pickle, which is never executed here: save the rows with numpy.save as "
           "an integer array [N, S]";
  const size_t length = std::min<size_t>(bytes.size(), 4096);
  size_t end = length;  // do not cut a UTF-8 sequence in two
  while (length < bytes.size() && end > 0 && (byte(end) & 0xC0u) == 0x80u) --end;
  const std::string_view head = as_text(bytes.first(end));
  bool control = false;
  for (const char c : head)
    control |= static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != '\f';
  if (!control && is_valid_utf8(head)) return std::string("text: ") + kPack;
  const fs::path index = path.filename().replace_extension(".idx");
  return fmt::format(
      "unknown bytes ({:02x} {:02x} {:02x} {:02x} …): is it damaged, {}or still compressed?", byte(0), byte(1), byte(2),
      byte(3), path.extension() == ".bin" ? fmt::format("Megatron's without its index {}, ", index.string()) : "");
}

/// Recognises the format by the content, never by the name. DataError for a file that is neither npy nor HDF5, with a
/// guess of its format, and for a row length other than seq_length if the header tells the length.
std::unique_ptr<RowFile> open_row_file(const fs::path& path, int64_t seq_length) {
  std::error_code error;
  if (fs::is_directory(path, error))
    throw DataError(
        fmt::format("{}: is a directory; data.train and data.valid name files: list them one by one", path.string()));
  MappedFile file(path, ExitCode::kData);
  if (starts_with(file.bytes(), 0, kNpyMagic)) {
    const NpyHeader header = parse_npy_header(file.bytes(), path);
    if (header.descr.find('O') != std::string::npos) return std::make_unique<RecordRows>(path, std::move(file), header);
    return std::make_unique<NpyIntegerRows>(path, std::move(file), header, seq_length);
  }
  if (is_hdf5(file.bytes())) return std::make_unique<Hdf5Rows>(path, seq_length);
  (void)text_kind(path);  // refuses CSV, with advice
  throw DataError(
      fmt::format("{}: neither npy nor HDF5 but {}", path.string(), describe_unknown_content(path, file.bytes())));
}

/// Marks in loss_mask: the target of an answer, of a rejected one, and of one to another prompt.
constexpr uint8_t kTarget = 1, kRejected = 2, kOther = 3;
constexpr const char* kTargetsOf[] = {"no target", "targets of a chosen answer", "targets of a rejected answer",
                                      "targets of an answer to another prompt"};

/// How rows hold answers, by Answers: the largest mark, the marks of the first and of the second sequence of a pair as
/// bits, and the words for them.
struct AnswerRows {
  uint8_t most;
  unsigned turns[2];
  const char *values, *objective, *option, *what, *by_turns, *alone;
};
constexpr AnswerRows kAnswerRows[] = {
    {kTarget, {}, "0 or 1", "", "", "", "", ""},
    {kRejected,
     {1u << kTarget, 1u << kRejected},
     "0, 1 or 2",
     "dpo or orpo",
     "",
     "pairs of a chosen and a rejected answer",
     "chosen and rejected answers by turns, with targets 1 and 2",
     "the last chosen answer has no rejected one beside it"},
    {kOther,
     {1u << kTarget | 1u << kRejected, 1u << kOther},
     "0 to 3",
     "kto",
     " --unpaired",
     "judged answers",
     "answers and the same prompts with answers to others by turns, with targets 1 or 2, and 3,",
     "the last answer has no sequence with another answer beside it"}};
const AnswerRows& rows_of(Answers answers) { return kAnswerRows[static_cast<size_t>(answers)]; }

class ConcatenatedDataset : public TokenDataset {
 public:
  ConcatenatedDataset(const std::vector<std::filesystem::path>& files, int64_t seq_length, int64_t vocab_size,
                      std::optional<Answers> answers)
      : seq_length_(seq_length), vocab_size_(vocab_size) {
    for (const auto& path : files) {
      files_.push_back(open_row_file(path, seq_length));
      if (files_.back()->rows() == 0)
        throw DataError(fmt::format("{}: holds no rows: pack more text, or a shorter --seq-length", path.string()));
      ends_.push_back(size() + files_.back()->rows());
    }
    answers_ = answers ? *answers : answers_of(files_.front()->read(0).loss_mask);
  }

  Answers answers() const override { return answers_; }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  std::vector<int64_t> file_ends() const override { return ends_; }

  Sample read(int64_t index) const override {
    TRIREME_CHECK(index >= 0 && index < size(), "row ", index, " of a dataset of ", size());
    const auto file = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const int64_t row = index - (file == 0 ? 0 : ends_[file - 1]);
    Sample sample = files_[file]->read(row);
    check(*files_[file], row, sample);
    for (const int64_t start : sample.sequence_starts) sample.loss_mask[static_cast<size_t>(start)] = 0;
    if (answers_ != Answers::kNone) take_pairs(*files_[file], row, sample);
    return sample;
  }

  std::string description() const override {
    std::vector<std::string> parts;
    for (const auto& file : files_)
      parts.push_back(
          fmt::format("{} ({}, {})", file->path().filename().string(), file->kind(), counted(file->rows(), "row")));
    return join(parts, ", ") + (answers_ == Answers::kPairs    ? " of pairs"
                                : answers_ == Answers::kJudged ? " of judged answers"
                                                               : "");
  }

 private:
  [[noreturn]] static void fail(const RowFile& file, int64_t row, int64_t position, const std::string& what) {
    const std::string place = position < 0 ? "" : fmt::format(", position {}", position);
    throw DataError(
        fmt::format("{}: row {}{} ({}): {}", file.path().string(), row, place, file.where(row, position), what));
  }

  void check(const RowFile& file, int64_t row, const Sample& stored) const {
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
    check_mask(file, row, stored.loss_mask);
    check_starts(file, row, stored.sequence_starts);
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
    const AnswerRows& rows = rows_of(answers_);
    const auto bad = std::find_if(mask.begin(), mask.end(), [&](uint8_t value) { return value > rows.most; });
    if (bad != mask.end())
      fail(file, row, -1,
           fmt::format("loss_mask[{}] is {}, expected {}{}", bad - mask.begin(), *bad, rows.values,
                       *bad == kRejected ? ": a rejected answer in rows without pairs" : ""));
  }

  static Answers answers_of(const std::vector<uint8_t>& mask) {
    return std::ranges::count(mask, kOther) > 0      ? Answers::kJudged
           : std::ranges::count(mask, kRejected) > 0 ? Answers::kPairs
                                                     : Answers::kNone;
  }

  /// Counts the pairs of a row, and leaves 0 and 1 in its mask.
  void take_pairs(const RowFile& file, int64_t row, Sample& sample) const {
    const AnswerRows& rows = rows_of(answers_);
    const auto sequences = sample.sequence_starts.size();
    for (size_t s = 0; s < sequences; ++s) {
      const auto begin = sample.loss_mask.begin() + sample.sequence_starts[s],
                 end = s + 1 < sequences ? sample.loss_mask.begin() + sample.sequence_starts[s + 1]
                                         : sample.loss_mask.end();
      const bool first = s % 2 == 0;
      unsigned marks = 0;
      for (auto mark = begin; mark != end; ++mark) marks |= 1u << *mark & ~1u;
      if (marks == 0 && first && s > 0 && s + 1 == sequences) return;  // padding
      // The answer to another prompt has no target where prompt and answer are one token.
      const bool right = marks == 0 ? !first && answers_ == Answers::kJudged && end - begin == 1
                                    : std::has_single_bit(marks) && (marks & rows.turns[s % 2]) != 0;
      if (!right)
        fail(file, row, begin - sample.loss_mask.begin(),
             fmt::format(
                 "sequence {} has {}, but sequences are {} in loss_mask (trireme data preference{} makes such "
                 "rows)",
                 s, std::popcount(marks) > 1 ? "targets of both" : kTargetsOf[marks == 0 ? 0 : std::countr_zero(marks)],
                 rows.by_turns, rows.option));
      if (!first)
        ++sample.pairs;
      else if (answers_ == Answers::kJudged)
        sample.desirable.push_back(marks == 1u << kTarget ? 1 : 0);
      std::replace_if(begin, end, [](uint8_t value) { return value > kTarget; }, kTarget);
    }
    if (sequences % 2 == 1) fail(file, row, sample.sequence_starts.back(), rows.alone);
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
  Answers answers_ = Answers::kNone;
  std::vector<std::unique_ptr<RowFile>> files_;
  std::vector<int64_t> ends_;  // rows through file i
};

RowSet packed_set(const std::string& name, const std::shared_ptr<const TokenDataset>& data) {
  return {name, data->size(), {}, [data](int64_t row) { (void)data->read(row); }};
}

/// The order of a run's rows: permutations of all rows, one after the other; with data.weights permutations of the rows
/// of each file, of which each row of the run takes the next of the file that is furthest behind its share.
class RowOrder {
 public:
  RowOrder(const TokenDataset& data, const Config& config) {
    std::vector<double> shares = config.data.weights;
    if (shares.empty()) shares.assign(config.data.names.size(), 1);
    const auto seed = static_cast<uint64_t>(config.train.seed);
    if (shares.size() > 1) shares_.emplace(shares);
    for (const int64_t end : shares_ ? data.file_ends() : std::vector{data.size()}) {
      const int64_t begin = files_.empty() ? 0 : files_.back().end;
      files_.push_back(
          {begin, end, Sampler(end - begin, (seed + files_.size()) % (uint64_t{1} << 32), config.data.shuffle)});
    }
  }
  int64_t at(int64_t position) {
    const BlendOrder::Place place = shares_ ? shares_->at(position) : BlendOrder::Place{0, position};
    File& file = files_[static_cast<size_t>(place.part)];
    return file.begin + file.rows.at(place.sample);
  }

 private:
  struct File {
    int64_t begin = 0, end = 0;
    Sampler rows;
  };
  std::optional<BlendOrder> shares_;
  std::vector<File> files_;
};

SplitRows<Sample> open_packed(const Config& config, Split split, const RowReader& reader) {
  const SplitKeys keys = split_keys(config, split);
  using Objective = TrainSection::Objective;
  const Objective objective = config.train.objective;
  const Answers wanted = objective == Objective::kSft   ? Answers::kNone
                         : objective == Objective::kKto ? Answers::kJudged
                                                        : Answers::kPairs;
  // A run of MLPerf touches no row before its clock runs.
  const std::shared_ptr<const TokenDataset> data =
      open_token_dataset(to_paths(keys.files), config.data.seq_length, reader.vocab_size,
                         config.logging.mlperf ? std::optional(wanted) : std::nullopt);
  if (data->answers() != wanted) {
    const AnswerRows& named = rows_of(wanted == Answers::kNone ? data->answers() : wanted);
    throw ConfigError(wanted == Answers::kNone
                          ? fmt::format("{}, {}, has {}: set train.objective to {}, or train on other rows", keys.key,
                                        keys.files.front(), named.what, named.objective)
                          : fmt::format("train.objective {}: {}, {}, has no {}: make such rows with `trireme data "
                                        "preference{}`",
                                        word_of(objective), keys.key, keys.files.front(), named.what, named.option));
  }
  SplitRows<Sample> rows = {.sets = {packed_set(keys.key, data)}, .description = data->description()};
  rows.of_files = [data](int64_t number) { return data->read(number); };
  rows.there = data->size();
  if (split != Split::kTrain) {
    rows.read = rows.of_files;
    rows.rows = rows.samples = rows_to_evaluate(config, split, rows.there);
    return rows;
  }
  const auto order = std::make_shared<RowOrder>(*data, config);
  rows.read = [data, order](int64_t position) { return data->read(order->at(position)); };
  rows.rows = rows.samples = data->size();
  return rows;
}

RowContents packed_contents(const ContentsRequest& request) {
  const std::shared_ptr<const TokenDataset> data =
      open_token_dataset(to_paths(request.entries), request.seq_length, request.vocab_size);
  RowSet set = packed_set(request.name, data);
  const auto found = std::make_shared<std::atomic<bool>>(false);
  set.check = [data, found](int64_t row) {
    if (data->read(row).num_targets() > 0) *found = true;
  };
  set.lack = [found, files = join(request.entries, ", ")] {
    return *found ? "" : files + ": no row has a target (every loss_mask is 0, or every token starts a sequence)";
  };
  return {{std::move(set)}, {data->description()}};
}

}  // namespace

extern const RowFormat kPackedRows;
const RowFormat kPackedRows = {.what = "rows that are packed already",
                               .keys = kRowData,
                               .pairs = true,
                               .without_target = "every loss_mask is 0",
                               .holds = [](const std::string&) { return true; },
                               .open = open_packed,
                               .contents = packed_contents};

const char* split_name(Split split) {
  switch (split) {
    case Split::kTrain: return "train";
    case Split::kValid: return "valid";
    default: return "test";
  }
}

Sample one_sequence(std::vector<int64_t> input_ids) {
  Sample sample;
  sample.loss_mask.assign(input_ids.size(), 1);
  sample.input_ids = std::move(input_ids);
  sample.sequence_starts = {0};
  return sample;
}

int64_t Sample::num_targets() const { return std::count(loss_mask.begin(), loss_mask.end(), uint8_t{1}); }

std::unique_ptr<TokenDataset> open_token_dataset(const std::vector<std::filesystem::path>& files, int64_t seq_length,
                                                 int64_t vocab_size, std::optional<Answers> answers) {
  TRIREME_CHECK(!files.empty(), "no data file given");
  TRIREME_CHECK(seq_length >= 2, "seq_length is ", seq_length, ", but a row of fewer than 2 tokens predicts nothing");
  TRIREME_CHECK(vocab_size > 0, "vocabulary of ", vocab_size);
  return std::make_unique<ConcatenatedDataset>(files, seq_length, vocab_size, answers);
}

struct Sampler::Generator {
  explicit Generator(uint32_t seed) : random(seed) {}
  NumpyRandom random;
  int64_t next_epoch = 0;  // the epoch whose permutation the generator yields next
};

Sampler::Sampler(int64_t dataset_size, uint64_t seed, bool shuffle)
    : size_(dataset_size), seed_(seed), shuffle_(shuffle) {
  TRIREME_CHECK(dataset_size > 0, "cannot sample from ", dataset_size, " rows");
  TRIREME_CHECK(seed < (uint64_t{1} << 32), "seed ", seed,
                ": NumPy's RandomState, whose order the data follows, takes 0 to ", 0xFFFFFFFFull);
}

int64_t Sampler::at(int64_t position) {
  TRIREME_CHECK(position >= 0, "stream position ", position);
  if (!shuffle_) return position % size_;
  generate_through(position / size_);
  return permutation_[static_cast<size_t>(position % size_)];
}

void Sampler::generate_through(int64_t epoch) {
  if (epoch == epoch_) return;
  // The generator only moves forwards. An earlier epoch gets a new generator, so that copies of a Sampler, which share
  // one, do not disturb each other.
  if (!generator_ || generator_->next_epoch > epoch)
    generator_ = std::make_shared<Generator>(static_cast<uint32_t>(seed_));
  permutation_.resize(static_cast<size_t>(size_));
  while (generator_->next_epoch <= epoch) {
    std::iota(permutation_.begin(), permutation_.end(), int64_t{0});
    generator_->random.shuffle(permutation_);
    ++generator_->next_epoch;
  }
  epoch_ = epoch;
}

}  // namespace trireme
