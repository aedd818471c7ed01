// BERT's data preparation compared with a Python implementation of its rules (bert_reference.py): every value of every
// file.

#include "data/prepare/bert_packing.h"
#include "data/prepare/bert_unicode.h"
#include "data/prepare/python_random.h"
#include "prepare_testing.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class BertParity : public Scratch {
 protected:
  void SetUp() override {
    Scratch::SetUp();
    if (!python_has("numpy, h5py")) GTEST_SKIP() << "no Python with NumPy and h5py";
  }

  /// Runs a command in the scratch directory; returns its standard output, or fails with its standard error.
  std::string run(const std::string& command) {
    const int status = std::system(fmt::format("cd '{}' && {} >out 2>err", root_.string(), command).c_str());
    if (status != 0) ADD_FAILURE() << command << ": " << slurp("err");
    return slurp("out");
  }
  std::string tool(const std::string& arguments) {
    return run(fmt::format("'{}' data bert {}", TRIREME_DATA_TOOLS, arguments));
  }
  std::string reference(const std::string& arguments) {
    return run(
        fmt::format("'{}' '{}/tests/prepare/bert_reference.py' {}", TRIREME_PYTHON, TRIREME_SOURCE_DIR, arguments));
  }

  /// All outputs of the two parts in the scratch directory, compared.
  void compare_all(const std::string& vocab, const std::string& options, int eval_count) {
    tool(fmt::format("instances --input . --vocab {} --output inst {}", vocab, options));
    tool("export --input inst --layout fixed --output fixed");
    tool("export --input inst --shards 7 --output chopped");
    tool("export --input inst --shards 7 --shuffle-seed 24 --output shuffled");
    tool("pack --input inst --output packed --shards 5");
    const std::string eval = tool(fmt::format(
        "eval --input part-00001 --vocab {} --output eval/part_eval --count {} {}", vocab, eval_count, options));
    const std::string result =
        reference(fmt::format("compare_everything {} --count {} {}", vocab, eval_count, options));
    std::istringstream words(result);
    words >> instances_ >> python_seconds_;
    EXPECT_GT(instances_, 100);
    const std::string md5 = result.substr(result.size() - 33, 32);
    EXPECT_TRUE(contains(eval, "md5 of the samples " + md5)) << eval << result;
  }

  double instances_ = 0, python_seconds_ = 0;  // of the first part
};

TEST_F(BertParity, UnicodeAsPythonHasIt) {
  std::istringstream facts(reference("unicode_facts"));
  std::string version, line;
  std::getline(facts, version);
  if (version != unicode_version())
    GTEST_SKIP() << "Python has Unicode " << version << ", the tables are of " << unicode_version();
  const auto numbers = [](const std::string& text) {
    std::istringstream stream(text);
    std::vector<char32_t> values;
    for (uint32_t value; stream >> value;) values.push_back(value);
    return values;
  };
  std::getline(facts, line);
  const auto ranges = numbers(line);
  std::map<char32_t, std::vector<char32_t>> expected;
  while (std::getline(facts, line) && line != "words") {
    const auto values = numbers(line);
    expected[values[0]] = {values.begin() + 1, values.end()};
  }
  EXPECT_GT(expected.size(), 5000u);
  std::vector<char32_t> tried;
  for (size_t i = 0; i < ranges.size(); i += 2)
    for (char32_t c = ranges[i]; c < ranges[i + 1]; ++c) tried.push_back(c);
  EXPECT_GT(tried.size(), 50000u);
  for (const char32_t c : tried) {
    std::u32string folded;
    unicode_fold(std::u32string_view(&c, 1), folded);
    std::vector<char32_t> ours = {unicode_is_dropped(c), unicode_is_space(c), unicode_is_python_space(c),
                                  unicode_is_punctuation(c), unicode_is_cjk(c)};
    ours.insert(ours.end(), folded.begin(), folded.end());
    const auto found = expected.find(c);
    ASSERT_EQ(ours, found != expected.end() ? found->second : (std::vector<char32_t>{0, 0, 0, 0, 0, c}))
        << "U+" << std::hex << static_cast<uint32_t>(c);
  }
  int words = 0;
  while (std::getline(facts, line)) {
    const auto values = numbers(line);
    const std::u32string word(values.begin() + 1, values.begin() + 1 + static_cast<ptrdiff_t>(values[0]));
    std::u32string folded;
    unicode_fold(word, folded);
    ASSERT_EQ(folded, std::u32string(values.begin() + 1 + static_cast<ptrdiff_t>(values[0]), values.end())) << line;
    ++words;
  }
  EXPECT_EQ(words, 2000);
}

class BertParitySlow : public BertParity {};

TEST_F(BertParity, AwkwardText) {
  if (!fs::exists("/usr/share/common-licenses")) GTEST_SKIP() << "no /usr/share/common-licenses on this machine";
  reference("make_sample .");
  compare_all("vocab.txt", "--dupe-factor 2", 100);
}

TEST_F(BertParitySlow, ShortSequences) {
  if (!fs::exists("/usr/share/common-licenses")) GTEST_SKIP() << "no /usr/share/common-licenses on this machine";
  reference("make_sample .");
  compare_all("vocab.txt",
              "--dupe-factor 1 --seq-length 64 --max-predictions 8 --masked-lm-prob 0.2 "
              "--short-seq-prob 0.4 --seed 99",
              300);
}

TEST_F(BertParity, RealTextInPart) {
  const fs::path data = fs::path(TRIREME_SOURCE_DIR) / "../shared/data";
  if (!fs::exists(data / "wikitext-2/valid.txt")) GTEST_SKIP() << "no wikitext-2 in ../shared/data";
  reference(fmt::format("make_wikitext '{}' . --bytes 60000", (data / "wikitext-2").string()));
  compare_all(fmt::format("'{}'", (data / "bert/vocab.txt").string()), "--dupe-factor 3", 100);
}

TEST_F(BertParitySlow, RealTextAndSpeed) {
  const fs::path data = fs::path(TRIREME_SOURCE_DIR) / "../shared/data";
  if (!fs::exists(data / "wikitext-2/valid.txt")) GTEST_SKIP() << "no wikitext-2 in ../shared/data";
  reference(fmt::format("make_wikitext '{}' .", (data / "wikitext-2").string()));
  const std::string vocab = fmt::format("'{}'", (data / "bert/vocab.txt").string());
  compare_all(vocab, "", 1000);
  // Processor time of both for the same part: text to masked pairs.
  const auto child_seconds = [] {
    rusage usage{};
    getrusage(RUSAGE_CHILDREN, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before = child_seconds();
  constexpr int kRuns = 5;
  for (int i = 0; i < kRuns; ++i)
    tool(fmt::format("instances --input part-00000 --vocab {} --output timed{} --threads 1", vocab, i));
  const double seconds = (child_seconds() - before) / kRuns;
  fmt::print(
      "{} instances: Python {:.0f} a second, C++ {:.0f} a second of one core ({:.1f} times; its "
      "start and the file included)\n",
      instances_, instances_ / python_seconds_, instances_ / seconds, python_seconds_ / seconds);
  EXPECT_GE(python_seconds_ / seconds, 10);
}

TEST_F(BertParity, PackingAsGoodAsScipys) {
  if (!python_has("scipy.optimize")) GTEST_SKIP() << "no Python with SciPy";
  constexpr int kLength = 64;
  PythonRandom random(3);
  std::vector<int64_t> counts(kLength + 1, 0);
  for (int length = 5; length < kLength; ++length) counts[static_cast<size_t>(length)] = random.between(200, 2000);
  counts[kLength] = 70000;
  const PackPlan plan = plan_packing(counts, kLength);
  write("counts.json", fmt::format("[{}]", fmt::join(counts.begin() + 1, counts.end(), ", ")));
  std::istringstream result(reference("scipy_packing counts.json"));
  size_t strategies = 0;
  double norm = 0, rows = 0;
  result >> strategies >> norm >> rows;
  EXPECT_EQ(strategies, plan.strategies.size());
  EXPECT_NEAR(plan.first_residual_norm, norm, 1e-9 * (norm + 1e6));
  EXPECT_NEAR(static_cast<double>(plan.rows()), rows, 5e-4 * rows);
  fmt::print("{} rows, SciPy {:.0f}\n", plan.rows(), rows);
}

}  // namespace
}  // namespace trireme
