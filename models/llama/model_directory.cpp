#include "models/llama/model_directory.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

constexpr int64_t kMaxFileBytes = 5'000'000'000;

/// Files beside the weights that make a directory a complete Hugging Face model.
constexpr const char* kCompanions[] = {"tokenizer.model",         "tokenizer.json",      "tokenizer_config.json",
                                       "special_tokens_map.json", "chat_template.jinja", "generation_config.json"};

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

std::vector<std::pair<std::string, TensorInfo>> checkpoint_tensors(const LlamaModel& model, DType dtype) {
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

ModelDirectoryWriter::ModelDirectoryWriter(std::filesystem::path directory,
                                           std::vector<std::pair<std::string, TensorInfo>> tensors)
    : directory_(std::move(directory)),
      tensors_(std::move(tensors)),
      plan_(plan_safetensors_shards(tensors_, kMaxFileBytes)) {
  make_directories(directory_);
}

ModelDirectoryWriter::~ModelDirectoryWriter() = default;

void ModelDirectoryWriter::append(const std::string& name, const at::Tensor& value) {
  TRIREME_CHECK(file_ < plan_.files.size(), name, " comes after the last declared tensor");
  const auto& [file_name, members] = plan_.files[file_];
  if (!writer_) {
    std::vector<std::pair<std::string, TensorInfo>> mine;
    for (const size_t index : members) mine.push_back(tensors_[index]);
    writer_ = std::make_unique<SafetensorsWriter>(directory_ / file_name, mine);
    in_file_ = 0;
  }
  const auto& [declared, info] = tensors_[members[in_file_]];
  TRIREME_CHECK(declared == name && value.sizes() == at::IntArrayRef(info.shape), "tensor ", name, " ", value.sizes(),
                " comes where ", declared, " ", at::IntArrayRef(info.shape), " is due");
  const at::Tensor stored = value.detach().to(at::kCPU, to_scalar_type(info.dtype)).contiguous();
  writer_->append(stored.const_data_ptr(), stored.nbytes());
  if (++in_file_ == members.size()) {
    writer_->commit();
    writer_.reset();
    ++file_;
  }
}

void ModelDirectoryWriter::copy_companions(const std::filesystem::path& from) {
  for (const char* name : kCompanions)
    if (std::filesystem::is_regular_file(from / name))
      write_file_atomic(directory_ / name, read_text_file(from / name, ExitCode::kModel));
}

void ModelDirectoryWriter::finish(const LlamaConfig& config) {
  TRIREME_CHECK(file_ == plan_.files.size(), "only ", file_, " of ", plan_.files.size(), " weight files were written");
  if (plan_.files.size() > 1)
    write_file_atomic(directory_ / "model.safetensors.index.json", safetensors_index_json(plan_, tensors_));
  write_file_atomic(directory_ / "config.json", llama_config_json(config));
}

}  // namespace trireme
