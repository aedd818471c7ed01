#pragma once
// MLPerf llama2_70b_lora: the published Parquet files to the train.npy and validation.npy that
// every submission trains on.

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

struct MlperfFile {
  std::filesystem::path path;
  int64_t rows = 0, seq_length = 0,
          targets = 0;  // targets: positions whose label counts, unshifted
  std::string md5;
};

struct MlperfReport {
  MlperfFile train, valid;
  std::string directory_md5;
  /// The files have the benchmark's row counts (3,901 and 173), so that directory_md5 must be
  /// kMlperfDirectoryMd5.
  bool is_benchmark = false;
};

inline constexpr const char* kMlperfDirectoryMd5 = "02e1f87d26ece4943a47bedcad0da5d4";

/// Columns input_ids and labels (lists of integers). Each row becomes {input_ids, loss_mask =
/// (labels != -100), not shifted, seq_start_id = [0]}, as the benchmark's convert_dataset.py leaves
/// it. DataError for rows of other lengths than the first, labels that are neither -100 nor the
/// token itself, ids that are no int32.
MlperfReport convert_mlperf(const std::filesystem::path& train, const std::filesystem::path& valid,
                            const std::filesystem::path& output_directory);

}  // namespace trireme
