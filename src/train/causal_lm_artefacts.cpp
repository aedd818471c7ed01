// Loading weights into a Llama run and writing its adapter or model.
#include "causal_lm_task.h"

#include "models/decoder/model_directory.h"
#include "models/decoder/vocabulary.h"
#include "models/decoder/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/peft_adapter.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

namespace trireme {

void CausalLmTask::check_weights() {
  // The adapter first: the rows of the vocabulary that it holds are read in place of the base model's.
  if (config_.lora && config_.lora->adapter) {
    const std::string& path = *config_.lora->adapter;
    const Adapter start = read_adapter(path);
    try {
      adapter_ = import_adapter(start, *model_);
    } catch (const ModelError& error) {
      throw ModelError(fmt::format("lora.adapter {}: {}", path, error.what()));
    }
    token_rows_ = start.token_rows;
    log_info(fmt::format("starting from adapter {} ({} modules)", path, start.modules.size()));
  }
  if (config_.model.init == "random") return;
  DecoderConfig stored = model_->config();
  stored.vocab_size = stored_vocab_;
  source_ = open_decoder_weights(config_.model.path, stored, model_->config().vocab_size,
                                 static_cast<uint64_t>(config_.train.seed), token_rows_);
  trireme::check_weights(model_->units(), *source_, config_.model.path);
}

void CausalLmTask::load_weights(ShardedUnits& units) {
  if (!source_ && adapter_.empty()) check_weights();
  if (config_.model.init == "random") {
    units.initialise(static_cast<uint64_t>(config_.train.seed), /*only_replicated=*/false);
    token_rows_.clear();
  } else {
    load_units(units, *source_, config_.model.path, info_.world_size);
    units.initialise(static_cast<uint64_t>(config_.train.seed), /*only_replicated=*/true);
    if (config_.lora && info_.rank == 0)
      token_rows_ = adapter_token_rows(*source_, model_->config(), stored_vocab_, token_rows_);
    source_.reset();
    if (model_->config().vocab_size > stored_vocab_)
      log_info(fmt::format("vocabulary: {} rows of the model, {} new ones", format_count(stored_vocab_),
                           format_count(model_->config().vocab_size - stored_vocab_)));
  }
  for (const auto& [name, value] : adapter_)
    TRIREME_CHECK(units.assign(name, value), "adapter tensor ", name, " has no place in the model");
  adapter_.clear();
}

void CausalLmTask::save_artefact(ShardedUnits& units, const std::filesystem::path& directory) {
  if (config_.lora)
    save_adapter(units, directory / "adapter");
  else
    save_model(units, directory / "model");
}

void CausalLmTask::save_adapter(ShardedUnits& units, const std::filesystem::path& directory) {
  std::map<std::string, at::Tensor> tensors;
  units.export_tensors(
      at::kFloat, [&](int unit) { return units.units()[unit].replicated; },
      [&](const std::string& name, const at::Tensor& value) { tensors[name] = value; });
  if (info_.rank != 0) return;
  Adapter adapter = export_adapter(tensors, *model_, config_.model.path);
  adapter.token_rows = token_rows_;
  make_directories(directory);
  write_adapter(directory, adapter, DType::kF32);
}

void CausalLmTask::save_model(ShardedUnits& units, const std::filesystem::path& directory) {
  std::unique_ptr<ModelDirectoryWriter> writer;
  if (info_.rank == 0)
    writer = std::make_unique<ModelDirectoryWriter>(directory, model_->config(),
                                                    checkpoint_tensors(*model_, file_dtype(info_.compute_dtype)));
  units.export_tensors(
      info_.compute_dtype, [](int) { return true; },
      [&](const std::string& name, const at::Tensor& value) { writer->append(name, value); });
  if (info_.rank != 0) return;
  DecoderConfig config = model_->config();
  config.dtype = config_dtype(info_.compute_dtype);
  if (std::filesystem::is_directory(config_.model.path)) writer->copy_companions(config_.model.path);
  writer->finish(config);
}

}  // namespace trireme
