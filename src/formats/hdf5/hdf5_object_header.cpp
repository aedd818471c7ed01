// Source of the layouts: HDF5 File Format Specification 3.0, sections IV.A.1 (object headers), IV.A.2.d (datatypes)
// and IV.A.2.i (layouts).
#include "formats/hdf5/hdf5_object_header.h"
#include "formats/hdf5/hdf5_bytes.h"

#include <cstring>
#include <vector>

namespace trireme {

namespace {

constexpr unsigned kDatatype = 3, kLayout = 8, kContinuation = 16, kShared = 2;
constexpr size_t kMostBlocks = 1024;
constexpr const char* kDamaged = "has a damaged header";

/// A run of messages. Version 2 has smaller message headers and a checksum behind each run.
struct Block {
  uint64_t at, size;
};

/// The classes are those of H5T_class_t.
const char* fault_of_type(std::span<const std::byte> type, int depth) {
  if (type.size() < 8) return kDamaged;
  const unsigned kind = load<uint8_t>(type, 0) & 15U;
  constexpr unsigned kInteger = 0, kFloat = 1, kString = 3, kVariableLength = 9;
  if (kind == kInteger || kind == kFloat || kind == kString) return nullptr;
  if (kind != kVariableLength || depth > 0) return "does not hold integers, nor variable-length rows of integers";
  return fault_of_type(type.subspan(8), depth + 1);
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
        // libhdf5 reads the names of a virtual dataset's files beyond a damaged heap object's end.
        constexpr unsigned kVirtual = 3;
        if (size < 3) return kDamaged;
        if (load<uint8_t>(content, load<uint8_t>(content, 0) < 3 ? 2 : 1) >= kVirtual)
          return "is virtual; only data inside the file is read";
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

const char* datatype_fault(std::span<const std::byte> file, uint64_t at, uint64_t base) {
  return Header(file, base).read(at);
}

}  // namespace trireme
