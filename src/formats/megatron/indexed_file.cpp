#include "trireme/formats/megatron/indexed_file.h"

#include "trireme/base/error.h"

#include <fmt/format.h>

#include <bit>
#include <limits>
#include <string_view>
#include <type_traits>

namespace trireme {

static_assert(std::endian::native == std::endian::little, "Megatron's files are little-endian");

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
/// Of the format before, which Megatron's --dataset-impl lazy and cached wrote, and fairseq.
constexpr std::string_view kOldMagic{"TNTIDX\0\0", 8};
constexpr uint64_t kMegatronVersion = 1;
constexpr size_t kWriteBuffer = size_t{1} << 20;

/// Calls `call` with a number of the type; false: there is no such type.
template <class Call>
bool with_type(MegatronType type, const Call& call) {
  switch (type) {
    case MegatronType::kU8: return call(uint8_t{}, "uint8"), true;
    case MegatronType::kI8: return call(int8_t{}, "int8"), true;
    case MegatronType::kI16: return call(int16_t{}, "int16"), true;
    case MegatronType::kI32: return call(int32_t{}, "int32"), true;
    case MegatronType::kI64: return call(int64_t{}, "int64"), true;
    case MegatronType::kF64: return call(double{}, "float64"), true;
    case MegatronType::kF32: return call(float{}, "float32"), true;
    case MegatronType::kU16: return call(uint16_t{}, "uint16"), true;
  }
  return false;
}

struct TypeInfo {
  int64_t size = 0;  // bytes; 0: no such type
  bool is_integer = false;
  int64_t min = 0, max = 0;  // of an integer
  const char* name = "";
};

TypeInfo info_of(MegatronType type) {
  TypeInfo info;
  with_type(type, [&]<class T>(T, const char* name) {
    info = {sizeof(T), std::is_integral_v<T>, 0, 0, name};
    if constexpr (std::is_integral_v<T>) info.min = std::numeric_limits<T>::min();
    if constexpr (std::is_integral_v<T>) info.max = std::numeric_limits<T>::max();
  });
  return info;
}

/// Also of the old format, which check_header() names.
bool has_megatron_magic(const fs::path& path) {
  const std::string head = file_head(path, kMegatronMagic.size());
  return head == kMegatronMagic || head.starts_with(kOldMagic);
}

bool is_bin(const fs::path& path) { return path.extension() == ".bin"; }

fs::path index_of(const fs::path& path) {
  if (const auto found = megatron_index_path(path)) return *found;
  if (is_bin(path)) return fs::path(path).replace_extension(".idx");
  std::error_code error;
  // Opened as it is, it gets the sentence of a damaged file or of an absent one.
  return fs::exists(path, error) ? path : fs::path(path.string() + ".idx");
}

}  // namespace

const char* megatron_type_name(MegatronType type) { return info_of(type).name; }

MegatronType megatron_type_for(int64_t vocab_size) {
  constexpr int64_t kBoundOfU16 = 65500;
  return vocab_size < kBoundOfU16 ? MegatronType::kU16 : MegatronType::kI32;
}

std::optional<fs::path> megatron_index_path(const fs::path& path) {
  if (has_megatron_magic(path)) return path;
  // Not replace_extension(): a prefix may have dots.
  const fs::path beside = path.string() + ".idx";
  if (has_megatron_magic(beside)) return beside;
  const fs::path index = fs::path(path).replace_extension(".idx");
  if (is_bin(path) && has_megatron_magic(index)) return index;
  return std::nullopt;
}

MegatronFile::MegatronFile(const fs::path& path) : index_(index_of(path), ExitCode::kData) {
  if (index_path().extension() != ".idx")
    throw DataError(
        fmt::format("{}: a Megatron index is named PREFIX.idx, beside its PREFIX.bin", index_path().string()));
  const fs::path bin = prefix().string() + ".bin";
  std::error_code error;
  if (!fs::exists(bin, error))
    throw DataError(fmt::format("{}: not there, and {} is its index: both files of the prefix lie side by side",
                                bin.string(), index_path().string()));
  open_tokens(bin);
}

MegatronFile::MegatronFile(const fs::path& index, const fs::path& tokens) : index_(index, ExitCode::kData) {
  open_tokens(tokens);
}

void MegatronFile::open_tokens(const fs::path& path) {
  check_header();
  tokens_ = MappedFile(path, ExitCode::kData);
  check_sequences();
  check_boundaries();
}

void MegatronFile::fail(int64_t at, const std::string& what) const {
  throw DataError(fmt::format("{}: byte {}: {}", index_path().string(), at, what));
}

void MegatronFile::check_header() {
  const auto size = static_cast<int64_t>(index_.bytes().size());
  if (size >= kHeader && std::memcmp(index_.bytes().data(), kOldMagic.data(), kOldMagic.size()) == 0)
    fail(0,
         "the old format TNTIDX (Megatron's --dataset-impl lazy or cached, fairseq), which is not read: preprocess the "
         "text again with --dataset-impl mmap, or with `trireme data megatron`");
  if (size < kHeader)
    throw DataError(fmt::format("{}: {} bytes, but the header of a Megatron index has {}: is it truncated?",
                                index_path().string(), size, kHeader));
  if (std::memcmp(index_.bytes().data(), kMegatronMagic.data(), kMegatronMagic.size()) != 0)
    fail(0, "does not begin with MMIDIDX, as a Megatron index (.idx) does");
  if (const auto version = load<uint64_t>(9); version != kMegatronVersion)
    fail(9, fmt::format("version {}, but only {} is known", version, kMegatronVersion));
  type_ = static_cast<MegatronType>(load<uint8_t>(17));
  const TypeInfo info = info_of(type_);
  if (info.size == 0) fail(17, fmt::format("type {}, of which there are 1 to 8", load<uint8_t>(17)));
  if (!info.is_integer) fail(17, fmt::format("the .bin holds {} numbers, but tokens are integers", info.name));
  item_size_ = info.size;
  const auto sequences = load<uint64_t>(18), boundaries = load<uint64_t>(26);
  const auto room = static_cast<uint64_t>(size - kHeader);
  if (sequences > room / 12)
    fail(18, fmt::format("{} sequences of 12 bytes each, but the file has {} bytes in all", sequences, size));
  if (boundaries > (room - sequences * 12) / 8)
    fail(26, fmt::format(
                 "{} document boundaries of 8 bytes each after {} sequences of 12, but the file has {} bytes in all",
                 boundaries, sequences, size));
  const uint64_t rest = room - sequences * 12 - boundaries * 8;
  has_modes_ = rest == sequences && rest > 0;
  if (rest != 0 && !has_modes_)
    fail(size - static_cast<int64_t>(rest),
         fmt::format(
             "{} bytes after the document boundaries, where nothing or a byte for each of the {} sequences stands",
             rest, sequences));
  sequences_ = static_cast<int64_t>(sequences);
  boundaries_ = static_cast<int64_t>(boundaries);
  if (boundaries_ < 1) fail(26, "no document boundaries: there is at least the first, which is 0");
}

void MegatronFile::check_sequences() {
  const auto size = static_cast<int64_t>(tokens_.bytes().size());
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t tokens = length(i), begin = offset(i);
    if (tokens < 0) fail(kHeader + i * 4, fmt::format("sequence {} has {} tokens", i, tokens));
    // No sum or product can overflow: tokens < 2^31, and begin is compared first.
    if (begin < 0 || begin > size || tokens * item_size_ > size - begin)
      fail(kHeader + sequences_ * 4 + i * 8,
           fmt::format("sequence {} of {} {} tokens begins at byte {} of {}, which has {} bytes: is one of the files "
                       "truncated, or of another prefix?",
                       i, tokens, megatron_type_name(type_), begin, token_path().string(), size));
    total_ += tokens;
  }
}

void MegatronFile::check_boundaries() const {
  const auto at = [this](int64_t document) { return kHeader + sequences_ * 12 + document * 8; };
  if (const auto first = load<int64_t>(at(0)); first != 0)
    fail(at(0), fmt::format("the first document boundary is {}, expected 0", first));
  if (!lists_documents()) return;
  for (int64_t d = 1; d < boundaries_; ++d)
    if (boundary(d) < boundary(d - 1))
      fail(at(d), fmt::format("document boundary {} is {} after {}: they ascend", d, boundary(d), boundary(d - 1)));
  if (const int64_t last = boundary(boundaries_ - 1); last != sequences_)
    fail(at(boundaries_ - 1),
         fmt::format("the last document boundary is {}, expected the {} sequences", last, sequences_));
}

void MegatronFile::read(int64_t sequence, int64_t begin, int64_t count, std::vector<int64_t>& out) const {
  TRIREME_CHECK(sequence >= 0 && sequence < sequences_ && begin >= 0 && count >= 0 && begin + count <= length(sequence),
                "tokens ", begin, " to ", begin + count, " of sequence ", sequence);
  const std::byte* from = tokens_.bytes().data() + offset(sequence) + begin * item_size_;
  const size_t before = out.size();
  out.resize(before + static_cast<size_t>(count));
  int64_t* to = out.data() + before;
  with_type(type_, [&]<class T>(T value, const char*) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      to[i] = static_cast<int64_t>(value);
    }
  });
}

std::span<const std::byte> MegatronFile::bytes(int64_t sequence) const {
  return tokens_.bytes().subspan(static_cast<size_t>(offset(sequence)),
                                 static_cast<size_t>(length(sequence) * item_size_));
}

MegatronWriter::MegatronWriter(const std::filesystem::path& prefix, MegatronType type)
    : prefix_(prefix),
      type_(type),
      item_size_(info_of(type).size),
      tokens_(std::make_unique<AtomicFile>(prefix.string() + ".bin")) {
  TRIREME_CHECK(info_of(type).is_integer, "type ", static_cast<int>(type), " of tokens");
}

MegatronWriter::~MegatronWriter() = default;

void MegatronWriter::append(std::span<const int32_t> tokens) {
  const TypeInfo info = info_of(type_);
  for (const int32_t id : tokens)
    if (id < info.min || id > info.max)
      throw DataError(fmt::format("{}.bin: token id {} of document {} is not a {}: choose a wider type",
                                  prefix_.string(), id, documents(), info.name));
  TRIREME_CHECK(tokens.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), "a document of ",
                tokens.size(), " tokens");
  with_type(type_, [&]<class T>(T value, const char*) {
    const size_t before = buffer_.size();
    buffer_.resize(before + tokens.size() * sizeof(T));
    for (size_t i = 0; i < tokens.size(); ++i) {
      value = static_cast<T>(tokens[i]);
      std::memcpy(buffer_.data() + before + i * sizeof(T), &value, sizeof(T));
    }
  });
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
  // A killed process leaves no index of other tokens.
  std::error_code error;
  std::filesystem::remove(prefix_.string() + ".idx", error);
  tokens_->commit();
  index.commit();
}

}  // namespace trireme
