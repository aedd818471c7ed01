#include "data/prepare/row_output.h"

#include "trireme/base/error.h"
#include "trireme/formats/hdf5/hdf5_tokens.h"

#include <fmt/format.h>

namespace trireme {

bool is_hdf5_name(const std::filesystem::path& path) {
  return path.extension() == ".h5" || path.extension() == ".hdf5";
}

void require_row_output(const std::filesystem::path& path) {
  if (path.extension() != ".npy" && !is_hdf5_name(path))
    throw ConfigError(
        fmt::format("{}: the output's name ends in .npy, .h5 or .hdf5, which chooses the format", path.string()));
}

void write_masked_rows(const std::filesystem::path& path, int64_t seq_length, int64_t count,
                       const std::function<PackedRecord(int64_t)>& row) {
  if (is_hdf5_name(path)) {
    Hdf5TokenWriter writer(path, seq_length, {true, true});
    for (int64_t i = 0; i < count; ++i) {
      const PackedRecord record = row(i);
      writer.append(record.input_ids, record.loss_mask, record.seq_start_id);
    }
    writer.commit();
  } else {
    NpyPackedRecordWriter writer(path, count);
    for (int64_t i = 0; i < count; ++i) writer.append(row(i));
    writer.commit();
  }
}

}  // namespace trireme
