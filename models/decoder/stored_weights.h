#pragma once
// Between a decoder's tensors, [out, in] under full names, and the way its family's files keep them.

#include "models/decoder/config.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <filesystem>
#include <memory>
#include <string>

namespace trireme {

/// The files keep this matrix [in, out].
bool stored_transposed(const DecoderConfig& config, const std::string& tensor);

/// The weights of a model's directory (safetensors, or a NeMo zarr checkpoint) as the model has them: names with the
/// base model's prefix where the file leaves it out, matrices [out, in] where the file has [in, out]. A matrix that is
/// transposed is read whole and stays in memory as long as the source lives. ModelError as open_weights().
std::unique_ptr<WeightSource> open_stored_weights(const std::filesystem::path& directory, const DecoderConfig& config);

}  // namespace trireme
