// Checks an HDF5 file's superblock before libhdf5 opens it: addresses outside the file make libhdf5 1.10 allocate and
// fill gigabytes. Source of the layout: HDF5 File Format Specification 3.0, section II.A.
#include "formats/hdf5/hdf5_handles.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>

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

}  // namespace

void check_hdf5_superblock(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{} cannot be opened as HDF5: {}", path.string(), what));
  };
  const MappedFile mapped(path, ExitCode::kData);
  const std::string_view file(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  const auto found = find_signature(file);
  if (!found) fail("it has no HDF5 signature");
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

}  // namespace trireme
