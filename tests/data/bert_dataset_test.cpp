// BERT's shards through the trainer's interface: rows, errors with file, dataset, row and value, order by seed and
// epoch.

#include "../base/base_testing.h"
#include "data/bert/bert_pack.h"
#include "data/bert/bert_rows.h"
#include "trireme/formats/hdf5/hdf5_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <thread>

namespace trireme {
namespace {

namespace fs = std::filesystem;

template <class T>
struct Column {
  std::vector<T> values;
  std::vector<int64_t> offsets{0};
  void row(const std::vector<T>& added) {
    values.insert(values.end(), added.begin(), added.end());
    offsets.push_back(static_cast<int64_t>(values.size()));
  }
};

/// A packed shard that a test can damage before it is written.
struct Packed {
  Column<int16_t> ids, positions, masked, lengths, mask_lengths;
  Column<int8_t> segments, labels;
  std::string leave_out;
  bool plain_ids = false;

  /// Row r: sequences of 5 and (r odd) 6 tokens; ids encode shard, row and position.
  static Packed make(int rows, int shard = 0) {
    Packed result;
    for (int r = 0; r < rows; ++r) {
      const int tokens = r % 2 == 0 ? 5 : 11;
      std::vector<int16_t> ids;
      for (int t = 0; t < tokens; ++t) ids.push_back(static_cast<int16_t>(t == 0 ? shard : t == 1 ? r : t));
      result.ids.row(ids);
      std::vector<int8_t> segments(static_cast<size_t>(tokens), 0);
      segments[4] = 1;
      result.segments.row(segments);
      result.positions.row(tokens == 5 ? std::vector<int16_t>{1, 3} : std::vector<int16_t>{1, 3, 6, 10});
      result.masked.row(tokens == 5 ? std::vector<int16_t>{9, 8} : std::vector<int16_t>{9, 8, 7, 6});
      result.lengths.row(tokens == 5 ? std::vector<int16_t>{5} : std::vector<int16_t>{5, 6});
      result.mask_lengths.row(tokens == 5 ? std::vector<int16_t>{2} : std::vector<int16_t>{2, 2});
      result.labels.row(tokens == 5 ? std::vector<int8_t>{1} : std::vector<int8_t>{1, 0});
    }
    return result;
  }

  void write(const fs::path& path) const {
    Hdf5RowWriter writer(path);
    const auto put = [&](const char* name, const auto& column) {
      if (leave_out != name) writer.write_rows(name, column.values, column.offsets);
    };
    if (plain_ids)
      writer.write_table("input_ids", ids.values);
    else
      put("input_ids", ids);
    put("segment_ids", segments);
    put("masked_lm_positions", positions);
    put("masked_lm_ids", masked);
    put("packed_input_len", lengths);
    put("packed_masked_lm_len", mask_lengths);
    put("next_sentence_labels", labels);
    writer.commit();
  }
};

class BertData : public DirectoryTest {
 protected:
  /// The error of opening and reading all rows; empty when there is none.
  std::string complaint(const fs::path& file, int64_t vocab = 1000) const {
    return message_of(ExitCode::kData, [&] {
      const auto dataset = open_bert_dataset({file}, 512, vocab);
      for (int64_t i = 0; i < dataset->size(); ++i) dataset->read(i);
    });
  }
  std::string spoiled(const std::function<void(Packed&)>& spoil) const {
    Packed shard = Packed::make(4);
    spoil(shard);
    shard.write(path("part_spoiled"));
    return complaint(path("part_spoiled"), 100);
  }
  fs::path shards(const std::vector<int>& rows) const {
    fs::create_directories(path("shards"));
    for (size_t i = 0; i < rows.size(); ++i)
      Packed::make(rows[i], static_cast<int>(i)).write(path(fmt::format("shards/part_{:05}", i)));
    return path("shards");
  }
};

TEST_F(BertData, PackedRowsComeBackWhole) {
  const auto dataset = open_bert_dataset({shards({3, 1, 4})}, 512, 1000);
  ASSERT_EQ(dataset->size(), 8);
  EXPECT_EQ(dataset->shard_rows(), (std::vector<int64_t>{3, 1, 4}));
  EXPECT_EQ(dataset->sequences(), 8 + 1 + 2);
  const BertRow row = dataset->read(5);  // shard 2, row 1
  EXPECT_EQ(row.input_ids, (std::vector<int32_t>{2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(row.segment_ids, (std::vector<int32_t>{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(row.masked_positions, (std::vector<int32_t>{1, 3, 6, 10}));
  EXPECT_EQ(row.masked_ids, (std::vector<int32_t>{9, 8, 7, 6}));
  EXPECT_EQ(row.sequence_lengths, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(row.next_sentence_labels, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(dataset->read(3).input_ids[0], 1);
  EXPECT_TRUE(contains(dataset->description(), "3 packed files, 8 rows"));
}

TEST_F(BertData, VariableLengthFilesAreOneSequenceARow) {
  const Packed shard = Packed::make(6);
  Hdf5RowWriter writer(path("part_eval.hdf5"));
  writer.write_rows("input_ids", shard.ids.values, shard.ids.offsets);
  writer.write_rows("segment_ids", shard.segments.values, shard.segments.offsets);
  writer.write_rows("masked_lm_positions", shard.positions.values, shard.positions.offsets);
  writer.write_rows("masked_lm_ids", shard.masked.values, shard.masked.offsets);
  writer.write_table("next_sentence_labels", std::vector<int8_t>{0, 1, 0, 1, 1, 0});
  writer.commit();
  const auto dataset = open_bert_dataset({path("part_eval.hdf5")}, 512, 1000);
  EXPECT_EQ(dataset->size(), 6);
  EXPECT_EQ(dataset->sequences(), 6);
  EXPECT_EQ(dataset->read(1).sequence_lengths, std::vector<int32_t>{11});
  EXPECT_EQ(dataset->read(4).next_sentence_labels, std::vector<int32_t>{1});
  Packed::make(1).write(path("part_other"));
  const auto open = [&] { return open_bert_dataset({path("part_other"), path("part_eval.hdf5")}, 512, 1000); };
  EXPECT_TRUE(contains(message_of<DataError>(open), "of one kind"));
}

TEST_F(BertData, DamageIsNamed) {
  const auto has = [](const std::string& message, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_TRUE(contains(message, word));
  };
  EXPECT_EQ(spoiled([](Packed&) {}), "");
  has(spoiled([](Packed& s) { s.leave_out = "masked_lm_ids"; }), {"part_spoiled has no dataset masked_lm_ids"});
  has(spoiled([](Packed& s) { s.leave_out = "input_ids"; }), {"has no dataset input_ids"});
  has(spoiled([](Packed& s) { s.leave_out = "packed_input_len"; }), {"next_sentence_labels", "does not hold integers"});
  has(spoiled([](Packed& s) { s.plain_ids = true; }), {"input_ids does not hold variable-length rows"});
  has(spoiled([](Packed& s) { s.ids.values[2] = 100; }),
      {"input_ids, row 0: position 2: token id 100 is outside the vocabulary of 100"});
  has(spoiled([](Packed& s) { s.ids.values[6] = -1; }), {"input_ids, row 1: position 1: token id -1"});
  has(spoiled([](Packed& s) { s.masked.values[2] = 200; }), {"masked_lm_ids, row 1: token id 200"});
  has(spoiled([](Packed& s) { s.segments.values[3] = 2; }), {"segment_ids, row 0: position 3: segment 2"});
  has(spoiled([](Packed& s) { s.labels.values[1] = 7; }), {"next_sentence_labels, row 1: label 7"});
  has(spoiled([](Packed& s) { s.positions.values[1] = 5; }),
      {"masked_lm_positions, row 0: position 5 is outside the row of 5 tokens"});
  has(spoiled([](Packed& s) { s.positions.values[0] = -3; }), {"position -3"});
  has(spoiled([](Packed& s) { s.positions.values[1] = 1; }), {"position 1 follows 1"});
  has(spoiled([](Packed& s) { s.lengths.values[1] = 6; }),
      {"packed_input_len, row 1: sequences of 12 tokens in all, input_ids has 11"});
  has(spoiled([](Packed& s) { s.lengths.values[0] = 0; }), {"row 0: a sequence of 0 tokens"});
  has(spoiled([](Packed& s) {
        s.lengths = {};
        for (int i = 0; i < 4; ++i)
          s.lengths.row(i % 2 ? std::vector<int16_t>{5, 6} : std::vector<int16_t>{1, 1, 1, 2});
      }),
      {"packed_input_len row 0 has 4 entries, at most 3"});
  has(spoiled([](Packed& s) { s.segments.offsets[1] = 4; }), {"segment_ids, row 0: 4 entries for 5 tokens"});
  has(spoiled([](Packed& s) { s.masked.offsets[1] = 1; }), {"masked_lm_ids, row 0: 1 entries for 2 masked positions"});
  has(spoiled([](Packed& s) { s.labels.offsets[1] = 0; }), {"next_sentence_labels, row 0: 0 labels for 1 sequences"});
  has(spoiled([](Packed& s) { s.segments.row({0}); }), {"segment_ids has 5 rows and input_ids has 4"});
  has(spoiled([](Packed& s) {
        s.ids.row(std::vector<int16_t>(513, 1));
        s.segments.row(std::vector<int8_t>(513, 0));
      }),
      {"input_ids row 4 has 513 entries, at most 512"});
  has(spoiled([](Packed& s) { s = Packed::make(0); }), {"holds no rows"});
  has(complaint(path("part_absent")), {"part_absent"});
  fs::create_directories(path("empty"));
  has(complaint(path("empty")), {"holds no files named part_*"});
  std::ofstream(path("part_text")) << std::string(4000, 'x');
  has(complaint(path("part_text")), {"no HDF5 signature"});
}

TEST_F(BertData, FixedLengthRowsAreSentToTheConverter) {
  Hdf5RowWriter writer(path("part_fixed"));
  writer.write_table("input_ids", std::vector<int16_t>(20, 1), 10);
  writer.write_table("input_mask", std::vector<int8_t>(20, 1), 10);
  writer.commit();
  EXPECT_TRUE(contains(complaint(path("part_fixed")), "--layout varlength"));
}

TEST_F(BertData, DamagedBytesEndInDataErrorsOnly) {
  Packed::make(40).write(path("part_whole"));
  std::ostringstream stream;
  stream << std::ifstream(path("part_whole"), std::ios::binary).rdbuf();
  const std::string whole = stream.str();
  const auto check = [&](const std::string& content) {
    std::ofstream(path("part_hurt"), std::ios::binary) << content;
    return complaint(path("part_hurt"));
  };
  EXPECT_EQ(check(whole), "");
  for (size_t size = 0; size < whole.size(); size += whole.size() / 40)
    EXPECT_NE(check(whole.substr(0, size)), "") << size;
  // Heap collections: signature, size and objects.
  int found = 0, tried = 0;
  for (size_t at = whole.find("GCOL"); at != std::string::npos; at = whole.find("GCOL", at + 1)) {
    for (const size_t offset : {0, 4, 8, 9, 14, 15, 16, 24, 26, 31}) {
      for (const char value : {'\0', '\x7f', '\xff'}) {
        std::string hurt = whole;
        if (hurt[at + offset] == value) continue;
        hurt[at + offset] = value;
        ++tried;
        if (check(hurt).find("part_hurt") != std::string::npos) ++found;
      }
    }
  }
  EXPECT_GE(tried, 25);
  EXPECT_GE(found * 2, tried);
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    std::string hurt = whole;
    for (int k = 0; k < 3; ++k) hurt[random() % hurt.size()] = static_cast<char>(random());
    check(hurt);  // fails for an exception of another type; a crash ends the test
  }
}

TEST_F(BertData, AStaleIndexIsFound) {
  const fs::path directory = shards({3, 2});
  std::ofstream(directory / "index.txt") << "part_00000 3 4\npart_00001 2 3\n";
  const auto dataset = open_bert_dataset({directory}, 512, 1000);
  EXPECT_EQ(dataset->sequences(), 7);
  EXPECT_EQ(dataset->read(4).input_ids[0], 1);
  std::ofstream(directory / "index.txt") << "part_00000 3 4\npart_00001 9 9\n";
  const auto stale = open_bert_dataset({directory}, 512, 1000);
  EXPECT_EQ(stale->size(), 12);
  EXPECT_NO_THROW(stale->read(2));
  EXPECT_TRUE(contains(message_of<DataError>([&] { return stale->read(3); }), "part_00001 holds 2 rows, expected 9"));
}

TEST_F(BertData, ManyThreadsReadTheSameRows) {
  const auto dataset = open_bert_dataset({shards({30, 20, 10, 25, 5, 40})}, 512, 1000);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 6; ++t)
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        const std::vector<int64_t>& rows = dataset->shard_rows();
        for (int i = 0; i < 400; ++i) {
          const auto shard = random() % rows.size();
          const int64_t row = static_cast<int64_t>(random() % static_cast<uint32_t>(rows[shard]));
          if (i % 7 == 0) dataset->will_need(static_cast<int64_t>(random() % rows.size()));
          const int64_t index = std::accumulate(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(shard), row);
          const BertRow read = dataset->read(index);
          if (read.input_ids[0] != static_cast<int32_t>(shard) || read.input_ids[1] != row) ++wrong;
        }
      });
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(BertData, AShardWhoseReadingAheadFailedIsReadAgain) {
  const fs::path directory = shards({3, 2});
  const auto dataset = open_bert_dataset({directory}, 512, 1000);
  fs::rename(directory / "part_00001", directory / "away");
  for (int i = 0; i < 2; ++i) EXPECT_THROW(dataset->read(3), Error);
  dataset->will_need(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  fs::rename(directory / "away", directory / "part_00001");
  EXPECT_EQ(dataset->read(3).input_ids[0], 1);
}

TEST_F(BertData, OrderOfARun) {
  const auto dataset = open_bert_dataset({shards({7, 3, 5, 6})}, 512, 1000);
  BertSampler sampler(*dataset, 42, true), again(*dataset, 42, true), other(*dataset, 43, true),
      plain(*dataset, 42, false);
  std::vector<int64_t> stream, different;
  for (int64_t i = 0; i < 63; ++i) {
    stream.push_back(sampler.at(i));
    different.push_back(other.at(i));
    EXPECT_EQ(plain.at(i), i % 21);
  }
  EXPECT_NE(stream, different);
  std::set<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const std::vector<int64_t> rows(stream.begin() + 21 * epoch, stream.begin() + 21 * (epoch + 1));
    epochs.insert(rows);
    EXPECT_EQ(std::set<int64_t>(rows.begin(), rows.end()).size(), 21u);
    // One shard after the other.
    std::vector<int32_t> changes;
    for (const int64_t row : rows) {
      const int32_t shard = dataset->read(row).input_ids[0];
      if (changes.empty() || changes.back() != shard) changes.push_back(shard);
    }
    EXPECT_EQ(changes.size(), 4u);
  }
  EXPECT_EQ(epochs.size(), 3u);
  // Random access to positions, forwards and backwards, as a resumed run needs it.
  for (const int64_t position : {50, 3, 62, 0, 21, 20, 41, 42})
    EXPECT_EQ(again.at(position), stream[static_cast<size_t>(position)]) << position;
  // Checkpoints store only the position, so the order must not change between versions.
  EXPECT_EQ(std::vector<int64_t>(stream.begin(), stream.begin() + 6), (std::vector<int64_t>{15, 19, 16, 18, 20, 17}));
}

// The heads' rows of a sequence come first, and every token keeps its position and its key.
TEST(BertPack, PutsTheRowsThatHeadsReadFirst) {
  BertRow row;
  row.input_ids = {10, 11, 12, 13, 14, 20, 21, 22};
  row.segment_ids = {0, 0, 0, 1, 1, 0, 0, 1};
  row.sequence_lengths = {5, 3};
  row.masked_positions = {2, 4, 5};  // the last one is a first token
  row.masked_ids = {90, 91, 92};
  row.next_sentence_labels = {0, 1};
  const BertPack pack = make_bert_pack({row, row}, {3, -1}, {.row_length = 8, .multiple = 32});
  const std::vector<int64_t> ids(pack.ids.begin(), pack.ids.begin() + 8),
      keys(pack.keys.begin(), pack.keys.begin() + 8), positions(pack.positions.begin(), pack.positions.begin() + 8),
      types(pack.types.begin(), pack.types.begin() + 8);
  EXPECT_EQ(ids, (std::vector<int64_t>{10, 12, 14, 11, 13, 20, 21, 22}));
  EXPECT_EQ(positions, (std::vector<int64_t>{0, 2, 4, 1, 3, 0, 1, 2}));
  EXPECT_EQ(types, (std::vector<int64_t>{0, 0, 1, 0, 1, 0, 0, 1}));
  EXPECT_EQ(keys, (std::vector<int64_t>{24, 26, 28, 25, 27, 29, 30, 31}));
  EXPECT_EQ(pack.boundaries, (std::vector<int32_t>{0, 5, 8, 13, 16, 32}));
  EXPECT_EQ(pack.needed, (std::vector<int32_t>{3, 1, 3, 1, 1}));
  EXPECT_EQ(pack.masked_rows, (std::vector<int64_t>{1, 2, 5, 9, 10, 13}));
  EXPECT_EQ(pack.first_rows, (std::vector<int64_t>{0, 5, 8, 13}));
}

}  // namespace
}  // namespace trireme
