#pragma once
// Writing a Hugging Face model directory, tensor by tensor.

#include "models/decoder/decoder.h"
#include "trireme/formats/huggingface/safetensors.h"
#include "trireme/formats/huggingface/staged_model.h"

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
std::vector<std::pair<std::string, TensorInfo>> checkpoint_tensors(const DecoderModel& model, DType dtype);

/// Weights as model.safetensors, or in files of at most 5 GB with an index. The model appears in the directory whole,
/// and takes the place of the one that was there (StagedModel).
class ModelDirectoryWriter {
 public:
  /// `tensors` as checkpoint_tensors() gives them, for a model of the family of `config`: matrices that its files keep
  /// [in, out] are transposed on their way.
  ModelDirectoryWriter(std::filesystem::path directory, const DecoderConfig& config,
                       std::vector<std::pair<std::string, TensorInfo>> tensors);
  ~ModelDirectoryWriter();
  /// The next tensor in the declared order, of any floating type and device.
  void append(const std::string& name, const at::Tensor& value);
  /// The next tensor in the declared order, bit for bit: `source` has it in the declared type.
  void copy(const std::string& name, const WeightSource& source);
  /// Copies the tokenizer that `from` is or holds: tokenizer.model, or all files of its directory for a tokenizer.json
  /// or vocab.json.
  void copy_tokenizer(const std::filesystem::path& from);
  /// Copies tokenizer and generation files that `from` has.
  void copy_companions(const std::filesystem::path& from);
  void write_companion(const std::string& name, std::string_view content);
  /// Writes what is left: the index, config.json, and for a tokenizer.model without tokenizer_config.json one with the
  /// model's own special pieces. The directory has the old model still; the new one can be read at path().
  void seal(const DecoderConfig& config);
  const std::filesystem::path& path() const { return staged_.path(); }
  void commit() { staged_.commit(); }
  /// seal() and commit().
  void finish(const DecoderConfig& config);

 private:
  /// `shape`: as the model has it.
  const TensorInfo& begin_tensor(const std::string& name, at::IntArrayRef shape);
  void end_tensor();

  StagedModel staged_;
  DecoderConfig config_;
  std::vector<std::pair<std::string, TensorInfo>> tensors_;  // as the files have them
  ShardPlan plan_;
  std::unique_ptr<SafetensorsWriter> writer_;
  size_t file_ = 0, in_file_ = 0;
};

}  // namespace trireme
