// Arrow files as documents: the layouts of fms-fsdp and datasets.save_to_disk, and damaged files.

#include "../base/base_testing.h"
#include "data/stream/documents.h"
#include "data/text_file.h"
#include "trireme/arrow/arrow_table.h"
#include "trireme/base/file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <tuple>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Documents = std::vector<std::vector<int64_t>>;

const Documents kDocuments = {{1, 2, 3, 4}, {5}, {}, {10, 11, 12, 13, 14, 15, 16}, {20, 21}};

fs::path stream_fixture(const std::string& name) {
  return fs::path(TRIREME_SOURCE_DIR) / "tests/data/fixtures/stream" / name;
}

const auto no_text = text_tokens("none", "");

Documents read_all(const fs::path& path, const std::string& column = "") {
  const auto set = open_documents({path}, column, no_text);
  Documents all(static_cast<size_t>(set->size()));
  for (int64_t i = 0; i < set->size(); ++i) set->read(i, all[static_cast<size_t>(i)]);
  return all;
}

std::string complaint(const fs::path& path, const std::string& column = "") {
  return message_of(ExitCode::kData, [&] { return read_all(path, column); });
}

TEST(ArrowDocuments, ABatchOfIntegersIsADocument) {
  EXPECT_EQ(read_all(stream_fixture("fms/lang=en/dataset=a/one.arrow")), kDocuments);
}

TEST(ArrowDocuments, ADirectoryIsReadRecursivelyInTheOrderOfNames) {
  Documents expected = kDocuments;
  expected.insert(expected.end(), {kDocuments[3], kDocuments[4]});
  EXPECT_EQ(read_all(stream_fixture("fms")), expected);
}

TEST(ArrowDocuments, ADirectoryOfTextsTakesTheNamesOfSingleFiles) {
  const TemporaryDirectory directory;
  const fs::path& folder = directory.root();
  const auto names = [&] {
    std::vector<std::string> found;
    for (const fs::path& file : document_files(folder)) found.push_back(file.filename().string());
    return found;
  };
  for (const char* name : {"a.jsonl", "b.JSONL", "c.ndjson.gz", "d.json", "e.PARQUET", "config.json",
                           "dataset_infos.json", "rows.npy.tokenizer.json", "notes.txt"})
    std::ofstream(folder / name) << "{\"text\": \"a\"}\n";
  EXPECT_EQ(names(), (std::vector<std::string>{"a.jsonl", "b.JSONL", "c.ndjson.gz", "e.PARQUET"}))
      << "a .json is read alone";
  const auto groups = std::make_shared<TextGroups>();
  for (const char* name : {"a.jsonl", "b.JSONL", "d.json"})
    EXPECT_EQ(open_text_file(folder / name, "text", groups)->size(), 1);
  for (const auto& [name, content, says] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"c.ndjson.gz", "\x1f\x8b\x08", "c.ndjson.gz: a gzip archive: unpack it first"},
           {"d.json", "[{\"text\": \"a\"}]", "d.json: a JSON list"}}) {
    std::ofstream(folder / name) << content;
    const auto open = [&, &name = name] { return open_text_file(folder / name, "text", groups); };
    EXPECT_TRUE(contains(message_of<DataError>(open), says)) << name;
  }
  EXPECT_TRUE(holds_documents(folder / "c.ndjson.gz"));
}

TEST(ArrowDocuments, HiddenFilesAndFoldersAreLeftOut) {
  const TemporaryDirectory directory;
  const fs::path folder = directory.path(".hidden");
  for (const char* name :
       {"a.jsonl", "__b.jsonl", ".c.jsonl", ".cache/d.jsonl", "e/.f/g.jsonl", "e/__h/i.jsonl", "e/j.jsonl", ".k.arrow"})
    directory.write(std::string(".hidden/") + name, "{\"text\": \"a\"}\n");
  EXPECT_EQ(document_files(folder),
            (std::vector<fs::path>{folder / "__b.jsonl", folder / "a.jsonl", folder / "e/j.jsonl"}))
      << "the folder that is named may be hidden";
  EXPECT_EQ(document_files(folder / "e/__h").size(), 1u);
  // Root reads everything. mkdtemp()'s own directory would be closed to the other user.
  fs::permissions(directory.root(), fs::perms::all);
  fs::permissions(folder / "e", fs::perms::none);
  const uid_t user = geteuid();
  ASSERT_TRUE(user != 0 || seteuid(65534) == 0);
  const std::string message = complaint(folder);
  ASSERT_EQ(seteuid(user), 0);
  EXPECT_TRUE(contains(message, (folder / "e").string() + ": cannot be listed: Permission denied"));
  fs::permissions(folder / "e", fs::perms::owner_all);
}

TEST(ArrowDocuments, ADirectoryOfSaveToDisk) {
  EXPECT_EQ(read_all(stream_fixture("saved")), kDocuments);
  EXPECT_EQ(document_files(stream_fixture("saved")).size(), 2u);
}

TEST(ArrowDocuments, ListsOfTheFileFormatNullsAndCompression) {
  EXPECT_EQ(read_all(stream_fixture("lists.arrow")), kDocuments);
  EXPECT_EQ(read_all(stream_fixture("null_document.arrow")), (Documents{{1}, {}, {2}}));
  const Documents compressed = read_all(stream_fixture("lz4.arrow"));
  ASSERT_EQ(compressed.size(), 3u);
  EXPECT_EQ(compressed[2].size(), 500u);
  EXPECT_EQ(compressed[2].back(), 499);
  EXPECT_EQ(read_all(stream_fixture("other_column.arrow"), "ids"), (Documents{{1, 2}}));
  EXPECT_TRUE(read_all(stream_fixture("no_batches.arrow")).empty());
}

TEST(ArrowDocuments, TextGoesToTheTokenizer) {
  EXPECT_TRUE(contains(complaint(stream_fixture("texts.arrow")), "texts.arrow holds text"));
  const ArrowTable table(stream_fixture("texts.arrow"));
  ASSERT_EQ(table.documents(), 3);
  std::string text;
  table.read_text(2, text);
  EXPECT_EQ(text, "three");
  const ArrowTable views(stream_fixture("views.arrow"));
  std::string all;
  for (int64_t row = 0; row < views.documents(); ++row) {
    views.read_text(row, text);
    all += "|" + text;
  }
  EXPECT_EQ(all, "|one two||three, which lies outside its view");
}

TEST(ArrowDocuments, PlacesNameBatchRowAndByte) {
  const auto set = open_documents({stream_fixture("saved")}, "", no_text);
  EXPECT_TRUE(contains(set->place(4), "data-00001-of-00002.arrow: batch 0, row 1 (batch at byte "));
  const auto fms = open_documents({stream_fixture("fms/lang=en/dataset=a/one.arrow")}, "", no_text);
  EXPECT_TRUE(contains(fms->place(3), "one.arrow: batch 3 (byte "));
}

TEST(ArrowDocuments, WhatCannotBeReadIsNamed) {
  const std::vector<std::pair<std::string, std::vector<const char*>>> cases = {
      {"null_token.arrow", {"batch 0, row 1", "value 1 is null"}},
      {"floats.arrow", {"column 'tokens' is float", "expected a list of integers"}},
      {"coded.arrow", {"column 'text' is dictionary", "trireme data pack"}},
      {"other_column.arrow", {"no column 'tokens', 'input_ids' or 'text'", "it has: ids", "data.column"}},
      {"splits", {"holds the splits train, test", "splits/train"}},
      {"fms/meta", {"no *.arrow"}},
  };
  for (const auto& [name, words] : cases) {
    const std::string message = complaint(stream_fixture(name));
    EXPECT_TRUE(contains(message, name));
    for (const char* word : words) EXPECT_TRUE(contains(message, word)) << name;
  }
  const TemporaryDirectory directory;
  const fs::path folder = directory.path("splits_of_files");
  fs::create_directories(folder / "data");
  for (const char* name : {"train-0.arrow", "train-1.arrow", "test-0.arrow"})
    fs::copy_file(stream_fixture("lists.arrow"), folder / "data" / name, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(
      contains(complaint(folder), "holds several splits: test (data/test-0.arrow), train (data/train-0.arrow)"));
  fs::remove(folder / "data/test-0.arrow");
  fs::copy_file(stream_fixture("lists.arrow"), folder / "data/cache-0123.arrow", fs::copy_options::overwrite_existing);
  EXPECT_EQ(complaint(folder), "");
  EXPECT_EQ(document_files(folder).size(), 2u);  // what datasets keeps of map() is no data
  for (const char* name : {"train-0.arrow", "train-1.arrow"})
    fs::rename(folder / "data" / name, folder / "data" / (name + 6));
  fs::copy_file(stream_fixture("lists.arrow"), folder / "data/test.arrow", fs::copy_options::overwrite_existing);
  EXPECT_TRUE(contains(complaint(folder), "holds several splits: test (data/test.arrow), no split (data/1.arrow)"));
  fs::rename(folder / "data/test.arrow", folder / "data/train_sft-00000-of-00001.arrow");
  fs::rename(folder / "data/1.arrow", folder / "data/c4-train_gen.00000-of-00002.arrow");
  fs::remove(folder / "data/0.arrow");
  EXPECT_TRUE(contains(complaint(folder),
                       "several splits: train_gen (data/c4-train_gen.00000-of-00002.arrow), train_sft (data"));
  // The card of a data set divides files whose names do not.
  fs::remove_all(folder);
  fs::create_directories(folder / "data/en");
  for (const char* name : {"data/en/a.arrow", "data/en/b.arrow", "data/c.arrow"})
    fs::copy_file(stream_fixture("lists.arrow"), folder / name);
  const auto with_card = [&](const std::string& configs) {
    write_file_atomic(folder / "README.md", "---\nlicense: mit\n" + configs + "---\n# Data\n");
    return complaint(folder);
  };
  EXPECT_EQ(with_card(""), "");
  EXPECT_EQ(with_card("configs:\n- config_name: all\n  data_files: '**/*.arrow'\n"), "");
  EXPECT_EQ(with_card("configs:\n- {config_name: a, data_files: data/en/*}\n- {config_name: b, data_files: '**'}\n"),
            "");
  EXPECT_TRUE(contains(
      with_card("configs:\n- config_name: en\n  data_dir: ./data/en/\n- config_name: all\n  data_files: data/*\n"),
      "all: train (data/c.arrow), en: all (data/en/a.arrow)"));
  EXPECT_EQ(with_card("configs:\n- config_name: en\n  data_files: data/en/*\n- config_name: all\n  default: true\n  "
                      "data_files: ['data/*.arrow', './data/en/?.arrow']\n"),
            "");
  EXPECT_TRUE(contains(with_card("configs:\n- config_name: x\n  data_files:\n  - {split: train, path: [data/c.arrow, "
                                 "data/en/a.arrow]}\n  - {split: test, path: 'data/**/[b].arrow'}\n"),
                       "x: test (data/en/b.arrow), x: train (data/c.arrow)"));
  const std::string apart =
      "configs:\n- {config_name: x, data_files: data/c.arrow}\n- {config_name: y, data_files: data/en/*}\n";
  for (const char* before : {"", "\n", "\xEF\xBB\xBF", "\xEF\xBB\xBF \n\n"}) {
    write_file_atomic(folder / "README.md", before + ("---\r\n" + apart) + "---\n");
    EXPECT_TRUE(contains(complaint(folder), "x: train (data/c.arrow)")) << before;
  }
  for (const char* key : {"\"configs\"", "configs ", "'configs' "}) {
    write_file_atomic(folder / "README.md", std::string("---\n") + key + apart.substr(7) + "---\n");
    EXPECT_TRUE(contains(complaint(folder), "x: train (data/c.arrow)")) << key;
  }
  // A card whose keys are indented, in flow form, with explicit keys.
  const std::string one = "{config_name: x, data_files: data/c.arrow}";
  for (const std::string& card : std::vector<std::string>{
           "  tags:\n  - a\n  configs:\n  - " + one + "\n  license: mit\n", "{tags: [a],\nconfigs: [" + one + "]}\n",
           "? tags\n: a\n? configs\n: - " + one + "\n? license\n: mit\n", "configs: [\n" + one + "\n]\nlicense: mit\n",
           "\n# all\nconfigs:\n  - ? config_name\n    : x\n    ? data_files\n    : data/c.arrow\n",
           "  # all\nconfigs:\n- " + one + "\n", "  \nconfigs:\n- " + one + "\n", "---\nconfigs:\n- " + one + "\n",
           "? configs # all\n: - " + one + "\n", "a: &b c\nd: *b\nconfigs:\n- " + one + "\n"}) {
    write_file_atomic(folder / "README.md", "---\n" + card + "---\n");
    EXPECT_TRUE(contains(complaint(folder), "x: train (data/c.arrow)")) << card;
  }
  EXPECT_NE(with_card("configs:\n- {config_name: x, data_files: {train: data/c.arrow, test: data/en/*}}\n"), "");
  EXPECT_EQ(with_card("configs: [\n  {config_name: x, data_files: '**'}\n]\n"), "");
  EXPECT_EQ(with_card("configs: &all\n- {config_name: x, data_files: '**'}\nothers: *all\n"), "");
  EXPECT_TRUE(contains(
      with_card("files: &files\n  en: data/en/*\n  rest: &rest data/*\nconfigs:\n- config_name: x\n  data_files: "
                "*files\n- &y {config_name: y, data_files: *rest}\n- *y\n"),
      "x: en (data/en/a.arrow), x: rest ("));
  // Many lines, keys and values of nothing take a second of a CPU, not minutes.
  std::string lines = "nothing:\n" + std::string(1 << 20, '\n');
  for (int i = 0; i < 30'000; ++i) lines += "-\n";
  for (int i = 0; i < 30'000; ++i) lines += fmt::format("k{}: 1\n", i);
  const std::clock_t begin = std::clock();
  EXPECT_EQ(with_card(lines + "configs:\n- {config_name: x, data_files: '**'}\n"), "");
  EXPECT_LT(std::clock() - begin, 20 * CLOCKS_PER_SEC);
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i)
    bomb += fmt::format("a{0}: &a{0} [{1}, {1}, {1}, {1}, {1}]\n", i, fmt::format("*a{}", i - 1));
  EXPECT_TRUE(contains(with_card(bomb + "configs: *a8\n"), "cannot be read"));
  bomb = "configs:\n- &x {config_name: " + std::string(400'000, 'x') + ", data_files: '**'}\n";
  for (int i = 0; i < 20'000; ++i) bomb += "- *x\n";  // 8 GB
  EXPECT_TRUE(contains(with_card(bomb), "cannot be read"));
  EXPECT_TRUE(
      contains(with_card("configs:\n- {config_name: x, data_files: data/c.arrow}\n"), "not listed (data/en/a.arrow)"));
  EXPECT_TRUE(contains(with_card("configs: [\n"), "not valid YAML"));
  EXPECT_TRUE(contains(with_card("!!str configs:\n- {config_name: x, data_files: data/c.arrow}\n"), "name the files"));
  // The block "configs" alone is read, however long the rest is.
  std::string info = "dataset_info:\n", configs = "configs:\n";
  for (int i = 0; i < 1500; ++i) {
    info += fmt::format(
        "- config_name: c{0}\n  features:\n  - {{name: a, dtype: string}}\n  splits: [1, 2, 3]\n"
        "  download_size: {0}\n  notes: {1}\n",
        i, std::string(200, 'x'));
    configs += fmt::format("- config_name: c{0}\n  data_files:\n  - {{split: train, path: data/{0}/*}}\n", i);
  }
  EXPECT_TRUE(contains(with_card(info + configs + "- {config_name: en, data_files: data/en/a.arrow}\ntags:\n- x\n"),
                       "en: train (data/en/a.arrow)"));
  const auto lists = [&](const std::string& pattern) {  // of the three files
    const std::string message = with_card("configs:\n- {config_name: x, data_files: '" + pattern + "'}\n");
    return std::array{message.empty() || message.find("x: train (data/c.arrow") != std::string::npos,
                      message.empty() || message.find("x: train (data/en/a.arrow") != std::string::npos};
  };
  using Lists = std::array<bool, 2>;
  EXPECT_EQ(lists("data/*"), (Lists{true, false}));
  EXPECT_EQ(lists("**/[!b-z].arrow"), (Lists{false, true}));
  EXPECT_EQ(lists("data/**/c.arrow"), (Lists{true, false}));
  EXPECT_EQ(lists("da**row"), (Lists{true, true}));
  EXPECT_EQ(lists("data/e?/[a].arrow"), (Lists{false, true}));
  EXPECT_EQ(lists("data/?n/*"), (Lists{false, true}));
  EXPECT_EQ(lists(std::string(20000, '*')), (Lists{true, true}));  // too long, so no file is listed apart
  EXPECT_EQ(lists("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b"), (Lists{true, true}));
  EXPECT_TRUE(contains(complaint(stream_fixture("lists.arrow"), "input_id"), "Did you mean 'input_ids'?"));
}

TEST(ArrowDocuments, ContentIsRecognised) {
  const fs::path rows = fs::path(TRIREME_SOURCE_DIR) / "tests/data/fixtures";
  for (const char* name : {"lists.arrow", "saved", "saved/data-00000-of-00002.arrow", "fms", "texts.arrow"})
    EXPECT_TRUE(holds_documents(stream_fixture(name))) << name;
  EXPECT_TRUE(holds_documents(rows / "table.parquet"));
  for (const char* name : {"rows.npy", "rows.h5", "records.npy", "text.npy", "noise.bin", "empty.npy", "absent"})
    EXPECT_FALSE(holds_documents(rows / name)) << name;
}

/// Every byte changed in two ways, and every third length: documents or a DataError with the file's name, and no other
/// end.
void read_damaged(const std::string& fixture) {
  const std::string good = read_text_file(stream_fixture(fixture), ExitCode::kData);
  const TemporaryDirectory directory;
  int refused = 0;
  const auto attempt = [&](const std::string& bytes) {
    const fs::path path = directory.write("damaged.arrow", bytes);
    const std::string message = complaint(path);
    if (message.empty()) return;
    ++refused;
    EXPECT_TRUE(contains(message, path.string()));
  };
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {0x01, 0xFF}) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      attempt(bytes);
    }
  }
  for (size_t size = 0; size < good.size(); size += 3) attempt(good.substr(0, size));
  EXPECT_GT(refused, static_cast<int>(good.size()) / 5);
}

TEST(ArrowDocuments, DamagedFilesAreRefused) {
  read_damaged("lists.arrow");
  read_damaged("saved/data-00000-of-00002.arrow");
}

TEST(ArrowDocuments, DamagedBatchesOfIntegersAreRefused) { read_damaged("fms/lang=en/dataset=b/two.arrow"); }

}  // namespace
}  // namespace trireme
