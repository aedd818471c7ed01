#pragma once
// Private to formats/: HDF5 files and handles that close automatically, and HDF5's error messages.

#include "trireme/base/temporary_file.h"

#include <hdf5.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <utility>

namespace trireme {

/// Held around calls of libhdf5, which may be built without thread safety. Turns off HDF5's own error output for this
/// thread.
class Hdf5Lock {
 public:
  Hdf5Lock();

 private:
  std::scoped_lock<std::mutex> lock_;
};

/// One HDF5 identifier with its closing function.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Hdf5Handle() { reset(); }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Closes; false when HDF5 could not (the last write failed).
  bool reset() {
    if (id_ < 0) return true;
    return close_(std::exchange(id_, -1)) >= 0;
  }

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

/// Opens the file for reading, after check_hdf5_superblock(). A read outside the file is an error of HDF5 here; its own
/// driver copies from address 0 or allocates gigabytes for some damaged addresses. Throws DataError. Call under
/// an Hdf5Lock.
Hdf5Handle open_hdf5(const std::filesystem::path& path);

/// Size of the user block in front of the HDF5 data: addresses in the file count from its end. Throws DataError. Call
/// under an Hdf5Lock.
uint64_t hdf5_user_block(hid_t file, const std::string& path);

/// Whether the root group has `name`. DataError if the group cannot be read. Call under an Hdf5Lock.
bool hdf5_has(hid_t file, const std::string& name, const std::string& path);

/// The innermost reason on HDF5's error stack; clears the stack.
std::string hdf5_reason();

/// A file that is written: it appears at commit(); without commit() nothing remains. WriteError. Construction, commit()
/// and destruction take an Hdf5Lock; the other members are called under one.
class Hdf5Output {
 public:
  /// HDF5's own lock of the file is off: on NFS it would conflict with TemporaryFile's.
  explicit Hdf5Output(const std::filesystem::path& path);
  ~Hdf5Output();
  [[noreturn]] void fail(const char* what) const;
  hid_t get() const { return file_.get(); }
  void commit();

 private:
  TemporaryFile temporary_;
  Hdf5Handle file_;
};

}  // namespace trireme
