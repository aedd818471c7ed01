#pragma once
// NeMo's zarr checkpoint directory (MLPerf llama2_70b_lora): uncompressed zarr v2 arrays with all layers stacked on
// axis 0 and query, key and value interleaved per key/value group. Source: MLPerf training, llama2_70b_lora.

#include "trireme/formats/weight_source.h"

#include <filesystem>
#include <memory>

namespace trireme {

/// DIR/weights/ or DIR itself holds the arrays.
bool is_zarr_checkpoint(const std::filesystem::path& directory);

/// The arrays under Hugging Face names. ModelError for compressed arrays, missing chunks, shapes that do not fit the
/// configuration.
std::unique_ptr<WeightSource> open_zarr_checkpoint(const std::filesystem::path& directory);

}  // namespace trireme
