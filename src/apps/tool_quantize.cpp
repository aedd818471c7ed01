// `trireme model quantize`: a model in bitsandbytes' NF4.
#include "tools.h"

#include "models/decoder/decoder.h"
#include "models/decoder/model_directory.h"
#include "models/decoder/vocabulary.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/stored_nf4.h"
#include "trireme/formats/json.h"
#include "trireme/ops/matmul/nf4.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme {

namespace {

struct QuantizeOptions {
  std::string model, output;
  bool force = false;
};

/// The matrices of linear layers.
std::set<std::string> matrices_of(const DecoderModel& model) {
  std::set<std::string> names;
  for (const UnitSpec& unit : model.units())
    for (const ParameterSpec& parameter : unit.parameters)
      for (const ParameterPart& part : parameter.parts) {
        if (!parameter.linear) continue;
        if (parameter.transposed)
          throw ConfigError(
              "model quantize: this family's files have matrices [in, out], which NF4's blocks do not fit");
        names.insert(part.name);
      }
  return names;
}

StoredTensor declared(const std::string& name, DType dtype, std::vector<int64_t> shape) {
  return {name, {dtype, std::move(shape)}};
}

/// A matrix and what is beside it, as formats/huggingface/stored_nf4.h reads them.
std::vector<StoredTensor> declared_nf4(const std::string& name, int64_t count, int64_t state_bytes) {
  return {declared(name, DType::kU8, {nf4_code_bytes(count), 1}),
          declared(name + ".absmax", DType::kU8, {nf4_blocks(count)}),
          declared(name + ".nested_absmax", DType::kF32, {nf4_nested_blocks(count)}),
          declared(name + ".nested_quant_map", DType::kF32, {256}),
          declared(name + ".quant_map", DType::kF32, {16}),
          declared(name + ".quant_state.bitsandbytes__nf4", DType::kU8, {state_bytes})};
}

struct QuantizedMatrix {
  at::Tensor codes;
  Nf4Scales scales;
  std::string state;  // JSON
};

QuantizedMatrix quantize_matrix(const WeightSource& source, const StoredTensor& tensor) {
  const at::Tensor values = read_tensor(source, tensor.name);
  const int64_t count = values.numel();
  const auto bytes = at::TensorOptions(at::kByte), fp32 = at::TensorOptions(at::kFloat);
  QuantizedMatrix matrix{
      at::empty({nf4_code_bytes(count), 1}, bytes),
      {at::empty({nf4_blocks(count)}, bytes), at::empty({nf4_nested_blocks(count)}, fp32), at::empty({}, fp32)},
      {}};
  if (!at::isfinite(values).all().item<bool>())
    throw ModelError(tensor_text(source, tensor.name) + " holds a NaN or an infinity: take another copy of the model");
  nf4_quantize_scales_(matrix.scales, nf4_quantize_(matrix.codes, values));
  if (!at::isfinite(matrix.scales.nested).all().item<bool>() || !at::isfinite(matrix.scales.offset).item<bool>())
    throw ModelError(tensor_text(source, tensor.name) + " holds numbers so large that its scales are infinite");
  const nlohmann::ordered_json state = {{"quant_type", "nf4"},
                                        {"blocksize", kNf4Block},
                                        {"dtype", torch_dtype_name(tensor.info.dtype)},
                                        {"shape", tensor.info.shape},
                                        {"nested_blocksize", kNf4NestedBlock},
                                        {"nested_dtype", "float32"},
                                        {"nested_offset", matrix.scales.offset.item<float>()}};
  matrix.state = state.dump();
  return matrix;
}

void quantize(const QuantizeOptions& options) {
  require_model_output("model quantize", options.output, options.force, options.model);
  const DecoderConfig config = read_model_config(options.model);
  const DecoderModel model(config, std::nullopt);
  const std::set<std::string> matrices = matrices_of(model);
  const auto source = open_decoder_weights(options.model, config);
  std::vector<StoredTensor> tensors = stored_tensors(model.units(), DType::kF32), written;
  std::map<std::string, QuantizedMatrix> quantized;
  int64_t before = 0, after = 0;
  for (StoredTensor& tensor : tensors) {
    tensor.info.dtype = weight_type(*source, tensor.name, tensor.info.shape);
    int64_t count = 1;
    for (const int64_t extent : tensor.info.shape) count *= extent;
    before += count * static_cast<int64_t>(dtype_size(tensor.info.dtype));
    if (!matrices.contains(tensor.name)) {
      written.push_back(tensor);
      continue;
    }
    const QuantizedMatrix& matrix = quantized[tensor.name] = quantize_matrix(*source, tensor);
    for (const StoredTensor& one : declared_nf4(tensor.name, count, static_cast<int64_t>(matrix.state.size())))
      written.push_back(one);
  }
  ModelDirectoryWriter writer(options.output, written);
  for (const StoredTensor& tensor : tensors) {
    const auto found = quantized.find(tensor.name);
    if (found == quantized.end()) {
      writer.copy(tensor.name, *source);
      continue;
    }
    const auto& [codes, scales, state] = found->second;
    const std::string& name = tensor.name;
    writer.append(name, codes);
    writer.append(name + ".absmax", scales.absmax);
    writer.append(name + ".nested_absmax", scales.nested);
    writer.append(name + ".nested_quant_map", nf4_map(at::kCPU));
    writer.append(name + ".quant_map", nf4_book(at::kCPU));
    writer.append(name + ".quant_state.bitsandbytes__nf4",
                  at::from_blob(const_cast<char*>(state.data()), {static_cast<int64_t>(state.size())}, at::kByte));
  }
  for (const StoredTensor& tensor : written) {
    int64_t count = 1;
    for (const int64_t extent : tensor.info.shape) count *= extent;
    after += count * static_cast<int64_t>(dtype_size(tensor.info.dtype));
  }
  writer.copy_companions(options.model);
  writer.seal(config);
  const std::filesystem::path own = std::filesystem::path(options.model) / "config.json";
  nlohmann::ordered_json json = parse_ordered_json(
      read_text_file(std::filesystem::is_regular_file(own) ? own : writer.path() / "config.json", ExitCode::kModel),
      own.string(), ExitCode::kModel);
  json["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                 {"load_in_4bit", true},
                                 {"load_in_8bit", false},
                                 {"bnb_4bit_quant_type", "nf4"},
                                 {"bnb_4bit_use_double_quant", true},
                                 {"bnb_4bit_compute_dtype", config.dtype},
                                 {"bnb_4bit_quant_storage", "uint8"}};
  writer.write_companion("config.json", json.dump(2) + "\n");
  writer.commit();
  fmt::print("{}: {} matrices in NF4, {} instead of {}\n", options.output, quantized.size(),
             format_bytes(static_cast<double>(after)), format_bytes(static_cast<double>(before)));
}

}  // namespace

void add_quantize_tool(CLI::App& model) {
  auto options = std::make_shared<QuantizeOptions>();
  CLI::App* tool = model.add_subcommand(
      "quantize",
      "Write a model with the matrices of its blocks in bitsandbytes' NF4 with double quantisation, which transformers "
      "opens and LoRA with precision.frozen: nf4 trains over");
  tool->add_option("--model", options->model, "Hugging Face directory, or NeMo zarr checkpoint directory")->required();
  tool->add_option("--output", options->output, "Directory to write")->required();
  tool->add_flag("--force", options->force, "Replace the model in --output");
  tool->callback([options] { quantize(*options); });
}

}  // namespace trireme
