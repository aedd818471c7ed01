#include "hdf5_file.h"

#include "hdf5_bytes.h"
#include "trireme/base/error.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace trireme {

namespace {

std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

// A file driver for libhdf5 that reads only what lies in the file. libhdf5 passes addresses of damaged metadata to its
// driver unchecked, and its own one has a cache of metadata in front (H5F__accum_read) that copies from a null pointer
// when an address is undefined. This driver has no such cache, and refuses every range outside the file, and damaged
// heaps.

/// libhdf5 fills and reads the first member.
struct ReadFile {
  H5FD_t common;
  int descriptor;
  haddr_t size, end;
};

ReadFile* of(H5FD_t* file) { return reinterpret_cast<ReadFile*>(file); }
const ReadFile* of(const H5FD_t* file) { return reinterpret_cast<const ReadFile*>(file); }

H5FD_t* open_file(const char* name, unsigned flags, hid_t, haddr_t) {
  if ((flags & (H5F_ACC_RDWR | H5F_ACC_CREAT | H5F_ACC_TRUNC)) != 0) return nullptr;
  const int descriptor = open(name, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  struct stat status{};
  auto* file = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) ? new (std::nothrow) ReadFile() : nullptr;
  if (file == nullptr) {
    close(descriptor);
    return nullptr;
  }
  file->descriptor = descriptor;
  file->size = static_cast<haddr_t>(status.st_size);
  return &file->common;
}

herr_t close_file(H5FD_t* file) {
  const int descriptor = of(file)->descriptor;
  delete of(file);
  return close(descriptor) == 0 ? 0 : -1;
}

/// Two opened files share no state, also where they are the same file.
int compare(const H5FD_t* a, const H5FD_t* b) { return a < b ? -1 : a > b ? 1 : 0; }

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t end_of_addresses(const H5FD_t* file, H5FD_mem_t) { return of(file)->end; }
herr_t set_end_of_addresses(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  of(file)->end = end;
  return 0;
}
haddr_t end_of_file(const H5FD_t* file, H5FD_mem_t) { return of(file)->size; }

bool read_range(const ReadFile& file, haddr_t address, size_t size, void* buffer) {
  if (address > file.size || size > file.size - address) return false;
  for (size_t done = 0; done < size;) {
    const ssize_t count =
        pread(file.descriptor, static_cast<char*>(buffer) + done, size - done, static_cast<off_t>(address + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;  // an error, or the file has become shorter
    done += static_cast<size_t>(count);
  }
  return true;
}

constexpr size_t kLocalHeapHeader = 32;

/// Source of the layout: File Format Specification, section III.D. libhdf5 1.10 adds a local heap's header to the size
/// of its data, and copies that size although the sum overflows; it never ends at a list of free blocks with a cycle.
bool is_sound_local_heap(const ReadFile& file, const void* header) {
  struct {
    uint64_t size, first_free, address;  // of the data, which lie at `address`; the list's offsets are in the data
  } data{};
  std::memcpy(&data, static_cast<const char*>(header) + 8, sizeof data);
  if (data.size == 0) return true;
  if (data.size > file.size || data.address > file.size) return false;
  constexpr uint64_t kEnd = 1, kFreeBlock = 16;  // what ends the list; the smallest free block
  uint64_t left = data.size / kFreeBlock;
  for (uint64_t at = data.first_free; at != kEnd; --left)
    if (left == 0 || at > data.size || !read_range(file, file.common.base_addr + data.address + at, sizeof at, &at))
      return false;
  return true;
}

herr_t read(H5FD_t* opened, H5FD_mem_t type, hid_t, haddr_t address, size_t size, void* buffer) {
  const ReadFile& file = *of(opened);
  if (!read_range(file, address, size, buffer)) return -1;
  // libhdf5 reads heap collections as if they were data. No row of tokens or masks begins like one.
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(buffer), size);
  const bool is_heap = type == H5FD_MEM_DRAW && size >= 5 && std::memcmp(buffer, "GCOL\1", 5) == 0;
  if (is_heap && heap_collection_fault(bytes) != nullptr) return -1;
  const bool is_local_heap = type == H5FD_MEM_LHEAP && size >= kLocalHeapHeader && std::memcmp(buffer, "HEAP", 4) == 0;
  if (is_local_heap && !is_sound_local_heap(file, buffer)) return -1;
  return 0;
}

herr_t write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

hid_t driver() {
  static const hid_t registered = [] {
    static H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
    driver.version = H5FD_CLASS_VERSION;
    driver.value = static_cast<H5FD_class_value_t>(511);  // the first 512 are not HDF Group's
#endif
    driver.name = "trireme_read";
    driver.maxaddr = static_cast<haddr_t>(INT64_MAX);
    driver.fc_degree = H5F_CLOSE_WEAK;
    driver.open = open_file;
    driver.close = close_file;
    driver.cmp = compare;
    driver.query = query;
    driver.get_eoa = end_of_addresses;
    driver.set_eoa = set_end_of_addresses;
    driver.get_eof = end_of_file;
    driver.read = read;
    driver.write = write;
    // libhdf5 1.10 reads the value of an external link that has none. Without the class it knows the link's type only,
    // by which external links are refused.
    H5Lunregister(H5L_TYPE_EXTERNAL);
    return H5FDregister(&driver);
  }();
  return registered;
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(hdf5_mutex()) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

std::string hdf5_reason() {
  std::string reason;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* data) -> herr_t {
        auto& text = *static_cast<std::string*>(data);
        if (text.empty() && error->desc != nullptr) text = error->desc;
        return 0;
      },
      &reason);
  H5Eclear2(H5E_DEFAULT);
  std::replace(reason.begin(), reason.end(), '\n', ' ');  // of the time in it
  return reason.empty() ? "no reason given" : reason;
}

Hdf5Handle open_hdf5(const std::filesystem::path& path) {
  check_hdf5_superblock(path);
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  TRIREME_CHECK(access && H5Pset_driver(access.get(), driver(), nullptr) >= 0,
                "HDF5 refuses a file driver: ", hdf5_reason());
  Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!file) throw DataError(fmt::format("{} cannot be opened as HDF5: {}", path.string(), hdf5_reason()));
  return file;
}

bool hdf5_has(hid_t file, const std::string& name, const std::string& path) {
  const htri_t exists = H5Lexists(file, name.c_str(), H5P_DEFAULT);
  if (exists < 0) throw DataError(fmt::format("{}: its root group cannot be read: {}", path, hdf5_reason()));
  return exists > 0;
}

uint64_t hdf5_user_block(hid_t file, const std::string& path) {
  const Hdf5Handle properties(H5Fget_create_plist(file), H5Pclose);
  hsize_t size = 0;
  if (H5Pget_userblock(properties.get(), &size) < 0)
    throw DataError(fmt::format("{} cannot be opened as HDF5: {}", path, hdf5_reason()));
  return size;
}

Hdf5Output::Hdf5Output(const std::filesystem::path& path) : temporary_(path) {
  const Hdf5Lock lock;
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.get(), /*use_file_locking=*/false, /*ignore_when_disabled=*/true);
  file_ = {H5Fcreate(temporary_.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose};
  if (!file_) fail("create");
}

Hdf5Output::~Hdf5Output() {
  const Hdf5Lock lock;
  file_.reset();
}

void Hdf5Output::fail(const char* what) const {
  throw WriteError(fmt::format("cannot {} {}: {}", what, temporary_.target().string(), hdf5_reason()));
}

void Hdf5Output::commit() {
  {
    const Hdf5Lock lock;
    if (H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) < 0 || !file_.reset()) fail("finish");
  }
  temporary_.commit();
}

}  // namespace trireme
