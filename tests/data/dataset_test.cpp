// Token files through the trainer's interface: contents of rows, and messages for invalid files.

#include "data/dataset.h"
#include "../base/base_testing.h"
#include "data/prepare/outputs.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace trireme {
namespace {

namespace fs = std::filesystem;

fs::path fixture(const std::string& name) { return fs::path(TRIREME_SOURCE_DIR) / "tests/data/fixtures" / name; }

std::unique_ptr<TokenDataset> open(const std::vector<std::string>& names, int64_t seq_length = 8,
                                   int64_t vocab_size = 100) {
  std::vector<fs::path> files;
  for (const auto& name : names) files.push_back(fixture(name));
  return open_token_dataset(files, seq_length, vocab_size);
}

std::vector<int64_t> counting(int64_t first) {
  std::vector<int64_t> ids(8);
  for (size_t i = 0; i < 8; ++i) ids[i] = first + static_cast<int64_t>(i);
  return ids;
}

/// Opens the file and reads every row; returns the DataError's message, or "".
std::string complaint(const std::string& name) {
  return message_of(ExitCode::kData, [&] {
    const auto dataset = open({name});
    for (int64_t row = 0; row < dataset->size(); ++row) dataset->read(row);
  });
}

using Bytes = std::vector<uint8_t>;
using Starts = std::vector<int64_t>;

TEST(Dataset, IntegerRowsLoseOnEveryTarget) {
  const auto dataset = open({"rows.npy"});
  ASSERT_EQ(dataset->size(), 3);
  const Sample sample = dataset->read(1);
  EXPECT_EQ(sample.input_ids, counting(8));
  EXPECT_EQ(sample.loss_mask, (Bytes{0, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(sample.sequence_starts, Starts{0});
  EXPECT_EQ(sample.num_targets(), 7);
}

TEST(Dataset, MaskBelongsToTheTargetAndStartsAreNoTargets) {
  for (const char* name : {"records.npy", "rows.h5"}) {
    SCOPED_TRACE(name);
    const auto dataset = open({name});
    ASSERT_EQ(dataset->size(), 3);
    const Sample sample = dataset->read(1);
    EXPECT_EQ(sample.input_ids, counting(8));
    // stored 0 0 1 1 0 1 1 1, starts 0 3 6: the bits at starts are cleared, the others stay (no shift).
    EXPECT_EQ(sample.loss_mask, (Bytes{0, 0, 1, 0, 0, 1, 0, 1}));
    EXPECT_EQ(sample.sequence_starts, (Starts{0, 3, 6}));
    EXPECT_EQ(sample.num_targets(), 3);
    EXPECT_EQ(dataset->read(0).num_targets(), 7);
  }
}

TEST(Dataset, FilesAreConcatenatedInTheGivenOrder) {
  const auto dataset = open({"rows.h5", "rows.npy", "records.npy"});
  ASSERT_EQ(dataset->size(), 9);
  EXPECT_EQ(dataset->read(2).input_ids, counting(16));
  EXPECT_EQ(dataset->read(3).input_ids, counting(0));
  EXPECT_EQ(dataset->read(4).num_targets(), 7);  // rows.npy has no mask
  EXPECT_EQ(dataset->read(7).num_targets(), 3);
  EXPECT_EQ(dataset->read(8).input_ids, counting(16));
  const std::string text = dataset->description();
  EXPECT_TRUE(contains(text, "rows.h5 (HDF5, 3 rows)"));
  EXPECT_TRUE(contains(text, "records.npy (MLPerf records, 3 rows)"));
  EXPECT_THROW(dataset->read(9), InternalError);
  EXPECT_THROW(dataset->read(-1), InternalError);
}

struct Case {
  const char* file;
  std::vector<const char*> says;
};

TEST(Dataset, BadRowsAreNamedWithPlaceAndValue) {
  const std::vector<Case> cases = {
      {"token_too_large.npy",
       {"row 1, position 5", "byte 154", "token id 100", "vocabulary of 100", "set model.vocab_size to 101"}},
      {"token_negative.npy",
       {"row 2, position 0", "byte 256", "token id -1", "vocabulary of 100", "another tokenizer"}},
      {"token_fortran.npy", {"row 2, position 1", "byte 148", "token id 4711"}},
      {"token_too_large.h5", {"row 2, position 3", "input_ids[2, 3]", "token id 128", "vocabulary of 100"}},
      {"records_bad_token.npy", {"row 1, position 7", "byte ", "token id 31999", "vocabulary of 100"}},
      {"rows_of_7.npy", {"7 tokens", "seq_length is 8"}},
      {"rows_of_7.h5", {"7"}},
      {"no_rows.npy", {"no rows"}},
      {"records_short_row.npy", {"row 1 (record at byte ", "7 tokens", "seq_length is 8"}},
      {"records_short_mask.npy", {"record 1 (byte ", "8 input_ids", "7 loss_mask"}},
      {"records_start_not_zero.npy", {"row 1", "seq_start_id", "1", "expected 0"}},
      {"records_start_descends.npy", {"row 1", "seq_start_id[2]", "5 after 5"}},
      {"records_start_past_end.npy", {"row 1", "seq_start_id[1]", "8", "past"}},
      {"records_no_start.npy", {"row 1", "seq_start_id", "empty"}},
      {"start_not_zero.h5", {"row 1", "seq_start_id", "2", "expected 0"}},
  };
  for (const Case& item : cases) {
    const std::string message = complaint(item.file);
    EXPECT_TRUE(contains(message, item.file));
    for (const char* word : item.says) EXPECT_TRUE(contains(message, word)) << item.file;
  }
}

TEST(Dataset, OtherFormatsAreNamedByTheirContent) {
  const std::vector<Case> cases = {
      {"table.parquet", {"Parquet", "trireme data pack"}},
      {"archive.npz", {"zip", "npz"}},
      {"bare.pickle", {"pickle", "never executed"}},
      {"text.npy", {"text", "trireme data pack"}},
      {"stream/fms/meta/counts.csv", {"CSV", "pandas.read_csv"}},
      {"empty.npy", {"empty"}},
      {"noise.bin", {"01 02 03 04", "Megatron's without its index noise.idx, or"}},
      {".", {"directory"}},
      {"absent.npy", {"absent.npy"}},
  };
  for (const Case& item : cases) {
    const std::string message = complaint(item.file);
    for (const char* word : item.says) EXPECT_TRUE(contains(message, word)) << item.file;
  }
}

TEST(Dataset, VocabularyBoundIsExclusive) {
  EXPECT_NO_THROW(open({"rows.npy"}, 8, 24)->read(2));
  EXPECT_THROW(open({"rows.npy"}, 8, 23)->read(2), DataError);
  EXPECT_THROW(open({"rows.npy"}, 9), DataError);
}

/// Writes rows of eight tokens, and says what is wrong with one of them.
class Pairs : public ::testing::TestWithParam<const char*>, TemporaryDirectory {
 protected:
  using Mask = std::vector<uint8_t>;
  std::string problem(const std::vector<std::pair<Mask, std::vector<int32_t>>>& rows,
                      std::optional<Answers> answers = std::nullopt) {
    write_masked_rows(path_, 8, static_cast<int64_t>(rows.size()), [&](int64_t row) {
      const auto& [mask, starts] = rows[static_cast<size_t>(row)];
      return PackedRecord{{1, 2, 3, 4, 5, 6, 7, 8}, mask, starts};
    });
    return message_of<DataError>([&] {
      data_ = open_token_dataset({path_}, 8, 100, answers);
      for (int64_t row = 0; row < data_->size(); ++row) data_->read(row);
    });
  }
  const fs::path path_ = path(std::string("pairs") + GetParam());
  std::unique_ptr<TokenDataset> data_;
};
INSTANTIATE_TEST_SUITE_P(Formats, Pairs, ::testing::Values(".npy", ".h5"));

TEST_P(Pairs, AlternateAndMayEndWithPadding) {
  ASSERT_EQ(problem({{{0, 1, 1, 0, 0, 2, 2, 0}, {0, 3, 7}}, {{0, 1, 0, 2, 0, 1, 0, 2}, {0, 2, 4, 6}}}), "");
  ASSERT_EQ(data_->answers(), Answers::kPairs);
  const Sample first = data_->read(0), second = data_->read(1);
  EXPECT_EQ(first.pairs, 1);
  EXPECT_EQ(first.loss_mask, (Bytes{0, 1, 1, 0, 0, 1, 1, 0}));
  EXPECT_EQ(second.pairs, 2);
  EXPECT_EQ(second.loss_mask, (Bytes{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_TRUE(contains(data_->description(), "2 rows) of pairs"));
  EXPECT_EQ(problem({{{0, 1, 1, 0, 0, 1, 1, 0}, {0, 3, 7}}}), "");
  EXPECT_EQ(data_->answers(), Answers::kNone);
}

TEST_P(Pairs, MayBeJudgedAnswersBesideOthers) {
  const std::vector<int32_t> starts = {0, 3, 6};
  ASSERT_EQ(problem({{{0, 1, 1, 0, 3, 3, 0, 0}, starts}, {{0, 2, 0, 3, 0, 1, 0, 0}, {0, 2, 4, 6, 7}}}), "");
  ASSERT_EQ(data_->answers(), Answers::kJudged);
  const Sample first = data_->read(0), second = data_->read(1);
  EXPECT_EQ(first.pairs, 1);
  EXPECT_EQ(first.desirable, (Bytes{1}));
  EXPECT_EQ(first.loss_mask, (Bytes{0, 1, 1, 0, 1, 1, 0, 0}));
  EXPECT_EQ(second.pairs, 2);
  EXPECT_EQ(second.desirable, (Bytes{0, 1}));  // the last answer's other one has no target
  EXPECT_TRUE(contains(data_->description(), "2 rows) of judged answers"));
  const auto bad = [&](const Mask& mask) { return problem({{{0, 1, 1, 0, 3, 3, 0, 0}, starts}, {mask, starts}}); };
  EXPECT_TRUE(contains(bad({0, 1, 2, 0, 3, 3, 0, 0}), "sequence 0 has targets of both"));
  EXPECT_TRUE(contains(bad({0, 3, 0, 0, 3, 3, 0, 0}), "sequence 0 has targets of an answer to another"));
  EXPECT_TRUE(contains(bad({0, 0, 0, 0, 3, 3, 0, 0}), "sequence 0 has no target"));
  EXPECT_TRUE(contains(bad({0, 1, 0, 0, 2, 0, 0, 0}), "sequence 1 has targets of a rejected"));
  EXPECT_TRUE(contains(bad({0, 1, 0, 0, 3, 0, 0, 1}), "has no sequence with another answer"));
  EXPECT_TRUE(contains(bad({0, 1, 0, 0, 0, 0, 0, 0}), "sequence 1 has no target"));
  EXPECT_TRUE(contains(bad({0, 4, 0, 0, 3, 0, 0, 0}), "0 to 3"));
}

TEST_P(Pairs, AreCheckedInEveryRow) {
  const std::pair<Mask, std::vector<int32_t>> good = {{0, 1, 1, 0, 0, 2, 2, 0}, {0, 3, 7}};
  const auto bad = [&](const Mask& mask, const std::vector<int32_t>& starts) {
    return problem({good, {mask, starts}});
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_TRUE(contains(text, part));
    EXPECT_TRUE(contains(text, "row 1"));
  };
  has(bad({0, 1, 1, 0, 2, 2, 0, 1}, {0, 3, 6}), "the last chosen answer has no rejected one beside it");
  has(bad({0, 1, 1, 1, 1, 1, 1, 1}, {0}), "no rejected one");
  has(bad({0, 2, 2, 0, 1, 1, 0, 0}, {0, 3, 6}), "sequence 0 has targets of a rejected answer");
  has(bad({0, 1, 2, 0, 2, 2, 0, 0}, {0, 3, 6}), "sequence 0 has targets of both");
  has(bad({0, 1, 1, 0, 0, 0, 0, 0}, {0, 3, 6}), "sequence 1 has no target");
  has(bad({0, 1, 1, 2, 0, 0, 0, 0}, {0, 3, 6}), "sequence 1 has no target");  // the first token is none
  has(bad({0, 0, 0, 0, 0, 0, 0, 0}, {0}), "sequence 0 has no target");
  has(bad({0, 1, 0, 2, 0, 0, 0, 0}, {0, 2, 4, 6}), "sequence 2 has no target");
  has(bad({0, 1, 1, 1, 0, 1, 1, 1}, {0, 4}), "sequence 1 has targets of a chosen answer");
  const std::string mixed = problem({{{0, 1, 1, 1, 1, 1, 1, 1}, {0}}, good});
  has(mixed, "loss_mask[5] is 2, expected 0 or 1: a rejected answer in rows without pairs");
  EXPECT_TRUE(contains(problem({good}, Answers::kNone), "is 2, expected 0 or 1"));
}

}  // namespace
}  // namespace trireme
