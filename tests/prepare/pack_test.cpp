// Packing, checked through the trainer's interface: every token of every kept document occurs once, in order, up to the
// tail.

#include "data/prepare/pack.h"

#include "data/dataset.h"
#include "prepare_testing.h"
#include "trireme/base/error.h"
#include "trireme/base/rng.h"

#include <numeric>

namespace trireme {
namespace {

using Pack = Scratch;
using RowIds = std::vector<int64_t>;

PackOptions options_for(const std::filesystem::path& input, const std::filesystem::path& output, int64_t seq_length) {
  PackOptions options;
  options.inputs = {input};
  options.output = output;
  options.seq_length = seq_length;
  return options;
}

std::vector<Sample> samples(const std::filesystem::path& file, int64_t seq_length) {
  const auto dataset = open_token_dataset({file}, seq_length, 400);
  std::vector<Sample> result;
  for (int64_t row = 0; row < dataset->size(); ++row) result.push_back(dataset->read(row));
  return result;
}

RowIds concatenated(const std::vector<Sample>& rows) {
  RowIds ids;
  for (const Sample& row : rows) ids.insert(ids.end(), row.input_ids.begin(), row.input_ids.end());
  return ids;
}

std::string paragraphs() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += fmt::format("Paragraph {} of the old harbour.", i);
    for (int k = 0; k < i % 5; ++k) text += "\nThe trireme crossed the narrow strait.";
    text += "\n\n";
  }
  return text;
}

TEST_F(Pack, RowsHoldTheDocumentsEndToEnd) {
  const auto input = write("text.txt", paragraphs());
  const Tokenizer tokenizer = small_tokenizer();
  RowIds expected;
  int64_t documents = 0;
  for_each_document(input, DocumentUnit::kParagraph, "", [&](const Document& document) {
    expected.push_back(1);
    for (const int32_t id : tokenizer.encode(document.text)) expected.push_back(id);
    expected.push_back(2);
    ++documents;
  });
  ASSERT_EQ(documents, 40);
  for (const char* name : {"rows.npy", "rows.h5", "rows.hdf5"}) {
    SCOPED_TRACE(name);
    PackOptions options = options_for(input, path(name), 32);
    options.bos = options.eos = true;
    const PackReport report = pack_documents(tokenizer, options);
    EXPECT_EQ(report.documents, 40);
    EXPECT_EQ(report.train.tokens, static_cast<int64_t>(expected.size()));
    EXPECT_EQ(report.train.rows, report.train.tokens / 32);
    EXPECT_EQ(report.train.tail_tokens, report.train.tokens % 32);
    ASSERT_EQ(report.samples.size(), 3u);
    EXPECT_TRUE(report.samples[0].starts_with("Paragraph 0 of the old harbour.")) << report.samples[0];
    const auto rows = samples(path(name), 32);
    ASSERT_EQ(static_cast<int64_t>(rows.size()), report.train.rows);
    EXPECT_EQ(concatenated(rows), RowIds(expected.begin(), expected.begin() + report.train.rows * 32));
    for (const Sample& row : rows) EXPECT_EQ(row.num_targets(), 31);
  }
}

TEST_F(Pack, BatchesOfDocumentsAreCutByThemselves) {
  // Batches of 7 documents of the input, the third of which is empty and counts: rows of 32, the rest of each batch
  // dropped.
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += i == 2 ? "\n" : fmt::format("Line {} of the old harbour and the strait.\n", i);
  const auto input = write("text.txt", lines);
  const Tokenizer tokenizer = small_tokenizer();
  RowIds expected, batch;
  int64_t number = 0, dropped = 0;
  const auto cut = [&] {
    dropped += static_cast<int64_t>(batch.size() % 32);
    expected.insert(expected.end(), batch.begin(), batch.begin() + static_cast<long>(batch.size() / 32 * 32));
    batch.clear();
  };
  for_each_document(input, DocumentUnit::kLine, "", [&](const Document& document) {
    if (number++ % 7 == 0) cut();
    if (document.text.empty()) return;
    for (const int32_t id : tokenizer.encode(document.text)) batch.push_back(id);
    batch.push_back(2);
  });
  cut();
  for (const bool separate : {false, true}) {
    PackOptions options = options_for(input, path(separate ? "rows.h5" : "rows.npy"), 32);
    options.unit = DocumentUnit::kLine;
    options.eos = true;
    options.batch_documents = 7;
    options.separate_documents = separate;
    const PackReport report = pack_documents(tokenizer, options);
    EXPECT_EQ(report.train.tail_tokens, dropped);
    const auto rows = samples(options.output, 32);
    EXPECT_EQ(concatenated(rows), expected);
    if (!separate) continue;
    for (const Sample& row : rows)
      for (size_t i = 1; i < row.sequence_starts.size(); ++i)
        EXPECT_EQ(row.input_ids[static_cast<size_t>(row.sequence_starts[i]) - 1], 2);
  }
  PackOptions options = options_for(input, path("rows.npy"), 32);
  options.batch_documents = 7;
  options.shuffle_seed = 1;
  EXPECT_THROW(pack_documents(tokenizer, options), ConfigError);
}

TEST_F(Pack, SeparateDocumentsRecordEveryStart) {
  const auto input = write("text.txt", paragraphs());
  const Tokenizer tokenizer = small_tokenizer();
  for (const char* name : {"rows.npy", "rows.h5"}) {
    SCOPED_TRACE(name);
    PackOptions options = options_for(input, path(name), 32);
    options.bos = options.separate_documents = true;
    pack_documents(tokenizer, options);
    int64_t starts_inside = 0;
    for (const Sample& row : samples(path(name), 32)) {
      ASSERT_EQ(row.sequence_starts[0], 0);
      // Each document begins with BOS, so the positions of BOS are the starts; the row's first position is always a
      // start.
      for (int64_t t = 0; t < 32; ++t) {
        const bool is_start = std::count(row.sequence_starts.begin(), row.sequence_starts.end(), t) == 1;
        EXPECT_EQ(is_start, t == 0 || row.input_ids[static_cast<size_t>(t)] == 1) << t;
        EXPECT_EQ(row.loss_mask[static_cast<size_t>(t)], is_start ? 0 : 1) << t;
        starts_inside += is_start && t > 0;
      }
    }
    EXPECT_GT(starts_inside, 20);
  }
}

TEST_F(Pack, ShuffleFollowsNumpysOrderOfDocuments) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += std::string(1, static_cast<char>('a' + i)) + "\n";
  const Tokenizer tokenizer = small_tokenizer();
  PackOptions options = options_for(write("text.txt", text), path("rows.npy"), 20);
  options.unit = DocumentUnit::kLine;
  options.min_tokens = 1;
  options.shuffle_seed = 7;
  const PackReport report = pack_documents(tokenizer, options);
  RowIds order(20);
  std::iota(order.begin(), order.end(), int64_t{0});
  NumpyRandom(7).shuffle(order);
  RowIds expected;
  for (const int64_t i : order)
    for (const int32_t id : tokenizer.encode(std::string(1, static_cast<char>('a' + i)))) expected.push_back(id);
  expected.resize(static_cast<size_t>(report.train.rows) * 20);
  EXPECT_EQ(concatenated(samples(path("rows.npy"), 20)), expected);
}

TEST_F(Pack, CountsWhatItDrops) {
  const auto text =
      write("text.txt", "The trireme crossed\n\n \nbad \xff byte\nx\nThe trireme crossed\nbad \xe2\x82\n");
  PackOptions options = options_for(text, path("rows.npy"), 4);
  options.unit = DocumentUnit::kLine;
  options.min_tokens = 3;
  const Tokenizer tokenizer = small_tokenizer();
  ASSERT_LT(tokenizer.encode("x").size(), 3u);
  const PackReport report = pack_documents(tokenizer, options);
  EXPECT_EQ(report.documents, 7);
  EXPECT_EQ(report.empty, 2);
  EXPECT_EQ(report.invalid_utf8, 2);
  EXPECT_TRUE(report.first_invalid.ends_with("text.txt:4")) << report.first_invalid;
  EXPECT_EQ(report.too_short, 1);
  EXPECT_EQ(report.train.documents, 2);
}

TEST_F(Pack, ValidationDocumentsAreApart) {
  const auto input = write("text.txt", paragraphs() + paragraphs() + paragraphs());
  const Tokenizer tokenizer = small_tokenizer();
  PackOptions options = options_for(input, path("train.npy"), 16);
  options.valid_output = path("valid.npy");
  options.valid_fraction = 0.25;
  const PackReport report = pack_documents(tokenizer, options);
  EXPECT_EQ(report.train.documents + report.valid.documents, 120);
  EXPECT_GT(report.valid.documents, 12);
  EXPECT_LT(report.valid.documents, 50);
  const PackReport again = pack_documents(tokenizer, options);
  EXPECT_EQ(again.valid.tokens, report.valid.tokens);
  EXPECT_EQ(samples(path("valid.npy"), 16).size(), static_cast<size_t>(report.valid.rows));
}

TEST_F(Pack, RefusalsLeaveNothingBehind) {
  const auto input = write("text.txt", "short\n");
  const Tokenizer tokenizer = small_tokenizer();
  const auto refused = [&](const PackOptions& options) {
    try {
      pack_documents(tokenizer, options);
    } catch (const Error& error) {
      for (const char* name : {"rows.npy", "rows.bin", "valid.npy"}) EXPECT_FALSE(std::filesystem::exists(path(name)));
      return static_cast<int>(error.code());
    }
    return 0;
  };
  PackOptions options = options_for(input, path("rows.npy"), 64);
  EXPECT_EQ(refused(options), 3);  // less than one row
  options.seq_length = 1;
  EXPECT_EQ(refused(options), 2);
  options = options_for(input, path("rows.bin"), 2);
  EXPECT_EQ(refused(options), 2);
  options = options_for(input, path("rows.npy"), 2);
  options.valid_output = path("valid.npy");
  EXPECT_EQ(refused(options), 2);  // not a fraction
  options.valid_fraction = 1e-9;
  EXPECT_EQ(refused(options), 3);  // no validation row: no training file either
  options.valid_output = options.output;
  EXPECT_EQ(refused(options), 2);
  options = options_for(path("absent.txt"), path("rows.npy"), 2);
  EXPECT_EQ(refused(options), 3);
  options = options_for(input, path("text.txt/rows.npy"), 2);  // a file where a directory should be
  EXPECT_EQ(refused(options), 73);
  pack_documents(tokenizer, options_for(input, path("new/folder/rows.npy"), 2));
  EXPECT_TRUE(std::filesystem::exists(path("new/folder/rows.npy")));
}

TEST_F(Pack, RealTextWithTheRealTokenizer) {
  const auto text = std::filesystem::path(TRIREME_SOURCE_DIR) / "../shared/data/wikitext-2/valid.txt";
  if (!std::filesystem::exists(text) || !std::filesystem::exists(llama2_model()))
    GTEST_SKIP() << "no ../shared/data/wikitext-2 and llama2";
  const Tokenizer tokenizer{llama2_model()};
  PackOptions options = options_for(text, path("wiki.h5"), 2048);
  options.bos = options.eos = options.separate_documents = true;
  const PackReport report = pack_documents(tokenizer, options);
  EXPECT_GT(report.documents, 1000);
  EXPECT_GT(report.train.rows, 100);
  EXPECT_EQ(report.invalid_utf8, 0);
  const auto dataset = open_token_dataset({path("wiki.h5")}, 2048, 32000);
  ASSERT_EQ(dataset->size(), report.train.rows);
  const Sample row = dataset->read(0);
  EXPECT_EQ(row.input_ids[0], 1);
  EXPECT_GT(row.sequence_starts.size(), 5u);
}

}  // namespace
}  // namespace trireme
