// `trireme tokenizer` and `trireme data` as processes: output, exit codes and messages.

#include "data/dataset.h"
#include "prepare_testing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class DataTools : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = fs::temp_directory_path() / fmt::format("trireme_data_tools_{}", getpid());
    fs::create_directories(directory_);
    std::ofstream text(directory_ / "text.txt");
    for (int i = 0; i < 200; ++i)
      text << "Rower " << i << " of the trireme looked at the harbour, at the storm and at the long walls.\n"
           << (i % 4 == 3 ? "\n" : "");
    text.close();
    const Outcome outcome = run("tokenizer train --input text.txt --vocab-size 330 --output tok.model");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "tok.model: 330 pieces from 200 lines"));
    EXPECT_FALSE(contains(outcome.err, "trainer_interface")) << "sentencepiece's own log";
  }
  static void TearDownTestSuite() { fs::remove_all(directory_); }

  static std::string slurp(const char* name) {
    std::ostringstream text;
    text << std::ifstream(directory_ / name).rdbuf();
    return text.str();
  }
  static Outcome run(const std::string& arguments, const std::string& input = "") {
    std::ofstream(directory_ / "in") << input;
    const int status = std::system(
        fmt::format("cd '{}' && '{}' {} <in >out 2>err", directory_.string(), TRIREME_DATA_TOOLS, arguments).c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp("out"), slurp("err")};
  }
  static std::string last_line(const std::string& text) {
    const std::string trimmed = text.substr(0, text.find_last_not_of('\n') + 1);
    return trimmed.substr(trimmed.rfind('\n') + 1);
  }

  static inline fs::path directory_;
};

TEST_F(DataTools, WhatAKilledPackLeftGoesWithTheNext) {
  const auto temporaries = [] {
    int found = 0;
    for (const auto& entry : fs::directory_iterator(directory_))
      found += entry.path().filename().string().find(".tmp-") != std::string::npos;
    return found;
  };
  for (const char* output : {"killed.npy", "killed.h5"}) {
    const std::string command =
        fmt::format("data pack --tokenizer tok.model --input text.txt --seq-length 32 --output {}", output);
    for (int life = 0; life < 2; ++life) {
      setenv("TRIREME_FAULT", "sigkill@file:commit", 1);
      EXPECT_NE(run(command).code, 0);
      unsetenv("TRIREME_FAULT");
      EXPECT_EQ(temporaries(), 1) << output << ", life " << life;
    }
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(temporaries(), 0) << output;
  }
}

TEST_F(DataTools, EncodeAndDecodeAreInverse) {
  const Outcome plain = run("tokenizer encode --model tok.model 'Rower 7 looked at the storm.'");
  ASSERT_EQ(plain.code, 0) << plain.err;
  const std::string ids = plain.out.substr(0, plain.out.size() - 1);
  EXPECT_EQ(run("tokenizer decode --model tok.model " + ids).out, "Rower 7 looked at the storm.\n");
  EXPECT_EQ(run("tokenizer encode --model tok.model --bos --eos -", "Rower 7 looked at the storm.\n\n").out,
            "1 " + ids + " 2\n1 2\n");
  EXPECT_EQ(run("tokenizer decode --model tok.model -", ids + "\n" + ids + "\n").out,
            "Rower 7 looked at the storm.\nRower 7 looked at the storm.\n");
  std::string tabs = ids;
  std::replace(tabs.begin(), tabs.end(), ' ', '\t');
  const Outcome dos = run("tokenizer decode --model tok.model -", tabs + "\r\n1 2x\n");
  EXPECT_EQ(dos.out, "Rower 7 looked at the storm.\n");
  EXPECT_TRUE(contains(dos.err, "line 2 of the standard input: '2x'"));
  const Outcome directory = run("tokenizer encode --model tok.model - </ 2>err #");
  EXPECT_EQ(directory.code, 3);
  EXPECT_TRUE(contains(last_line(directory.err), "the standard input cannot be read")) << directory.err;
}

TEST_F(DataTools, ByteLevelBpeIsTrainedAndPacked) {
  const Outcome trained =
      run("tokenizer train --type bpe --input text.txt --vocab-size 310 --special '<|endoftext|>' --special '<pad>' "
          "--output bytes");
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(contains(trained.out, "310 tokens, 52 merges"));
  for (const char* model : {"bytes", "bytes/tokenizer.json", "bytes/vocab.json"}) {
    const std::string option = fmt::format("--model {} ", model);
    const Outcome plain = run("tokenizer encode " + option + "'Rower 7<|endoftext|> looks'");
    ASSERT_EQ(plain.code, 0) << plain.err;
    const std::string ids = plain.out.substr(0, plain.out.size() - 1);
    EXPECT_TRUE(contains(" " + ids + " ", " 0 ")) << ids;
    EXPECT_EQ(run("tokenizer decode " + option + ids).out, "Rower 7 looks\n");
    EXPECT_EQ(run("tokenizer decode --special " + option + ids).out, "Rower 7<|endoftext|> looks\n");
  }
  ASSERT_EQ(run("data pack --tokenizer bytes --input text.txt --seq-length 64 --output bytes.npy --eos").code, 0);
  // A text that has EOS in it gets no second one.
  std::ofstream(directory_ / "ends.jsonl") << R"({"text": "Rower 7<|endoftext|>"})" << '\n' << R"({"text": "Rower"})";
  std::ofstream(directory_ / "plain.jsonl") << R"({"text": "Rower 7"})" << '\n' << R"({"text": "Rower"})";
  for (const char* name : {"ends", "plain"})
    ASSERT_EQ(
        run(fmt::format("data pack --tokenizer bytes --input {0}.jsonl --seq-length 4 --output {0}.npy --eos", name))
            .code,
        0);
  EXPECT_EQ(slurp("ends.npy"), slurp("plain.npy"));
  const auto dataset = open_token_dataset({directory_ / "bytes.npy"}, 64, 330);
  EXPECT_GT(dataset->size(), 20);
}

TEST_F(DataTools, PackReportsAndTheTrainerReads) {
  const Outcome outcome =
      run("data pack --tokenizer tok.model --input text.txt --seq-length 64 --output rows.h5 --bos "
          "--eos "
          "--separate-documents --shuffle-seed 1 --valid-output valid.npy --valid-fraction 0.2");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "read 50 documents"));
  EXPECT_TRUE(contains(outcome.out, "sample 3: "));
  const auto dataset = open_token_dataset({directory_ / "rows.h5", directory_ / "valid.npy"}, 64, 330);
  EXPECT_GT(dataset->size(), 20);
  for (int64_t row = 0; row < dataset->size(); ++row) EXPECT_NO_THROW(dataset->read(row));
}

TEST_F(DataTools, ExitCodesAndLastWords) {
  const std::string pack = "data pack --tokenizer tok.model --input text.txt --seq-length 64 ";
  std::ofstream(directory_ / "cut.model", std::ios::binary) << slurp("tok.model").substr(0, 2000);
  std::ofstream(directory_ / "rows.jsonl") << "{\"text\": null}\n{\"text\": \"\\ud83d\"}\n{\"text\": \"a\"}\n";
  std::ofstream(directory_ / "no.jsonl") << "\n";
  std::ofstream(directory_ / "table.csv") << "text\none\n";
  fs::create_directories(directory_ / "folder");
  fs::create_symlink("soon.npy", directory_ / "link.npy");
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"tokenizer train --input text.txt --vocab-size 30000 --output x.model", 2, "at most"},
      {"tokenizer train --input absent.txt --vocab-size 300 --output x.model", 3, "absent.txt"},
      {"tokenizer train --input text.txt --vocab-size 300 --output text.txt/x.model", 73, "text.txt"},
      {"tokenizer encode --model cut.model x", 3, "cut.model: not a complete sentencepiece model"},
      {"tokenizer encode --model text.txt x", 3, "text.txt"},
      {"tokenizer encode --model tok.model $(printf '\\377')", 3, "UTF-8"},
      {"tokenizer encode --model . x", 3, "tokenizer.json, or vocab.json with merges.txt"},
      {"tokenizer train --input text.txt --vocab-size 300 --type unigram --output made", 2, "bpe only"},
      {"tokenizer train --input text.txt --vocab-size 300 --type foo --output x.model", 2,
       "--type: foo not in {bpe,unigram}"},
      {"tokenizer train --input text.txt --vocab-size 300 --format byte-level --output x.model", 2,
       "not a .model file"},
      {"tokenizer train --input text.txt --vocab-size 300 --special x --output x.model", 2, "--special"},
      {"tokenizer train --input text.txt --vocab-size 200 --output made", 2, "expected 257"},
      {"tokenizer train --input absent.txt --vocab-size 300 --output made", 3, "absent.txt"},
      {"tokenizer decode --model tok.model 330", 3, "token id 330"},
      {"tokenizer decode --model tok.model 3x", 2, "'3x'"},
      {"tokenizer", 2, "subcommand"},
      {"data", 2, "subcommand"},
      {pack + "--output rows.txt", 2, ".npy, .h5 or .hdf5"},
      {pack + "--output x.npy --document chapter", 2, "chapter"},
      {pack + "--output x.npy --valid-fraction 0.1", 2, "--valid-output"},
      {pack + "--output x.npy --valid-fraction 0.1 --valid-output ./x.npy", 2, "are the same file"},
      {pack + "--output soon.npy --valid-fraction 0.1 --valid-output link.npy", 2, "are the same file"},
      {pack + "--output x.npy --shuffle-seed 4294967296", 2, "4294967296"},
      {pack + "--output text.txt/x.npy", 73, "text.txt"},
      {"data pack --tokenizer tok.model --input text.txt --seq-length 999999 --output x.npy", 3, "less than one row"},
      {"data pack --tokenizer tok.model --input absent.jsonl --seq-length 9 --output x.npy", 3, "absent.jsonl"},
      {"data pack --tokenizer tok.model --input text.txt table.csv --seq-length 9 --output x.npy", 3, "table.csv: CSV"},
      {"data pack --tokenizer tok.model --input folder --seq-length 9 --output x.npy", 3, "name its files one by one"},
      {"data pack --tokenizer tok.model --input rows.jsonl --min-tokens 9 --seq-length 9 --output x.npy", 3,
       "no document is left of 3: 1 not encoded in UTF-8 (the first at rows.jsonl:2), 1 empty, 1 of fewer than 9 "
       "tokens"},
      {"data pack --tokenizer tok.model --input no.jsonl --seq-length 9 --output x.npy", 3,
       "the input holds no document"},
      {pack + "--output x.npy --field text", 2, "--field text: "},
      {"tokenizer train --input text.txt --field text --vocab-size 300 --output made", 2, "text.txt is plain text"},
      {"tokenizer train --input rows.jsonl --vocab-size 300 --output x.model", 3, "rows.jsonl: "},
      {"tokenizer train --input text.txt --field text --vocab-size 300 --output x.model", 2, "--field"},
      {"tokenizer train --input table.csv --vocab-size 300 --output made", 3, "table.csv: CSV"},
      {"data mlperf --train absent.parquet --valid absent.parquet --output made", 3, "absent.parquet"},
      {"data ultrachat --input . --tokenizer tok.model --output made", 3, "named *.parquet"},
      {"data ultrachat --input . --tokenizer tok.model --output made --splits gen", 2, "gen"},
  };
  for (const auto& [arguments, code, words] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << arguments << ": " << outcome.err;
    EXPECT_TRUE(contains(last_line(outcome.err), words)) << arguments << ": " << outcome.err;
  }
  EXPECT_FALSE(fs::exists(directory_ / "x.npy"));
  EXPECT_FALSE(fs::exists(directory_ / "x.model"));
}

TEST_F(DataTools, HelpSaysWhatTheRecipesAre) {
  const Outcome help = run("data ultrachat --help");
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(contains(help.out, "not reproduced"));
  EXPECT_TRUE(contains(run("data --help").out, "mlperf"));
}

}  // namespace
}  // namespace trireme
