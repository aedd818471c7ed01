#pragma once
// Weights of a BERT under the names and shapes of its units, for all supported file formats.

#include "models/bert/bert.h"
#include "trireme/formats/huggingface/safetensors.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Opens `path` for `model`: a Hugging Face directory, or a TensorFlow checkpoint, given as its prefix
/// (".../model.ckpt-28252"), its .index file, or a directory with exactly one. Vocabulary padding reads as zeros;
/// "gamma" and "beta" of old files, the decoder's own bias and TensorFlow's transposed kernels are translated.
/// ModelError with the file named.
std::unique_ptr<WeightSource> open_bert_weights(const std::filesystem::path& path, const BertModel& model);

/// The directory or file with the model's configuration, for the same `path`.
std::filesystem::path bert_config_path(const std::filesystem::path& path);

/// "bert.encoder.layer.3.attention.self.query.weight" -> "bert/encoder/layer_3/attention/self/query/kernel".
std::string tensorflow_name(const std::string& name);

/// The tensors of a Hugging Face model.safetensors in the order of the units, without the padding rows at the end of
/// the vocabulary.
std::vector<std::pair<std::string, TensorInfo>> bert_file_tensors(const BertModel& model, DType dtype);

/// Completes a directory with model.safetensors to a model that transformers loads: copies the tokenizer's files from
/// `base` (the path of the initial model) if it has them, then writes config.json.
void finish_bert_directory(const std::filesystem::path& directory, const std::filesystem::path& base,
                           const BertConfig& config);

}  // namespace trireme
