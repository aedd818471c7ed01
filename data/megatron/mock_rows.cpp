// NeMo's mock set (data_impl: mock): rows that are drawn, not read, to measure speed with.
#include "data/megatron/megatron_dataset.h"
#include "data/rows.h"
#include "trireme/base/error.h"
#include "trireme/base/rng.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

namespace trireme {

namespace {

class MockDataset final : public TokenDataset {
 public:
  MockDataset(int64_t rows, int64_t seq_length, int64_t vocab_size, uint64_t seed)
      : rows_(rows), seq_length_(seq_length), vocab_size_(vocab_size), seed_(seed) {}

  int64_t size() const override { return rows_; }

  Sample read(int64_t index) const override {
    TRIREME_CHECK(index >= 0, "row ", index, " of the mock set");
    NumpyGenerator random(seed_ + static_cast<uint64_t>(index));
    Sample sample = one_sequence(std::vector<int64_t>(static_cast<size_t>(seq_length_)));
    sample.labels.resize(sample.input_ids.size());
    random.integers(static_cast<uint64_t>(vocab_size_), sample.input_ids);
    random.integers(static_cast<uint64_t>(vocab_size_), sample.labels);
    return sample;
  }

  std::string description() const override {
    return fmt::format("mock (random ids below {}, {} rows)", vocab_size_, format_count(rows_));
  }

 private:
  int64_t rows_, seq_length_, vocab_size_;
  uint64_t seed_;
};

SplitRows<Sample> open_mock_rows(const Config& config, Split split, const RowReader& reader) {
  const SplitKeys keys = split_keys(config, split);
  if (keys.files.size() > 1)
    throw ConfigError("mock stands for random ids, which are not mixed with files: give it alone, or leave it out");
  if (split != Split::kTrain && !keys.samples)
    throw ConfigError(fmt::format("{} is mock: {} says how many rows an evaluation has", keys.key, keys.samples_key));
  for (const Split other : {Split::kValid, Split::kTest})
    if (const SplitKeys its = split_keys(config, other);
        split == Split::kTrain && !its.files.empty() && !row_format(its.key, its.files).labels)
      throw ConfigError(
          fmt::format("data.train is mock, whose rows have labels of their own, and {}, {}, is no file of Megatron's: "
                      "set it to mock too, or to []",
                      its.key, its.files.front()));
  const int64_t rows = keys.samples.value_or(config.train.max_steps * config.batch.global_batch_size);
  const std::shared_ptr<const TokenDataset> data = open_mock_dataset(
      rows, config.data.seq_length, reader.stored_vocab_size, static_cast<uint64_t>(config.train.seed));
  return {.read = [data](int64_t index) { return data->read(index); },
          .rows = rows,
          .samples = rows,
          .description = data->description()};
}

}  // namespace

std::unique_ptr<TokenDataset> open_mock_dataset(int64_t rows, int64_t seq_length, int64_t vocab_size, uint64_t seed) {
  return std::make_unique<MockDataset>(rows, seq_length, vocab_size, seed);
}

extern const RowFormat kMockRows;
const RowFormat kMockRows = {
    .what = "random ids",
    .keys = kMegatronData,
    .labels = true,
    .without_target = "every token is data.eos_token, whose targets count nowhere with data.eod_mask_loss",
    .uncounted = "is mock, of which a run draws as much as it needs",
    .holds = [](const std::string& entry) { return entry == "mock"; },
    .open = open_mock_rows,
    .contents = [](const ContentsRequest& request) -> RowContents {
      throw ConfigError(request.name + " is mock: random ids, of which there is nothing to verify");
    },
    .files = [](const std::string&) { return std::vector<std::string>(); }};

}  // namespace trireme
