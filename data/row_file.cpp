#include "data/row_file.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/hdf5/hdf5_tokens.h"
#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNpyMagic{"\x93NUMPY", 6};
constexpr std::string_view kHdf5Magic{"\x89HDF\r\n\x1a\n", 8};

bool starts_with(std::span<const std::byte> bytes, size_t offset, std::string_view magic) {
  return bytes.size() >= offset + magic.size() && std::memcmp(bytes.data() + offset, magic.data(), magic.size()) == 0;
}

// HDF5 allows a user block: the signature is at 0, 512, 1024, 2048, …
bool is_hdf5(std::span<const std::byte> bytes) {
  if (starts_with(bytes, 0, kHdf5Magic)) return true;
  for (size_t offset = 512; offset < bytes.size(); offset *= 2)
    if (starts_with(bytes, offset, kHdf5Magic)) return true;
  return false;
}

void check_row_length(const fs::path& path, int64_t columns, int64_t seq_length) {
  if (columns != seq_length)
    throw DataError(
        fmt::format("{}: rows hold {} tokens, but data.seq_length is {}: set data.seq_length to {} or pack the "
                    "text again with `trireme data pack --seq-length {}`",
                    path.string(), columns, seq_length, columns, seq_length));
}

class NpyIntegerRows : public RowFile {
 public:
  NpyIntegerRows(const fs::path& path, MappedFile file, const NpyHeader& header, int64_t seq_length)
      : RowFile(path), header_(header), array_(std::move(file), header) {
    check_row_length(path, array_.columns(), seq_length);
  }
  int64_t rows() const override { return array_.rows(); }
  StoredRow read(int64_t row) const override {
    StoredRow result;
    result.input_ids.resize(static_cast<size_t>(array_.columns()));
    array_.read_row(row, result.input_ids);
    return result;
  }
  std::string where(int64_t row, int64_t position) const override {
    const int64_t item = header_.descr.back() - '0';
    const int64_t column = std::max<int64_t>(position, 0);
    const int64_t element = header_.fortran_order ? column * array_.rows() + row : row * array_.columns() + column;
    return fmt::format("byte {}", static_cast<int64_t>(header_.data_offset) + element * item);
  }
  std::string kind() const override { return fmt::format("npy {}", header_.descr); }

 private:
  NpyHeader header_;
  NpyIntegerArray array_;
};

class RecordRows : public RowFile {
 public:
  RecordRows(const fs::path& path, MappedFile file, const NpyHeader& header)
      : RowFile(path), records_(std::move(file), header) {}
  int64_t rows() const override { return records_.size(); }
  StoredRow read(int64_t row) const override {
    const PackedRecord record = records_.read(row);
    StoredRow result;
    result.input_ids.assign(record.input_ids.begin(), record.input_ids.end());
    result.loss_mask = record.loss_mask;
    result.sequence_starts.assign(record.seq_start_id.begin(), record.seq_start_id.end());
    result.has_loss_mask = result.has_sequence_starts = true;
    return result;
  }
  std::string where(int64_t row, int64_t) const override {
    return fmt::format("record at byte {}", records_.record_offset(row));
  }
  std::string kind() const override { return "MLPerf records"; }

 private:
  NpyPackedRecords records_;
};

class Hdf5Rows : public RowFile {
 public:
  Hdf5Rows(const fs::path& path, int64_t seq_length) : RowFile(path), file_(path) {
    check_row_length(path, file_.columns(), seq_length);
  }
  int64_t rows() const override { return file_.rows(); }
  StoredRow read(int64_t row) const override {
    StoredRow result;
    const auto columns = static_cast<size_t>(file_.columns());
    result.input_ids.resize(columns);
    file_.read_row(row, result.input_ids);
    if (file_.has_loss_mask()) {
      result.has_loss_mask = true;
      result.loss_mask.resize(columns);
      file_.read_loss_mask(row, result.loss_mask);
    }
    if (file_.has_seq_start_id()) {
      result.has_sequence_starts = true;
      result.sequence_starts = file_.read_seq_start_id(row);
    }
    return result;
  }
  // An element in a chunked or filtered dataset has no byte offset: its coordinates are given instead, as HDF5 tools
  // take them.
  std::string where(int64_t row, int64_t position) const override {
    return position < 0 ? fmt::format("dataset input_ids[{}]", row)
                        : fmt::format("dataset input_ids[{}, {}]", row, position);
  }
  std::string kind() const override { return "HDF5"; }

 private:
  Hdf5TokenFile file_;
};

}  // namespace

std::unique_ptr<RowFile> open_row_file(const fs::path& path, int64_t seq_length) {
  std::error_code error;
  if (fs::is_directory(path, error))
    throw DataError(
        fmt::format("{}: is a directory; data.train and data.valid name files: list them one by one", path.string()));
  MappedFile file(path, ExitCode::kData);
  if (starts_with(file.bytes(), 0, kNpyMagic)) {
    const NpyHeader header = parse_npy_header(file.bytes(), path);
    if (header.descr.find('O') != std::string::npos) return std::make_unique<RecordRows>(path, std::move(file), header);
    return std::make_unique<NpyIntegerRows>(path, std::move(file), header, seq_length);
  }
  if (is_hdf5(file.bytes())) return std::make_unique<Hdf5Rows>(path, seq_length);
  throw DataError(
      fmt::format("{}: neither npy nor HDF5 but {}", path.string(), describe_unknown_content(file.bytes())));
}

std::string describe_unknown_content(std::span<const std::byte> bytes) {
  const auto is = [&](std::string_view magic, size_t offset = 0) { return starts_with(bytes, offset, magic); };
  constexpr const char* kPack = "turn it into rows with `trireme data pack --tokenizer tokenizer.model --input FILE …`";
  if (bytes.empty()) return "an empty file: write it again";
  if (is("PAR1")) return std::string("Parquet: ") + kPack + " (or `trireme data mlperf`, `trireme data ultrachat`)";
  if (is("PK\x03\x04")) return "a zip archive (an .npz or a PyTorch checkpoint?): unpack the .npy from it";
  if (is("\x1f\x8b")) return "a gzip archive: unpack it first";
  if (is("\x28\xb5\x2f\xfd")) return "a zstd archive: unpack it first";
  if (is("ARROW1")) return "an Arrow file, which holds documents, not rows: train_llama reads it as it is";
  if (is(std::string_view("MMIDIDX\0\0", 9)))
    return "a Megatron index (.idx), which holds documents, not rows: train_llama reads it as it is";
  const auto byte = [&](size_t i) { return i < bytes.size() ? std::to_integer<unsigned>(bytes[i]) : 0u; };
  if (byte(0) == 0x80 && byte(1) >= 2 && byte(1) <= 5)
    return "a bare Python pickle, which is never executed here: save the rows with numpy.save as "
           "an integer array [N, S]";
  const size_t length = std::min<size_t>(bytes.size(), 4096);
  size_t end = length;  // do not cut a UTF-8 sequence in two
  while (length < bytes.size() && end > 0 && (byte(end) & 0xC0u) == 0x80u) --end;
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), end);
  bool control = false;
  for (const char c : head)
    control |= static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != '\f';
  if (!control && is_valid_utf8(head)) return std::string("text: ") + kPack;
  return fmt::format("unknown bytes ({:02x} {:02x} {:02x} {:02x} …): is it damaged, or still compressed?", byte(0),
                     byte(1), byte(2), byte(3));
}

}  // namespace trireme
