#pragma once
// Writing a Hugging Face BERT directory, tensor by tensor.

#include "models/bert/bert.h"
#include "trireme/formats/huggingface/safetensors.h"
#include "trireme/formats/huggingface/staged_model.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Weights as model.safetensors beside config.json. The model appears in the directory whole, and takes the place of
/// the one that was there (StagedModel). WriteError.
class BertDirectoryWriter {
 public:
  /// `tensors`: of bert_file_tensors().
  BertDirectoryWriter(const std::filesystem::path& directory, std::vector<std::pair<std::string, TensorInfo>> tensors);
  /// The next tensor in the declared order, in the declared type; rows beyond the declared ones (the vocabulary's
  /// padding) are not written.
  void append(const std::string& name, const at::Tensor& value);
  /// After the last tensor. `base`: the path of the model that training began from, for the tokenizer's files.
  void finish(const std::filesystem::path& base, const BertConfig& config);

 private:
  StagedModel staged_;
  std::vector<std::pair<std::string, TensorInfo>> tensors_;
  SafetensorsWriter writer_;
  size_t next_ = 0;
};

}  // namespace trireme
