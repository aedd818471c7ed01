// `trireme data bert` as a process: output, exit codes and messages, interrupted runs, files written by other tools.

#include "data/bert/bert_rows.h"
#include "prepare_testing.h"

#include <sys/wait.h>

#include <algorithm>
#include <tuple>

namespace trireme {
namespace {

namespace fs = std::filesystem;

class BertTools : public Scratch {
 protected:
  void SetUp() override {
    Scratch::SetUp();
    std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\n,\n", text;
    for (char letter = 'a'; letter <= 'z'; ++letter) vocab += fmt::format("{}\n##{}\n", letter, letter);
    write("vocab.txt", vocab + "rower\ntrireme\nharbour\n");
    for (int part = 0; part < 6; ++part) {
      text.clear();
      for (int i = 0; i < 120; ++i)
        text += fmt::format("Rower {} of the trireme, part {}, looked at the harbour.\n{}", i * i, part,
                            i % 5 == 4 ? "\n" : "");
      write(fmt::format("part-{}", part), text);
    }
  }
  Outcome run(const std::string& arguments, const std::string& before = "") const {
    const int status = std::system(
        fmt::format("cd '{}' && {} '{}' data bert {} >out 2>err", root_.string(), before, TRIREME_DATA_TOOLS, arguments)
            .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp("out"), slurp("err")};
  }
  static std::string last_line(const std::string& text) {
    const std::string trimmed = text.substr(0, text.find_last_not_of('\n') + 1);
    return trimmed.substr(trimmed.rfind('\n') + 1);
  }
  void prepare() const {
    ASSERT_EQ(run(kInstances).code, 0) << slurp("err");
    ASSERT_EQ(run("pack --input inst --output packed --shards 3").code, 0) << slurp("err");
  }
  static constexpr const char* kInstances =
      "instances --input . --vocab vocab.txt --output inst --seq-length 64 --max-predictions 10 "
      "--dupe-factor 2";
};

TEST_F(BertTools, FromTextToRows) {
  prepare();
  EXPECT_TRUE(contains(slurp("out"), "rows of 3 shards"));
  const auto dataset = open_bert_dataset({path("packed")}, 64, 62);
  int64_t sequences = 0;
  for (int64_t i = 0; i < dataset->size(); ++i)
    sequences += static_cast<int64_t>(dataset->read(i).sequence_lengths.size());
  EXPECT_EQ(dataset->sequences(), sequences);
  EXPECT_GT(sequences, 200);
  const Outcome verified = run("verify --input packed --seq-length 64 --vocab-size 62");
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_TRUE(contains(verified.out,
                       fmt::format("3 files, {} rows, {} sequences: no damage found", dataset->size(), sequences)));
}

TEST_F(BertTools, FinishedPartsAreKeptAndOthersMadeAgain) {
  prepare();
  EXPECT_TRUE(contains(run(kInstances).out, "6 of them finished before"));
  const std::string whole = slurp("inst/part-2.instances");
  fs::remove(path("inst/part-2.instances"));
  fs::resize_file(path("inst/part-3.instances"), 100);
  write("part-4", slurp("part-4") + "One more sentence.\n");
  EXPECT_TRUE(contains(run(kInstances).out, "3 of them finished before"));
  EXPECT_EQ(slurp("inst/part-2.instances"), whole);
  // Other options remake all outputs; packing detects that its inputs changed.
  EXPECT_FALSE(contains(run(std::string(kInstances) + " --seed 7").out, "finished before"));
  EXPECT_FALSE(contains(run("pack --input inst --output packed --shards 3").out, "finished before"));
  EXPECT_TRUE(contains(run("pack --input inst --output packed --shards 3").out, "3 of them finished before"));
}

TEST_F(BertTools, AKilledRunLeavesNothingHalf) {
  prepare();
  // Killed at several times, then run to the end.
  for (const char* moment : {"0.005", "0.015", "0.03", "0.06"}) {
    const std::string kill = fmt::format("timeout --foreground -s KILL {}", moment);
    const auto again = [&](std::string arguments, const char* from, const char* to) {
      return arguments.replace(arguments.find(from), std::string(from).size(), to);
    };
    run(again(kInstances, "inst ", "inst2 "), kill);
    ASSERT_EQ(run(again(kInstances, "inst ", "inst2 ")).code, 0);
    run("pack --input inst2 --output packed2 --shards 3", kill);
    const Outcome packed = run("pack --input inst2 --output packed2 --shards 3");
    ASSERT_EQ(packed.code, 0) << packed.err;
    for (int part = 0; part < 6; ++part)
      EXPECT_EQ(slurp(fmt::format("inst/part-{}.instances", part)),
                slurp(fmt::format("inst2/part-{}.instances", part)));
    EXPECT_EQ(slurp("packed/index.txt"), slurp("packed2/index.txt"));
    const std::string sums = run("verify --input packed --seq-length 64").out,
                      sums2 = run("verify --input packed2 --seq-length 64").out;
    std::string renamed = sums2;
    for (size_t at; (at = renamed.find("packed2")) != std::string::npos;) renamed.erase(at + 6, 1);
    EXPECT_EQ(sums, renamed);
    for (const char* directory : {"inst2", "inst2/.done", "packed2", "packed2/.done"})
      for (const auto& entry : fs::directory_iterator(path(directory)))
        EXPECT_FALSE(contains(entry.path().string(), ".tmp-")) << entry.path();
    fs::remove_all(path("inst2"));
    fs::remove_all(path("packed2"));
  }
}

TEST_F(BertTools, ExitCodesAndLastWords) {
  prepare();
  write("part_text", std::string(3000, 'x'));
  write("bad_vocab.txt", "[UNK]\n[CLS]\n");
  write("latin1.txt", "caf\xe9.\n");
  write("empty.txt", "\n\n");
  const std::string shard = slurp("packed/part_00001");
  write("part_short", shard.substr(0, shard.size() / 2));
  const std::string eval = "eval --input part-1 --vocab vocab.txt --seq-length 64 --max-predictions 10 --output ";
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"", 2, "subcommand"},
      {"instances --input part-1 --vocab vocab.txt --output x --seq-length 1000", 2,
       "--seq-length 1000: expected 16 to 512"},
      {"instances --input part-1 --vocab vocab.txt --output x --masked-lm-prob 1.5", 2, "--masked-lm-prob 1.5"},
      {"instances --input part-1 --vocab vocab.txt --output x --dupe-factor 0", 2, "--dupe-factor 0"},
      {"instances --input part-1 --vocab bad_vocab.txt --output x", 3, "has no token [SEP]"},
      {"instances --input absent --vocab vocab.txt --output x", 3, "absent: no such file"},
      {"instances --input latin1.txt --vocab vocab.txt --output x", 3, "line 1 is not UTF-8"},
      {"instances --input empty.txt --vocab vocab.txt --output x", 3, "no sentences"},
      {"instances --input part-1 packed/../part-1 --vocab vocab.txt --output x", 2, "same name"},
      {"instances --input part-1 --vocab vocab.txt --output vocab.txt/x", 73, "vocab.txt/x"},
      {"pack --input part-1 --output x", 3, "not a file of BERT instances"},
      {"pack --input inst --output x --shards 100000", 2, "--shards 100000"},
      {"pack --input inst --output x --shards 9999", 2, "cannot fill 9999 shards"},
      {"pack --input inst --output packed --shards 2", 73, "part_00002, which is not of this packing"},
      {"pack --input packed --output x", 3, "named *.instances"},
      {"export --input inst --output x --layout long", 2, "--layout: long not in"},
      {"export --input inst --output x --shuffle-seed 3", 2, "--shuffle-seed needs --shards"},
      {eval + "x.hdf5 --count 100000", 2, "fewer than --count 100000"},
      {eval + "vocab.txt/x.hdf5 --count 5", 73, "vocab.txt"},
      {eval + "vocab.txt --count 5", 2, "vocab.txt is there and holds no rows"},
      {"verify --input part_text", 3, "part_text cannot be opened as HDF5"},
      {"verify --input part_short", 3, "part_short cannot be opened as HDF5: it is truncated"},
      {"verify --input packed --seq-length 64 --vocab-size 20", 3, "outside the vocabulary of 20"},
      {"verify --input packed --seq-length 40", 3, "at most 40 are expected"},
      {"verify --input inst", 3, "named part_*"},
  };
  for (const auto& [arguments, code, words] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << arguments << ": " << outcome.err;
    EXPECT_TRUE(contains(last_line(outcome.err), words)) << arguments << ": " << outcome.err;
  }
}

TEST_F(BertTools, FilesOfOtherWriters) {
  if (!python_has("h5py, numpy")) GTEST_SKIP() << "no Python with h5py";
  python(R"(
import sys, h5py, numpy as np
directory = sys.argv[1]
rows = [np.arange(5 + i) for i in range(4)]
def write(name, kind='i2', change=lambda file: None, user_block=0, **settings):
    with h5py.File(f'{directory}/part_{name}', 'w', userblock_size=user_block) as file:
        for dataset, values in (('input_ids', rows), ('segment_ids', [r * 0 for r in rows]), ('masked_lm_positions', [r[1:3] for r in rows]), ('masked_lm_ids', [r[1:3] for r in rows])):
            data = file.create_dataset(dataset, (4,), h5py.vlen_dtype(np.dtype(kind)), **settings)
            for i, value in enumerate(values):
                data[i] = value.astype(kind)
        file['next_sentence_labels'] = np.array([0, 1, 0, 1], 'i1')
        change(file)
def replace(with_what):
    def change(file):
        del file['masked_lm_ids']
        with_what(file)
    return change
write('plain')
write('big', '>i4')
write('unsigned', 'u8')
write('block', user_block=512)
write('chunked', chunks=(2,))
write('compressed', chunks=(3,), compression='gzip')
write('shuffled', chunks=(1,), shuffle=True, compression='gzip')
write('block_chunked', user_block=512, chunks=(2,))
write('floats', 'f4')
def link(file): file['masked_lm_ids'] = h5py.ExternalLink('part_plain', 'masked_lm_ids')
def soft(file): file['masked_lm_ids'] = h5py.SoftLink('/input_ids')
def group(file): file.create_group('masked_lm_ids')
def square(file): file.create_dataset('masked_lm_ids', (2, 2), h5py.vlen_dtype('i2'))
write('link', change=replace(link))
write('soft', change=replace(soft))
write('group', change=replace(group))
write('square', change=replace(square))
def huge(file): file['input_ids'][2] = np.array([2**31] * 7, 'i8')
write('huge', 'i8', huge)
)",
         root_.string());
  for (const char* name : {"plain", "big", "unsigned", "block", "chunked", "compressed", "shuffled", "block_chunked"}) {
    const Outcome outcome = run(fmt::format("verify --input part_{} --vocab-size 8", name));
    EXPECT_EQ(outcome.code, 0) << name << ": " << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "4 rows, 4 sequences, 26 tokens, 8 masked"));
  }
  const std::vector<std::pair<const char*, const char*>> refused = {
      {"floats", "does not hold variable-length rows of integers"},
      {"link", "masked_lm_ids is a link;"},
      {"soft", "is a link;"},
      {"group", "masked_lm_ids is not a dataset"},
      {"square", "declares 64 bytes and stores 0"},
      {"huge", "row 2 has a value beyond 32 bits"},
  };
  for (const auto& [name, words] : refused) {
    const Outcome outcome = run(fmt::format("verify --input part_{}", name));
    EXPECT_EQ(outcome.code, 3) << name << ": " << outcome.out << outcome.err;
    EXPECT_TRUE(contains(last_line(outcome.err), words)) << name << ": " << outcome.err;
  }
}

}  // namespace
}  // namespace trireme
