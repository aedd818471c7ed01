// Token rows in HDF5, as a file.
#include "fuzz_target.h"
#include "trireme/formats/hdf5/hdf5_tokens.h"

#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const fuzz::MemoryFile memory(fuzz::as_text(data, size));
  fuzz::expect_only({ExitCode::kData}, [&] {
    const Hdf5TokenFile file(memory.path());
    if (file.columns() > (1 << 16)) return;
    std::vector<int64_t> ids(static_cast<size_t>(file.columns()));
    std::vector<uint8_t> mask(ids.size());
    for (const int64_t row : {int64_t{0}, file.rows() - 1}) {
      file.read_row(row, ids);
      if (file.has_loss_mask()) file.read_loss_mask(row, mask);
      if (file.has_seq_start_id()) file.read_seq_start_id(row);
    }
  });
  return 0;
}
