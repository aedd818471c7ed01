#pragma once
// Writing the Hugging Face directory of a decoder.

#include "models/common/stored.h"
#include "models/decoder/config.h"

#include <filesystem>

namespace trireme {

class ModelDirectoryWriter : public ModelWriter {
 public:
  using ModelWriter::ModelWriter;
  /// Copies the tokenizer that `from` is or holds: tokenizer.model, or all files of its directory for a tokenizer.json
  /// or vocab.json.
  void copy_tokenizer(const std::filesystem::path& from);
  /// Copies tokenizer and generation files that `from` has, the tokenizer's from `tokenizer` unless that is empty;
  /// seal() keeps the keys of its config.json that ours lacks.
  void copy_companions(const std::filesystem::path& from, const std::filesystem::path& tokenizer = {});
  /// The generation_config.json of `from`, the model of `config`, in which `eos` is the first token that ends texts.
  void write_ends(const std::filesystem::path& from, const DecoderConfig& config, int64_t eos);
  /// Writes what is left: the index, config.json, and for a tokenizer without tokenizer_config.json one with the
  /// model's own special pieces.
  void seal(const DecoderConfig& config);
  /// seal() and commit().
  void finish(const DecoderConfig& config);

 private:
  std::filesystem::path source_config_;  // empty: of no model
};

}  // namespace trireme
