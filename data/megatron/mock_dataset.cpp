#include "data/megatron/mock_dataset.h"

#include "trireme/base/error.h"
#include "trireme/base/numpy_generator.h"
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
    Sample sample;
    const auto length = static_cast<size_t>(seq_length_);
    sample.input_ids.resize(length);
    sample.labels.resize(length);
    random.integers(static_cast<uint64_t>(vocab_size_), sample.input_ids);
    random.integers(static_cast<uint64_t>(vocab_size_), sample.labels);
    sample.loss_mask.assign(length, 1);
    sample.sequence_starts = {0};
    return sample;
  }

  std::string description() const override {
    return fmt::format("mock (random ids below {}, {} rows)", vocab_size_, format_count(rows_));
  }

 private:
  int64_t rows_, seq_length_, vocab_size_;
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<TokenDataset> open_mock_dataset(int64_t rows, int64_t seq_length, int64_t vocab_size, uint64_t seed) {
  return std::make_unique<MockDataset>(rows, seq_length, vocab_size, seed);
}

}  // namespace trireme
