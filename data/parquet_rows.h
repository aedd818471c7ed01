#pragma once
// Rows of a Parquet column in any order, decoded a row group at a time.

#include "data/recent.h"
#include "trireme/arrow/parquet.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Row groups that were decoded last: 512 MiB over all files that share it. Row: a string or a vector.
template <class Row>
struct RowGroups {
  Recent<std::pair<int64_t, int64_t>, std::vector<Row>> recent{size_t{512} << 20};  // by (file, group)
  int64_t files = 0;
};

/// Thread-safe. `read` is the member of ParquetFile that decodes a row group.
template <class Row>
class ParquetRows {
 public:
  using Read = std::vector<Row> (ParquetFile::*)(const std::string& column, int64_t group) const;
  ParquetRows(ParquetFile file, std::string column, Read read, std::shared_ptr<RowGroups<Row>> groups)
      : file_(std::move(file)),
        column_(std::move(column)),
        read_(read),
        groups_(std::move(groups)),
        number_(groups_->files++) {
    int64_t rows = 0;
    for (const int64_t group : file_.group_rows()) ends_.push_back(rows += group);
  }
  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  Row at(int64_t index) const {
    const int64_t group = std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
    const int64_t row = index - (group == 0 ? 0 : ends_[static_cast<size_t>(group) - 1]);
    const auto make = [&] {
      const std::lock_guard lock(mutex_);
      return (file_.*read_)(column_, group);
    };
    const auto rows = groups_->recent.get({number_, group}, make, [](const std::vector<Row>& made) {
      size_t bytes = 0;
      for (const Row& each : made) bytes += each.size() * sizeof(each[0]) + sizeof(Row);
      return bytes;
    });
    return rows->at(static_cast<size_t>(row));
  }

 private:
  const ParquetFile file_;
  const std::string column_;
  const Read read_;
  const std::shared_ptr<RowGroups<Row>> groups_;
  const int64_t number_;
  mutable std::mutex mutex_;
  std::vector<int64_t> ends_;  // rows through group i
};

}  // namespace trireme
