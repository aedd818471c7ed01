// Megatron's indexed files: written and read back in every type, merged, refused.
#include "trireme/base/error.h"
#include "trireme/formats/megatron/indexed_file.h"

#include "../base/base_testing.h"

#include <gtest/gtest.h>

#include <limits>

namespace trireme {
namespace {

class MegatronFiles : public DirectoryTest {
 protected:
  void write(const std::string& prefix, MegatronType type, const std::vector<std::vector<int32_t>>& documents) const {
    MegatronWriter writer(root_ / prefix, type);
    for (const auto& document : documents) writer.append(document);
    writer.commit();
  }
  static std::vector<int64_t> read(const MegatronFile& file, int64_t sequence) {
    std::vector<int64_t> ids;
    file.read(sequence, 0, file.length(sequence), ids);
    return ids;
  }
};

TEST_F(MegatronFiles, EveryTypeKeepsItsExtremes) {
  constexpr auto kMax = std::numeric_limits<int32_t>::max();
  const std::pair<MegatronType, std::pair<int32_t, int32_t>> types[] = {
      {MegatronType::kU8, {0, 255}},    {MegatronType::kI8, {-128, 127}},    {MegatronType::kI16, {-32768, 32767}},
      {MegatronType::kU16, {0, 65535}}, {MegatronType::kI32, {-kMax, kMax}}, {MegatronType::kI64, {-kMax, kMax}}};
  for (const auto& [type, range] : types) {
    SCOPED_TRACE(megatron_type_name(type));
    const auto [low, high] = range;
    write("file", type, {{low, high, 1}, {}, {high}});
    const MegatronFile file(root_ / "file");
    EXPECT_EQ(file.type(), type);
    EXPECT_EQ(file.sequences(), 3);
    EXPECT_EQ(file.documents(), 3);
    EXPECT_EQ(file.tokens(), 4);
    EXPECT_EQ(read(file, 0), (std::vector<int64_t>{low, high, 1}));
    EXPECT_TRUE(read(file, 1).empty());
    EXPECT_EQ(read(file, 2), std::vector<int64_t>{high});
    if (type == MegatronType::kI32 || type == MegatronType::kI64) continue;
    EXPECT_THROW(write("more", type, {{high + 1}}), DataError);
    EXPECT_THROW(write("more", type, {{low - 1}}), DataError);
    EXPECT_FALSE(std::filesystem::exists(root_ / "more.bin")) << "nothing of a file that failed";
  }
}

TEST_F(MegatronFiles, AWriteThatFailsLeavesNoIndexOfOtherTokens) {
  write("pair", MegatronType::kU16, {{1, 2}});
  std::filesystem::remove(root_ / "pair.bin");
  std::filesystem::create_directory(root_ / "pair.bin");
  EXPECT_THROW(write("pair", MegatronType::kU16, {{3}}), WriteError);
  EXPECT_FALSE(std::filesystem::exists(root_ / "pair.idx"));
}

TEST_F(MegatronFiles, TypeOfAVocabulary) {
  EXPECT_EQ(megatron_type_for(65499), MegatronType::kU16);
  EXPECT_EQ(megatron_type_for(65500), MegatronType::kI32);
}

TEST_F(MegatronFiles, MergedOnesAreAsIfWrittenTogether) {
  write("a", MegatronType::kU16, {{1, 2}, {3}});
  write("b", MegatronType::kU16, {{}, {4, 5, 6}});
  write("both", MegatronType::kU16, {{1, 2}, {3}, {}, {4, 5, 6}});
  MegatronWriter merged(root_ / "merged", MegatronType::kU16);
  merged.append(MegatronFile(root_ / "a"));
  merged.append(MegatronFile(root_ / "b.idx"));
  EXPECT_EQ(merged.documents(), 4);
  EXPECT_EQ(merged.tokens(), 6);
  merged.commit();
  for (const char* end : {".bin", ".idx"})
    EXPECT_EQ(read_text_file(root_ / (std::string("merged") + end), ExitCode::kData),
              read_text_file(root_ / (std::string("both") + end), ExitCode::kData));
  write("wide", MegatronType::kI32, {{1}});
  MegatronWriter other(root_ / "other", MegatronType::kU16);
  EXPECT_THROW(other.append(MegatronFile(root_ / "wide")), DataError);
}

TEST_F(MegatronFiles, WithoutAListOfDocumentsEachSequenceIsOne) {
  write("file", MegatronType::kU16, {{1, 2}, {3}});
  std::string index = read_text_file(root_ / "file.idx", ExitCode::kData);
  index[26] = 1;  // the number of boundaries
  index.resize(34 + 2 * 12 + 8);
  write_file_atomic(root_ / "file.idx", index);
  const MegatronFile file(root_ / "file");
  EXPECT_EQ(file.documents(), 2);
  EXPECT_EQ(file.boundary(1), 1);
  EXPECT_EQ(file.boundary(2), 2);
  MegatronWriter merged(root_ / "merged", MegatronType::kU16);
  merged.append(file);
  EXPECT_EQ(merged.documents(), 2);
}

TEST_F(MegatronFiles, PathsOfAPrefix) {
  write("name.with.dots", MegatronType::kU16, {{1}});
  EXPECT_EQ(megatron_index_path(root_ / "name.with.dots"), root_ / "name.with.dots.idx");
  EXPECT_EQ(megatron_index_path(root_ / "name.with.dots.idx"), root_ / "name.with.dots.idx");
  EXPECT_EQ(megatron_index_path(root_ / "name.with.dots.bin"), root_ / "name.with.dots.idx");
  EXPECT_FALSE(megatron_index_path(root_ / "name"));
  EXPECT_EQ(MegatronFile(root_ / "name.with.dots").prefix(), root_ / "name.with.dots");
  for (const char* name : {"name.with.dots", "name.with.dots.idx", "name.with.dots.bin"})
    EXPECT_EQ(MegatronFile(root_ / name).token_path(), root_ / "name.with.dots.bin");
  std::filesystem::remove(root_ / "name.with.dots.bin");
  EXPECT_TRUE(contains(failure(ExitCode::kData, [&] { MegatronFile file(root_ / "name.with.dots"); }),
                       "both files of the prefix"));
  for (const char* end : {".bin", ".idx"}) write(std::string("name.with.dots") + end, MegatronType::kU16, {{1}});
  EXPECT_EQ(megatron_index_path(root_ / "name.with.dots.bin"), root_ / "name.with.dots.bin.idx")
      << "a prefix that ends in .bin";
  EXPECT_FALSE(megatron_index_path(root_ / "name.bin"));
  write_file_atomic(root_ / "old.idx", std::string("TNTIDX\0\0", 8) + std::string(32, '\0'));
  write_file_atomic(root_ / "old.bin", "");
  for (const char* name : {"old", "old.idx", "old.bin"})
    EXPECT_EQ(megatron_index_path(root_ / name), root_ / "old.idx");
  EXPECT_TRUE(contains(failure(ExitCode::kData, [&] { MegatronFile file(root_ / "old"); }), "--dataset-impl mmap"));
  EXPECT_TRUE(contains(failure(ExitCode::kData, [&] { MegatronFile file(root_ / "absent.bin"); }), "/absent.idx"));
  EXPECT_TRUE(contains(failure(ExitCode::kData, [&] { MegatronFile file(root_ / "absent"); }), "absent.idx"));
}

}  // namespace
}  // namespace trireme
