#pragma once
// Weights as named tensors whose bytes are read piecewise: each rank reads only its own shards.

#include "trireme/base/dtype.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct TensorInfo {
  DType dtype;
  std::vector<int64_t> shape;
};

/// `count` contiguous elements in a mapped file; valid while the source lives.
struct ElementSpan {
  const std::byte* data;
  int64_t count;
};

/// Named tensors under Hugging Face names ("model.layers.0.self_attn.q_proj.weight"), row-major, for every file format.
/// Const members are thread-safe. All errors are ModelError with file and tensor.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual std::vector<std::string> names() const = 0;
  virtual std::optional<TensorInfo> find(const std::string& name) const = 0;
  /// Elements [begin, end) of the flattened tensor as contiguous pieces in order.
  virtual std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const = 0;
  /// The place of a tensor of names(), for messages: the file, or the directory of an array; empty: unknown.
  virtual std::string place(const std::string&) const { return ""; }
  /// "safetensors, 15 files", for the log.
  virtual std::string description() const = 0;
};

/// The tensor for a message: "model.norm.weight in /models/a/model.safetensors".
std::string tensor_text(const WeightSource& source, const std::string& name);

/// The type of a tensor, which must have this shape and hold F32, F16, BF16 or F64; ModelError with its file otherwise.
DType weight_type(const WeightSource& source, const std::string& name, const std::vector<int64_t>& shape);

/// Whether two tensors of `source`, which are there, have the same type, shape and bytes.
bool equal_tensors(const WeightSource& source, const std::string& a, const std::string& b);

/// Whether a model's directory has model.safetensors, or its index.
bool has_safetensors(const std::filesystem::path& directory);
/// Opens a model directory: model.safetensors, or model.safetensors.index.json + shards. pytorch_model.bin and other
/// pickles are refused by name with advice. (NeMo directories: open_zarr_checkpoint.)
std::unique_ptr<WeightSource> open_weights(const std::filesystem::path& directory);

/// "; it has mp_rank_00: …", what a directory of another trainer's checkpoint is and what to do; empty for others.
std::string training_checkpoint_text(const std::filesystem::path& directory);
/// "; it is a folder of the Hugging Face Hub's cache …", with the snapshot to give in its place; empty for others.
std::string hub_cache_text(const std::filesystem::path& directory);
/// ModelError for what is not there or is no directory, for a file and for a folder of the Hub's cache, with advice.
void require_model_directory(const std::filesystem::path& path);

}  // namespace trireme
