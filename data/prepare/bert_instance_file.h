#pragma once
// Instances on disk, between their creation and packing or export. One file a part; all instances of one length have
// records of one size, so that the offset of an instance is computed without an index. Little-endian:
//   "TRIBERT1", fingerprint u64, count u64, seq_length u32, vocab_size u32, counts u32[seq_length + 1] by length,
//   masks u16[seq_length + 1] by length, zeros to a multiple of 8, ranks u32[count] and records (bert_instances.h),
//   both by length.

#include "data/prepare/bert_instances.h"
#include "trireme/base/file.h"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme {

void write_bert_instances(const std::filesystem::path& path, const BertInstances& instances, int32_t vocab_size,
                          uint64_t fingerprint);

class BertInstanceFile {
 public:
  /// DataError for a file that is not a complete file of instances.
  explicit BertInstanceFile(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t fingerprint() const { return fingerprint_; }
  int64_t size() const { return count_; }
  int seq_length() const { return seq_length_; }
  int32_t vocab_size() const { return vocab_size_; }
  int64_t count(int length) const { return counts_[static_cast<size_t>(length)]; }
  int masks(int length) const { return masks_[static_cast<size_t>(length)]; }
  /// Instance k of those of `length` tokens, checked: DataError.
  BertInstance get(int length, int64_t k) const;
  /// The (length, k) of all instances, in the shuffled order in which the reference writes them.
  struct Place {
    uint16_t length;
    uint32_t k;
  };
  std::vector<Place> order() const;

 private:
  MappedFile file_;
  uint64_t fingerprint_ = 0;
  int64_t count_ = 0;
  int seq_length_ = 0;
  int32_t vocab_size_ = 0;
  std::vector<uint32_t> counts_;        // [seq_length + 1]
  std::vector<uint16_t> masks_;         // [seq_length + 1]
  std::vector<size_t> record_offsets_;  // [seq_length + 2] bytes in the file
  size_t ranks_offset_ = 0;
};

}  // namespace trireme
