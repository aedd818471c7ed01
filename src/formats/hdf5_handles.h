#pragma once
// Private to formats/: HDF5 handles that close themselves, and HDF5's own words for what went wrong.

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

/// DataError unless the file begins like an HDF5 file whose addresses stay inside it.
void check_hdf5_superblock(const std::filesystem::path& path);

/// An empty HDF5 file in the place of the file at `path`, which the caller has created and locked. HDF5's own lock is
/// off: on NFS it would conflict with the caller's. No handle where HDF5 refuses.
Hdf5Handle create_hdf5(const std::filesystem::path& path);

/// Silences HDF5's own printing for this thread.
void quiet_hdf5();

/// The innermost reason on HDF5's error stack, cleared after reading.
std::string hdf5_reason();

}  // namespace trireme
