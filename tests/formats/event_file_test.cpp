// TensorBoard's event files, read back with a decoder of this test: framing, checksums, fields, and what happens where
// there is no room. tests/train/tensorboard_test.py reads them with TensorBoard's own reader.
#include "trireme/formats/tensorboard/event_file.h"
#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include "../base/base_testing.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <span>
#include <sstream>

namespace trireme {
namespace {

/// Fields of a message in their order: integers and fixed ones as bits, messages and strings as bytes.
struct Field {
  uint32_t number = 0;
  uint64_t bits = 0;
  std::string bytes;
};

uint64_t varint(std::string_view& data) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(data.at(0));
    data.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

std::vector<Field> fields(std::string_view data) {
  std::vector<Field> found;
  while (!data.empty()) {
    const uint64_t key = varint(data);
    Field field{static_cast<uint32_t>(key >> 3), 0, ""};
    if (const uint64_t wire = key & 7; wire == 0) {
      field.bits = varint(data);
    } else {
      const size_t size = wire == 1 ? 8 : wire == 5 ? 4 : varint(data);
      field.bytes = data.substr(0, size);
      if (wire != 2) std::memcpy(&field.bits, field.bytes.data(), size);
      data.remove_prefix(size);
    }
    found.push_back(field);
  }
  return found;
}

/// The field of that number; the test fails where there is not exactly one.
Field one(const std::vector<Field>& all, uint32_t number) {
  std::vector<Field> found;
  for (const Field& field : all)
    if (field.number == number) found.push_back(field);
  EXPECT_EQ(found.size(), 1U) << "field " << number;
  return found.empty() ? Field{} : found.front();
}

template <class T>
T as(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// The payloads of a file, whose framing is checked.
std::vector<std::string> payloads(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream content;
  content << in.rdbuf();
  const std::string bytes = content.str();
  std::vector<std::string> found;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t size = 0;
    uint32_t crc = 0;
    if (at + 12 > bytes.size()) {
      ADD_FAILURE() << "a record's head is cut off";
      break;
    }
    std::memcpy(&size, bytes.data() + at, 8);
    std::memcpy(&crc, bytes.data() + at + 8, 4);
    EXPECT_EQ(crc, masked_crc32c(std::as_bytes(std::span(bytes.data() + at, 8))));
    if (at + 16 + size > bytes.size()) {
      ADD_FAILURE() << "a record is cut off";
      break;
    }
    std::memcpy(&crc, bytes.data() + at + 12 + size, 4);
    EXPECT_EQ(crc, masked_crc32c(std::as_bytes(std::span(bytes.data() + at + 12, size))));
    found.push_back(bytes.substr(at + 12, size));
    at += 16 + size;
  }
  return found;
}

class EventFileTest : public DirectoryTest {};

TEST(EventRecord, OfKnownBytes) {
  // CRC-32C of "123456789" is e3069283.
  const std::string record = tfrecord("123456789");
  ASSERT_EQ(record.size(), 8U + 4 + 9 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x09\0\0\0\0\0\0\0", 8));
  uint32_t crc = 0;
  std::memcpy(&crc, record.data() + 21, 4);
  const uint32_t plain = 0xe3069283;
  EXPECT_EQ(crc, (plain >> 15 | plain << 17) + 0xa282ead8);
}

TEST_F(EventFileTest, ScalarsTextAndRestart) {
  double now = 1.6e9;
  std::filesystem::path path;
  {
    EventFile file(root_ / "tensorboard", [&] { return now; });
    file.restart(5);
    EXPECT_TRUE(file.path().filename().string().starts_with("events.out.tfevents.1600000000."));
    now += 0.25;
    file.scalars(5, {{"loss", 2.5}, {"lr", 1e-4}});
    EXPECT_EQ(payloads(file.path()).size(), 2U) << "events wait for the next flush";
    now += EventFile::kFlushSeconds;
    file.scalars(300, {{"loss", std::numeric_limits<double>::infinity()}});
    EXPECT_EQ(payloads(file.path()).size(), 4U) << "the time since the last flush has passed";
    file.text(0, "config", "    a: 1\n");
    path = file.path();
  }
  const auto events = payloads(path);
  ASSERT_EQ(events.size(), 5U) << "the end writes what is left";

  const auto version = fields(events[0]);
  EXPECT_EQ(as<double>(one(version, 1).bits), 1.6e9);
  EXPECT_EQ(one(version, 3).bytes, "brain.Event:2");

  const auto restart = fields(events[1]);
  EXPECT_EQ(one(restart, 2).bits, 5U);
  EXPECT_EQ(one(fields(one(restart, 7).bytes), 1).bits, 1U) << "SessionLog.START";

  const auto scalars = fields(events[2]);
  EXPECT_EQ(as<double>(one(scalars, 1).bits), 1.6e9 + 0.25);
  EXPECT_EQ(one(scalars, 2).bits, 5U);
  const auto values = fields(one(scalars, 5).bytes);
  ASSERT_EQ(values.size(), 2U);
  EXPECT_EQ(one(fields(values[0].bytes), 1).bytes, "loss");
  EXPECT_EQ(as<float>(one(fields(values[0].bytes), 2).bits), 2.5F);
  EXPECT_EQ(one(fields(values[1].bytes), 1).bytes, "lr");
  EXPECT_EQ(as<float>(one(fields(values[1].bytes), 2).bits), 1e-4F);

  const auto infinite = fields(fields(one(fields(events[3]), 5).bytes).at(0).bytes);
  EXPECT_EQ(as<float>(one(infinite, 2).bits), std::numeric_limits<float>::infinity());
  EXPECT_EQ(one(fields(events[3]), 2).bits, 300U);

  const auto text = fields(one(fields(one(fields(events[4]), 5).bytes), 1).bytes);
  EXPECT_EQ(one(text, 1).bytes, "config");
  const auto tensor = fields(one(text, 8).bytes);
  EXPECT_EQ(one(tensor, 1).bits, 7U) << "DT_STRING";
  EXPECT_EQ(one(fields(one(fields(one(tensor, 2).bytes), 2).bytes), 1).bits, 1U) << "one element";
  EXPECT_EQ(one(tensor, 8).bytes, "    a: 1\n");
  EXPECT_EQ(one(fields(one(fields(one(text, 9).bytes), 1).bytes), 1).bytes, "text") << "the plugin";
}

TEST(EventRecord, TwoFilesOfOneSecondHaveTwoNames) { EXPECT_NE(event_file_name(1.6e9), event_file_name(1.6e9)); }

TEST_F(EventFileTest, NoRoomEndsNothingAndLosesNothing) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const auto limit = [&](rlim_t bytes) {
    const rlimit now{bytes, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
  };
  std::filesystem::path path;
  {
    EventFile file(root_, [] { return 1.6e9; }, /*flush_seconds=*/0);
    file.scalars(1, {{"loss", 1}});
    path = file.path();
    limit(std::filesystem::file_size(path) + 10);  // a part of the next event
    file.scalars(2, {{"loss", 2}});
    file.scalars(3, {{"loss", 3}});
    EXPECT_EQ(payloads(path).size(), 2U) << "no part of an event is in the file";
    limit(before.rlim_cur);
    file.scalars(4, {{"loss", 4}});
    EXPECT_EQ(payloads(path).size(), 5U);
  }
  // A file in place of the folder: nothing is written, nothing is thrown.
  std::ofstream(root_ / "file") << "x";
  EventFile none(root_ / "file");
  none.scalars(1, {{"loss", 1}});
  none.flush();
  EXPECT_TRUE(none.path().empty());
}

}  // namespace
}  // namespace trireme
