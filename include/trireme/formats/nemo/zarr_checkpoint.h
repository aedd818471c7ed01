#pragma once
// NeMo's zarr checkpoint directories: uncompressed zarr v2 arrays with all layers stacked on axis 0 and query, key and
// value interleaved per key/value group, in the chunks of the tensor parallelism that wrote them. NeMo 2 (MLPerf
// llama2_70b_lora): weights/module.*, context/model.yaml; NeMo 1 (an unpacked .nemo file): model_weights/model.*,
// model_config.yaml. Source: MLPerf training, llama2_70b_lora; megatron/core/dist_checkpointing/strategies/zarr.py.

#include "trireme/formats/huggingface/weight_source.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// Whether DIR/weights/, DIR/model_weights/ or DIR itself holds the arrays.
bool is_zarr_checkpoint(const std::filesystem::path& directory);

/// The directory of an array ("embedding.word_embeddings.weight"); empty if there is none.
std::filesystem::path zarr_array(const std::filesystem::path& directory, const std::string& name);

/// A matrix or vector in an array: rows [row_begin, row_begin + rows) of the array, or of its matrix `layer`, repeated
/// `groups` times at a distance of `stride` rows.
struct ZarrTensor {
  std::string name, array;
  std::vector<int64_t> shape, array_shape;
  int64_t layer = -1;  // index on axis 0 of an array that holds all layers; -1: the array is one tensor
  int64_t row_begin = 0, rows = 0, stride = 0, groups = 1;
};

/// Provides `tensors` under their names. ModelError for compressed arrays, missing chunks, arrays of another shape.
std::unique_ptr<WeightSource> open_zarr_checkpoint(const std::filesystem::path& directory,
                                                   const std::vector<ZarrTensor>& tensors);

}  // namespace trireme
