#include "trireme/formats/huggingface/safetensors.h"

#include "../base/base_testing.h"

#include <cstring>
#include <set>

namespace trireme {
namespace {

using Safetensors = DirectoryTest;

std::string with_header(const std::string& header, const std::string& data, uint64_t length = UINT64_MAX) {
  if (length == UINT64_MAX) length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

TEST_F(Safetensors, WhatIsWrittenIsRead) {
  const auto path = root_ / "a.safetensors";
  SafetensorsWriter writer(
      path, {{"b", {DType::kF32, {2, 2}}}, {"empty", {DType::kBF16, {0, 3}}}, {"scalar", {DType::kI64, {}}}});
  const float values[4] = {1, 2, 3, 4};
  const int64_t scalar = 77;
  writer.append(values, 8);  // in two pieces
  writer.append(values + 2, 8);
  writer.append(&scalar, 8);
  EXPECT_FALSE(std::filesystem::exists(path)) << "the file must not appear before commit";
  writer.commit();
  const SafetensorsFile file(path);
  ASSERT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(std::memcmp(file.bytes(file.entries().at("b")).data(), values, 16), 0);
  EXPECT_EQ(file.entries().at("empty").info.shape, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

// The file begins with the header's length, which can be the first bytes of a pickle, a zip archive or anything else.
TEST_F(Safetensors, EveryLengthOfTheHeaderIsRead) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const auto check = [&](uint64_t length) {
    std::string file = with_header(header, "", length);
    file.resize(8 + length, ' ');
    ASSERT_EQ(SafetensorsFile(write("a.safetensors", file + "1234")).entries().size(), 1u) << length;
  };
  for (uint64_t length = header.size(); length < 1500; ++length) check(length);  // 0x0280 to 0x0580 begin a pickle
  for (uint64_t length = 0; length <= 0xFFFF; length += 128) check((1 << 16) + length);
}

// A writer's file is read by the same program: a run could never save otherwise.
TEST_F(Safetensors, WhatIsWrittenIsReadWhateverItsSize) {
  const auto path = root_ / "a.safetensors";
  std::set<uint64_t> lengths;
  for (size_t name = 1; name <= 1500; name += 8) {
    SafetensorsWriter writer(path, {{std::string(name, 'n'), {DType::kF32, {1}}}});
    writer.append("1234", 4);
    writer.commit();
    ASSERT_NO_THROW((void)SafetensorsFile(path)) << "a name of " << name;
    lengths.insert(std::filesystem::file_size(path) - 12);
  }
  for (const uint64_t pickle : {640, 896, 1152, 1408}) EXPECT_TRUE(lengths.contains(pickle)) << pickle;
}

TEST_F(Safetensors, AnUnfinishedWriterLeavesNothing) {
  {
    SafetensorsWriter writer(root_ / "a.safetensors", {{"b", {DType::kF32, {2}}}});
    writer.append("1234", 4);
    EXPECT_THROW(writer.commit(), InternalError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

struct BadTensorFile {
  const char* name;
  std::string content, expected;
};

TEST_F(Safetensors, DamagedFilesAreRefusedWithTheirReason) {
  const std::string ok = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100000; ++i) deep += '[';
  const BadTensorFile cases[] = {
      {"empty", "", "it has 0 bytes"},
      {"seven bytes", "1234567", "it has 7 bytes"},
      {"header too long", with_header(ok, "1234", 200'000'000), "at most 100000000"},
      {"header past the end", with_header(ok, "1234", 5000), "truncated"},
      {"no brace", with_header("[]" + ok, "1234"), "does not start with '{'"},
      {"no JSON", with_header("{\"a\": ", ""), "not valid JSON"},
      {"not UTF-8", with_header("{\"\xFF\xFE\": 1}", ""), "UTF-8"},
      {"deep", with_header(deep, ""), "nested deeper"},
      {"duplicate",
       with_header(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
           "1234"),
       "appears twice"},
      {"unknown dtype", with_header(R"({"a":{"dtype":"F3","shape":[1],"data_offsets":[0,4]}})", "1234"), "'F3'"},
      {"shape and bytes", with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234"),
       "takes 8 bytes"},
      {"shape overflow",
       with_header(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", "1234"),
       "overflows"},
      {"negative extent", with_header(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234"),
       "extent -1"},
      {"reversed offsets", with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234"),
       "before it begins"},
      {"hole", with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678"), "leave a gap"},
      {"overlap",
       with_header(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
           "123456"),
       "overlap"},
      {"short data", with_header(ok, "123"), "truncated"},
      {"trailing data", with_header(ok, "12345"), "trailing bytes"},
      {"metadata", with_header(R"({"__metadata__":{"a":1}})", ""), "not a string"},
      {"entry", with_header(R"({"a":5})", ""), "lacks dtype"},
  };
  for (const BadTensorFile& bad : cases) {
    SCOPED_TRACE(bad.name);
    const auto path = write("bad.safetensors", bad.content);
    const std::string message = failure(ExitCode::kModel, [&] { SafetensorsFile file(path); });
    EXPECT_TRUE(contains(message, bad.expected));
    EXPECT_TRUE(contains(message, "bad.safetensors"));
  }
}

TEST_F(Safetensors, IndexesAreCheckedAgainstTheirShards) {
  const auto tensor_file = [&](const std::string& name, const std::string& tensor) {
    SafetensorsWriter writer(root_ / name, {{tensor, {DType::kF32, {1}}}});
    writer.append("1234", 4);
    writer.commit();
  };
  tensor_file("one.safetensors", "a");
  tensor_file("two.safetensors", "b");
  const auto index = [&](const std::string& map) {
    write("model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  };
  index(R"("a": "one.safetensors", "b": "two.safetensors")");
  const auto source = open_weights(root_);
  EXPECT_EQ(source->names(), (std::vector<std::string>{"a", "b"}));
  index(R"("a": "one.safetensors", "c": "two.safetensors")");
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { open_weights(root_); }), "tensor c is not in two.safetensors"));
  index(R"("a": "three.safetensors")");
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { open_weights(root_); }), "three.safetensors is missing"));
  tensor_file("two.safetensors", "a");
  index(R"("a": "one.safetensors", "b": "two.safetensors")");
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { open_weights(root_); }), "two files"));
  for (const std::string name : {"../one.safetensors", "/etc/passwd", "sub/../../one.safetensors"}) {
    index("\"a\": \"" + name + "\"");
    EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { open_weights(root_); }), "refused"));
  }
}

TEST_F(Safetensors, PicklesAreRefusedByNameAndNotOpened) {
  write("pytorch_model.bin", "\x80\x02.");
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { open_weights(root_); }), "safe_serialization=True"));
  EXPECT_TRUE(contains(failure(ExitCode::kModel, [&] { open_weights(root_ / "nowhere"); }), "does not exist"));
}

TEST_F(Safetensors, ShardPlansFillFilesInOrder) {
  std::vector<std::pair<std::string, TensorInfo>> tensors;
  for (int i = 0; i < 5; ++i) tensors.emplace_back("t" + std::to_string(i), TensorInfo{DType::kF32, {100}});
  const ShardPlan plan = plan_safetensors_shards(tensors, 900);
  ASSERT_EQ(plan.files.size(), 3u);
  EXPECT_EQ(plan.files[0].first, "model-00001-of-00003.safetensors");
  EXPECT_EQ(plan.total_bytes, 2000);
  EXPECT_EQ(plan_safetensors_shards(tensors, 5000).files[0].first, "model.safetensors");
}

}  // namespace
}  // namespace trireme
