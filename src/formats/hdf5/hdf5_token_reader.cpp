#include "trireme/formats/hdf5/hdf5_tokens.h"

#include "formats/hdf5/hdf5_dataset.h"
#include "formats/hdf5/hdf5_variable_rows.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>

#include <optional>

namespace trireme {

struct Hdf5TokenFile::State {
  std::string path;
  Hdf5Handle file;
  Hdf5Dataset input_ids, loss_mask, seq_start_id;
  MappedFile mapped;                       // with seq_start_id only
  std::optional<Hdf5VariableRows> starts;  // of seq_start_id
  bool has_mask = false, has_starts = false;
  int64_t rows = 0, columns = 0;
};

Hdf5TokenFile::Hdf5TokenFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path.string();
  const std::scoped_lock lock(hdf5_mutex());
  s.file = open_hdf5(path);
  const auto has = [&](const char* name) { return H5Lexists(s.file.get(), name, H5P_DEFAULT) > 0; };
  if (!has("input_ids")) throw DataError(fmt::format("{} has no dataset input_ids", s.path));
  s.input_ids = Hdf5Dataset(s.file.get(), "input_ids", s.path);
  s.input_ids.require_integers(2);
  s.rows = static_cast<int64_t>(s.input_ids.extents()[0]);
  s.columns = static_cast<int64_t>(s.input_ids.extents()[1]);
  if (s.rows == 0 || s.columns == 0) s.input_ids.fail(fmt::format("is empty: [{}, {}]", s.rows, s.columns));
  if (s.columns > (int64_t{1} << 28)) s.input_ids.fail(fmt::format("has rows of {} tokens", s.columns));
  if ((s.has_mask = has("loss_mask"))) {
    s.loss_mask = Hdf5Dataset(s.file.get(), "loss_mask", s.path);
    s.loss_mask.require_integers(2);
    if (s.loss_mask.extents() != s.input_ids.extents()) s.loss_mask.fail("has another shape than input_ids");
  }
  if ((s.has_starts = has("seq_start_id"))) {
    s.seq_start_id = Hdf5Dataset(s.file.get(), "seq_start_id", s.path);
    if (s.seq_start_id.extents() != std::vector<hsize_t>{s.input_ids.extents()[0]})
      s.seq_start_id.fail("does not have one entry for each row of input_ids");
    s.mapped = MappedFile(path, ExitCode::kData);
    s.starts.emplace(s.seq_start_id, s.mapped.bytes(), hdf5_user_block(s.file.get(), s.path));
  }
}

Hdf5TokenFile::~Hdf5TokenFile() {
  if (!state_) return;
  const std::scoped_lock lock(hdf5_mutex());
  state_.reset();
}
Hdf5TokenFile::Hdf5TokenFile(Hdf5TokenFile&&) noexcept = default;
int64_t Hdf5TokenFile::rows() const { return state_->rows; }
int64_t Hdf5TokenFile::columns() const { return state_->columns; }
bool Hdf5TokenFile::has_loss_mask() const { return state_->has_mask; }
bool Hdf5TokenFile::has_seq_start_id() const { return state_->has_starts; }

void Hdf5TokenFile::read_row(int64_t row, std::span<int64_t> input_ids) const {
  TRIREME_CHECK(row >= 0 && row < rows() && static_cast<int64_t>(input_ids.size()) == columns(), "row ", row, " of ",
                rows());
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  // Unsigned 64-bit ids beyond int64 saturate in HDF5's conversion and are caught by the vocabulary check.
  state_->input_ids.read(row, H5T_NATIVE_INT64, input_ids.data());
}

void Hdf5TokenFile::read_loss_mask(int64_t row, std::span<uint8_t> mask) const {
  TRIREME_CHECK(has_loss_mask() && static_cast<int64_t>(mask.size()) == columns(), "loss_mask row ", row);
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  std::vector<int64_t> values(mask.size());
  state_->loss_mask.read(row, H5T_NATIVE_INT64, values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0 && values[i] != 1)
      state_->loss_mask.fail(fmt::format("row {}, column {}: {} is neither 0 nor 1", row, i, values[i]));
    mask[i] = static_cast<uint8_t>(values[i]);
  }
}

std::vector<int64_t> Hdf5TokenFile::read_seq_start_id(int64_t row) const {
  TRIREME_CHECK(has_seq_start_id(), "no seq_start_id");
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  std::vector<int32_t> starts;
  state_->starts->append(static_cast<size_t>(row), columns(), starts);
  return {starts.begin(), starts.end()};
}

}  // namespace trireme
