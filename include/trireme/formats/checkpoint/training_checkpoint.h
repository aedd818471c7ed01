#pragma once
// Files of training checkpoints. A checkpoint is a directory step-N with one safetensors file for each rank that
// writes, and MANIFEST.json, which is written last: a directory without a valid manifest is not a checkpoint.
//
// The state of a trained unit is a set of flat vectors ("kinds": master, exp_avg, exp_avg_sq) over the unit's elements
// in memory order, without the padding that depends on the shard size. A file holds runs of elements of such vectors;
// together the files hold every element once. Therefore a checkpoint can be read with any world size and shard size.
// Version 1 (whole per-rank shards, manifest.json) is read as well.

#include "trireme/base/dtype.h"
#include "trireme/formats/huggingface/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// A tensor of the model: elements [offset, offset + product of shape) of its unit's vectors.
struct CheckpointTensor {
  std::string name;  // Hugging Face name
  std::vector<int64_t> shape;
  int64_t offset = 0;
  bool operator==(const CheckpointTensor&) const = default;
};

struct CheckpointUnit {
  std::string name;
  int64_t numel = 0;  // length of each of its vectors
  std::vector<CheckpointTensor> tensors;
};

/// The tensor's name in a file: "kind.unit".
inline std::string checkpoint_tensor_name(const std::string& kind, const std::string& unit) {
  return unit.empty() ? kind : kind + "." + unit;
}

/// Elements [begin, begin + count) of the vector `kind` of `unit`, stored as the tensor "kind.unit" of a file. A scalar
/// of the loop has no unit and count 1.
struct CheckpointPiece {
  std::string kind, unit;
  DType dtype = DType::kF32;
  int64_t begin = 0, count = 0;
  uint64_t xxh3 = 0;  // of the piece's bytes; version 1 has none
  std::string tensor_name() const { return checkpoint_tensor_name(kind, unit); }
};

struct CheckpointFile {
  std::string name;
  uint64_t bytes = 0, header_xxh3 = 0;
  std::optional<uint64_t> xxh3;  // version 1: of the whole file
  std::vector<CheckpointPiece> pieces;
};

/// Identifies an input of the run: its path and a hash of its content (fingerprint_file).
struct Fingerprint {
  std::string path, hash;
  bool operator==(const Fingerprint&) const = default;
  /// Whether the content was the same `then`. Earlier versions hashed less of some files: what they have is the part of
  /// such a hash before its "+".
  bool same_content(const Fingerprint& then) const {
    return hash == then.hash || hash.substr(0, hash.find('+')) == then.hash;
  }
};

struct CheckpointManifest {
  static constexpr int kVersion = 2;
  int version = kVersion;
  std::string run_id;
  int64_t step = 0, samples = 0, tokens = 0, evaluations = 0;
  int64_t world_size = 1, shard_size = 1;
  std::string compute_dtype;        // "bf16"; version 1 has none
  std::string config, config_hash;  // resolved YAML; hash of the keys that change the computation
  int64_t seed = 0;
  /// Numbers of the training loop by name, stored exactly: the state of policies and schedules.
  std::map<std::string, std::vector<double>> numbers;
  std::vector<Fingerprint> data, base;  // training rows; files of the frozen base model
  /// Other files that results depend on. Empty: a checkpoint of an earlier version, or there are none.
  std::vector<Fingerprint> inputs;
  std::vector<Fingerprint> evaluation;  // rows of evaluations; empty as `inputs`
  std::vector<CheckpointUnit> units;
  std::vector<CheckpointFile> files;

  uint64_t total_bytes() const;
};

inline constexpr const char* kManifestName = "MANIFEST.json";

std::string manifest_json(const CheckpointManifest& manifest);
/// Strict: accepts exactly the bytes that manifest_json() writes, with a correct hash, file names without path
/// components, and every vector covered once. ModelError naming `path` otherwise; for an unknown version it names the
/// program that reads it.
CheckpointManifest parse_manifest(std::string_view text, const std::filesystem::path& path);
/// The manifest of a checkpoint directory, of version 1 too. StorageError where it cannot be read, here and below.
CheckpointManifest read_manifest(const std::filesystem::path& directory);

/// "step-00000012", and the step of such a name (nullopt for other names and for temporary directories).
std::string checkpoint_name(int64_t step);
std::optional<int64_t> checkpoint_step(const std::filesystem::path& directory);
/// Directories step-N below `checkpoints`, newest first. StorageError where they cannot all be listed.
std::vector<std::pair<int64_t, std::filesystem::path>> list_checkpoints(const std::filesystem::path& checkpoints);

/// Compares names, sizes and headers: every file exists with its size, there are no other files, and each header lists
/// exactly the manifest's tensors. Returns the differences, one sentence each.
std::vector<std::string> check_checkpoint_layout(const std::filesystem::path& directory,
                                                 const CheckpointManifest& manifest);
/// Compares the hashes of one file's header and tensors, streaming. Returns the differences, naming tensors.
std::vector<std::string> check_checkpoint_hashes(const std::filesystem::path& directory,
                                                 const CheckpointManifest& manifest, size_t file);
/// At most five of `differences`, and the number of further differences.
std::string summarise_differences(const std::vector<std::string>& differences);

/// Reads elements of one vector across files; the caller has checked the layout.
class CheckpointReader {
 public:
  CheckpointReader(std::filesystem::path directory, CheckpointManifest manifest);
  const CheckpointManifest& manifest() const { return manifest_; }
  /// Contiguous runs of elements [begin, end) of `kind` of `unit`, in order. ModelError when elements are missing.
  std::vector<ElementSpan> read(const std::string& kind, const std::string& unit, int64_t begin, int64_t end);
  DType dtype(const std::string& kind, const std::string& unit) const;

 private:
  const SafetensorsFile& open(size_t file);
  std::filesystem::path directory_;
  CheckpointManifest manifest_;
  std::map<std::string, std::vector<std::pair<size_t, size_t>>> pieces_;  // tensor name -> (file, piece), ascending
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

/// Hash of a file's content: the whole content up to `blocks` MiB. For a larger file the size and `blocks` evenly
/// spread blocks of 1 MiB, including both ends, because hashing terabytes would delay the start. Error with `code` when
/// it cannot be read.
std::string fingerprint_file(const std::filesystem::path& path, ExitCode code, size_t blocks = 256);
std::vector<Fingerprint> fingerprint_files(const std::vector<std::filesystem::path>& paths, ExitCode code,
                                           size_t blocks = 256);
/// Of the names and sizes of a directory's files, by which earlier versions told directories of rows. Empty where it
/// cannot be listed.
std::string fingerprint_names(const std::filesystem::path& directory);
/// config.json of a model directory (or the file itself) and, if `with_weights`, its *.safetensors, 16 blocks each.
/// Absent files are omitted. Where there are none: of a NeMo zarr checkpoint its descriptions (model.yaml or
/// model_config.yaml, .zarray) and, if `with_weights`, the first chunk of each array.
std::vector<Fingerprint> fingerprint_model(const std::filesystem::path& path, bool with_weights);
/// Of a model's configuration in JSON, without what decides nothing: its layout, transformers_version, _name_or_path.
Fingerprint fingerprint_configuration(const std::filesystem::path& path);
/// Of a file of a tokenizer: of tokenizer_config.json and special_tokens_map.json what is read there, as two hashes
/// with a "+" between, of others all.
Fingerprint fingerprint_tokenizer(const std::filesystem::path& path);

}  // namespace trireme
