#include "trireme/formats/hdf5/hdf5_tokens.h"

#include "../base/base_testing.h"

namespace trireme {
namespace {

using Hdf5 = DirectoryTest;

std::filesystem::path make(const std::filesystem::path& path, int rows) {
  Hdf5TokenWriter writer(path, 4, {.loss_mask = true, .seq_start_id = true});
  for (int row = 0; row < rows; ++row) {
    const std::vector<int32_t> ids = {row, row + 1, row + 2, row + 3}, starts = {0, 2};
    const std::vector<uint8_t> mask = {0, 1, 0, 1};
    writer.append(ids, mask, starts);
  }
  writer.commit();
  return path;
}

TEST_F(Hdf5, RowsComeBackAsWritten) {
  const Hdf5TokenFile file(make(root_ / "a.h5", 1500));
  EXPECT_EQ(file.rows(), 1500);
  EXPECT_EQ(file.columns(), 4);
  std::vector<int64_t> ids(4);
  std::vector<uint8_t> mask(4);
  file.read_row(1234, ids);
  file.read_loss_mask(1234, mask);
  EXPECT_EQ(ids, (std::vector<int64_t>{1234, 1235, 1236, 1237}));
  EXPECT_EQ(mask, (std::vector<uint8_t>{0, 1, 0, 1}));
  EXPECT_EQ(file.read_seq_start_id(1234), (std::vector<int64_t>{0, 2}));
}

TEST_F(Hdf5, AWriterThatIsNotCommittedLeavesNothing) {
  {
    Hdf5TokenWriter writer(root_ / "a.h5", 4, {});
  }
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(Hdf5, FlippedTokensAreNoticed) {
  const auto path = make(root_ / "a.h5", 8);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  // The chunk of tokens starts with row 0: 0 1 2 3 as 32-bit integers.
  const int32_t first[4] = {0, 1, 2, 3};
  const size_t at = whole.find(std::string(reinterpret_cast<const char*>(first), sizeof first));
  ASSERT_NE(at, std::string::npos);
  file.clear();
  file.seekp(static_cast<std::streamoff>(at + 5));
  file.put('\x40');
  file.close();
  const Hdf5TokenFile damaged(path);
  std::vector<int64_t> ids(4);
  EXPECT_TRUE(contains(failure(ExitCode::kData, [&] { damaged.read_row(0, ids); }), "row 0 cannot be read"));
}

TEST_F(Hdf5, CutAndForeignFilesAreRefused) {
  const auto path = make(root_ / "a.h5", 8);
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (const size_t size : {size_t{0}, size_t{8}, size_t{100}, whole.size() / 2, whole.size() - 1})
    EXPECT_TRUE(
        contains(failure(ExitCode::kData, [&] { Hdf5TokenFile(write("cut.h5", whole.substr(0, size))); }), "cut.h5"));
  EXPECT_TRUE(contains(failure(ExitCode::kData, [&] { Hdf5TokenFile(write("text.h5", "hello")); }),
                       "cannot be opened as HDF5"));
}

}  // namespace
}  // namespace trireme
