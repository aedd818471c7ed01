#include "models/bert/weights.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace trireme {

namespace {

/// Files of a complete Hugging Face model directory besides the weights.
constexpr const char* kCompanions[] = {"vocab.txt", "tokenizer.json", "tokenizer_config.json",
                                       "special_tokens_map.json"};

constexpr const char* kWordName = "bert.embeddings.word_embeddings.weight";
constexpr const char* kOutputBiasName = "cls.predictions.bias";

bool is_padded(const std::string& name) { return name == kWordName || name == kOutputBiasName; }

std::string replace_end(const std::string& text, const std::string& end, const std::string& by) {
  return text.ends_with(end) ? text.substr(0, text.size() - end.size()) + by : text;
}

/// All names under which files store this tensor; the canonical one is first.
std::vector<std::string> spellings(const std::string& name) {
  std::vector<std::string> all = {name};
  if (name.ends_with("LayerNorm.weight")) all.push_back(replace_end(name, "weight", "gamma"));
  if (name.ends_with("LayerNorm.bias")) all.push_back(replace_end(name, "bias", "beta"));
  if (name == kOutputBiasName) all.emplace_back("cls.predictions.decoder.bias");
  if (name == kWordName) all.emplace_back("cls.predictions.decoder.weight");
  return all;
}

/// Tensors of a Hugging Face directory, each under its canonical name.
class RenamedWeights final : public WeightSource {
 public:
  explicit RenamedWeights(std::unique_ptr<WeightSource> source) : source_(std::move(source)) {}
  std::vector<std::string> names() const override { return source_->names(); }
  std::optional<TensorInfo> find(const std::string& name) const override { return source_->find(stored(name)); }
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override {
    return source_->read(stored(name), begin, end);
  }
  std::string place(const std::string& name) const override { return source_->place(stored(name)); }
  std::string description() const override { return source_->description(); }

 private:
  std::string stored(const std::string& name) const {
    for (const std::string& spelling : spellings(name))
      if (source_->find(spelling)) return spelling;
    return name;
  }
  std::unique_ptr<WeightSource> source_;
};

/// A TensorFlow checkpoint under Hugging Face's names. Kernels are transposed at the first read.
class TensorflowWeights final : public WeightSource {
 public:
  explicit TensorflowWeights(const std::filesystem::path& prefix) : checkpoint_(prefix) {}

  std::vector<std::string> names() const override { return checkpoint_.names(); }
  std::optional<TensorInfo> find(const std::string& name) const override {
    const TfTensor* tensor = checkpoint_.find(tensorflow_name(name));
    if (tensor == nullptr) return std::nullopt;
    TensorInfo info{tensor->dtype, tensor->shape};
    if (is_kernel(name, info)) std::reverse(info.shape.begin(), info.shape.end());
    return info;
  }
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override {
    const std::string stored = tensorflow_name(name);
    const TfTensor* tensor = checkpoint_.find(stored);
    if (tensor == nullptr) throw ModelError(fmt::format("{} has no tensor {}", description(), stored));
    const TensorInfo info{tensor->dtype, tensor->shape};
    const auto size = static_cast<int64_t>(dtype_size(info.dtype));
    const std::lock_guard lock(mutex_);
    const std::byte* data = is_kernel(name, info) ? transposed(stored, info).data() : checked(stored);
    return {{data + begin * size, end - begin}};
  }
  std::string description() const override { return checkpoint_.description(); }

 private:
  static bool is_kernel(const std::string& name, const TensorInfo& info) {
    return info.shape.size() == 2 && tensorflow_name(name).ends_with("/kernel");
  }
  /// The bytes of a tensor; its checksum is compared at the first read.
  const std::byte* checked(const std::string& stored) const {
    auto [found, fresh] = checked_.try_emplace(stored, nullptr);
    if (fresh) found->second = checkpoint_.read(stored).data();
    return found->second;
  }
  const std::vector<std::byte>& transposed(const std::string& stored, const TensorInfo& info) const {
    std::vector<std::byte>& copy = transposed_[stored];
    if (!copy.empty()) return copy;
    const std::span<const std::byte> bytes = checkpoint_.read(stored);
    std::vector<std::byte> turned(bytes.size());
    const auto size = dtype_size(info.dtype), rows = static_cast<size_t>(info.shape[0]),
               columns = static_cast<size_t>(info.shape[1]);
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c)
        std::memcpy(turned.data() + (c * rows + r) * size, bytes.data() + (r * columns + c) * size, size);
    copy = std::move(turned);
    return copy;
  }

  TfCheckpoint checkpoint_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, const std::byte*> checked_;
  mutable std::map<std::string, std::vector<std::byte>> transposed_;
};

/// Appends rows of zeros to the word embedding and the output bias of another source.
class PaddedWeights final : public WeightSource {
 public:
  PaddedWeights(std::unique_ptr<WeightSource> source, int64_t vocab, int64_t padded)
      : source_(std::move(source)), vocab_(vocab), padded_(padded) {}

  std::vector<std::string> names() const override { return source_->names(); }
  std::optional<TensorInfo> find(const std::string& name) const override {
    auto info = source_->find(name);
    if (!info || !is_padded(name) || info->shape.empty()) return info;
    // A file that is already padded is used unchanged.
    if (info->shape[0] == padded_) return info;
    if (info->shape[0] != vocab_)
      throw ModelError(fmt::format("{} has {} rows in {}, its configuration says vocab_size {}", name, info->shape[0],
                                   description(), vocab_));
    info->shape[0] = padded_;
    return info;
  }
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override {
    if (!is_padded(name)) return source_->read(name, begin, end);
    const auto info = source_->find(name);
    if (!info || info->shape.empty()) throw ModelError(fmt::format("{} has no tensor {}", description(), name));
    int64_t stored = 1;
    for (const int64_t extent : info->shape) stored *= extent;
    std::vector<ElementSpan> spans;
    if (begin < std::min(end, stored)) spans = source_->read(name, begin, std::min(end, stored));
    const int64_t zeros = end - std::max(begin, stored);
    if (zeros > 0) {
      const std::lock_guard lock(mutex_);
      std::vector<std::byte>& zero = zeros_[name];
      const auto bytes = static_cast<size_t>((padded_ - vocab_) * (stored / info->shape[0])) * dtype_size(info->dtype);
      if (zero.empty()) zero.resize(bytes);
      TRIREME_CHECK(static_cast<size_t>(zeros) * dtype_size(info->dtype) <= zero.size(), "padding of ", name, ": ",
                    zeros, " elements of ", zero.size(), " bytes");
      spans.push_back({zero.data(), zeros});
    }
    return spans;
  }
  std::string place(const std::string& name) const override { return source_->place(name); }
  std::string description() const override { return source_->description(); }

 private:
  std::unique_ptr<WeightSource> source_;
  int64_t vocab_, padded_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<std::byte>> zeros_;
};

/// The prefix of the TensorFlow checkpoint that `path` names; empty if it names none.
std::filesystem::path tensorflow_prefix(const std::filesystem::path& path) {
  const auto without_index = [](const std::filesystem::path& file) { return file.parent_path() / file.stem(); };
  if (path.extension() == ".index" && std::filesystem::is_regular_file(path)) return without_index(path);
  if (std::filesystem::is_regular_file(path.string() + ".index")) return path;
  if (!std::filesystem::is_directory(path)) return {};
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.path().extension() == ".index" && entry.is_regular_file()) found.push_back(entry.path());
  if (found.size() > 1)
    throw ModelError(fmt::format("{} holds {} TensorFlow checkpoints ({}, {}, …): name one by its prefix in model.path",
                                 path.string(), found.size(), found[0].filename().string(),
                                 found[1].filename().string()));
  return found.empty() ? std::filesystem::path() : without_index(found[0]);
}

bool has_safetensors(const std::filesystem::path& path) {
  return std::filesystem::exists(path / "model.safetensors") ||
         std::filesystem::exists(path / "model.safetensors.index.json");
}

}  // namespace

std::string tensorflow_name(const std::string& name) {
  if (name == "cls.predictions.bias") return "cls/predictions/output_bias";
  if (name == "cls.seq_relationship.weight") return "cls/seq_relationship/output_weights";
  if (name == "cls.seq_relationship.bias") return "cls/seq_relationship/output_bias";
  std::string text = name;
  if (text.find("LayerNorm.") != std::string::npos)
    text = replace_end(replace_end(text, "weight", "gamma"), "bias", "beta");
  else if (text.find("embeddings.weight") != std::string::npos)
    text = replace_end(text, ".weight", "");
  else
    text = replace_end(text, "weight", "kernel");
  const std::string layer = "encoder.layer.";
  if (const size_t at = text.find(layer); at != std::string::npos) text.replace(at, layer.size(), "encoder.layer_");
  std::replace(text.begin(), text.end(), '.', '/');
  return text;
}

std::filesystem::path bert_config_path(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return path;
  if (path.extension() == ".index" || std::filesystem::is_regular_file(path.string() + ".index")) {
    const auto directory = path.parent_path();
    return directory.empty() ? std::filesystem::path(".") : directory;
  }
  return path;
}

std::unique_ptr<WeightSource> open_bert_weights(const std::filesystem::path& path, const BertModel& model) {
  std::unique_ptr<WeightSource> source;
  if (!has_safetensors(path))
    if (const auto prefix = tensorflow_prefix(path); !prefix.empty())
      source = std::make_unique<TensorflowWeights>(prefix);
  if (!source) source = std::make_unique<RenamedWeights>(open_weights(path));
  return std::make_unique<PaddedWeights>(std::move(source), model.config().vocab_size, model.padded_vocab());
}

std::vector<std::pair<std::string, TensorInfo>> bert_file_tensors(const BertModel& model, DType dtype) {
  std::vector<std::pair<std::string, TensorInfo>> tensors;
  for (const UnitSpec& unit : model.units()) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const ParameterPart& part : parameter.parts) {
        std::vector<int64_t> shape = parameter.shape;
        shape[0] = is_padded(part.name) ? model.config().vocab_size : part.rows;
        tensors.emplace_back(part.name, TensorInfo{dtype, std::move(shape)});
      }
    }
  }
  return tensors;
}

void finish_bert_directory(const std::filesystem::path& directory, const std::filesystem::path& base,
                           const BertConfig& config) {
  const std::filesystem::path from = bert_config_path(base);
  if (std::filesystem::is_directory(from))
    for (const char* name : kCompanions)
      if (std::filesystem::is_regular_file(from / name))
        write_file_atomic(directory / name, read_text_file(from / name, ExitCode::kModel));
  write_file_atomic(directory / "config.json", bert_config_json(config));
}

}  // namespace trireme
