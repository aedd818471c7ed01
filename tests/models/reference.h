#pragma once
// Reads what tests/parity/model_reference.py writes.

#include "models/decoder/decoder.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <ATen/ATen.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace trireme::testing {

/// Where tests/parity/decoder_references.py, which starts these tests, has written its references.
inline std::filesystem::path decoder_references() {
  const char* folder = std::getenv("TRIREME_DECODER_REFERENCES");
  if (folder == nullptr) throw std::runtime_error("tests/parity/decoder_references.py FOLDER PROGRAM starts this test");
  return folder;
}

inline TokenBatch batch_of(const std::map<std::string, at::Tensor>& tensors) {
  TokenBatch batch;
  batch.tokens_BS = tensors.at("tokens");
  batch.loss_weight_BS = tensors.at("loss_weight");
  batch.positions_BS = tensors.at("positions");
  const at::Tensor bounds = tensors.at("bounds");
  for (int64_t i = 0; i < bounds.numel(); ++i) batch.cu_seqlens.push_back(bounds[i].item<int32_t>());
  batch.sample_ids_B = at::arange(batch.tokens_BS.size(0), at::TensorOptions(at::kLong));
  return batch;
}

class Reference {
 public:
  explicit Reference(const std::filesystem::path& directory) {
    std::ifstream settings(directory / "config.txt"), index(directory / "index.txt"), data(directory / "data.bin");
    for (std::string key, value; settings >> key >> value;) settings_[key] = value;
    for (std::string line; std::getline(index, line);) {
      std::istringstream fields(line);
      std::string name, kind;
      size_t rank = 0;
      int64_t offset = 0;
      fields >> name >> kind >> rank;
      std::vector<int64_t> shape(rank);
      for (int64_t& extent : shape) fields >> extent;
      fields >> offset;
      at::Tensor tensor = at::empty(shape, at::TensorOptions(kind == "i64" ? at::kLong : at::kFloat));
      data.seekg(offset);
      data.read(static_cast<char*>(tensor.mutable_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
      if (!fields || !data) throw std::runtime_error("damaged reference: " + line);
      tensors[name] = tensor;
    }
  }
  bool has(const std::string& key) const { return settings_.contains(key); }
  const std::string& text(const std::string& key) const { return settings_.at(key); }
  double number(const std::string& key) const { return std::stod(settings_.at(key)); }
  int64_t integer(const std::string& key) const { return std::stoll(settings_.at(key)); }

  DecoderConfig config() const {
    DecoderConfig c;
    c.hidden_size = integer("hidden_size");
    c.intermediate_size = integer("intermediate_size");
    c.num_hidden_layers = integer("num_hidden_layers");
    c.num_attention_heads = integer("num_attention_heads");
    c.num_key_value_heads = integer("num_key_value_heads");
    c.head_dim = integer("head_dim");
    c.vocab_size = integer("vocab_size");
    c.max_position_embeddings = integer("max_position_embeddings");
    c.norm_eps = number("rms_norm_eps");
    c.rope.theta = number("rope_theta");
    c.tie_word_embeddings = integer("tie") != 0;
    if (text("rope_type") == "linear")
      c.rope = {RopeFrequencies::Scaling::kLinear, c.rope.theta, number("factor"), 1, 4, 8192};
    if (text("rope_type") == "llama3")
      c.rope = {RopeFrequencies::Scaling::kLlama3,
                c.rope.theta,
                number("factor"),
                number("low_freq_factor"),
                number("high_freq_factor"),
                integer("original_max_position_embeddings")};
    return c;
  }
  std::optional<LoraOptions> lora() const {
    if (text("lora") == "-") return std::nullopt;
    return LoraOptions{3, 7, 0.0, {split(text("lora"), ',')}};
  }
  TokenBatch batch() const { return batch_of(tensors); }

  std::map<std::string, at::Tensor> tensors;

 private:
  std::map<std::string, std::string> settings_;
};

/// The tensors below a prefix as a checkpoint.
class ReferenceWeights : public WeightSource {
 public:
  ReferenceWeights(const Reference& reference, const std::string& prefix) {
    for (const auto& [name, tensor] : reference.tensors)
      if (name.starts_with(prefix)) tensors_[name.substr(prefix.size())] = tensor;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }
  std::optional<TensorInfo> find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return std::nullopt;
    return TensorInfo{DType::kF32, found->second.sizes().vec()};
  }
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override {
    const auto* data = static_cast<const std::byte*>(tensors_.at(name).const_data_ptr());
    // In two pieces, as a sharded checkpoint may give them.
    const int64_t middle = begin + (end - begin) / 3;
    return {{data + 4 * begin, middle - begin}, {data + 4 * middle, end - middle}};
  }
  std::string description() const override { return "reference"; }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace trireme::testing
