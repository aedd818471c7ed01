// ultrachat packing compared with a Python implementation of the recipe's rules, with Python's sentencepiece and
// random.

#include "data/prepare/ultrachat.h"

#include "data/dataset.h"
#include "prepare_testing.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

class Ultrachat : public Scratch {
 protected:
  void SetUp() override {
    Scratch::SetUp();
    if (!python_has("numpy, pyarrow.parquet, sentencepiece"))
      GTEST_SKIP() << "no Python with NumPy, pyarrow and sentencepiece";
    write("tokenizer.model", small_model());
    static MadeOnce made;
    made.copy_to(path("data"), [this](const auto& folder) { python(kWriter, folder.string()); });
  }

  UltrachatReport convert(bool sft_only, uint64_t seed = 100) {
    Tokenizer tokenizer(path("tokenizer.model"));
    UltrachatOptions options;
    options.inputs = {path("data")};
    options.output_directory = path("out");
    options.seq_length = 16;
    options.sft_only = sft_only;
    options.seed = seed;
    return convert_ultrachat(tokenizer, options);
  }

  static constexpr const char* kWriter = R"(
import random, sys, pyarrow as pa, pyarrow.parquet as pq
r = random.Random(5)
words = ['The trireme', 'crossed', 'the narrow strait', 'naïve', '中文', '480', '🚣', '<s>', '</s>', '<|im_end|>', '\n', '  ',
         '<|im_start|>user', 'Athens', '<unk>', '<pad>', '']
def conversation():
    text = lambda: ' '.join(r.choice(words) for _ in range(r.randrange(60)))
    roles = ['system'] * (r.random() < 0.3) + ['user', 'assistant'] * r.randrange(1, 4) + ['tool'] * (r.random() < 0.1)
    return [{'content': text(), 'role': role} for role in roles]
for name, count in (('train_sft-00000-of-00001', 300), ('train_gen-00001-of-00002', 150), ('train_gen-00000-of-00002', 250),
                    ('test_sft-00000-of-00001', 60), ('test_gen-00000-of-00001', 50)):
    rows = [conversation() for _ in range(count)]
    pq.write_table(pa.table({'prompt': ['p'] * count, 'messages': rows}), f'{sys.argv[1]}/{name}.parquet', row_group_size=64)
)";

  static constexpr const char* kTranscription = R"(
import glob, random, re, sys, numpy as np, pyarrow.parquet as pq, sentencepiece
directory, sft, seed, length = sys.argv[1], sys.argv[2] == '1', int(sys.argv[3]), 16
sp = sentencepiece.SentencePieceProcessor(model_file=f'{directory}/tokenizer.model')
base = sp.get_piece_size()
special = {'<unk>': 0, '<s>': 1, '</s>': 2, '<|im_end|>': base, '<pad>': base + 1, '<|im_start|>user': base + 2,
           '<|im_start|>assistant': base + 3, '<|im_start|>system': base + 4}
pattern = re.compile('(' + '|'.join(re.escape(s) for s in sorted(special, key=len, reverse=True)) + ')')
def encode(text):
    ids = []
    for part in pattern.split(text):
        ids += [special[part]] if part in special else sp.encode(part) if part else []
    return ids
random.seed(seed)
for split, output in (('train', 'train'), ('test', 'validation')):
    files = sorted(f for f in glob.glob(f'{directory}/data/*.parquet') if split in f.rsplit('/')[-1] and (not sft or 'sft' in f))
    texts = [''.join('<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' for m in row['messages'])
             for f in files for row in pq.read_table(f).to_pylist()]
    iterator, rows, more = iter(texts), [], True
    while more:
        buffer, size = [], 0
        while size < length * 3.6 * 1024:
            try:
                buffer.append(next(iterator))
            except StopIteration:
                more = False
                break
            size += len(buffer[-1])
        ids = [i for text in buffer for i in encode(text)]
        chunks = [ids[i:i + length] for i in range(0, len(ids), length)]
        chunks = [c for c in chunks if len(c) == length]
        random.shuffle(chunks)
        rows += chunks
    ours = np.load(f'{directory}/out/{output}.npy')
    assert ours.dtype == np.int32 and ours.shape == (len(rows), length), (ours.shape, len(rows))
    assert (ours == np.array(rows)).all(), split
    print(split, len(rows), end=' ')
)";
};

TEST_F(Ultrachat, EqualsTheRules) {
  for (const bool sft : {false, true}) {
    const UltrachatReport report = convert(sft, sft ? 3 : 100);
    EXPECT_EQ(report.train.conversations, sft ? 300 : 700);
    EXPECT_EQ(report.valid.conversations, sft ? 60 : 110);
    EXPECT_GT(report.train.buffers, 2) << "too little text to test the buffers";
    EXPECT_EQ(report.train.tokens, report.train.rows * 16 + report.train.tail_tokens);
    EXPECT_EQ(python(kTranscription, fmt::format("'{}' {} {}", root_.string(), sft ? 1 : 0, sft ? 3 : 100)),
              fmt::format("train {} test {} ", report.train.rows, report.valid.rows));
  }
}

TEST_F(Ultrachat, ReportsTheVocabularyThatTheModelNeeds) {
  const UltrachatReport report = convert(true);
  EXPECT_EQ(report.vocab_size, 405);
  EXPECT_EQ(report.padded_vocab_size, 408);
  EXPECT_EQ(report.samples.size(), 3u);
  EXPECT_NO_THROW(open_token_dataset({path("out/train.npy")}, 16, 405)->read(0));
}

TEST_F(Ultrachat, RefusesWhatItCannotPlace) {
  Tokenizer tokenizer(path("tokenizer.model"));
  UltrachatOptions options;
  options.output_directory = path("out");
  options.seq_length = 16;
  const auto complaint = [&](std::vector<std::filesystem::path> inputs) {
    options.inputs = std::move(inputs);
    return message_of<DataError>([&] { convert_ultrachat(tokenizer, options); });
  };
  std::filesystem::create_directories(path("nothing"));
  EXPECT_TRUE(contains(complaint({path("nothing")}), "named *.parquet"));
  std::filesystem::copy_file(path("data/test_sft-00000-of-00001.parquet"), path("other.parquet"));
  EXPECT_TRUE(contains(complaint({path("other.parquet")}), "either 'train' or 'test'"));
  EXPECT_TRUE(contains(complaint({path("data/test_sft-00000-of-00001.parquet")}), "no train file"));
  options.seq_length = 1 << 20;
  EXPECT_TRUE(contains(complaint({path("data")}), "less than one row"));
  python(fmt::format(
      "import pyarrow as pa, pyarrow.parquet as pq\n"
      "pq.write_table(pa.table({{'messages': ['a']}}), r'{}')\n"
      "pq.write_table(pa.table({{'messages': [[{{'role': 'user', 'content': None}}]]}}), r'{}')\n"
      "kind = pa.list_(pa.struct([('role', pa.string()), ('content', pa.string())]))\n"
      "rows = pa.array([[dict(role='user', content='x')], [dict(role='user', "
      "content=None)]], kind)\n"
      "pq.write_table(pa.table({{'messages': rows}}), r'{}')\n",
      path("train_text.parquet").string(), path("train_null.parquet").string(), path("train_null2.parquet").string()));
  EXPECT_TRUE(contains(complaint({path("train_text.parquet")}), "expected a list of structs"));
  EXPECT_TRUE(contains(complaint({path("train_null.parquet")}), "expected a list of structs"));
  EXPECT_TRUE(contains(complaint({path("train_null2.parquet")}), "row 1: messages[0] has a null"));
  options.inputs = {path("data")};
  options.seq_length = 16;
  std::filesystem::create_directories(path("out"));
  write("out/validation.npy", "notes");
  EXPECT_THROW(convert_ultrachat(tokenizer, options), ConfigError);
  EXPECT_EQ(slurp("out/validation.npy"), "notes");
}

TEST(Chatml, RendersRoleContentAndEnd) {
  const ChatMessage messages[] = {{"system", "Be brief."}, {"user", "Hi\n"}};
  EXPECT_EQ(render_chatml(messages), "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n");
  EXPECT_EQ(render_chatml({}), "");
}

}  // namespace
}  // namespace trireme
