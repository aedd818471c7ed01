// npy files: the header, integer arrays, and the pickle subset of MLPerf's records.
#include "fuzz_target.h"
#include "trireme/formats/numpy/npy.h"

#include <algorithm>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  constexpr int64_t kRows = 16;
  const fuzz::MemoryFile memory(fuzz::as_text(data, size));
  fuzz::expect_only({ExitCode::kData}, [&] {
    MappedFile file(memory.path(), ExitCode::kData);
    const NpyHeader header = parse_npy_header(file.bytes(), file.path());
    fuzz::require(header.data_offset <= size, "the data begin inside the file");
    if (header.descr.find('O') != std::string::npos) {
      const NpyPackedRecords records(std::move(file), header);
      for (int64_t i = 0; i < std::min(records.size(), kRows); ++i) {
        const PackedRecord record = records.read(i);
        fuzz::require(record.input_ids.size() == record.loss_mask.size(), "a loss mask entry for each token");
        fuzz::require(record.input_ids.size() <= size, "no more tokens than bytes");
      }
    } else {
      const NpyIntegerArray array(std::move(file), header);
      if (array.rows() == 0) return;
      fuzz::require(array.columns() <= static_cast<int64_t>(size), "no more columns than bytes");
      std::vector<int64_t> row(static_cast<size_t>(array.columns()));
      for (int64_t i = 0; i < std::min(array.rows(), kRows); ++i) array.read_row(i, row);
      array.read_row(array.rows() - 1, row);
    }
  });
  return 0;
}
