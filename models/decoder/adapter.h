#pragma once
// The adapters unit of a decoder to and from PEFT's modules.

#include "models/decoder/decoder.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/formats/huggingface/peft_adapter.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace trireme {

/// Tensors of the adapters unit by their part names
/// ("model.layers.0.self_attn.q_proj.lora_A.weight"), fp32 on the CPU, from a PEFT adapter. The
/// model's rank, alpha and targets must be the adapter's. A model with the fused qkv_proj takes q,
/// k, v pairs when their A are equal. Rows of the vocabulary are not among them. ModelError otherwise, with advice.
std::map<std::string, at::Tensor> import_adapter(const Adapter& adapter, const DecoderModel& model);

/// The PEFT adapter of the adapters unit's tensors (the names above). A fused qkv_proj becomes its
/// exact equivalent: q, k and v with the same A each and their rows of B.
/// Trained rows of the vocabulary are put into `token_rows`, what the adapter holds of it.
Adapter export_adapter(const std::map<std::string, at::Tensor>& tensors, const DecoderModel& model,
                       const std::string& base_model, std::map<std::string, TokenRows> token_rows = {});

/// Identity of the base model in the directory `base`, of the content of its safetensors files; empty where there are
/// none.
std::string base_hash(const std::filesystem::path& base);
/// The same of the files that a checkpoint names.
std::string base_hash(const std::vector<Fingerprint>& files);

/// A sentence where the adapter says that it is of another base than the directory `base`, `what` ("model.path"): by
/// the hash of the base's files where the adapter has one, else by its name. Empty where it does not.
std::string other_base(const Adapter& adapter, const std::filesystem::path& base, const char* what);
/// What to say of an adapter that lies in the directory of a base and that nothing names; empty: there is none.
std::string ignored_adapter(const std::filesystem::path& base);

/// ModelError where the adapter has a tensor of its base that is not `base`'s.
void check_base_tensors(const Adapter& adapter, const WeightSource& base);

/// The model that takes this PEFT adapter: its rank, alpha, dropout and the targets of its modules.
/// ModelError when there is none.
DecoderModel model_for_adapter(const DecoderConfig& config, const Adapter& adapter);

}  // namespace trireme
