// The rows of a configuration's splits.
#include "data/rows.h"
#include "../base/base_testing.h"
#include "data/megatron/megatron_dataset.h"
#include "trireme/base/file.h"
#include "trireme/formats/hdf5/hdf5_tokens.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace trireme {
namespace {

class RowsOfSplits : public DirectoryTest {
 protected:
  RowsOfSplits() {
    for (const char* name : {"a", "b"}) {
      MegatronWriter writer(root_ / name, MegatronType::kU16);
      for (int document = 0; document < 20; ++document) writer.append(std::vector<int32_t>(40, 1));
      writer.commit();
    }
    config_.data.seq_length = 8;
    config_.train.max_steps = 2;
    config_.batch.global_batch_size = 4;
    config_.data.train = {path("a"), path("b")};
    config_.data.weights = {1, 1};
  }

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  SplitRows<Sample> open(Split split) const {
    return open_rows(config_, split, row_format("data.train", config_.data.train),
                     {.vocab_size = 16, .stored_vocab_size = 16});
  }
  std::string refusal(Split split) const {
    return message_of<Error>([&] { return open(split); });
  }

  Config config_;
};

TEST_F(RowsOfSplits, TokenIdsInJsonAreToldApartFromTexts) {
  config_.data.weights = {};
  config_.data.train = {path("ids.jsonl")};
  std::ofstream(path("ids.jsonl")) << R"({"tokens": [1, 2]})" << "\n";
  EXPECT_TRUE(contains(refusal(Split::kTrain), "holds token ids ('tokens')"));
}

TEST_F(RowsOfSplits, MockRowsEvaluateABlend) {
  config_.data.valid = {"mock"};
  config_.eval.samples = 3;
  EXPECT_GT(open(Split::kTrain).rows, 0);
  EXPECT_EQ(open(Split::kValid).rows, 3);
  config_.data.valid = {"mock", "mock"};
  EXPECT_TRUE(contains(refusal(Split::kValid), "mock stands for random ids"));
  config_.data.weights = {};
  config_.data.train = {"mock"};
  config_.data.valid = {path("absent")};
  EXPECT_TRUE(contains(refusal(Split::kTrain), "data.valid: " + path("absent") + " is not there"));
  config_.data.valid = {path("rows.npy")};
  std::ofstream(path("rows.npy")) << "rows";
  EXPECT_TRUE(contains(refusal(Split::kTrain), "is no file of Megatron's: set it to mock too"));
  config_.data.valid = {path("a")};
  EXPECT_GT(open(Split::kTrain).rows, 0);
  config_.data.train = {path("a")};
  config_.data.valid = {path("a"), "mock"};
  EXPECT_TRUE(contains(refusal(Split::kValid), "data.valid has"));
}

TEST_F(RowsOfSplits, PartsOfDividedFilesAreCalledSo) {
  config_.data.train = {path("a")};
  config_.data.weights = {};
  config_.data.splits = "8,1,1";
  config_.eval.shuffle = false;
  EXPECT_FALSE(open(Split::kTest).read) << "nobody asked for its rows";
  config_.data.splits = "100,0,0";
  EXPECT_FALSE(open(Split::kValid).read) << "nor for these";
  config_.eval.every_samples = 1;
  EXPECT_TRUE(contains(refusal(Split::kValid), "data.splits '100,0,0' gives valid none of the "));
  config_.eval.every_samples.reset();
  config_.data.splits = "8,1,1";
  config_.eval.samples = config_.eval.test_samples = 2;
  EXPECT_EQ(open(Split::kValid).sets[0].name, "the validation part of data.train");
  EXPECT_EQ(open(Split::kTest).sets[0].name, "the test part of data.train");
  config_.eval.samples = config_.eval.test_samples = 1000;
  EXPECT_TRUE(contains(refusal(Split::kValid), "eval.samples 1000 is more than the "));
  EXPECT_TRUE(contains(refusal(Split::kValid), " rows of the validation part of data.train"));
  EXPECT_TRUE(contains(refusal(Split::kTest), " rows of the test part of data.train"));
  EXPECT_EQ(row_files(config_.data.train), (std::vector<std::string>{path("a.idx"), path("a.bin")}));
}

TEST_F(RowsOfSplits, ConversationsAreKnownByTheirFirstObject) {
  const auto refused = [&](const std::string& name, const std::string& text) {
    write_file_atomic(path(name), text);
    config_.data.train = {path(name)};
    config_.data.weights = {};
    return refusal(Split::kTrain).find("trireme data chat") != std::string::npos;
  };
  const std::string talk = R"({"messages": [{"role": "user", "content": "a } \" {"}]})";
  EXPECT_TRUE(refused("a.jsonl", talk + "\n"));
  EXPECT_TRUE(refused("a.jsonl", "\xEF\xBB\xBF\n" + talk));
  EXPECT_TRUE(refused("a.json", "[\n" + talk + ",\n" + talk + "]"));
  EXPECT_TRUE(refused("a.json", R"([{"id": 1, "conversations": []}, "not read)"));
  EXPECT_FALSE(refused("a.jsonl", R"({"text": "a", "messages": []})"));
  EXPECT_FALSE(refused("a.json", "}}" + talk));
  EXPECT_FALSE(refused("a.json", R"({"messages": "no end)"));
  EXPECT_FALSE(refused("a.json", ""));
  EXPECT_FALSE(refused("a.txt", talk));
  std::filesystem::create_directory(path("talks"));
  write_file_atomic(path("talks/a.jsonl"), talk);
  for (const std::string& saved :
       {path("talks"), std::string(TRIREME_SOURCE_DIR "/tests/data/fixtures/stream/talks")}) {
    config_.data.train = {saved};
    const std::string said = refusal(Split::kTrain);
    EXPECT_TRUE(contains(said, "trireme data chat --model '' --input '" + saved + "'"));
  }
}

TEST_F(RowsOfSplits, SharesOfPackedFilesAreThoseOfTheWeights) {
  for (const auto& [file, rows] : {std::pair(1, 6), {2, 4}}) {
    Hdf5TokenWriter writer(path(fmt::format("{}.h5", file)), 8, {});
    for (int row = 0; row < rows; ++row) writer.append(std::vector<int32_t>{file, row, 1, 1, 1, 1, 1, 1}, {}, {});
    writer.commit();
  }
  config_.data.train = {path("1.h5"), path("2.h5")};
  using Row = std::pair<int64_t, int64_t>;
  const auto order = [&](int64_t first, int64_t end) {
    const SplitRows<Sample> rows = open(Split::kTrain);
    EXPECT_EQ(rows.rows, 10);
    std::vector<Row> read;
    for (int64_t i = first; i < end; ++i) {
      const Sample sample = rows.read(i);
      read.emplace_back(sample.input_ids[0], sample.input_ids[1]);
    }
    return read;
  };
  config_.data.weights = {3, 1};
  const std::vector<Row> mixed = order(0, 64);
  EXPECT_EQ(std::ranges::count(mixed, 2, &Row::first), 16);
  // Each epoch of a file has each of its rows once.
  for (const auto& [file, rows] : {std::pair(1, 6), {2, 4}}) {
    std::vector<int64_t> of_file;
    for (const Row& row : mixed)
      if (row.first == file) of_file.push_back(row.second);
    const int64_t epochs = std::ssize(of_file) / rows;
    for (int row = 0; row < rows; ++row)
      EXPECT_EQ(std::count(of_file.begin(), of_file.begin() + epochs * rows, row), epochs) << file;
  }
  EXPECT_EQ(order(37, 64), std::vector<Row>(mixed.begin() + 37, mixed.end())) << "a run that goes on";
  config_.data.weights = {};
  config_.data.names = {"one", "two"};  // parts of their own, with equal shares
  EXPECT_EQ(std::ranges::count(order(0, 64), 2, &Row::first), 32);
  config_.data.names = {};
  EXPECT_EQ(std::ranges::count(order(0, 10), 2, &Row::first), 4) << "a concatenation";
}

TEST_F(RowsOfSplits, PackedRowsWithoutATargetAreALack) {
  for (const bool target : {false, true}) {
    {
      Hdf5TokenWriter writer(path("rows.h5"), 8, {.loss_mask = true});
      const std::vector<int32_t> ids(8, 1);
      std::vector<uint8_t> mask(8, 0);
      writer.append(ids, mask, {});
      mask[7] = target ? 1 : 0;
      writer.append(ids, mask, {});
      writer.commit();
    }
    const RowContents contents = row_format(path("rows.h5")).contents({"files", {path("rows.h5")}, 8, 16, "", ""});
    for (int64_t row = 0; row < 2; ++row) contents.sets.at(0).check(row);
    EXPECT_EQ(contents.sets[0].lack().find("no row has a target") == std::string::npos, target);
  }
}

}  // namespace
}  // namespace trireme
