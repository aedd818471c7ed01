#include "models/decoder/model_directory.h"

#include "models/decoder/stored_weights.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/formats/huggingface/byte_level_model.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr int64_t kMaxFileBytes = 5'000'000'000;

/// Files beside the weights that make a directory a complete Hugging Face model.
constexpr const char* kTokenizerCompanions[] = {
    "tokenizer.model",         "tokenizer.json",     "tokenizer_config.json",
    "special_tokens_map.json", "vocab.json",         "added_tokens.json",
    "chat_template.jinja",     "chat_template.json", "merges.txt"};

std::vector<std::pair<std::string, TensorInfo>> as_stored(std::vector<std::pair<std::string, TensorInfo>> tensors,
                                                          const DecoderConfig& config) {
  for (auto& [name, info] : tensors)
    if (stored_transposed(config, name)) std::swap(info.shape.at(0), info.shape.at(1));
  return tensors;
}

}  // namespace

DType to_file_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return DType::kF32;
    case at::kDouble: return DType::kF64;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    default: throw InternalError(std::string("no file type for ") + c10::toString(dtype));
  }
}

at::ScalarType to_scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return at::kFloat;
    case DType::kF64: return at::kDouble;
    case DType::kF16: return at::kHalf;
    case DType::kBF16: return at::kBFloat16;
    default: throw ModelError(std::string("weights must be F32, F16, BF16 or F64, not ") + dtype_name(dtype));
  }
}

std::string config_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF64: return "float64";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    default: return "float32";
  }
}

std::vector<std::pair<std::string, TensorInfo>> checkpoint_tensors(const DecoderModel& model, DType dtype) {
  std::vector<std::pair<std::string, TensorInfo>> tensors;
  for (const UnitSpec& unit : model.units()) {
    if (unit.replicated) continue;
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const ParameterPart& part : parameter.parts) {
        std::vector<int64_t> shape = parameter.shape;
        shape[0] = part.rows;
        tensors.emplace_back(part.name, TensorInfo{dtype, std::move(shape)});
      }
    }
  }
  return tensors;
}

ModelDirectoryWriter::ModelDirectoryWriter(std::filesystem::path directory, const DecoderConfig& config,
                                           std::vector<std::pair<std::string, TensorInfo>> tensors)
    : staged_(std::move(directory)),
      config_(config),
      tensors_(as_stored(std::move(tensors), config)),
      plan_(plan_safetensors_shards(tensors_, kMaxFileBytes)) {}

ModelDirectoryWriter::~ModelDirectoryWriter() = default;

const TensorInfo& ModelDirectoryWriter::begin_tensor(const std::string& name, at::IntArrayRef shape) {
  TRIREME_CHECK(file_ < plan_.files.size(), name, " comes after the last declared tensor");
  const auto& [file_name, members] = plan_.files[file_];
  if (!writer_) {
    std::vector<std::pair<std::string, TensorInfo>> mine;
    for (const size_t index : members) mine.push_back(tensors_[index]);
    writer_ = std::make_unique<SafetensorsWriter>(path() / file_name, mine);
    in_file_ = 0;
  }
  const auto& [declared, info] = tensors_[members[in_file_]];
  std::vector<int64_t> stored = shape.vec();
  if (stored_transposed(config_, name)) std::reverse(stored.begin(), stored.end());
  TRIREME_CHECK(declared == name && stored == info.shape, "tensor ", name, " ", at::IntArrayRef(stored),
                " comes where ", declared, " ", at::IntArrayRef(info.shape), " is due");
  return info;
}

void ModelDirectoryWriter::end_tensor() {
  if (++in_file_ < plan_.files[file_].second.size()) return;
  writer_->commit();
  writer_.reset();
  ++file_;
}

void ModelDirectoryWriter::append(const std::string& name, const at::Tensor& value) {
  const TensorInfo& info = begin_tensor(name, value.sizes());
  const at::Tensor layout = stored_transposed(config_, name) ? value.detach().t() : value.detach();
  const at::Tensor stored = layout.to(at::kCPU, to_scalar_type(info.dtype)).contiguous();
  writer_->append(stored.const_data_ptr(), stored.nbytes());
  end_tensor();
}

void ModelDirectoryWriter::copy(const std::string& name, const WeightSource& source) {
  const auto stored = source.find(name);
  TRIREME_CHECK(stored.has_value(), "nothing to copy under ", name);
  int64_t count = 1;
  for (const int64_t extent : stored->shape) count *= extent;
  if (stored_transposed(config_, name)) {  // one matrix of a block: small enough to be made whole
    at::Tensor value = at::empty(stored->shape, at::TensorOptions(to_scalar_type(stored->dtype)));
    auto* target = static_cast<std::byte*>(value.mutable_data_ptr());
    for (const ElementSpan& span : source.read(name, 0, count))
      target = std::copy_n(span.data, static_cast<size_t>(span.count) * dtype_size(stored->dtype), target);
    return append(name, value);
  }
  const TensorInfo& info = begin_tensor(name, stored->shape);
  TRIREME_CHECK(stored->dtype == info.dtype, name, " is ", dtype_name(stored->dtype), ", declared ",
                dtype_name(info.dtype));
  for (const ElementSpan& span : source.read(name, 0, count))
    writer_->append(span.data, static_cast<size_t>(span.count) * dtype_size(info.dtype));
  end_tensor();
}

void ModelDirectoryWriter::copy_tokenizer(const std::filesystem::path& from) {
  const auto copy_file = [&](const std::filesystem::path& file, const std::string& name) {
    write_companion(name, read_text_file(file, ExitCode::kData, size_t{256} << 20));
  };
  const bool is_directory = std::filesystem::is_directory(from);
  const bool vocabulary = from.filename() == "vocab.json" || from.filename() == "merges.txt";
  if (!is_directory && !vocabulary && from.extension() != ".json") return copy_file(from, "tokenizer.model");
  const std::filesystem::path folder = is_directory ? from : from.parent_path();
  for (const std::string name : kTokenizerCompanions) {
    if (!is_directory && (name == "tokenizer.model" || name == "tokenizer.json")) continue;  // `from` is the tokenizer
    if (std::filesystem::is_regular_file(folder / name)) copy_file(folder / name, name);
  }
  if (!is_directory && !vocabulary) copy_file(from, "tokenizer.json");
}

void ModelDirectoryWriter::copy_companions(const std::filesystem::path& from) {
  copy_tokenizer(from);
  if (const auto generation = from / "generation_config.json"; std::filesystem::is_regular_file(generation))
    write_companion("generation_config.json", read_text_file(generation, ExitCode::kModel));
}

void ModelDirectoryWriter::write_companion(const std::string& name, std::string_view content) {
  write_file_atomic(path() / name, content);
}

void ModelDirectoryWriter::seal(const DecoderConfig& config) {
  TRIREME_CHECK(file_ == plan_.files.size(), "only ", file_, " of ", plan_.files.size(), " weight files were written");
  if (plan_.files.size() > 1) write_companion("model.safetensors.index.json", safetensors_index_json(plan_, tensors_));
  if (const auto tokenizer = path() / "tokenizer.model";
      std::filesystem::exists(tokenizer) && !std::filesystem::exists(path() / "tokenizer_config.json")) {
    // Without it transformers puts its own idea of BOS before a text. Llama 3's file of this name is not
    // sentencepiece's.
    try {
      const auto model = read_sentencepiece_model(read_text_file(tokenizer, ExitCode::kData), tokenizer);
      write_companion("tokenizer_config.json", tokenizer_config_json(model, config.max_position_embeddings));
    } catch (const DataError&) {
      log_info("no tokenizer_config.json is written: tokenizer.model is no sentencepiece model");
    }
  }
  if (const auto tokenizer = path() / "tokenizer.json";
      std::filesystem::exists(tokenizer) && !std::filesystem::exists(path() / "tokenizer_config.json")) {
    try {
      write_companion("tokenizer_config.json",
                      byte_level_config_json(read_byte_level_model(tokenizer), config.max_position_embeddings));
    } catch (const DataError& error) {
      log_info(std::string("no tokenizer_config.json is written: ") + error.what());
    }
  }
  write_companion("config.json", decoder_config_json(config));
}

void ModelDirectoryWriter::finish(const DecoderConfig& config) {
  seal(config);
  commit();
}

}  // namespace trireme
