#include "data/prepare/bert_instance_file.h"

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"

#include <fmt/format.h>

#include <cstring>

namespace trireme {
namespace {

constexpr std::string_view kMagic = "TRIBERT1";

struct Header {
  char magic[8];
  uint64_t fingerprint, count;
  uint32_t seq_length, vocab_size;
};

}  // namespace

void write_bert_instances(const std::filesystem::path& path, const BertInstances& instances, int32_t vocab_size,
                          uint64_t fingerprint) {
  AtomicFile file(path);
  Header header{
      {}, fingerprint, instances.count, static_cast<uint32_t>(instances.seq_length), static_cast<uint32_t>(vocab_size)};
  std::memcpy(header.magic, kMagic.data(), sizeof header.magic);
  file.write(&header, sizeof header);
  std::vector<uint32_t> counts;
  for (const auto& ranks : instances.ranks) counts.push_back(static_cast<uint32_t>(ranks.size()));
  file.write(counts.data(), counts.size() * sizeof counts[0]);
  file.write(instances.masks.data(), instances.masks.size() * sizeof instances.masks[0]);
  const std::string padding((8 - file.size() % 8) % 8, '\0');
  file.write(padding);
  for (const auto& ranks : instances.ranks) file.write(ranks.data(), ranks.size() * sizeof(uint32_t));
  for (const auto& records : instances.records) file.write(records.data(), records.size() * sizeof(int16_t));
  file.commit();
}

BertInstanceFile::BertInstanceFile(const std::filesystem::path& path) : file_(path, ExitCode::kData) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}: {}: make it again with trireme data bert instances", path.string(), what));
  };
  const std::span<const std::byte> bytes = file_.bytes();
  if (bytes.size() < sizeof(Header)) fail("not a file of BERT instances");
  const auto header = value_at<Header>(bytes.data());
  if (std::string_view(header.magic, sizeof header.magic) != kMagic) fail("not a file of BERT instances");
  if (header.seq_length < 4 || header.seq_length > 32767 || header.vocab_size == 0 || header.vocab_size > 32767)
    fail(fmt::format("damaged: sequence length {}, vocabulary {}", header.seq_length, header.vocab_size));
  fingerprint_ = header.fingerprint;
  count_ = static_cast<int64_t>(header.count);
  seq_length_ = static_cast<int>(header.seq_length);
  vocab_size_ = static_cast<int32_t>(header.vocab_size);
  const size_t lengths = header.seq_length + size_t{1};
  const size_t masks_at = sizeof header + lengths * 4;
  ranks_offset_ = round_up(masks_at + lengths * 2, 8);
  if (bytes.size() < ranks_offset_) fail("truncated");
  counts_.resize(lengths);
  masks_.resize(lengths);
  std::memcpy(counts_.data(), bytes.data() + sizeof header, lengths * 4);
  std::memcpy(masks_.data(), bytes.data() + masks_at, lengths * 2);
  uint64_t total = 0;
  for (const uint32_t count : counts_) total += count;
  if (total != header.count || total > bytes.size())
    fail(fmt::format("damaged: {} instances by length, {} in all", total, header.count));
  record_offsets_.push_back(ranks_offset_ + total * 4);
  for (size_t length = 0; length < lengths; ++length) {
    if (counts_[length] > 0 && (length < 5 || masks_[length] == 0 || masks_[length] > length - 3))
      fail(fmt::format("damaged: {} masked tokens in {}", masks_[length], length));
    record_offsets_.push_back(record_offsets_.back() +
                              counts_[length] * bert_record_size(static_cast<int>(length), masks_[length]) * 2);
  }
  if (record_offsets_.back() != bytes.size())
    fail(fmt::format("truncated or damaged: {} bytes where {} are expected", bytes.size(), record_offsets_.back()));
}

BertInstance BertInstanceFile::get(int length, int64_t k) const {
  TRIREME_CHECK(length > 0 && length <= seq_length_ && k >= 0 && k < count(length), "instance ", k, " of length ",
                length);
  const size_t size = bert_record_size(length, masks(length)) * 2;
  // Records begin at multiples of 2 bytes of a mapped page.
  const auto* record = reinterpret_cast<const int16_t*>(
      file_.bytes().data() + record_offsets_[static_cast<size_t>(length)] + static_cast<size_t>(k) * size);
  const BertInstance instance = bert_record(record, length, masks(length));
  const auto fail = [&](const std::string& what) {
    throw DataError(
        fmt::format("{}: instance {} of length {}: {}: the file is damaged", path().string(), k, length, what));
  };
  for (const std::span<const int16_t> ids : {instance.input_ids, instance.masked_ids})
    for (const int16_t id : ids)
      if (id < 0 || id >= vocab_size_) fail(fmt::format("token id {}", id));
  if (instance.first_length < 3 || instance.first_length > length - 2)
    fail(fmt::format("{} tokens in segment 0", instance.first_length));
  if (instance.random_next != 0 && instance.random_next != 1) fail(fmt::format("label {}", instance.random_next));
  int last = 0;
  for (const int16_t position : instance.masked_positions) {
    if (position <= last || position >= length) fail(fmt::format("masked position {}", position));
    last = position;
  }
  return instance;
}

std::vector<BertInstanceFile::Place> BertInstanceFile::order() const {
  std::vector<Place> places(static_cast<size_t>(count_), Place{0, 0});
  size_t at = ranks_offset_;
  for (int length = 0; length <= seq_length_; ++length) {
    for (uint32_t k = 0; k < count(length); ++k, at += 4) {
      const auto rank = value_at<uint32_t>(file_.bytes().data() + at);
      if (rank >= places.size() || places[rank].length != 0)
        throw DataError(
            fmt::format("{}: the order of the instances is damaged at {}: make the file again", path().string(), at));
      places[rank] = {static_cast<uint16_t>(length), k};
    }
  }
  return places;
}

}  // namespace trireme
