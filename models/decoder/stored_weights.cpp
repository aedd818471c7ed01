#include "models/decoder/stored_weights.h"

#include "models/decoder/family.h"
#include "trireme/base/error.h"
#include "trireme/formats/nemo/zarr_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

namespace trireme {

namespace {

/// out [columns, rows] of in [rows, columns], elements of `size` bytes.
void transpose_elements(const std::byte* in, std::byte* out, int64_t rows, int64_t columns, int64_t size) {
  constexpr int64_t kTile = 64;  // both sides of a tile fit the cache
  for (int64_t row = 0; row < rows; row += kTile)
    for (int64_t column = 0; column < columns; column += kTile)
      for (int64_t r = row; r < std::min(rows, row + kTile); ++r)
        for (int64_t c = column; c < std::min(columns, column + kTile); ++c)
          std::memcpy(out + (c * rows + r) * size, in + (r * columns + c) * size, static_cast<size_t>(size));
}

class StoredWeights final : public WeightSource {
 public:
  StoredWeights(std::unique_ptr<WeightSource> source, const DecoderConfig& config)
      : source_(std::move(source)), config_(config), names_(family_of(config).names) {}

  std::vector<std::string> names() const override {
    const std::vector<std::string> stored = source_->names();
    const bool bare = std::none_of(stored.begin(), stored.end(),
                                   [&](const std::string& name) { return name.starts_with(names_.base); });
    std::vector<std::string> all;
    for (const std::string& name : stored) {
      const bool buffer = std::any_of(names_.buffers.begin(), names_.buffers.end(),
                                      [&](const std::string& end) { return name.ends_with(end); });
      if (!buffer) all.push_back(bare && !name.starts_with(names_.head) ? names_.base + name : name);
    }
    return all;
  }
  std::optional<TensorInfo> find(const std::string& name) const override {
    auto info = source_->find(stored(name));
    if (info && turned(name, *info)) std::swap(info->shape[0], info->shape[1]);
    return info;
  }
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override {
    const auto info = source_->find(stored(name));
    if (!info || !turned(name, *info)) return source_->read(stored(name), begin, end);
    const auto size = static_cast<int64_t>(dtype_size(info->dtype));
    return {{transposed(name, *info).data() + begin * size, end - begin}};
  }
  std::string place(const std::string& name) const override { return source_->place(stored(name)); }
  std::string description() const override { return source_->description(); }

 private:
  std::string stored(const std::string& name) const {
    if (!name.starts_with(names_.base) || source_->find(name)) return name;
    const std::string bare = name.substr(names_.base.size());
    return source_->find(bare) ? bare : name;
  }
  bool turned(const std::string& name, const TensorInfo& info) const {
    return info.shape.size() == 2 && stored_transposed(config_, name);
  }
  const std::vector<std::byte>& transposed(const std::string& name, const TensorInfo& info) const {
    const std::lock_guard lock(mutex_);
    const auto found = transposed_.find(name);
    if (found != transposed_.end()) return found->second;
    const int64_t rows = info.shape[0], columns = info.shape[1];
    const auto size = static_cast<int64_t>(dtype_size(info.dtype));
    std::vector<std::byte> in;
    for (const ElementSpan& span : source_->read(stored(name), 0, rows * columns))
      in.insert(in.end(), span.data, span.data + span.count * size);
    std::vector<std::byte> out(in.size());
    transpose_elements(in.data(), out.data(), rows, columns, size);
    return transposed_.emplace(name, std::move(out)).first->second;
  }

  std::unique_ptr<WeightSource> source_;
  DecoderConfig config_;
  TensorNames names_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<std::byte>> transposed_;
};

std::unique_ptr<WeightSource> open_files(const std::filesystem::path& directory, const DecoderConfig& c) {
  const bool safetensors = std::filesystem::exists(directory / "model.safetensors") ||
                           std::filesystem::exists(directory / "model.safetensors.index.json");
  if (safetensors || !std::filesystem::is_directory(directory) || !is_zarr_checkpoint(directory))
    return open_weights(directory);
  return open_zarr_checkpoint(
      directory, {c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads,
                  c.head_dim, c.vocab_size, c.tie_word_embeddings});
}

}  // namespace

bool stored_transposed(const DecoderConfig& config, const std::string& tensor) {
  const BlockTable block = decoder_block(config);
  if (!block.transposed || !tensor.starts_with(family_of(config).names.blocks)) return false;
  for (const BlockLayer& layer : block.layers)
    for (const LayerPart& part : layer.parts)
      if (layer.product() && tensor.ends_with("." + part.module + ".weight")) return true;
  return false;
}

std::unique_ptr<WeightSource> open_stored_weights(const std::filesystem::path& directory, const DecoderConfig& config) {
  return std::make_unique<StoredWeights>(open_files(directory, config), config);
}

}  // namespace trireme
