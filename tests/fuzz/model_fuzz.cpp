// The text files of a model directory. The first byte selects the file: c = config.json, i =
// model.safetensors.index.json (with two valid shards), a = adapter_config.json, m = context/model.yaml and z = .zarray
// of a NeMo checkpoint.
#include "../base/temporary_directory.h"
#include "fuzz_target.h"
#include "models/decoder/family.h"
#include "trireme/formats/huggingface/peft_adapter.h"
#include "trireme/formats/huggingface/safetensors.h"
#include "trireme/formats/nemo/zarr_checkpoint.h"

namespace trireme {
namespace {

/// The shape of the arrays.
DecoderConfig nemo_shape() {
  DecoderConfig config;
  config.hidden_size = 4, config.intermediate_size = 8, config.num_hidden_layers = 1;
  config.num_attention_heads = 2, config.num_key_value_heads = 1, config.head_dim = 2, config.vocab_size = 9;
  return config;
}
constexpr const char* kEmbedding =
    R"({"zarr_format":2,"shape":[9,4],"chunks":[9,4],"dtype":"<f4","compressor":null,"filters":null,"order":"C"})";

/// Model directories that are complete except for the tested file.
class Directories : public TemporaryDirectory {
 public:
  Directories() {
    std::filesystem::create_directories(root_ / "sharded");
    for (const auto& [file, tensor] : {std::pair("one.safetensors", "a"), std::pair("two.safetensors", "b")}) {
      SafetensorsWriter writer(root_ / "sharded" / file, {{tensor, {DType::kF32, {1}}}});
      writer.append("1234", 4);
      writer.commit();
    }
    write("outside.safetensors", "not yours");
    for (const char* name : {"embedding.word_embeddings.weight", "decoder.layers.self_attention.linear_qkv.weight"})
      write(std::string("zarr/weights/module.") + name + "/.zarray", kEmbedding);
    write("nemo/weights/module.embedding.word_embeddings.weight/.zarray", kEmbedding);
    std::filesystem::create_directories(root_ / "nemo/context");
  }
};

void check_config(const Directories& directories, std::string_view text) {
  const DecoderConfig config = read_decoder_config(directories.write("hf/config.json", text));
  const double parameters =
      static_cast<double>(config.num_hidden_layers) * static_cast<double>(config.hidden_size) *
      static_cast<double>(config.intermediate_size + config.num_attention_heads * config.head_dim);
  fuzz::require(parameters < 1e16, "a shape whose sizes can be computed");
  const DecoderConfig again = read_decoder_config(directories.write("hf/again.json", decoder_config_json(config)));
  fuzz::require(again.hidden_size == config.hidden_size && again.head_dim == config.head_dim &&
                    again.rope.theta == config.rope.theta,
                "a written configuration reads as the one that was written");
}

void read_everything(const WeightSource& source) {
  for (const std::string& name : source.names()) {
    const TensorInfo info = source.find(name).value();
    int64_t elements = 1;
    for (const int64_t extent : info.shape) elements *= extent;
    source.read(name, 0, elements);
  }
}

void check(const Directories& directories, char kind, std::string_view text) {
  const auto& root = directories.root();
  if (kind == 'c') {
    check_config(directories, text);
  } else if (kind == 'i') {
    directories.write("sharded/model.safetensors.index.json", text);
    read_everything(*open_weights(root / "sharded"));
  } else if (kind == 'a') {
    read_adapter_config(directories.write("adapter/adapter_config.json", text).parent_path());
  } else if (kind == 'm') {
    directories.write("nemo/context/model.yaml", text);
    read_model_config(root / "nemo");
  } else if (kind == 'z') {
    directories.write("zarr/weights/module.embedding.word_embeddings.weight/.zarray", text);
    read_everything(*open_zarr_checkpoint(root / "zarr", nemo_tensors(nemo_shape())));
  }
}

}  // namespace
}  // namespace trireme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const Directories directories;
  if (size == 0) return 0;
  fuzz::expect_only({ExitCode::kModel},
                    [&] { check(directories, static_cast<char>(data[0]), fuzz::as_text(data + 1, size - 1)); });
  return 0;
}
