// Parts of BERT's data preparation: Unicode, tokens, random numbers, least squares, assignment of sequences to rows.

#include "data/prepare/bert_instance_file.h"
#include "data/prepare/bert_packing.h"
#include "data/prepare/bert_tokenizer.h"
#include "data/prepare/bert_unicode.h"
#include "data/prepare/nnls.h"
#include "data/prepare/outputs.h"
#include "data/prepare/python_random.h"
#include "prepare_testing.h"
#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/temporary_file.h"

#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

namespace trireme {
namespace {

class BertRules : public Scratch {
 protected:
  std::vector<int> encode(const std::string& vocab, const std::string& text, bool cased = false) {
    const BertVocab loaded(write("vocab.txt", vocab));
    BertTokenizer tokenizer(loaded, cased);
    std::vector<int16_t> ids;
    tokenizer.encode(text, ids);
    const size_t once = ids.size();
    tokenizer.encode(text, ids);  // from the cache
    EXPECT_EQ(std::vector<int16_t>(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(once)),
              std::vector<int16_t>(ids.begin() + static_cast<ptrdiff_t>(once), ids.end()));
    return {ids.begin(), ids.begin() + static_cast<ptrdiff_t>(once)};
  }
  static constexpr const char* kSpecials = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";  // 0 to 4
};

TEST_F(BertRules, LongestPieceFirst) {
  const std::string vocab = std::string(kSpecials) + "un\n##aff\n##able\nunaff\n,\n##a\n";  // from 5
  EXPECT_EQ(encode(vocab, "unaffable UNAFFABLE"), (std::vector<int>{8, 7, 8, 7}));
  EXPECT_EQ(encode(vocab, "un,un ,"), (std::vector<int>{5, 9, 5, 9}));
  EXPECT_EQ(encode(vocab, "unaffx una"), (std::vector<int>{1, 5, 10}));
  EXPECT_EQ(encode(vocab, std::string(200, 'a') + " u\xcc\x81n"), (std::vector<int>{1, 5}));
  EXPECT_EQ(encode(vocab, ""), std::vector<int>{});
  // The longest allowed word, and one letter more.
  const std::string as = std::string(kSpecials) + "a\n##a\n";
  EXPECT_EQ(encode(as, std::string(200, 'a')).size(), 200u);
  EXPECT_EQ(encode(as, std::string(201, 'a')), std::vector<int>{1});
}

TEST_F(BertRules, ACasedTextKeepsItsCaseAndItsAccents) {
  const std::string vocab = std::string(kSpecials) + "ete\n\u00c9t\u00e9\nete\n##X\nNo\nno\n!\n";
  EXPECT_EQ(encode(vocab, "\u00c9t\u00e9 No! noX"), (std::vector<int>{7, 10, 11, 1}));
  EXPECT_EQ(encode(vocab, "\u00c9t\u00e9 No! noX", /*cased=*/true), (std::vector<int>{6, 9, 11, 10, 8}));
  EXPECT_EQ(BertVocab(write("vocab.txt", vocab)).capitals(), 2);
}

TEST_F(BertRules, IdsAreLineNumbersAndTheLastOfRepeatedLinesCounts) {
  // 5 a, 6 blank, 7 b, 8 a again, 9 blank again, 10 c
  const std::string vocab = std::string(kSpecials) + "a\n\nb\na\n \nc\n";
  EXPECT_EQ(encode(vocab, "a b c"), (std::vector<int>{8, 7, 10}));
  const BertVocab read(write("v.txt", vocab));
  EXPECT_EQ(read.size(), 11);
  EXPECT_EQ(read.repeated(), 2);
  // Random tokens are drawn from the distinct tokens, in order of first appearance.
  EXPECT_EQ(read.tokens(), (std::vector<int16_t>{0, 1, 2, 3, 4, 8, 9, 7, 10}));
}

TEST_F(BertRules, VocabulariesAreRefusedWithAReason) {
  const auto complaint = [&](const std::string& content) {
    return message_of<DataError>([&] { BertVocab(write("v.txt", content)); });
  };
  EXPECT_TRUE(contains(complaint("[UNK]\n[CLS]\n[SEP]\n"), "has no token [MASK]"));
  EXPECT_TRUE(contains(complaint("[UNK]\n\xff\n"), "byte 6 is not UTF-8"));
  std::string large = kSpecials;
  for (int i = 5; i < 32768; ++i) large += fmt::format("w{}\n", i);
  EXPECT_TRUE(contains(complaint(large), "32,768 lines"));
  EXPECT_EQ(complaint(kSpecials + std::string("a\na\n")), "");
  failure(ExitCode::kData, [&] { BertVocab(path("absent")); });
}

TEST_F(BertRules, PythonsUniformNumbers) {
  PythonRandom random(12345);  // random.Random(12345)
  EXPECT_EQ(random.uniform(), 0.41661987254534116);
  EXPECT_EQ(random.uniform(), 0.010169169457068361);
  EXPECT_EQ(random.between(2, 509), 424);
}

TEST_F(BertRules, MaskCountsRoundHalvesToEven) {
  BertInstanceOptions options;
  EXPECT_EQ(options.masks(512), 76);
  EXPECT_EQ(options.masks(30), 4);  // 4.5
  EXPECT_EQ(options.masks(10), 2);  // 1.5
  EXPECT_EQ(options.masks(50), 8);  // 7.5
  EXPECT_EQ(options.masks(5), 1);
  EXPECT_EQ(options.masks(4), 1);
  options.seq_length = 513;
  EXPECT_THROW(options.check(), ConfigError);
}

TEST_F(BertRules, LeastSquaresMeetsTheOptimalityConditions) {
  PythonRandom random(7);
  for (int trial = 0; trial < 30; ++trial) {
    SparseColumns a;
    a.rows = static_cast<size_t>(random.between(1, 20));
    const auto columns = random.between(1, 80);
    for (int64_t j = 0; j < columns; ++j) {
      std::set<uint32_t> rows;
      for (int i = 0; i < 3; ++i) rows.insert(static_cast<uint32_t>(random.below(a.rows)));
      for (const uint32_t row : rows) a.entries.push_back({row, static_cast<double>(random.between(1, 3))});
      a.starts.push_back(a.entries.size());
    }
    std::vector<double> b(a.rows);
    for (double& value : b)
      value =
          trial % 5 == 0 ? static_cast<double>(random.between(0, 3)) : static_cast<double>(random.between(-100, 1000));
    const NnlsResult result = solve_nnls(a, b);
    std::vector<double> residual = b;
    for (size_t j = 0; j < a.size(); ++j)
      for (size_t k = a.starts[j]; k < a.starts[j + 1]; ++k)
        residual[a.entries[k].row] -= a.entries[k].value * result.x[j];
    for (size_t j = 0; j < a.size(); ++j) {
      double gradient = 0;
      for (size_t k = a.starts[j]; k < a.starts[j + 1]; ++k)
        gradient += a.entries[k].value * residual[a.entries[k].row];
      EXPECT_GE(result.x[j], 0);
      EXPECT_LE(gradient, 1e-6) << "trial " << trial << ", column " << j;
      if (result.x[j] > 0) {
        EXPECT_GE(gradient, -1e-6) << "trial " << trial << ", column " << j;
      }
    }
    EXPECT_NEAR(result.residual_norm,
                std::sqrt(std::inner_product(residual.begin(), residual.end(), residual.begin(), 0.0)), 1e-6);
  }
}

TEST_F(BertRules, EverySequenceIsDealtOnce) {
  EXPECT_EQ(pack_strategies(512).size(), 22102u);
  for (const int max_length : {16, 33, 64}) {
    PythonRandom random(static_cast<uint64_t>(max_length));
    std::vector<int64_t> counts(static_cast<size_t>(max_length) + 1, 0);
    for (int length = 5; length <= max_length; ++length)
      counts[static_cast<size_t>(length)] = random.between(0, length == max_length ? 900 : 90);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const Packing packing(plan_packing(counts, max_length), counts, 12345, 7);
    std::map<std::pair<int, uint32_t>, int> seen;
    int64_t rows = 0;
    for (size_t shard = 0; shard < 7; ++shard) {
      const int64_t before = rows;
      packing.visit(shard, [&](std::span<const PackMember> members) {
        ++rows;
        int tokens = 0;
        for (const PackMember member : members) {
          tokens += member.length;
          ++seen[{member.length, member.index}];
          EXPECT_LT(member.index, counts[member.length]);
        }
        EXPECT_GE(members.size(), 1u);
        EXPECT_LE(tokens, max_length);
      });
      EXPECT_EQ(rows - before, packing.rows(shard));
    }
    EXPECT_EQ(rows, packing.rows());
    EXPECT_EQ(static_cast<int64_t>(seen.size()), total);
    for (const auto& [sequence, times] : seen) EXPECT_EQ(times, 1);
  }
  EXPECT_THROW(plan_packing(std::vector<int64_t>(17, 0), 16), ConfigError);
  std::vector<int64_t> three(17, 0);
  three[16] = 3;
  EXPECT_THROW(Packing(plan_packing(three, 16), three, 1, 4), ConfigError);
}

TEST_F(BertRules, InstanceFilesAreCheckedWhole) {
  const BertVocab vocab(write("vocab.txt", std::string(kSpecials) + "a\nb\nc\n"));
  BertTokenizer tokenizer(vocab);
  write("text", "a b c a\nb b b\nc\n\na a b\nc c a b a b\n");
  BertInstanceOptions options;
  options.seq_length = 16;
  options.max_predictions = 4;
  const BertInstances instances = make_bert_instances(read_bert_documents(path("text"), tokenizer), vocab, options);
  write_bert_instances(path("x.instances"), instances, vocab.size(), 77);
  const BertInstanceFile file(path("x.instances"));
  EXPECT_EQ(file.size(), static_cast<int64_t>(instances.count));
  EXPECT_EQ(file.fingerprint(), 77u);
  std::set<std::pair<int, int>> places;
  for (const auto& place : file.order()) places.insert({place.length, static_cast<int>(place.k)});
  EXPECT_EQ(places.size(), instances.count);
  const std::string whole = slurp("x.instances");
  const auto opens = [&](const std::string& content) {
    const BertInstanceFile damaged(write("y.instances", content));
    damaged.order();
    for (int length = 1; length <= damaged.seq_length(); ++length)
      for (int64_t k = 0; k < damaged.count(length); ++k) damaged.get(length, k);
  };
  EXPECT_NO_THROW(opens(whole));
  for (size_t size = 0; size < whole.size(); size += size < 200 ? 3 : 397)
    EXPECT_THROW(opens(whole.substr(0, size)), DataError) << size;
  EXPECT_THROW(opens(whole + "x"), DataError);
  // Every byte of the records is checked: lengths, labels, ids and positions out of range are found.
  int found = 0;
  for (size_t at = whole.size() - 400; at < whole.size(); at += 3) {
    std::string damaged = whole;
    damaged[at] = '\x7f';
    try {
      opens(damaged);
    } catch (const DataError&) {
      ++found;
    }
  }
  EXPECT_GE(found, 60);  // of 134 bytes, half of them the lower ones of small numbers
  write("latin1", "a b\nc \xe9\n");
  const auto read = [&] { return read_bert_documents(path("latin1"), tokenizer); };
  EXPECT_TRUE(contains(message_of<DataError>(read), "line 2 is not UTF-8"));
}

TEST_F(BertRules, ParallelWorkStopsAtTheFirstError) {
  std::atomic<int> calls = 0;
  parallel_for(100, 3, [&](size_t) { ++calls; });
  EXPECT_EQ(calls, 100);
  parallel_for(0, 3, [&](size_t) { ++calls; });
  EXPECT_EQ(calls, 100);
  const auto stopped = [&] {
    parallel_for(1000, 4, [&](size_t i) {
      if (i % 10 == 3) throw DataError(fmt::format("part {}", i));
      ++calls;
    });
  };
  EXPECT_EQ(message_of<DataError>(stopped), "part 3");
  EXPECT_LT(calls, 900);
}

TEST_F(BertRules, RecordsKnowWhatIsDone) {
  write("out", "");
  std::filesystem::remove(path("out"));
  std::filesystem::create_directories(path("out"));
  write("out/part_00000.tmp-0123456789abcdef", "half, by a process that is gone");
  const TemporaryFile living(path("out/part_00001"));
  const PartRecords records(path("out"));
  EXPECT_FALSE(std::filesystem::exists(path("out/part_00000.tmp-0123456789abcdef")));
  EXPECT_TRUE(std::filesystem::exists(living.path()));
  EXPECT_FALSE(records.is_done("part_00000", 5));
  write("out/part_00000", "whole");
  EXPECT_FALSE(records.is_done("part_00000", 5));
  records.done("part_00000", 5, "3 4\n");
  EXPECT_TRUE(records.is_done("part_00000", 5));
  EXPECT_EQ(records.note("part_00000"), "3 4\n");
  EXPECT_FALSE(records.is_done("part_00000", 6));
  write("out/part_00000", "who");
  EXPECT_FALSE(records.is_done("part_00000", 5));
}

}  // namespace
}  // namespace trireme
