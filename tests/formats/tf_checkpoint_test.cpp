#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include "../base/base_testing.h"
#include "trireme/base/file.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>

namespace trireme {
namespace {

const std::filesystem::path kFixtures = std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/formats/fixtures_tensorflow";

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// A copy of the fixture with changed index or data.
class Changed : TemporaryDirectory {
 public:
  Changed(const std::string& index, const std::string& data) {
    write("model.ckpt-3.index", index);
    write("model.ckpt-3.data-00000-of-00001", data);
  }
  std::filesystem::path prefix() const { return root_ / "model.ckpt-3"; }
};

const std::string kIndex = read_text_file(kFixtures / "model.ckpt-3.index", ExitCode::kModel),
                  kData = read_text_file(kFixtures / "model.ckpt-3.data-00000-of-00001", ExitCode::kModel);

TEST(Crc32c, PublishedValues) {
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62a8ab43u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(TfCheckpoint, ReadsWhatTensorFlowWrote) {
  const TfCheckpoint checkpoint(kFixtures / "model.ckpt-3");
  const auto kernel = checkpoint.find("bert/pooler/dense/kernel");
  ASSERT_TRUE(kernel.has_value());
  EXPECT_EQ(kernel->dtype, DType::kF32);
  EXPECT_EQ(kernel->shape, (std::vector<int64_t>{3, 5}));
  const auto spans = checkpoint.read("bert/pooler/dense/kernel", 0, 15);
  ASSERT_EQ(spans.size(), 1u);
  ASSERT_EQ(spans[0].count, 15);
  for (int i = 0; i < 15; ++i) {
    float value;
    std::memcpy(&value, spans[0].data + 4 * i, 4);
    EXPECT_EQ(value, 0.5f * static_cast<float>(i) - 3) << i;
  }
  EXPECT_TRUE(checkpoint.find("bert/pooler/dense/kernel/adam_m").has_value());
  EXPECT_TRUE(checkpoint.find("global_step").has_value());
  EXPECT_TRUE(checkpoint.find("global_step")->shape.empty());
  EXPECT_FALSE(checkpoint.find("nothing").has_value());
  EXPECT_THROW(checkpoint.read("nothing", 0, 0), ModelError);
  // More names than one block holds, with shared prefixes.
  for (int layer = 0; layer < 150; ++layer)
    EXPECT_TRUE(
        checkpoint.find("bert/encoder/layer_" + std::to_string(layer) + "/attention/self/query/bias").has_value())
        << layer;
}

TEST(TfCheckpoint, DamageIsNamed) {
  EXPECT_THROW(TfCheckpoint(kFixtures / "absent"), Error);
  std::string data = kData;
  data[data.size() / 2] = static_cast<char>(data[data.size() / 2] ^ 1);
  {
    const Changed changed(kIndex, data);
    const TfCheckpoint checkpoint(changed.prefix());
    int failed = 0;
    for (const std::string& name : checkpoint.names()) {
      const std::string message = message_of<ModelError>([&] { checkpoint.read(name, 0, 0); });
      if (message.empty()) continue;
      ++failed;
      EXPECT_TRUE(contains(message, name));
    }
    EXPECT_EQ(failed, 1);
  }
  const Changed short_data(kIndex, kData.substr(0, kData.size() - 1));
  EXPECT_THROW(TfCheckpoint(short_data.prefix()), ModelError);
}

TEST(TfCheckpoint, EveryFlippedByteOfTheIndexIsAnErrorOrHarmless) {
  // Blocks have checksums. In the footer only changes of the padding and of the metaindex handle have no effect.
  size_t accepted = 0;
  for (size_t at = 0; at < kIndex.size(); ++at) {
    std::string index = kIndex;
    index[at] = static_cast<char>(index[at] ^ 0x10);
    const Changed changed(index, kData);
    try {
      const TfCheckpoint checkpoint(changed.prefix());
      ++accepted;
      EXPECT_GT(at + 100, kIndex.size()) << "byte " << at;
    } catch (const ModelError&) {
    }
  }
  EXPECT_LT(accepted, 100u);
}

TEST(TfCheckpoint, EveryLengthOfTheIndexIsRefused) {
  for (size_t length = 0; length < kIndex.size(); length += 7) {
    const Changed changed(kIndex.substr(0, length), kData);
    EXPECT_THROW(TfCheckpoint(changed.prefix()), ModelError) << length;
  }
}

/// A table with one block of the given entries, which its index names once or more, with correct checksums.
class TableMaker {
 public:
  void add(const std::string& key, const std::string& value) {
    entries_ += varint(0) + varint(key.size()) + varint(value.size()) + key + value;
  }
  std::string finish(char type = 0, int names = 1) const {
    std::string table;
    const std::string handle = append(table, entries_, type);
    std::string index;
    for (int i = 0; i < names; ++i)
      index += varint(0) + varint(1) + varint(handle.size()) + static_cast<char>('z' + i) + handle;
    const std::string properties = append(table, "", 0), top = append(table, index, 0);
    std::string footer = properties + top;
    footer.resize(40);
    return table + footer + fixed(0xdb4775248b80fb57, 8);
  }
  static std::string varint(uint64_t value) {
    std::string text;
    for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
    return text + static_cast<char>(value);
  }
  static std::string fixed(uint64_t value, int size) {
    std::string text;
    for (int i = 0; i < size; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  }
  static std::string number(int field, uint64_t value) {
    return varint(static_cast<uint64_t>(field) << 3) + varint(value);
  }
  static std::string message(int field, const std::string& content) {
    return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(content.size()) + content;
  }

 private:
  static std::string append(std::string& table, const std::string& entries, char type) {
    std::string block = entries + fixed(0, 4) + fixed(1, 4);
    const std::string handle = varint(table.size()) + varint(block.size());
    block += type;
    table += block + fixed(masked_crc32c(bytes_of(block)), 4);
    return handle;
  }
  std::string entries_;
};

using T = TableMaker;

std::string refusal(const TableMaker& table, const std::string& data = std::string(16, '\0'), char type = 0) {
  const Changed changed(table.finish(type), data);
  return message_of<ModelError>([&] {
    const TfCheckpoint checkpoint(changed.prefix());
    for (const std::string& name : checkpoint.names()) checkpoint.read(name, 0, 0);
  });
}

std::string entry(uint64_t dtype, const std::vector<uint64_t>& shape, uint64_t offset, uint64_t size, uint32_t crc) {
  std::string dims;
  for (const uint64_t extent : shape) dims += T::message(2, T::number(1, extent));
  return T::number(1, dtype) + T::message(2, dims) + T::number(4, offset) + T::number(5, size) + T::varint(6 << 3 | 5) +
         T::fixed(crc, 4);
}

TEST(TfCheckpoint, HostileTables) {
  const std::string header = T::number(1, 1);
  const std::string zeros(16, '\0');
  const uint32_t crc = masked_crc32c(bytes_of(zeros));
  {
    TableMaker table;
    table.add("", header);
    table.add("a", entry(1, {2, 2}, 0, 16, crc));
    EXPECT_EQ(refusal(table), "");
    EXPECT_TRUE(contains(refusal(table, zeros, 1), "snappy"));
  }
  const auto one = [&](const std::string& value) {
    TableMaker table;
    table.add("", header);
    table.add("a", value);
    return refusal(table);
  };
  EXPECT_TRUE(contains(one(entry(1, {2, 3}, 0, 16, crc)), "its shape asks for 24"));
  EXPECT_TRUE(contains(one(entry(1, {2, 2}, 8, 16, crc)), "truncated"));
  EXPECT_TRUE(contains(one(entry(1, {2, 2}, ~0ull, 16, crc)), "truncated"));
  EXPECT_TRUE(contains(one(entry(1, {~0ull >> 1, ~0ull >> 1}, 0, 16, crc)), "no tensor has this shape"));
  EXPECT_TRUE(contains(one(entry(1, {~0ull}, 0, 16, crc)), "no tensor has this shape"));
  EXPECT_TRUE(contains(one(entry(1, std::vector<uint64_t>(40, 1), 0, 16, crc)), "no tensor has this shape"));
  EXPECT_TRUE(contains(one(entry(1, {2, 2}, 0, 16, crc + 1)), "checksum"));
  EXPECT_TRUE(contains(one(entry(1, {2, 2}, 0, 16, crc) + T::number(3, 7)), "data file 7 of 1"));
  EXPECT_TRUE(contains(one(entry(1, {2, 2}, 0, 16, crc) + T::message(7, "")), "slices"));
  EXPECT_TRUE(contains(one("\xff"), "damaged"));
  EXPECT_TRUE(contains(one(std::string(20, '\xff')), "damaged"));
  EXPECT_EQ(one(entry(7, {2, 2}, 0, 999, crc)), "") << "strings are not weights and are skipped";
  {
    TableMaker table;
    table.add("", T::number(1, 1) + T::number(2, 1));
    EXPECT_TRUE(contains(refusal(table), "big-endian"));
  }
  {
    TableMaker table;
    table.add("", T::number(1, 1u << 30));
    EXPECT_TRUE(contains(refusal(table), "data files"));
  }
  {
    TableMaker table;
    table.add("a", entry(1, {2, 2}, 0, 16, crc));
    EXPECT_TRUE(contains(refusal(table), "no header"));
  }
  {
    TableMaker table;
    table.add("", header);
    table.add("b", entry(1, {2, 2}, 0, 16, crc));
    table.add("a", entry(1, {2, 2}, 0, 16, crc));
    EXPECT_TRUE(contains(refusal(table), "ascend"));
  }
  {
    const Changed changed(TableMaker().finish(0, /*names=*/100), "");
    EXPECT_TRUE(contains(message_of<ModelError>([&] { TfCheckpoint(changed.prefix()); }), "blocks overlap"));
  }
}

}  // namespace
}  // namespace trireme
