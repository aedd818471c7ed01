#pragma once
// Weights of a BERT under the names and shapes of its units, from all supported file formats, and its model directory.

#include "models/bert/bert.h"
#include "models/common/stored.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// Opens `path` for `model`: a Hugging Face directory, or a TensorFlow checkpoint, given as its prefix
/// (".../model.ckpt-28252"), its .index file, or a directory with exactly one. Vocabulary padding reads as zeros;
/// "gamma" and "beta" of old files, the decoder's own bias and TensorFlow's transposed kernels are translated.
/// ModelError with the file named.
std::unique_ptr<WeightSource> open_bert_weights(const std::filesystem::path& path, const BertModel& model);

/// The files of the TensorFlow checkpoint that open_bert_weights() reads for `path`; none where it reads others.
std::vector<std::filesystem::path> tensorflow_files(const std::filesystem::path& path);

/// The directory or file with the model's configuration, for the same `path`.
std::filesystem::path bert_config_path(const std::filesystem::path& path);

/// "bert.encoder.layer.3.attention.self.query.weight" -> "bert/encoder/layer_3/attention/self/query/kernel".
std::string tensorflow_name(const std::string& name);

/// Writes a Hugging Face directory.
class BertDirectoryWriter : public ModelWriter {
 public:
  using ModelWriter::ModelWriter;
  /// After the last tensor. `base`: the path of the model that training began from, for the tokenizer's files.
  void finish(const std::filesystem::path& base, const BertConfig& config);
};

}  // namespace trireme
