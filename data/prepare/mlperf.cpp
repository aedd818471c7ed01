#include "data/prepare/mlperf.h"

#include "data/prepare/md5.h"
#include "data/prepare/outputs.h"
#include "data/prepare/progress.h"
#include "trireme/arrow/parquet.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>
#include <limits>

namespace trireme {
namespace {

constexpr int64_t kIgnored = -100;  // transformers' label of a position without loss

MlperfFile convert(const std::filesystem::path& parquet, const std::filesystem::path& npy) {
  const ParquetFile input(parquet);
  if (input.rows() == 0) throw DataError(fmt::format("{}: holds no rows", parquet.string()));
  MlperfFile result{npy, input.rows(), 0, 0, {}};
  NpyPackedRecordWriter writer(npy, input.rows());
  Progress progress(npy.filename().string(), static_cast<double>(input.rows()), "rows");
  PackedRecord record;
  record.seq_start_id = {0};
  input.read_integer_lists(
      "input_ids", "labels", [&](int64_t row, std::span<const int64_t> ids, std::span<const int64_t> labels) {
        const auto fail = [&](const std::string& what) {
          throw DataError(fmt::format("{}: row {}: {}", parquet.string(), row, what));
        };
        if (row == 0) result.seq_length = static_cast<int64_t>(ids.size());
        if (static_cast<int64_t>(ids.size()) != result.seq_length || ids.empty())
          fail(fmt::format("{} tokens, but row 0 has {}", ids.size(), result.seq_length));
        if (labels.size() != ids.size()) fail(fmt::format("{} labels for {} tokens", labels.size(), ids.size()));
        record.input_ids.clear();
        record.loss_mask.clear();
        for (size_t t = 0; t < ids.size(); ++t) {
          if (ids[t] < 0 || ids[t] > std::numeric_limits<int32_t>::max())
            fail(fmt::format("position {}: {} is not a token id", t, ids[t]));
          if (labels[t] != kIgnored && labels[t] != ids[t])
            fail(fmt::format(
                "position {}: label {} is neither -100 nor the token {}: are these another dataset's labels?", t,
                labels[t], ids[t]));
          record.input_ids.push_back(static_cast<int32_t>(ids[t]));
          record.loss_mask.push_back(labels[t] != kIgnored);
          result.targets += labels[t] != kIgnored;
        }
        writer.append(record);
        progress.update(static_cast<double>(row + 1));
      });
  writer.commit();
  result.md5 = md5_hex_of_file(npy);
  return result;
}

}  // namespace

MlperfReport convert_mlperf(const std::filesystem::path& train, const std::filesystem::path& valid,
                            const std::filesystem::path& output_directory) {
  const std::filesystem::path train_npy = output_directory / "train.npy",
                              valid_npy = output_directory / "validation.npy";
  check_replaceable({train_npy, valid_npy});
  make_directories(output_directory);
  MlperfReport report;
  report.train = convert(train, train_npy);
  report.valid = convert(valid, valid_npy);
  report.directory_md5 = md5_of_digests({report.train.md5, report.valid.md5});
  report.is_benchmark = report.train.rows == 3901 && report.valid.rows == 173;
  return report;
}

}  // namespace trireme
