// Megatron's rules against a transcription of them in NumPy (megatron_reference.py).
#include "data/megatron/megatron_dataset.h"
#include "prepare_testing.h"
#include "trireme/base/error.h"
#include "trireme/formats/numpy/npy.h"

#include <fmt/ranges.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class MegatronParity : public Scratch {
 protected:
  std::string reference(const std::string& arguments) {
    const std::string command =
        fmt::format("'{}' '{}/tests/prepare/megatron_reference.py' {} >'{}' 2>'{}'", TRIREME_PYTHON, TRIREME_SOURCE_DIR,
                    arguments, path("reference.out").string(), path("reference.err").string());
    if (std::system(command.c_str()) != 0) ADD_FAILURE() << slurp("reference.err");
    return slurp("reference.out");
  }
};

std::vector<int32_t> tokens_of(const Sample& sample) {
  std::vector<int32_t> tokens(sample.input_ids.begin(), sample.input_ids.end());
  tokens.push_back(static_cast<int32_t>(sample.labels.back()));
  EXPECT_TRUE(std::equal(sample.input_ids.begin() + 1, sample.input_ids.end(), sample.labels.begin()));
  return tokens;
}

TEST_F(MegatronParity, FiftyConfigurations) {
  if (!python_has("numpy")) GTEST_SKIP() << "SKIPPED: no NumPy";
  const std::string made = reference("make " + path("").string());
  int rows_of = 0, refused = 0;
  ASSERT_EQ(std::sscanf(made.c_str(), "%d %d", &rows_of, &refused), 2) << made;
  ASSERT_EQ(rows_of + refused, 50);
  ASSERT_GE(rows_of, 35) << "most configurations say nothing";
  std::ifstream list(path("cases.jsonl"));
  int64_t compared = 0;
  for (std::string line; std::getline(list, line);) {
    SCOPED_TRACE(line);
    const auto test = nlohmann::json::parse(line);
    MegatronInput input;
    input.weights = test.at("weights").get<std::vector<double>>();
    for (size_t i = 0; i < test.at("files").get<size_t>(); ++i)
      input.paths.push_back(path(fmt::format("case{}_{}", test.at("number").get<int>(), i)));
    MegatronOptions options{.seq_length = test.at("seq"), .vocab_size = 30000, .seed = test.at("seed")};
    options.rules = test.at("rules") == "core" ? IndexRules::kCore : IndexRules::kNemo;
    if (test.at("splits") != "") options.splits = test.at("splits").get<std::string>();
    options.index_cache = path("cache");
    const auto split = static_cast<Split>(test.at("split").get<int>());
    if (test.contains("refused")) {
      const auto open = [&] { return open_megatron_dataset(input, split, test.at("n"), options); };
      EXPECT_TRUE(contains(message_of<DataError>(open), test.at("refused").get<std::string>()));
      continue;
    }
    const auto in_memory = open_megatron_dataset(input, split, test.at("n"), options);
    const auto cached = open_megatron_dataset(input, split, test.at("n"), options);
    cached->fill_cache();
    const auto count = test.at("rows").get<int64_t>();
    EXPECT_GE(in_memory->size(), test.at("n").get<int64_t>());
    if (input.paths.size() == 1) {
      EXPECT_EQ(in_memory->size(), count);
    }
    const auto length = test.at("seq").get<size_t>() + 1;
    std::vector<int32_t> expected(static_cast<size_t>(count) * length);
    std::ifstream file(path(fmt::format("case{}.rows", test.at("number").get<int>())), std::ios::binary);
    file.read(reinterpret_cast<char*>(expected.data()), static_cast<std::streamsize>(expected.size() * 4));
    ASSERT_TRUE(file.good());
    for (int64_t row = 0; row < std::min(count, test.at("n").get<int64_t>()); ++row) {
      const auto begin = expected.begin() + row * static_cast<int64_t>(length);
      const std::vector<int32_t> theirs(begin, begin + static_cast<int64_t>(length));
      ASSERT_EQ(tokens_of(in_memory->read(row)), theirs) << "row " << row;
      ASSERT_EQ(tokens_of(cached->read(row)), theirs) << "row " << row;
      ++compared;
    }
  }
  EXPECT_GT(compared, 5000);
  const std::string maps = reference("check " + path("").string());
  EXPECT_GE(std::atoi(maps.c_str()), 60) << maps;
}

TEST_F(MegatronParity, HundredThousandDocuments) {
  if (!python_has("numpy")) GTEST_SKIP() << "SKIPPED: no NumPy";
  std::mt19937 random(7);
  std::vector<int32_t> tokens, lengths;
  MegatronWriter writer(path("packed"), megatron_type_for(50257));
  for (int document = 0; document < 100000; ++document) {
    std::vector<int32_t> ids(random() % 60);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 50257);
    writer.append(ids);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    lengths.push_back(static_cast<int32_t>(ids.size()));
  }
  writer.commit();
  write_npy_int32(path("tokens.npy"), tokens, 1, static_cast<int64_t>(tokens.size()));
  write_npy_int32(path("lengths.npy"), lengths, 1, static_cast<int64_t>(lengths.size()));
  EXPECT_EQ(reference("read " + path("").string()), "100000\n");
  const MegatronFile back(path("back"));
  std::vector<int64_t> read;
  for (int64_t i = 0; i < back.sequences(); ++i) back.read(i, 0, back.length(i), read);
  EXPECT_TRUE(std::equal(read.begin(), read.end(), tokens.begin(), tokens.end()));
}

TEST_F(MegatronParity, MockRowsAreNumPys) {
  if (!python_has("numpy")) GTEST_SKIP() << "SKIPPED: no NumPy";
  const int64_t vocabularies[] = {50257, 2, 1, 3000000000};
  std::string ours;
  for (const int64_t vocabulary : vocabularies) {
    ours += fmt::format("vocabulary {}\n", vocabulary);
    for (uint64_t index = 0; index < 206; ++index) {
      const uint64_t others[] = {
          1234, uint64_t{1} << 31, 0xFFFFFFFFu, uint64_t{1} << 32, (uint64_t{1} << 40) + 17, uint64_t{1} << 63};
      const uint64_t seed = index < 200 ? index : others[index - 200];
      for (const int64_t length : {1, 7, 64}) {
        // Row 5 of seed s is drawn from s + 5.
        const Sample sample = open_mock_dataset(10, length, vocabulary, seed - 5)->read(5);
        ours += fmt::format("{} {}\n", fmt::join(sample.input_ids, " "), fmt::join(sample.labels, " "));
      }
    }
  }
  std::istringstream mine(ours), theirs(reference(fmt::format("mock {}", fmt::join(vocabularies, ","))));
  std::string want, section;
  for (std::string line; std::getline(mine, line);) {
    if (line.starts_with("vocabulary")) section = line;
    ASSERT_TRUE(std::getline(theirs, want)) << section;
    ASSERT_EQ(line, want) << section;
  }
  EXPECT_FALSE(std::getline(theirs, want)) << want;
}

}  // namespace
}  // namespace trireme
