#include "trireme/formats/numpy/npy.h"

#include "../base/base_testing.h"

#include <numeric>

namespace trireme {
namespace {

using Npy = DirectoryTest;

std::string npy(const std::string& dict, const std::string& data, int major = 1) {
  std::string header = dict + "\n";
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  const auto length = static_cast<uint32_t>(header.size());
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) file += static_cast<char>(length >> (8 * i) & 0xFF);
  return file + header + data;
}

std::string dict(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

void open(const std::filesystem::path& path) {
  MappedFile file(path, ExitCode::kData);
  const NpyHeader header = parse_npy_header(file.bytes(), path);
  if (header.descr == "|O")
    NpyPackedRecords(std::move(file), header);
  else
    NpyIntegerArray(std::move(file), header);
}

TEST_F(Npy, EveryIntegerTypeAndByteOrderReadsTheSame) {
  for (const std::string descr :
       {"|i1", "|u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8"}) {
    const int size = descr[2] - '0';
    for (const bool fortran : {false, true}) {
      const int64_t values[2][3] = {{1, 2, 3}, {100, 101, 102}};
      std::string data;
      for (int i = 0; i < 6; ++i) {
        const int64_t value = fortran ? values[i % 2][i / 2] : values[i / 3][i % 3];
        for (int b = 0; b < size; ++b)
          data += static_cast<char>(value >> (8 * (descr[0] == '>' ? size - 1 - b : b)) & 0xFF);
      }
      for (const int major : {1, 2, 3}) {
        const auto path = write("a.npy", npy(dict(descr, "(2, 3)", fortran ? "True" : "False"), data, major));
        MappedFile file(path, ExitCode::kData);
        const NpyHeader header = parse_npy_header(file.bytes(), path);
        const NpyIntegerArray array(std::move(file), header);
        std::vector<int64_t> row(3);
        for (int64_t r = 0; r < 2; ++r) {
          array.read_row(r, row);
          EXPECT_EQ(row, (std::vector<int64_t>{values[r][0], values[r][1], values[r][2]}))
              << descr << " fortran " << fortran;
        }
      }
    }
  }
}

TEST_F(Npy, NegativeAndHugeValuesKeepTheirMeaning) {
  const auto path = write("a.npy", npy(dict("<i2", "(1, 1)"), std::string("\xFE\xFF", 2)));
  MappedFile file(path, ExitCode::kData);
  const NpyHeader header = parse_npy_header(file.bytes(), path);
  std::vector<int64_t> row(1);
  NpyIntegerArray(std::move(file), header).read_row(0, row);
  EXPECT_EQ(row[0], -2);
  const auto huge = write("b.npy", npy(dict("<u8", "(1, 1)"), std::string(8, '\xFF')));
  MappedFile second(huge, ExitCode::kData);
  const NpyHeader second_header = parse_npy_header(second.bytes(), huge);
  const NpyIntegerArray array(std::move(second), second_header);
  EXPECT_TRUE(contains(failure(ExitCode::kData, [&] { array.read_row(0, row); }), "row 0, column 0"));
}

struct BadFile {
  const char* name;
  std::string content, expected;
};

TEST_F(Npy, DamagedFilesAreRefusedWithTheirReason) {
  const std::string four(4, '\1');
  const BadFile cases[] = {
      {"empty", "", "does not start with"},
      {"short magic", "\x93NUM", "does not start with"},
      {"text", "hello world, this is text", "does not start with"},
      {"version", npy(dict("<i4", "(1, 1)"), four, 1).replace(6, 1, "\x07"), "version 7"},
      {"header past the end", std::string("\x93NUMPY\x01\x00\xFF\xFF{", 11), "header should have 65535 bytes"},
      {"v2 header past the end", std::string("\x93NUMPY\x02\x00\xFF\xFF\xFF\x7F{", 13), "header should have"},
      {"no dict", npy("[1, 2]", four), "expected '{'"},
      {"missing key", npy("{'descr': '<i4', 'shape': (1, 1), }", four), "missing"},
      {"repeated key", npy("{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (1, 1), }", four),
       "repeated key 'descr'"},
      {"float", npy(dict("<f4", "(1, 1)"), four), "elements of type '<f4'"},
      {"structured", npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1, 1), }", four), "structured"},
      {"one dimension", npy(dict("<i4", "(1,)"), four), "two-dimensional"},
      {"negative extent", npy(dict("<i4", "(-1, 1)"), four), "non-negative integer"},
      {"overflowing extent", npy(dict("<i4", "(99999999999999999999, 1)"), four), "overflows"},
      {"overflowing product", npy(dict("<i4", "(4611686018427387904, 4)"), four), "overflows"},
      {"cut off", npy(dict("<i4", "(2, 1)"), four), "is truncated"},
      {"trailing", npy(dict("<i4", "(1, 1)"), four + "x"), "trailing bytes"},
      {"text after dict", npy(dict("<i4", "(1, 1)") + " import os", four), "text after the dict"},
  };
  for (const BadFile& bad : cases) {
    SCOPED_TRACE(bad.name);
    const auto path = write("bad.npy", bad.content);
    const std::string message = failure(ExitCode::kData, [&] { open(path); });
    EXPECT_TRUE(contains(message, bad.expected));
    EXPECT_TRUE(contains(message, "bad.npy"));
  }
}

PackedRecord record(int64_t length, int32_t first) {
  PackedRecord made;
  made.input_ids.resize(static_cast<size_t>(length));
  std::iota(made.input_ids.begin(), made.input_ids.end(), first);
  for (int64_t i = 0; i < length; ++i) made.loss_mask.push_back(i % 3 != 0);
  made.seq_start_id = {0, static_cast<int32_t>(length / 2)};
  return made;
}

TEST_F(Npy, RecordsComeBackAsWritten) {
  for (const int64_t count : {1, 2, 999, 1000, 1001, 2001}) {
    const auto path = root_ / "records.npy";
    NpyPackedRecordWriter writer(path, count);
    for (int64_t i = 0; i < count; ++i) writer.append(record(i % 7 == 0 ? 2002 : 5, static_cast<int32_t>(i)));
    writer.commit();
    MappedFile file(path, ExitCode::kData);
    const NpyHeader header = parse_npy_header(file.bytes(), path);
    const NpyPackedRecords records(std::move(file), header);
    ASSERT_EQ(records.size(), count);
    for (const int64_t i : {int64_t{0}, count / 2, count - 1}) {
      const PackedRecord expected = record(i % 7 == 0 ? 2002 : 5, static_cast<int32_t>(i)), read = records.read(i);
      EXPECT_EQ(read.input_ids, expected.input_ids);
      EXPECT_EQ(read.loss_mask, expected.loss_mask);
      EXPECT_EQ(read.seq_start_id, expected.seq_start_id);
    }
  }
}

// The shortest rows as NumPy 2 pickles them (protocol 4, everything memoized): the most values per byte.
TEST_F(Npy, ManyRecordsOfTwoTokensAreNoBomb) {
  constexpr int kCount = 60'000;
  const auto text = [](const std::string& value) {
    return "\x8c" + std::string(1, static_cast<char>(value.size())) + value;
  };
  const std::string zero(1, '\0');
  std::string body =
      "\x80\x04"
      "cnumpy._core.multiarray\n_reconstruct\nq" +
      zero +
      "0cnumpy\nndarray\nq\1"
      "0cnumpy\ndtype\n" +
      text("i4") +
      "\x89\x88\x87Rq\2"
      "0" +
      text("input_ids") +
      "q\3"
      "0" +
      text("loss_mask") +
      "q\4"
      "0" +
      text("seq_start_id") +
      "q\5"
      "0";
  const std::string record = "}\x94(h\3h" + zero + "h\1K" + zero +
                             "\x85\x94"
                             "C\1b\x94\x87\x94R\x94(K\1K\2\x85\x94h\2\x89"
                             "C\x8" +
                             std::string("\7\0\0\0\5\0\0\0", 8) +
                             "\x94t\x94"
                             "bh\4]\x94(K\1K\1eh\5]\x94K" +
                             zero + "au";
  body += "h" + zero + "h\1K" + zero +
          "\x85"
          "C\1b\x87R(K\1J" +
          std::string("\x60\xEA\0\0", 4) +
          "\x85"
          "cnumpy\ndtype\n" +
          text("O8") + "\x89\x88\x87R\x89](";
  for (int i = 0; i < kCount; ++i) body += record;
  body += "etb.";
  const auto path = write("many.npy", npy(dict("|O", "(60000,)"), body));
  MappedFile file(path, ExitCode::kData);
  const NpyHeader header = parse_npy_header(file.bytes(), path);
  const NpyPackedRecords records(std::move(file), header);
  ASSERT_EQ(records.size(), kCount);
  EXPECT_EQ(records.read(kCount - 1).input_ids, (std::vector<int32_t>{7, 5}));
}

TEST_F(Npy, TheValidationFileHasThePublishedSize) {
  const auto path = root_ / "validation.npy";
  NpyPackedRecordWriter writer(path, 173);
  PackedRecord row;
  row.input_ids.assign(8192, 5);
  row.loss_mask.assign(8192, 1);
  row.seq_start_id = {0};
  for (int i = 0; i < 173; ++i) writer.append(row);
  writer.commit();
  EXPECT_EQ(std::filesystem::file_size(path), 8'521'136u);
}

TEST_F(Npy, EveryCutOfARecordFileIsRefused) {
  const auto path = root_ / "whole.npy";
  NpyPackedRecordWriter writer(path, 3);
  for (int i = 0; i < 3; ++i) writer.append(record(6, i));
  writer.commit();
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (size_t size = 0; size < whole.size(); ++size)
    failure(ExitCode::kData, [&] { open(write("cut.npy", whole.substr(0, size))); });
  failure(ExitCode::kData, [&] { open(write("cut.npy", whole + "x")); });
}

TEST_F(Npy, FlippedBytesNeverDoMoreThanBeRefused) {
  const auto path = root_ / "whole.npy";
  NpyPackedRecordWriter writer(path, 2);
  for (int i = 0; i < 2; ++i) writer.append(record(6, i));
  writer.commit();
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char mask : {'\x01', '\x80', '\xFF'}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      const auto bad = write("flipped.npy", damaged);
      try {
        MappedFile file(bad, ExitCode::kData);
        const NpyHeader header = parse_npy_header(file.bytes(), bad);
        if (header.descr != "|O") continue;
        const NpyPackedRecords records(std::move(file), header);
        for (int64_t i = 0; i < records.size(); ++i) (void)records.read(i);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
      }
    }
  }
}

TEST_F(Npy, APickleBombIsNamedAndNotExecuted) {
  const auto marker = root_ / "executed";
  const std::string command = "touch " + marker.string();
  for (const std::string& head : {std::string("\x80\x02"), std::string("\x80\x03"), std::string("\x80\x04")}) {
    std::string bomb = head + "cposix\nsystem\nX";
    const auto size = static_cast<uint32_t>(command.size());
    bomb.append(reinterpret_cast<const char*>(&size), 4);
    bomb += command + "\x85R.";
    const std::string message =
        failure(ExitCode::kData, [&] { open(write("bomb.npy", npy(dict("|O", "(1,)"), bomb))); });
    EXPECT_TRUE(contains(message, "posix.system"));
    EXPECT_TRUE(contains(message, "nothing was executed"));
    EXPECT_FALSE(std::filesystem::exists(marker));
  }
}

}  // namespace
}  // namespace trireme
