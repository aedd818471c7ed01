// Document streams: which documents, tokens and delimiters rows are made of, and in which order. These cases and those
// of stream_loader_test.cpp follow the data loader contract of fms-fsdp's tests.

#include "../base/base_testing.h"
#include "data/stream/permutation.h"
#include "stream_testing.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

namespace trireme {
namespace {

/// The tokens of a shard until it has left `documents` documents of each part, as one text.
Tokens until(const TokenStream& stream, int64_t shard, int64_t documents) {
  Tokens all;
  ShardState state = stream.start();
  while (state.slots[0] < documents) {
    const Tokens row = stream.next_row(shard, state);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

TEST(Permutation, VisitsEveryItemOnceAndDependsOnTheKey) {
  for (const int64_t size : {1, 2, 3, 4, 5, 7, 64, 100, 1000, 65537}) {
    std::vector<bool> seen(static_cast<size_t>(size), false);
    const Permutation permutation(size, 42);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t item = permutation(i);
      ASSERT_TRUE(item >= 0 && item < size) << item;
      ASSERT_FALSE(seen[static_cast<size_t>(item)]) << size << ": " << item << " twice";
      seen[static_cast<size_t>(item)] = true;
    }
  }
  int equal = 0, kept = 0;
  const Permutation a(1000, 1), b(1000, 2);
  for (int64_t i = 0; i < 1000; ++i) {
    equal += a(i) == b(i);
    kept += a(i) == i;
  }
  EXPECT_LT(equal, 10);
  EXPECT_LT(kept, 10);
}

TEST(Permutation, PlacesAreUniform) {
  // Item 0's place over many keys: chi-square over 64 cells, 63 degrees of freedom.
  std::vector<double> cells(64, 0);
  constexpr int kKeys = 64000;
  for (uint64_t key = 0; key < kKeys; ++key) ++cells[static_cast<size_t>(Permutation(640, key)(0) / 10)];
  double chi = 0;
  for (const double cell : cells) chi += (cell - 1000) * (cell - 1000) / 1000;
  EXPECT_LT(chi, 120);
}

TEST(TokenStream, SingleEpochCoverage) {
  // Documents of 5 tokens fill rows of 5: each row is a document.
  const auto stream =
      stream_of({{"a", 1, made(100, [](int64_t) { return 5; })}}, {.seq_length = 5, .logical_shards = 4, .seed = 3});
  std::set<int64_t> seen;
  for (int64_t shard = 0; shard < 4; ++shard) {
    ShardState state = stream->start();
    for (int i = 0; i < 25; ++i) {
      const Tokens row = stream->next_row(shard, state);
      EXPECT_EQ(row.front() % kStride, 0);
      EXPECT_EQ(row.back() - row.front(), 4);
      EXPECT_TRUE(seen.insert(row.front() / kStride).second) << "document " << row.front() / kStride << " twice";
    }
    EXPECT_EQ(state.part, -1);
    EXPECT_EQ(state.slots[0], 25);
  }
  EXPECT_EQ(seen.size(), 100u);
}

TEST(TokenStream, TwoEpochCoverageInAnotherOrder) {
  // 101 documents do not divide over 4 shards, and 3 shards stand idle in no epoch.
  const auto stream =
      stream_of({{"a", 1, made(101, [](int64_t) { return 3; })}}, {.seq_length = 3, .logical_shards = 4, .seed = 3});
  std::vector<std::vector<int64_t>> order(2);
  for (int64_t slot = 0; slot < 202; ++slot)
    order[static_cast<size_t>(slot / 101)].push_back(stream->document_at(0, slot));
  EXPECT_NE(order[0], order[1]);
  for (auto& epoch : order) {
    std::sort(epoch.begin(), epoch.end());
    for (int64_t i = 0; i < 101; ++i) EXPECT_EQ(epoch[static_cast<size_t>(i)], i);
  }
  std::map<int64_t, int> count;
  for (int64_t shard = 0; shard < 4; ++shard) {
    ShardState state = stream->start();
    for (int64_t slot = shard; slot < 202; slot += 4) ++count[stream->next_row(shard, state).front() / kStride];
  }
  EXPECT_EQ(count.size(), 101u);
  for (const auto& [document, times] : count) EXPECT_EQ(times, 2) << document;
}

TEST(TokenStream, FewerDocumentsThanShards) {
  const auto stream =
      stream_of({{"a", 1, made(3, [](int64_t) { return 4; })}}, {.seq_length = 4, .logical_shards = 960, .seed = 9});
  std::map<int64_t, int> count;
  for (int64_t shard = 0; shard < 960; ++shard) {
    ShardState state = stream->start();
    ++count[stream->next_row(shard, state).front() / kStride];
  }
  for (int64_t document = 0; document < 3; ++document) EXPECT_EQ(count[document], 320);
}

TEST(TokenStream, ChunkingKeepsEveryTokenInOrder) {
  // Documents of many times the row and rows of many documents: the same text.
  for (const int64_t seq_length : {2, 3, 7, 50, 5000}) {
    const auto stream = stream_of({{"a", 1, made(40, [](int64_t i) { return 1 + i * 13; })}},
                                  {.seq_length = seq_length, .logical_shards = 2, .seed = 5, .min_length = 1});
    for (const int64_t shard : {0, 1}) {
      Tokens expected;
      for (int64_t k = 0; k < 20; ++k) {
        const Tokens document = stream->read_document(0, stream->document_at(0, shard + 2 * k));
        expected.insert(expected.end(), document.begin(), document.end());
      }
      Tokens read = until(*stream, shard, 20);
      ASSERT_GE(read.size(), expected.size());
      read.resize(expected.size());
      EXPECT_EQ(read, expected) << seq_length;
    }
  }
}

TEST(TokenStream, MultiFile) {
  std::vector<std::unique_ptr<DocumentSet>> files;
  int64_t first = 0;
  for (const int64_t size : {1, 0, 50, 7, 42}) {
    files.push_back(std::make_unique<MadeDocuments>(size, first * kStride, kStride, [](int64_t) { return 6; }));
    first += size;
  }
  const auto stream = stream_of({{"a", 1, std::make_shared<ConcatenatedDocuments>(std::move(files))}},
                                {.seq_length = 6, .logical_shards = 10, .seed = 8});
  std::set<int64_t> seen;
  std::vector<int64_t> of_large(10, 0);  // documents of the third file that each shard reads
  for (int64_t shard = 0; shard < 10; ++shard) {
    ShardState state = stream->start();
    for (int i = 0; i < 10; ++i) {
      const int64_t document = stream->next_row(shard, state).front() / kStride;
      seen.insert(document);
      of_large[static_cast<size_t>(shard)] += document >= 1 && document < 51;
    }
  }
  EXPECT_EQ(seen.size(), 100u);
  for (const int64_t count : of_large) EXPECT_TRUE(count > 0 && count < 10) << count;
}

TEST(TokenStream, FileOrderWithoutShuffle) {
  const auto stream = stream_of({{"a", 1, made(6, [](int64_t) { return 4; })}},
                                {.seq_length = 4, .logical_shards = 2, .shuffle = false});
  ShardState states[] = {stream->start(), stream->start()};
  for (int64_t row = 0; row < 12; ++row)
    EXPECT_EQ(stream->next_row(row % 2, states[row % 2]).front() / kStride, row % 6);
}

/// Six documents and 960 shards: each shard has one document, and takes the next one where that is empty.
TEST(TokenStream, FileOrderWithEmptyDocuments) {
  const auto some = made(6, [](int64_t i) { return i % 3 == 1 ? 0 : 5 + i; });
  const auto stream = stream_of({{"a", 1, some}}, {.seq_length = 4, .logical_shards = 960, .shuffle = false});
  for (const int64_t shard : {0, 1, 2, 4, 957, 958}) {
    const int64_t document = shard % 3 == 1 ? (shard + 1) % 6 : shard % 6;
    ShardState state = stream->start();
    for (int row = 0; row < 40; ++row) {
      ShardState resumed = state;
      const Tokens tokens = stream->next_row(shard, state);
      for (const int64_t token : tokens) EXPECT_EQ(token / kStride, document);
      EXPECT_EQ(stream->next_row(shard, resumed), tokens);
      EXPECT_EQ(resumed, state);
    }
  }
  // That a shard's own documents are all empty is found out once.
  int64_t reads = 0;
  const auto half = made(1000, [&](int64_t i) { return ++reads, i % 2 == 0 ? 0 : 8; });
  const auto counted = stream_of({{"a", 1, half}}, {.seq_length = 8, .logical_shards = 2, .shuffle = false});
  ShardState of_empty = counted->start();
  for (int64_t row = 0; row < 100; ++row) EXPECT_EQ(counted->next_row(0, of_empty).front() / kStride, 2 * row + 1);
  EXPECT_LT(reads, 501 + 2 * 100);
  const auto none = stream_of({{"a", 1, made(6, [](int64_t) { return 2; })}},
                              {.seq_length = 4, .logical_shards = 4, .shuffle = false});
  ShardState state = none->start();
  EXPECT_THROW((void)none->next_row(0, state), DataError);
}

TEST(TokenStream, BosEosChunking) {
  // Documents 7, 100, 101, …, 8 that already have an end token: it is stripped, and the delimiters are put on once.
  class Delimited : public MadeDocuments {
   public:
    Delimited() : MadeDocuments(30, 100, kStride, [](int64_t i) { return 4 + i; }) {}
    void read(int64_t index, Tokens& tokens) const override {
      MadeDocuments::read(index, tokens);
      if (index % 2 == 0) tokens.push_back(8);
      if (index % 3 == 0) tokens.insert(tokens.begin(), 9);
    }
  };
  for (const int64_t seq_length : {3, 6, 64}) {
    const auto stream =
        stream_of({{"a", 1, std::make_shared<Delimited>()}},
                  {.seq_length = seq_length, .logical_shards = 1, .seed = 2, .bos = 7, .eos = 8, .strip = {9}});
    Tokens read = until(*stream, 0, 30);
    // Every 7 but the first follows an 8, every 8 is followed by a 7, and no 9 is left.
    size_t documents = 0;
    EXPECT_EQ(read[0], 7);
    for (size_t i = 0; i < read.size(); ++i) {
      EXPECT_NE(read[i], 9);
      if (i > 0) {
        EXPECT_EQ(read[i] == 7, read[i - 1] == 8) << i;
      }
      documents += read[i] == 8;
    }
    EXPECT_GE(documents, 30u);
  }
}

TEST(TokenStream, ShortDocumentsAreSkipped) {
  const auto stream = stream_of({{"a", 1, made(20, [](int64_t i) { return i % 2 == 0 ? 1 : 6; })}},
                                {.seq_length = 7, .logical_shards = 1, .eos = 5, .min_length = 3});
  const Tokens read = until(*stream, 0, 20);
  for (const int64_t token : read)
    if (token != 5) {
      EXPECT_EQ(token / kStride % 2, 1) << token;
    }
  const auto none = stream_of({{"tiny", 1, made(20, [](int64_t) { return 1; })}},
                              {.seq_length = 4, .logical_shards = 1, .eos = 5, .min_length = 3});
  ShardState state = none->start();
  const std::string message = message_of<DataError>([&] { none->next_row(0, state); });
  EXPECT_TRUE(contains(message, "tiny"));
  EXPECT_TRUE(contains(message, "data.min_length 3"));
}

TEST(TokenStream, BufferFormat) {
  // Rows begin with bol and end with eol, and what stands between is the text without a gap.
  const auto stream = stream_of({{"a", 1,
                                  made(
                                      50, [](int64_t i) { return 3 + i % 11; }, 100)}},
                                {.seq_length = 9, .logical_shards = 1, .eos = 5, .bol = 3, .eol = 4});
  Tokens expected, read;
  for (int64_t k = 0; k < 50; ++k) {
    const Tokens document = stream->read_document(0, stream->document_at(0, k));
    expected.insert(expected.end(), document.begin(), document.end());
  }
  ShardState state = stream->start();
  while (state.slots[0] < 49) {
    const Tokens row = stream->next_row(0, state);
    ASSERT_EQ(row.size(), 9u);
    EXPECT_EQ(row.front(), 3);
    EXPECT_EQ(row.back(), 4);
    read.insert(read.end(), row.begin() + 1, row.end() - 1);
  }
  expected.resize(read.size());
  EXPECT_EQ(read, expected);
}

TEST(TokenStream, DelimiterOverlap) {
  // bol is bos and eol is eos: a row that begins or ends with a document gets no second one. Documents of 8 with their
  // delimiters fill rows of 8.
  const auto stream = stream_of({{"a", 1,
                                  made(
                                      10, [](int64_t) { return 6; }, 100)}},
                                {.seq_length = 8, .logical_shards = 1, .bos = 1, .eos = 2, .bol = 1, .eol = 2});
  ShardState state = stream->start();
  for (int i = 0; i < 10; ++i) {
    const Tokens row = stream->next_row(0, state);
    EXPECT_EQ(row.front(), 1);
    EXPECT_EQ(row.back(), 2);
    EXPECT_EQ(row[6] - row[1], 5) << "a document is cut";
  }
  EXPECT_EQ(state.slots[0], 10);
  EXPECT_EQ(state.part, -1);
}

TEST(TokenStream, SamplerRates) {
  const std::vector<double> weights = {7725, 500, 550, 28, 175, 1022};
  std::vector<StreamPart> parts;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto scale = static_cast<int64_t>(i + 1);
    parts.push_back({"p" + std::to_string(i), weights[i], made(200, [scale](int64_t d) { return 20 + d * scale; })});
  }
  const auto stream = stream_of(parts, {.seq_length = 256, .logical_shards = 24, .seed = 4});
  std::vector<double> tokens(weights.size(), 0);
  for (int64_t shard = 0; shard < 24; ++shard) {
    ShardState state = stream->start();
    for (int row = 0; row < 400; ++row) stream->next_row(shard, state);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] += static_cast<double>(state.tokens[i]);
  }
  const double total = std::accumulate(tokens.begin(), tokens.end(), 0.0);
  EXPECT_EQ(total, 24 * 400 * 256);
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(tokens[i] / total, weights[i] / 10000, 0.01) << i;
}

TEST(TokenStream, FirstDocumentsOfAllShardsAreMixed) {
  const auto ten = [](int64_t) { return 10; };
  const auto stream = stream_of({{"a", 7, made(50, ten)}, {"b", 2, made(50, ten)}, {"c", 1, made(50, ten)}},
                                {.seq_length = 4, .logical_shards = 960});
  std::vector<double> first(3, 0);
  for (int64_t shard = 0; shard < 960; ++shard) {
    ShardState state = stream->start();
    stream->next_row(shard, state);
    ++first[static_cast<size_t>(state.part)];
  }
  EXPECT_NEAR(first[0] / 960, 0.7, 0.01);
  EXPECT_NEAR(first[1] / 960, 0.2, 0.01);
}

TEST(TokenStream, TheLargestLackIsServedTiesToTheLast) {
  // Equal weights and documents of one length: after a shard's first document the other part, then the last of equals.
  const auto four = [](int64_t) { return 4; };
  const auto stream = stream_of({{"a", 1, made(50, four)}, {"b", 1, made(50, four, 500'000)}},
                                {.seq_length = 4, .logical_shards = 1, .seed = 4});
  ShardState state = stream->start();
  std::string order;
  for (int i = 0; i < 7; ++i) order += stream->next_row(0, state).front() < 500'000 ? 'a' : 'b';
  EXPECT_EQ(order, "bababab");  // place 0.618 of shard 0 is in b; then a lacks; then a tie, which b has
}

TEST(TokenStream, SwitchesPartsAtDocumentEndsOnly) {
  const auto stream = stream_of({{"a", 1, made(50, [](int64_t i) { return 10 + i; })},
                                 {"b", 2,
                                  made(
                                      50, [](int64_t) { return 90; }, 500'000)}},
                                {.seq_length = 16, .logical_shards = 1, .seed = 4});
  ShardState state = stream->start();
  Tokens text;
  for (int i = 0; i < 400; ++i) {
    const Tokens row = stream->next_row(0, state);
    text.insert(text.end(), row.begin(), row.end());
  }
  for (size_t i = 1; i < text.size(); ++i)
    if (text[i] != text[i - 1] + 1) {
      EXPECT_EQ(text[i] % kStride, 0) << i;
    }
}

TEST(TokenStream, IdsOutsideTheVocabularyAreNamed) {
  StreamOptions options = {.seq_length = 4, .vocab_size = 1003, .logical_shards = 1};
  const auto stream = stream_of({{"a", 1, made(2, [](int64_t) { return 6; })}}, options);
  EXPECT_NO_THROW(stream->read_document(0, 0));
  EXPECT_EQ(message_of<DataError>([&] { stream->read_document(0, 1); }),
            "made: document 1, token 3: id 1003 is outside the model's vocabulary of 1003 (0 to 1002): was the data "
            "made with another tokenizer?");
  EXPECT_THROW(stream_of({{"empty", 1, made(0, [](int64_t) { return 6; })}}, options), DataError);
}

TEST(TokenStream, AMillionDocumentsNeedNoTable) {
  const auto stream = stream_of({{"a", 1, made(1'000'000, [](int64_t) { return 3; })}},
                                {.seq_length = 3, .vocab_size = 2'000'000'000, .logical_shards = 960, .seed = 12});
  std::vector<bool> seen(1'000'000, false);
  std::vector<ShardState> states(960, stream->start());
  (void)stream->next_row(0, *std::make_unique<ShardState>(stream->start()));
  const size_t before = mallinfo2().uordblks;  // bytes of the heap in use; 0 under a sanitizer
  for (int64_t row = 0; row < 1'000'000; ++row) {
    const auto document =
        static_cast<size_t>(stream->next_row(row % 960, states[static_cast<size_t>(row % 960)]).front() / kStride);
    ASSERT_FALSE(seen[document]) << "document " << document << " twice, row " << row;
    seen[document] = true;
  }
  EXPECT_LE(mallinfo2().uordblks, before + 4096);
}

}  // namespace
}  // namespace trireme
