#include "megatron_types.h"
#include "trireme/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace trireme {

static_assert(std::endian::native == std::endian::little, "Megatron's files are little-endian");

namespace {

constexpr size_t kWriteBuffer = size_t{1} << 20;

template <class T>
void narrow(std::span<const int32_t> tokens, std::vector<std::byte>& out) {
  const size_t before = out.size();
  out.resize(before + tokens.size() * sizeof(T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const T value = static_cast<T>(tokens[i]);
    std::memcpy(out.data() + before + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

MegatronWriter::MegatronWriter(const std::filesystem::path& prefix, MegatronType type)
    : prefix_(prefix),
      type_(type),
      item_size_(megatron_type_info(type).size),
      tokens_(std::make_unique<AtomicFile>(prefix.string() + ".bin")) {
  TRIREME_CHECK(megatron_type_info(type).is_integer, "type ", static_cast<int>(type), " of tokens");
}

MegatronWriter::~MegatronWriter() = default;

void MegatronWriter::append(std::span<const int32_t> tokens) {
  const MegatronTypeInfo info = megatron_type_info(type_);
  for (const int32_t id : tokens)
    if (id < info.min || id > info.max)
      throw DataError(fmt::format("{}.bin: token id {} of document {} is not a {}: choose a wider type",
                                  prefix_.string(), id, documents(), info.name));
  TRIREME_CHECK(tokens.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), "a document of ",
                tokens.size(), " tokens");
  switch (type_) {
    case MegatronType::kU8:
    case MegatronType::kI8: narrow<uint8_t>(tokens, buffer_); break;
    case MegatronType::kI16:
    case MegatronType::kU16: narrow<uint16_t>(tokens, buffer_); break;
    case MegatronType::kI32: narrow<int32_t>(tokens, buffer_); break;
    default: narrow<int64_t>(tokens, buffer_); break;
  }
  if (buffer_.size() >= kWriteBuffer) {
    tokens_->write(buffer_.data(), buffer_.size());
    buffer_.clear();
  }
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  boundaries_.push_back(static_cast<int64_t>(lengths_.size()));
  total_ += static_cast<int64_t>(tokens.size());
}

void MegatronWriter::append(const MegatronFile& file) {
  if (file.type() != type_)
    throw DataError(fmt::format("{}: holds {}, but {}.bin gets {}: files of one type can be merged",
                                file.token_path().string(), megatron_type_name(file.type()), prefix_.string(),
                                megatron_type_name(type_)));
  if (file.has_modes())
    throw DataError(fmt::format("{}: has modes of its sequences, as multimodal sets do: they are not merged",
                                file.index_path().string()));
  if (!buffer_.empty()) tokens_->write(buffer_.data(), buffer_.size());
  buffer_.clear();
  const auto first = static_cast<int64_t>(lengths_.size());
  for (int64_t i = 0; i < file.sequences(); ++i) {
    const auto bytes = file.bytes(i);
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    if (buffer_.size() >= kWriteBuffer) {
      tokens_->write(buffer_.data(), buffer_.size());
      buffer_.clear();
    }
    lengths_.push_back(file.length(i));
  }
  for (int64_t d = 1; d <= file.documents(); ++d) boundaries_.push_back(first + file.boundary(d));
  total_ += file.tokens();
}

void MegatronWriter::commit() {
  if (!buffer_.empty()) tokens_->write(buffer_.data(), buffer_.size());
  buffer_.clear();
  AtomicFile index(prefix_.string() + ".idx");
  const auto put = [&](auto value) { index.write(&value, sizeof value); };
  index.write(kMegatronMagic);
  put(kMegatronVersion);
  put(static_cast<uint8_t>(type_));
  put(static_cast<uint64_t>(lengths_.size()));
  put(static_cast<uint64_t>(boundaries_.size()));
  index.write(lengths_.data(), lengths_.size() * sizeof(int32_t));
  std::vector<int64_t> offsets;
  constexpr size_t kBlock = size_t{1} << 16;
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    offsets.push_back(offset);
    offset += length * item_size_;
    if (offsets.size() < kBlock) continue;
    index.write(offsets.data(), offsets.size() * sizeof(int64_t));
    offsets.clear();
  }
  index.write(offsets.data(), offsets.size() * sizeof(int64_t));
  index.write(boundaries_.data(), boundaries_.size() * sizeof(int64_t));
  tokens_->commit();
  index.commit();
}

}  // namespace trireme
