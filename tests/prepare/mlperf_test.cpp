// MLPerf's Parquet to npy: the values that NumPy reads, equality with the benchmark's converter byte for byte, and
// refused input.

#include "data/prepare/mlperf.h"

#include "data/dataset.h"
#include "data/prepare/md5.h"
#include "prepare_testing.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

class Mlperf : public Scratch {
 protected:
  void SetUp() override {
    Scratch::SetUp();
    if (!python_has("numpy, pyarrow.parquet")) GTEST_SKIP() << "no Python with NumPy and pyarrow";
    static MadeOnce made;
    made.copy_to(root_, [this](const auto& folder) { python(kWriter, folder.string()); });
  }

  std::string complaint(const char* train) {
    const std::string message =
        message_of<DataError>([&] { convert_mlperf(path(train), path("valid.parquet"), path("bad")); });
    EXPECT_FALSE(std::filesystem::exists(path("bad/train.npy")));
    return message;
  }

  static constexpr const char* kWriter = R"(
import random, sys, pyarrow as pa, pyarrow.parquet as pq
directory = sys.argv[1]
r = random.Random(1)
def rows(count, length, masked):
    ids = [[r.randrange(32000) for _ in range(length)] for _ in range(count)]
    return ids, [[-100 if r.random() < masked else t for t in row] for row in ids]
def save(name, ids, labels, kind=pa.list_(pa.int32()), label_kind=pa.list_(pa.int64())):
    pq.write_table(pa.table({'input_ids': pa.array(ids, kind), 'labels': pa.array(labels, label_kind)}),
                   f'{directory}/{name}.parquet', row_group_size=700)
ids, labels = rows(1501, 40, 0.0)
save('train', ids, labels)
save('valid', *rows(173, 40, 0.7), kind=pa.large_list(pa.int64()), label_kind=pa.list_(pa.int32(), 40))
ids = [list(row) for row in ids]; labels = [list(row) for row in labels]
save('short', ids[:3] + [ids[3][:39]], labels[:3] + [labels[3][:39]])
save('labels_short', ids[:2], [labels[0], labels[1][:39]])
bad = [list(row) for row in labels[:2]]; bad[1][5] = 7 if ids[1][5] != 7 else 8
save('labels_other', ids[:2], bad)
bad = [list(row) for row in ids[:2]]; bad[1][3] = -4
save('negative', bad, bad)
save('null', [ids[0], None], labels[:2])
bad = [list(row) for row in labels[:2]]; bad[0][9] = None
save('null_label', ids[:2], bad)
pq.write_table(pa.table({'input_ids': ids[:2], 'label': labels[:2]}), f'{directory}/no_labels.parquet')
pq.write_table(pa.table({'input_ids': ['a'], 'labels': ['b']}), f'{directory}/text.parquet')
data = open(f'{directory}/train.parquet', 'rb').read()
open(f'{directory}/hurt.parquet', 'wb').write(data[:4] + b'\xff' * 200 + data[204:])
)";
};

TEST_F(Mlperf, NumpyReadsTheSameRecords) {
  const MlperfReport report = convert_mlperf(path("train.parquet"), path("valid.parquet"), path("out"));
  EXPECT_EQ(report.train.rows, 1501);
  EXPECT_EQ(report.valid.rows, 173);
  EXPECT_EQ(report.valid.seq_length, 40);
  EXPECT_EQ(report.train.targets, 1501 * 40);
  EXPECT_GT(report.valid.targets, 173 * 40 * 0.2);
  EXPECT_LT(report.valid.targets, 173 * 40 * 0.4);
  EXPECT_FALSE(report.is_benchmark);
  EXPECT_EQ(python(R"(
import hashlib, io, pickle, sys, numpy as np, pyarrow.parquet as pq
directory = sys.argv[1]
digests = []
def saved_by_numpy_1(table):
    """np.save of the benchmark's converter under NumPy 1: protocol 3, and NumPy 1's module names."""
    array = np.array([{'input_ids': np.array(row['input_ids'], dtype=np.int32),
                       'loss_mask': [int(x != -100) for x in row['labels']], 'seq_start_id': [0]} for row in table])
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {'descr': '|O', 'fortran_order': False, 'shape': array.shape})
    return file.getvalue() + pickle.dumps(array, protocol=3).replace(b'numpy._core.multiarray', b'numpy.core.multiarray')
for name, parquet in (('train', 'train'), ('validation', 'valid')):
    path = f'{directory}/out/{name}.npy'
    digests.append(hashlib.md5(open(path, 'rb').read()).hexdigest())
    records = np.load(path, allow_pickle=True)
    table = pq.read_table(f'{directory}/{parquet}.parquet').to_pylist()
    theirs, ours = saved_by_numpy_1(table), open(path, 'rb').read()
    at = next((i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b), -1)
    assert theirs == ours, f'{name}: {len(ours)} bytes, NumPy {len(theirs)}, first difference at {at}'
    assert records.shape == (len(table),) and records.dtype == object
    for record, row in zip(records, table):
        assert list(record) == ['input_ids', 'loss_mask', 'seq_start_id']
        assert record['input_ids'].dtype == np.int32 and record['input_ids'].tolist() == row['input_ids']
        assert record['loss_mask'] == [int(x != -100) for x in row['labels']]
        assert record['seq_start_id'] == [0]
print(*digests, hashlib.md5(''.join(sorted(digests)).encode()).hexdigest())
)",
                   root_.string()),
            fmt::format("{} {} {}\n", report.train.md5, report.valid.md5, report.directory_md5));
  // Through the trainer's interface: the mask is not shifted, the first token is not a target.
  const auto dataset = open_token_dataset({path("out/validation.npy")}, 40, 32000);
  ASSERT_EQ(dataset->size(), 173);
  EXPECT_EQ(dataset->read(172).loss_mask[0], 0);
}

TEST_F(Mlperf, BadRowsAreNamed) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> cases = {
      {"short.parquet", {"row 3", "39 tokens", "40"}},
      {"labels_short.parquet", {"row 1", "39 labels for 40 tokens"}},
      {"labels_other.parquet", {"row 1", "position 5", "neither -100"}},
      {"negative.parquet", {"row 1", "position 3", "-4"}},
      {"null.parquet", {"row 1", "null"}},
      {"null_label.parquet", {"row 0", "'labels'", "9 is null"}},
      {"no_labels.parquet", {"labels", "Did you mean 'label'?"}},
      {"text.parquet", {"string", "list of integers"}},
      {"hurt.parquet", {"damaged"}},
      {"absent.parquet", {"absent.parquet"}},
  };
  for (const auto& [file, words] : cases) {
    const std::string message = complaint(file);
    for (const char* word : words) EXPECT_TRUE(contains(message, word)) << file;
  }
  std::filesystem::create_directory(path("notes"));
  write("notes/validation.npy", "notes");
  EXPECT_THROW(convert_mlperf(path("train.parquet"), path("valid.parquet"), path("notes")), ConfigError);
  EXPECT_EQ(slurp("notes/validation.npy"), "notes");
}

}  // namespace
}  // namespace trireme
