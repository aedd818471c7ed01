#pragma once
// NeMo's zarr checkpoint directories: uncompressed zarr v2 arrays with all layers stacked on axis 0 and query, key and
// value interleaved per key/value group, in the chunks of the tensor parallelism that wrote them. NeMo 2 (MLPerf
// llama2_70b_lora): weights/module.*, context/model.yaml; NeMo 1 (an unpacked .nemo file): model_weights/model.*,
// model_config.yaml. Source: MLPerf training, llama2_70b_lora; megatron/core/dist_checkpointing/strategies/zarr.py.

#include "trireme/formats/weight_source.h"

#include <filesystem>
#include <memory>

namespace trireme {

/// DIR/weights/, DIR/model_weights/ or DIR itself holds the arrays.
bool is_zarr_checkpoint(const std::filesystem::path& directory);

/// The directory of an array ("embedding.word_embeddings.weight"); empty if there is none.
std::filesystem::path zarr_array(const std::filesystem::path& directory, const std::string& name);

/// The arrays under Hugging Face names. ModelError for compressed arrays, missing chunks, shapes that do not fit the
/// configuration.
std::unique_ptr<WeightSource> open_zarr_checkpoint(const std::filesystem::path& directory);

}  // namespace trireme
