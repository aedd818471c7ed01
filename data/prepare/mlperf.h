#pragma once
// MLPerf llama2_70b_lora: converts the published Parquet files to the train.npy and validation.npy of every submission.

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
  /// True if the files have the benchmark's row counts (3,901 and 173). Then directory_md5 must be kMlperfDirectoryMd5.
  bool is_benchmark = false;
};

inline constexpr const char* kMlperfDirectoryMd5 = "02e1f87d26ece4943a47bedcad0da5d4";

/// Columns input_ids and labels (lists of integers). Each row becomes {input_ids, loss_mask =
/// (labels != -100), not shifted, seq_start_id = [0]}, as written by the benchmark's convert_dataset.py. DataError for
/// a row whose length differs from the first row's, a label that is neither -100 nor the token itself, and an id that
/// does not fit int32.
MlperfReport convert_mlperf(const std::filesystem::path& train, const std::filesystem::path& valid,
                            const std::filesystem::path& output_directory);

}  // namespace trireme
