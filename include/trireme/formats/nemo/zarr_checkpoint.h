#pragma once
// NeMo's zarr checkpoint directories: uncompressed zarr v2 arrays with all layers stacked on axis 0 and query, key and
// value interleaved per key/value group, in the chunks of the tensor parallelism that wrote them. NeMo 2 (MLPerf
// llama2_70b_lora): weights/module.*, context/model.yaml; NeMo 1 (an unpacked .nemo file): model_weights/model.*,
// model_config.yaml. Source: MLPerf training, llama2_70b_lora; megatron/core/dist_checkpointing/strategies/zarr.py.

#include "trireme/formats/huggingface/weight_source.h"

#include <filesystem>
#include <memory>

namespace trireme {

/// DIR/weights/, DIR/model_weights/ or DIR itself holds the arrays.
bool is_zarr_checkpoint(const std::filesystem::path& directory);

/// The directory of an array ("embedding.word_embeddings.weight"); empty if there is none.
std::filesystem::path zarr_array(const std::filesystem::path& directory, const std::string& name);

/// What the arrays' layout depends on.
struct NemoShape {
  int64_t hidden_size = 0, intermediate_size = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab_size = 0;
  bool tied_output = false;  // no output_layer
};

/// The arrays under the names that Hugging Face gives to a Llama's tensors. ModelError for compressed arrays, missing
/// chunks, arrays of another shape.
std::unique_ptr<WeightSource> open_zarr_checkpoint(const std::filesystem::path& directory, const NemoShape& shape);

}  // namespace trireme
