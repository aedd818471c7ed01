#pragma once
// Private to formats/: reads the header of an object in an HDF5 file from its bytes, before libhdf5 opens the object.

#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme {

/// What is wrong with the datatype of the dataset whose header is at `at` of the file; null: nothing. Types that are no
/// numbers, no texts of fixed length and no variable-length rows of them are refused: libhdf5 1.10 copies the names of
/// compounds, enumerations and opaque types without looking for the end of the header. `base`: the user block's size.
const char* datatype_fault(std::span<const std::byte> file, uint64_t at, uint64_t base);

}  // namespace trireme
