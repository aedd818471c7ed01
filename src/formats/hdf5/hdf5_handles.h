#pragma once
// Private to formats/: HDF5 handles that close automatically, and HDF5's error messages.

#include <hdf5.h>

#include <filesystem>
#include <string>
#include <utility>

namespace trireme {

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

/// DataError unless the file starts with an HDF5 superblock whose addresses lie inside the file.
void check_hdf5_superblock(const std::filesystem::path& path);

/// Opens the file for reading, after check_hdf5_superblock(). A read outside the file is an error of HDF5 here; its own
/// driver copies from address 0 or allocates gigabytes for some damaged addresses. Throws DataError. Call with
/// hdf5_mutex() locked.
Hdf5Handle open_hdf5(const std::filesystem::path& path);

/// Size of the user block in front of the HDF5 data: addresses in the file count from its end. Throws DataError. Call
/// with hdf5_mutex() locked.
uint64_t hdf5_user_block(hid_t file, const std::string& path);

/// Replaces the file at `path`, which the caller has created and locked, by an empty HDF5 file. HDF5's own lock is off:
/// on NFS it would conflict with the caller's. Returns an empty handle when HDF5 fails.
Hdf5Handle create_hdf5(const std::filesystem::path& path);

/// Turns off HDF5's own error output for this thread.
void quiet_hdf5();

/// The innermost reason on HDF5's error stack; clears the stack.
std::string hdf5_reason();

}  // namespace trireme
