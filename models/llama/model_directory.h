#pragma once
// Writing a Hugging Face Llama directory, tensor by tensor.

#include "models/llama/llama.h"
#include "trireme/formats/safetensors.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// at::kFloat, kBFloat16, kHalf, kDouble <-> the file's element type, and config.json's name of it
/// ("bfloat16").
DType to_file_dtype(at::ScalarType dtype);
at::ScalarType to_scalar_type(DType dtype);
std::string config_dtype_name(DType dtype);

/// The model's checkpoint tensors in the order of its units, without adapters.
std::vector<std::pair<std::string, TensorInfo>> checkpoint_tensors(const LlamaModel& model, DType dtype);

/// Weights as model.safetensors, or in files of at most 5 GB with an index; config.json comes last,
/// so that a directory with one is whole. Files appear atomically.
class ModelDirectoryWriter {
 public:
  ModelDirectoryWriter(std::filesystem::path directory, std::vector<std::pair<std::string, TensorInfo>> tensors);
  ~ModelDirectoryWriter();
  /// The next tensor in the declared order, of any floating type and device.
  void append(const std::string& name, const at::Tensor& value);
  /// Copies tokenizer and generation files that `from` has.
  void copy_companions(const std::filesystem::path& from);
  void finish(const LlamaConfig& config);

 private:
  std::filesystem::path directory_;
  std::vector<std::pair<std::string, TensorInfo>> tensors_;
  ShardPlan plan_;
  std::unique_ptr<SafetensorsWriter> writer_;
  size_t file_ = 0, in_file_ = 0;
};

}  // namespace trireme
