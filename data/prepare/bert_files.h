#pragma once
// Prepares BERT's training files from text: instances, packed shards, fixed and variable-length HDF5, the evaluation
// set. Names, types and order of all datasets are as in MLPerf's BERT submissions. Steps over many files run on all
// cores and resume after an interruption.

#include "data/prepare/bert_instances.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// The given files, and the files named <prefix>*<suffix> of given directories, sorted by name. DataError for absent
/// files and empty directories.
std::vector<std::filesystem::path> list_parts(const std::vector<std::filesystem::path>& inputs,
                                              const std::string& prefix, const std::string& suffix);

struct BertInstancesReport {
  size_t parts = 0, kept = 0;  // kept: finished by an earlier run
  int64_t instances = 0, documents = 0, bytes = 0;
};

/// Each text file gives output/<name>.instances, independently of the others.
BertInstancesReport create_bert_instances(const std::vector<std::filesystem::path>& inputs,
                                          const std::filesystem::path& vocab, const BertInstanceOptions& options,
                                          const std::filesystem::path& output, unsigned threads);

struct BertPackReport {
  int64_t sequences = 0, rows = 0, tokens = 0, padding_slots = 0;
  size_t strategies_used = 0, kept = 0;
  int rounds = 0, max_length = 0;
};

/// Packs the instances of all parts, in the order of their names, into output/part_00000 …; also writes index.txt
/// (name, rows and sequences of each shard) and packing.json (the strategies used).
BertPackReport pack_bert(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                         int shards, uint32_t seed, unsigned threads);

enum class BertLayout { kFixed, kVarlength };

struct BertExportOptions {
  BertLayout layout = BertLayout::kVarlength;
  int shards = 0;                        // 0: one file a part
  std::optional<uint32_t> shuffle_seed;  // shuffles all instances; needs shards > 0
  unsigned threads = 0;
};

struct BertExportReport {
  int64_t instances = 0;
  size_t files = 0, kept = 0;
};

/// Instances as unpacked HDF5: part_00000_of_04320.hdf5 …, .hdf when shuffled, as the reference names them; <name>.hdf5
/// for parts.
BertExportReport export_bert(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                             const BertExportOptions& options);

/// The evaluation set: instances of one text, of which every (all / count)-th is taken, as a variable-length file.
/// Returns the number of all instances.
int64_t create_bert_eval(const std::filesystem::path& text, const std::filesystem::path& vocab,
                         const BertInstanceOptions& options, int64_t count, const std::filesystem::path& output);

/// MLPerf's checksum of the samples of a packed or variable-length file: MD5 of each sample's input_ids written as a
/// Python list, and MD5 of the list of these. Checks every row as the trainer does.
struct BertChecksum {
  std::string md5;
  int64_t rows = 0, sequences = 0, tokens = 0, masked = 0;
};
BertChecksum checksum_bert_file(const std::filesystem::path& path, int64_t max_length, int64_t vocab_size);

inline constexpr const char* kMlperfBertEvalMd5 = "611d8bae26646145e1c33338a27ba124";

}  // namespace trireme
