// Source of the layout: HDF5 File Format Specification 3.0, section III.E.
#include "formats/hdf5/hdf5_global_heap.h"
#include "formats/hdf5/hdf5_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace trireme {

namespace {

constexpr uint64_t kHeader = 16;  // of a collection, and of an object

}  // namespace

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
    at += index == 0 ? length : kHeader + (length + 7) / 8 * 8;
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
  if (std::memcmp(rest.data(), "GCOL\1", 5) != 0) return damaged("is not a heap collection of version 1");
  const auto size = load<uint64_t>(rest, 8);
  if (size > rest.size() || size < kHeader) return damaged("exceeds the file");
  // Overlapping collections could make a small file take unbounded time and memory.
  walked_ += size;
  if (walked_ > file_.size()) return damaged("overlaps others");
  for (uint64_t at = kHeader; size - at >= kHeader;) {
    const auto index = load<uint16_t>(rest, at);
    const auto bytes = load<uint64_t>(rest, at + 8);
    if (index == 0) break;  // free space, always the last
    if (bytes > size - at - kHeader) return damaged("holds an object that exceeds it");
    objects.push_back({index, rest.subspan(at + kHeader, bytes)});
    at += kHeader + (bytes + 7) / 8 * 8;
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
