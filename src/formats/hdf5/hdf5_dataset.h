#pragma once
// Private to formats/: one dataset of an untrusted file. DataError with file and dataset.

#include "formats/hdf5/hdf5_handles.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace trireme {

/// A dataset whose data is in the same file and has filters that this HDF5 library can decode; DataError for any other.
class Hdf5Dataset {
 public:
  Hdf5Dataset() = default;
  Hdf5Dataset(hid_t file, const char* name, const std::string& path);

  [[noreturn]] void fail(const std::string& what) const;
  const std::vector<hsize_t>& extents() const { return extents_; }
  H5T_class_t type_class() const { return H5Tget_class(type_.get()); }
  hid_t type() const { return type_.get(); }
  hid_t get() const { return dataset_.get(); }
  void require_integers(size_t dimensions) const;
  /// Row `row` of a two-dimensional dataset, or element `row` of a one-dimensional one, converted to the given memory
  /// type.
  void read(int64_t row, hid_t memory_type, void* out) const;

 private:
  /// Checks the stored size: HDF5 reads unwritten elements as zeros, so a small file can declare any number of them.
  void require_stored(hid_t properties, hid_t space) const;

  std::string name_, path_;
  Hdf5Handle dataset_, type_;
  std::vector<hsize_t> extents_;
};

/// Held around calls of libhdf5, which may be built without thread safety.
std::mutex& hdf5_mutex();

}  // namespace trireme
