// Variable-length rows in HDF5, as a file: the reader decodes the global heap itself.
#include "fuzz_target.h"
#include "trireme/formats/hdf5/hdf5_rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const fuzz::MemoryFile memory(fuzz::as_text(data, size));
  fuzz::expect_only({ExitCode::kData}, [&] {
    const Hdf5RowFile file(memory.path());
    file.has("packed_input_len");
    fuzz::require(static_cast<size_t>(file.rows("input_ids")) <= size, "no more rows than bytes");
    file.read_rows("input_ids", 512);
    file.count_values("segment_ids", 512);
    file.read_rows("segment_ids", 512);
    if (file.is_variable_length("next_sentence_labels"))
      file.read_rows("next_sentence_labels", 3);
    else
      file.read_column("next_sentence_labels");
  });
  return 0;
}
