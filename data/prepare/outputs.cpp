#include "data/prepare/outputs.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/rng.h"
#include "trireme/formats/hdf5/hdf5_tokens.h"
#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

namespace trireme {

namespace {

/// By rows: nothing, an empty file, HDF5, or an npy array of integers or objects.
bool may_be_replaced(const std::filesystem::path& path) {
  const std::string head = file_head(path, 6);
  if (head.empty() || head.starts_with("\x89HDF")) return true;
  if (head != "\x93NUMPY") return false;
  try {
    const MappedFile file(path, ExitCode::kData);
    const std::string type = parse_npy_header(file.bytes(), path).descr;
    return type.size() > 1 && std::string_view("iuO").find(type[1]) != std::string_view::npos;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

void check_replaceable(const std::vector<std::filesystem::path>& outputs) {
  for (const std::filesystem::path& path : outputs) {
    std::error_code error;
    if (std::filesystem::is_fifo(path, error))
      throw ConfigError(fmt::format("{} is there and is a FIFO: name a file", path.string()));
    if (!may_be_replaced(path))
      throw ConfigError(fmt::format("{} is there and holds no rows: name another file", path.string()));
  }
}

bool is_hdf5_name(const std::filesystem::path& path) {
  return path.extension() == ".h5" || path.extension() == ".hdf5";
}

void check_row_outputs(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                       const std::filesystem::path& valid_output, double valid_fraction) {
  if (same_file(output, valid_output))
    throw ConfigError(fmt::format("--output and --valid-output are the same file: {}", output.string()));
  for (const std::filesystem::path& input : inputs)
    for (const std::filesystem::path& path : {output, valid_output})
      if (same_file(input, path)) throw ConfigError(fmt::format("{} is an input and an output", path.string()));
  for (const std::filesystem::path& path : {output, valid_output})
    if (!path.empty() && path.extension() != ".npy" && !is_hdf5_name(path))
      throw ConfigError(
          fmt::format("{}: the output's name ends in .npy, .h5 or .hdf5, which chooses the format", path.string()));
  check_replaceable({output, valid_output});
  if (valid_output.empty() != (valid_fraction == 0))
    throw ConfigError("--valid-output and --valid-fraction belong together: give both or neither");
  if (!(valid_fraction >= 0 && valid_fraction < 1))
    throw ConfigError(fmt::format("--valid-fraction {}: expected a number between 0 and 1", valid_fraction));
  for (const std::filesystem::path& path : {output, valid_output})
    if (path.has_parent_path()) make_directories(path.parent_path());
}

bool is_drawn(std::string_view purpose, uint64_t seed, int64_t number, double fraction) {
  return uniform_draw(seed, purpose, static_cast<uint64_t>(number)) < fraction;
}

bool in_valid_split(uint64_t seed, int64_t number, double valid_fraction) {
  return is_drawn("valid_split", seed, number, valid_fraction);
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

namespace {

namespace fs = std::filesystem;

constexpr const char* kRecords = ".done";

}  // namespace

PartRecords::PartRecords(const fs::path& directory) : directory_(directory), created_(!fs::exists(directory)) {
  make_directories(directory / kRecords);
  remove_dead_temporaries(directory);
  remove_dead_temporaries(directory / kRecords);
}

PartRecords::~PartRecords() {
  remove_dead_temporaries(directory_);
  remove_dead_temporaries(directory_ / kRecords);
  std::error_code not_empty;
  if (fs::remove(directory_ / kRecords, not_empty) && created_) fs::remove(directory_, not_empty);
}

bool PartRecords::is_done(const std::string& name, uint64_t fingerprint) const {
  std::ifstream file(directory_ / kRecords / name);
  std::string recorded;
  uintmax_t size = 0;
  std::error_code error;
  return file >> recorded >> size && recorded == hex64(fingerprint) &&
         fs::file_size(directory_ / name, error) == size && !error;
}

void PartRecords::done(const std::string& name, uint64_t fingerprint, const std::string& note) const {
  write_file_atomic(directory_ / kRecords / name,
                    fmt::format("{} {}\n{}", hex64(fingerprint), fs::file_size(directory_ / name), note));
}

std::string PartRecords::note(const std::string& name) const {
  std::ifstream file(directory_ / kRecords / name);
  std::string line;
  std::getline(file, line);
  std::ostringstream rest;
  rest << file.rdbuf();
  return rest.str();
}

}  // namespace trireme
