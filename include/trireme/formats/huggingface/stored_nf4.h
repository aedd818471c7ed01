#pragma once
// Matrices that files have in NF4 with double quantisation, as transformers saves a model of bitsandbytes. Beside
// NAME, the codes, bytes [n / 2, 1], there are:
//
//   NAME.absmax                          bytes [n / 64]        NAME.quant_map          F32 [16]
//   NAME.nested_absmax                   F32 [n / 64 / 256]    NAME.nested_quant_map   F32 [256]
//   NAME.quant_state.bitsandbytes__nf4   JSON: shape, blocksize, nested_offset, …
//
// Source: bitsandbytes 0.50, QuantState.as_dict.

#include "trireme/formats/huggingface/weight_source.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme {

/// What is beside the codes, after the matrix's name.
constexpr const char* kStoredNf4Beside[] = {".absmax", ".nested_absmax", ".quant_map", ".nested_quant_map",
                                            ".quant_state.bitsandbytes__nf4"};

/// The bytes are those of the source, and live as long as it.
struct StoredNf4 {
  std::vector<int64_t> shape;
  std::span<const std::byte> codes, absmax, nested;  // nested: fp32
  std::span<const std::byte> book, map;              // fp32: quant_map, nested_quant_map
  float offset = 0;
};

/// What is wrong with such a matrix where values are needed, after the tensor's name.
constexpr const char* kStoredNf4 =
    "is stored in four bits (bitsandbytes): LoRA with precision.frozen: nf4 trains over it; everything else takes the "
    "model that it was made from";

/// Whether the tensor is one of bitsandbytes, in NF4 or FP4. Reads headers only.
bool has_stored_nf4(const WeightSource& source, const std::string& name);
/// nullopt if it is not. ModelError with file and tensor for FP4, other block sizes, scales that are not quantised, and
/// tensors that are missing or have other sizes than the state says.
std::optional<StoredNf4> find_stored_nf4(const WeightSource& source, const std::string& name);

}  // namespace trireme
