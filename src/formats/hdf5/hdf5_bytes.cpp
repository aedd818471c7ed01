// Source of the layouts: HDF5 File Format Specification 3.0, sections II.A (superblock), III.E (global heap), IV.A.1
// (object headers), IV.A.2.d (datatypes) and IV.A.2.i (layouts).
#include "hdf5_bytes.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/rounding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

namespace trireme {

namespace {

constexpr std::string_view kSignature{"\x89HDF\r\n\x1a\n", 8};
constexpr uint64_t kUndefined = UINT64_MAX;

/// The signature is at 0, or after a user block at 512, 1024, 2048, …
std::optional<size_t> find_signature(std::string_view file) {
  for (size_t at = 0; at < file.size(); at = at == 0 ? 512 : at * 2)
    if (file.substr(at).starts_with(kSignature)) return at;
  return std::nullopt;
}

/// The little-endian number at `at`, which the caller has checked to lie inside.
template <class T>
T load(std::span<const std::byte> bytes, uint64_t at) {
  return value_at<T>(bytes.data() + at);
}

constexpr uint64_t kHeader = 16;  // of a collection, and of an object

constexpr unsigned kDatatype = 3, kLayout = 8, kContinuation = 16, kShared = 2;
constexpr size_t kMostBlocks = 1024;
constexpr const char* kDamaged = "has a damaged header";

/// A run of messages. Version 2 has smaller message headers and a checksum behind each run.
struct Block {
  uint64_t at, size;
};

/// The enumeration of one byte as which h5py writes bools: FALSE 0, TRUE 1.
bool is_bool(std::span<const std::byte> type) {
  constexpr std::string_view kBegin("\2\0\0\1\0\0\0\x10\x8\0\0\1\0\0\0\0\0\x8\0", 19);
  constexpr std::string_view kMembers("FALSE\0TRUE\0\0\1", 13), kPadded("FALSE\0\0\0TRUE\0\0\0\0\0\1", 18);
  const std::string_view bytes = as_text(type);
  const unsigned version = load<uint8_t>(type, 0) >> 4;
  return bytes.substr(1).starts_with(kBegin) &&
         bytes.substr(1).substr(kBegin.size()).starts_with(version < 3 ? kPadded : kMembers);
}

/// The classes as in H5T_class_t.
const char* fault_of_type(std::span<const std::byte> type, int depth) {
  if (type.size() < 8) return kDamaged;
  const unsigned kind = load<uint8_t>(type, 0) & 15U;
  constexpr unsigned kInteger = 0, kFloat = 1, kString = 3, kEnumeration = 8, kVariableLength = 9;
  if (kind == kInteger || kind == kFloat || kind == kString) return nullptr;
  if (kind == kEnumeration && depth == 0 && is_bool(type)) return nullptr;
  if (kind != kVariableLength || depth > 0) return "does not hold integers";
  return fault_of_type(type.subspan(8), depth + 1);
}

const char* fault_of_layout(std::span<const std::byte> layout) {
  if (layout.size() < 3) return kDamaged;
  constexpr unsigned kChunked = 2, kVirtual = 3;
  const unsigned version = load<uint8_t>(layout, 0), kind = load<uint8_t>(layout, version < 3 ? 2 : 1);
  // libhdf5 reads the names of a virtual dataset's files beyond a damaged heap object's end.
  if (kind >= kVirtual) return "is virtual; only data inside the file is read";
  if (kind != kChunked) return nullptr;
  if (layout.size() < 5) return kDamaged;
  // libhdf5 1.10 divides by the extents of a chunk, of which the last is the size of an element.
  const size_t rank = load<uint8_t>(layout, version < 3    ? 1
                                            : version == 3 ? 2
                                                           : 3),
               width = version < 4 ? 4 : load<uint8_t>(layout, 4),
               first = version < 3    ? 16
                       : version == 3 ? 11
                                      : 5;
  if (rank < 2 || width == 0 || layout.size() < first || (layout.size() - first) / width < rank) return kDamaged;
  for (size_t i = 0; i < rank; ++i) {
    const auto extent = layout.subspan(first + i * width, width);
    if (std::ranges::all_of(extent, [](std::byte byte) { return byte == std::byte{0}; }))
      return "has chunks of no elements: the file is damaged";
  }
  return nullptr;
}

class Header {
 public:
  Header(std::span<const std::byte> file, uint64_t base) : file_(file), base_(base) {}

  const char* read(uint64_t at) {
    if (at > file_.size() || file_.size() - at < 16) return kDamaged;
    const std::span<const std::byte> bytes = file_.subspan(at);
    if (std::memcmp(bytes.data(), "OHDR\2", 5) == 0) {
      const unsigned flags = load<uint8_t>(bytes, 5);
      creation_order_ = (flags & 4U) != 0;
      const size_t width = size_t{1} << (flags & 3U),
                   sizes = 6 + ((flags & 32U) != 0 ? 16 : 0) + ((flags & 16U) != 0 ? 4 : 0);
      if (bytes.size() < sizes + width) return kDamaged;
      uint64_t size = 0;
      std::memcpy(&size, bytes.data() + sizes, width);
      version_ = 2;
      blocks_.push_back({at + sizes + width, size});
    } else {
      if (load<uint8_t>(bytes, 0) != 1) return kDamaged;
      blocks_.push_back({at + 16, load<uint32_t>(bytes, 8)});
    }
    for (size_t i = 0; i < blocks_.size(); ++i)
      if (const char* fault = read_block(blocks_[i])) return fault;
    return has_type_ ? nullptr : "has no datatype";
  }

 private:
  const char* read_block(Block block) {
    if (block.at > file_.size() || block.size > file_.size() - block.at) return kDamaged;
    const std::span<const std::byte> bytes = file_.subspan(block.at, block.size);
    const size_t head = version_ == 1 ? 8 : creation_order_ ? 6 : 4;
    for (size_t at = 0; bytes.size() - at >= head;) {
      const unsigned type = version_ == 1 ? load<uint16_t>(bytes, at) : load<uint8_t>(bytes, at);
      const size_t size = load<uint16_t>(bytes, at + (version_ == 1 ? 2 : 1));
      const unsigned flags = load<uint8_t>(bytes, at + (version_ == 1 ? 4 : 3));
      at += head;
      if (size > bytes.size() - at) return kDamaged;
      const std::span<const std::byte> content = bytes.subspan(at, size);
      at += size;
      if (type == kContinuation) {
        if (size < 16 || blocks_.size() >= kMostBlocks) return kDamaged;
        const auto target = load<uint64_t>(content, 0), length = load<uint64_t>(content, 8);
        if (target > file_.size() || base_ > file_.size() - target) return kDamaged;
        // Version 2: "OCHK" in front, a checksum behind.
        if (version_ == 2 && length < 8) return kDamaged;
        blocks_.push_back(version_ == 1 ? Block{target + base_, length} : Block{target + base_ + 4, length - 8});
      } else if (type == kDatatype) {
        has_type_ = true;
        if ((flags & kShared) != 0) return "has a committed datatype: write it again with a type of its own";
        if (const char* fault = fault_of_type(content, 0)) return fault;
      } else if (type == kLayout) {
        if (const char* fault = fault_of_layout(content)) return fault;
      }
    }
    return nullptr;
  }

  std::span<const std::byte> file_;
  uint64_t base_;
  int version_ = 1;
  bool creation_order_ = false, has_type_ = false;
  std::vector<Block> blocks_;
};

}  // namespace

void check_hdf5_superblock(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{} cannot be opened as HDF5: {}", path.string(), what));
  };
  const MappedFile mapped(path, ExitCode::kData);
  const std::string_view file = mapped.text();
  const auto found = find_signature(file);
  if (!found)
    fail(
        "it has no HDF5 signature; packed rows are made of text by trireme data bert instances and pack, for "
        "train_bert, and by trireme data pack, for the others");
  const std::string_view block = file.substr(*found);
  const auto byte = [&](size_t at) { return static_cast<unsigned>(static_cast<unsigned char>(block[at])); };
  constexpr size_t kLongest = 24 + 4 + 5 * 8;  // version 1 up to the root group's address
  if (block.size() < kLongest) fail(fmt::format("it is truncated after {} bytes", file.size()));
  const unsigned version = byte(8);
  if (version > 3) fail(fmt::format("superblock version {} is not supported", version));
  const bool old = version < 2;
  const unsigned offsets = byte(old ? 13 : 9), lengths = byte(old ? 14 : 10);
  if (offsets != 8 || lengths != 8)
    fail(fmt::format("addresses of {} and lengths of {} bytes, expected 8", offsets, lengths));
  // base, free space (or extension), end of file, driver information (or root group)
  uint64_t addresses[4];
  std::memcpy(addresses, block.data() + (version == 0 ? 24 : old ? 28 : 12), sizeof addresses);
  const auto [base, second, end, fourth] = addresses;
  if (base != *found) fail(fmt::format("its base address is {} but its superblock is at {}", base, *found));
  if (end > file.size()) fail(fmt::format("it is truncated: it should have {} bytes and has {}", end, file.size()));
  if (old && fourth != kUndefined) fail("it is one of several files that belong together, or damaged");
  if (old ? second != kUndefined && second >= end : fourth >= end) fail("an address in its superblock leaves the file");
}

const char* header_fault(std::span<const std::byte> file, uint64_t at, uint64_t base) {
  return Header(file, base).read(at);
}

const char* heap_collection_fault(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeader) return "is truncated";
  if (std::memcmp(bytes.data(), "GCOL\1", 5) != 0) return "is not a heap collection of version 1";
  const auto size = load<uint64_t>(bytes, 8);
  if (size < kHeader) return "is smaller than its header";
  for (uint64_t at = kHeader;
       at <= size && size - at >= kHeader && at <= bytes.size() && bytes.size() - at >= kHeader;) {
    const auto index = load<uint16_t>(bytes, at);
    const auto length = load<uint64_t>(bytes, at + 8);
    // Free space counts its header, an object does not.
    if (index == 0 ? length < kHeader || length > size - at : length > size - at - kHeader)
      return "holds an object that exceeds it";
    at += index == 0 ? length : kHeader + round_up(length, 8);
  }
  return nullptr;
}

const Hdf5GlobalHeap::Objects& Hdf5GlobalHeap::collection(uint64_t address, std::string& problem) {
  if (last_ != nullptr && address == last_address_) return *last_;
  const auto [found, is_new] = collections_.try_emplace(address);
  Objects& objects = found->second;
  last_address_ = address;
  last_ = &objects;
  if (!is_new) return objects;
  const auto damaged = [&](const char* what) {
    problem = fmt::format("the heap collection at {} {}", address, what);
    return std::cref(objects);
  };
  if (address > file_.size() || base_ > file_.size() - address || file_.size() - address - base_ < kHeader)
    return damaged("lies outside the file");
  const std::span<const std::byte> rest = file_.subspan(address + base_);
  if (const char* fault = heap_collection_fault(rest)) return damaged(fault);
  const auto size = load<uint64_t>(rest, 8);
  if (size > rest.size()) return damaged("exceeds the file");
  // Overlapping collections could make a small file take unbounded time and memory.
  walked_ += size;
  if (walked_ > file_.size()) return damaged("overlaps others");
  for (uint64_t at = kHeader; size - at >= kHeader;) {
    const auto index = load<uint16_t>(rest, at);
    const auto bytes = load<uint64_t>(rest, at + 8);
    if (index == 0) break;  // free space, always the last
    objects.push_back({index, rest.subspan(at + kHeader, bytes)});
    at += kHeader + round_up(bytes, 8);
    if (at > size) break;
  }
  const auto before = [](const Object& a, const Object& b) { return a.index < b.index; };
  if (!std::is_sorted(objects.begin(), objects.end(), before)) std::sort(objects.begin(), objects.end(), before);
  return objects;
}

std::span<const std::byte> Hdf5GlobalHeap::object(uint64_t address, uint32_t index, std::string& problem) {
  const Objects& objects = collection(address, problem);
  const auto found = std::lower_bound(objects.begin(), objects.end(), index,
                                      [](const Object& object, uint32_t wanted) { return object.index < wanted; });
  if (found != objects.end() && found->index == index) return found->bytes;
  if (problem.empty()) problem = fmt::format("the heap collection at {} has no object {}", address, index);
  return {};
}

}  // namespace trireme
