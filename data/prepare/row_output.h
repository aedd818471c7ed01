#pragma once
// Files of training rows with loss masks and sequence starts.

#include "trireme/formats/numpy/npy.h"

#include <cstdint>
#include <filesystem>
#include <functional>

namespace trireme {

/// ConfigError unless the name ends in .npy, .h5 or .hdf5.
void require_row_output(const std::filesystem::path& path);
bool is_hdf5_name(const std::filesystem::path& path);

/// Writes `count` rows of seq_length tokens: an object npy (MLPerf's layout), or HDF5. Atomic.
void write_masked_rows(const std::filesystem::path& path, int64_t seq_length, int64_t count,
                       const std::function<PackedRecord(int64_t)>& row);

}  // namespace trireme
