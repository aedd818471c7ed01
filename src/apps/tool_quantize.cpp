// `trireme model quantize`: a model in bitsandbytes' NF4.
#include "tools.h"

#include "models/common/stored.h"
#include "models/decoder/decoder.h"
#include "models/decoder/model_directory.h"
#include "models/decoder/vocabulary.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/formats/json.h"
#include "trireme/ops/matmul/nf4.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

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

/// A tensor of the written model; without a value it is copied.
struct WrittenTensor {
  StoredTensor declared;
  at::Tensor value;
};

/// A matrix and what is beside it, as formats/huggingface/stored_nf4.h reads them.
void add_quantized(const WeightSource& source, const StoredTensor& tensor, std::vector<WrittenTensor>& written) {
  const std::string text = tensor_text(source, tensor.name);
  const at::Tensor values = read_tensor(source, tensor.name);
  if (!at::isfinite(values).all().item<bool>())
    throw ModelError(text + " holds a NaN or an infinity: take another copy of the model");
  const int64_t count = values.numel();
  const auto bytes = at::TensorOptions(at::kByte), fp32 = at::TensorOptions(at::kFloat);
  const at::Tensor codes = at::empty({nf4_code_bytes(count), 1}, bytes);
  const Nf4Scales scales{at::empty({nf4_blocks(count)}, bytes), at::empty({nf4_nested_blocks(count)}, fp32),
                         at::empty({}, fp32)};
  nf4_quantize_scales_(scales, nf4_quantize_(codes, values));
  if (!at::isfinite(scales.nested).all().item<bool>() || !at::isfinite(scales.offset).item<bool>())
    throw ModelError(text + " holds numbers so large that its scales are infinite");
  const std::string state = nlohmann::ordered_json{{"quant_type", "nf4"},
                                                   {"blocksize", kNf4Block},
                                                   {"dtype", torch_dtype_name(tensor.info.dtype)},
                                                   {"shape", tensor.info.shape},
                                                   {"nested_blocksize", kNf4NestedBlock},
                                                   {"nested_dtype", "float32"},
                                                   {"nested_offset", scales.offset.item<float>()}}
                                .dump();
  const auto add = [&](const std::string& suffix, const at::Tensor& value) {
    const DType dtype = value.scalar_type() == at::kByte ? DType::kU8 : DType::kF32;
    written.push_back({{tensor.name + suffix, {dtype, value.sizes().vec()}}, value});
  };
  add("", codes);
  add(".absmax", scales.absmax);
  add(".nested_absmax", scales.nested);
  add(".nested_quant_map", nf4_map(at::kCPU));
  add(".quant_map", nf4_book(at::kCPU));
  add(".quant_state.bitsandbytes__nf4", at::tensor(std::vector<uint8_t>(state.begin(), state.end()), bytes));
}

void quantize(const QuantizeOptions& options) {
  require_model_output("model quantize", options.output, options.force, options.model);
  const DecoderConfig config = read_model_config(options.model);
  const DecoderModel model(config, std::nullopt);
  const std::set<std::string> matrices = matrices_of(model);
  const auto source = open_decoder_weights(options.model, config);
  std::vector<WrittenTensor> written;
  for (StoredTensor& tensor : stored_tensors(model.units(), DType::kF32)) {
    tensor.info.dtype = weight_type(*source, tensor.name, tensor.info.shape);
    if (matrices.contains(tensor.name))
      add_quantized(*source, tensor, written);
    else
      written.push_back({tensor, {}});
  }
  std::vector<StoredTensor> declared;
  for (const WrittenTensor& tensor : written) declared.push_back(tensor.declared);
  ModelDirectoryWriter writer(options.output, declared);
  for (const auto& [tensor, value] : written)
    value.defined() ? writer.append(tensor.name, value) : writer.copy(tensor.name, *source);
  writer.copy_companions(options.model);
  writer.seal(config);
  const std::filesystem::path own = std::filesystem::path(options.model) / "config.json";
  nlohmann::ordered_json json = parse_ordered_json(
      read_text_file(std::filesystem::is_regular_file(own) ? own : writer.path() / "config.json", ExitCode::kModel),
      own.string(), ExitCode::kModel);
  json.erase("transformers_weights");
  json["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                 {"load_in_4bit", true},
                                 {"load_in_8bit", false},
                                 {"bnb_4bit_quant_type", "nf4"},
                                 {"bnb_4bit_use_double_quant", true},
                                 {"bnb_4bit_compute_dtype", config.dtype},
                                 {"bnb_4bit_quant_storage", "uint8"}};
  writer.write_companion("config.json", json.dump(2) + "\n");
  writer.commit();
  fmt::print("{}: {} matrices in NF4\n", options.output, matrices.size());
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
