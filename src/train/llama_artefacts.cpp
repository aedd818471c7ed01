// Loading weights into a Llama run and writing its adapter or model.
#include "llama_task.h"

#include "models/llama/model_directory.h"
#include "models/llama/vocabulary.h"
#include "models/llama/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/peft_adapter.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

namespace trireme {

void LlamaTask::load_weights(ShardedUnits& units) {
  const auto seed = static_cast<uint64_t>(config_.train.seed);
  // The adapter first: that it does not fit is known before minutes of reading weights.
  std::optional<Adapter> start;
  std::map<std::string, at::Tensor> start_tensors;
  if (config_.lora && config_.lora->adapter) {
    start = read_adapter(*config_.lora->adapter);
    start_tensors = import_adapter(*start, *model_);
  }
  const std::map<std::string, TokenRows> start_rows = start ? start->token_rows : std::map<std::string, TokenRows>();
  if (config_.model.init == "random") {
    units.initialise(seed, /*only_replicated=*/false);
  } else {
    LlamaConfig stored = model_->config();
    stored.vocab_size = stored_vocab_;
    const auto source = open_llama_weights(config_.model.path, stored, model_->config().vocab_size, seed, start_rows);
    load_units(units, *source, config_.model.path, info_.world_size);
    units.initialise(seed, /*only_replicated=*/true);
    if (config_.lora && info_.rank == 0)
      token_rows_ = adapter_token_rows(*source, model_->config(), stored_vocab_, start_rows);
    if (model_->config().vocab_size > stored_vocab_)
      log_info(fmt::format("vocabulary: {} rows of the model, {} new ones", format_count(stored_vocab_),
                           format_count(model_->config().vocab_size - stored_vocab_)));
  }
  if (!start) return;
  for (const auto& [name, value] : start_tensors)
    TRIREME_CHECK(units.assign(name, value), "adapter tensor ", name, " has no place in the model");
  log_info(fmt::format("starting from adapter {} ({} modules)", *config_.lora->adapter, start->modules.size()));
}

void LlamaTask::save_artefact(ShardedUnits& units, const std::filesystem::path& directory) {
  if (config_.lora)
    save_adapter(units, directory / "adapter");
  else
    save_model(units, directory / "model");
}

void LlamaTask::save_adapter(ShardedUnits& units, const std::filesystem::path& directory) {
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

void LlamaTask::save_model(ShardedUnits& units, const std::filesystem::path& directory) {
  std::unique_ptr<ModelDirectoryWriter> writer;
  if (info_.rank == 0)
    writer =
        std::make_unique<ModelDirectoryWriter>(directory, checkpoint_tensors(*model_, file_dtype(info_.compute_dtype)));
  units.export_tensors(
      info_.compute_dtype, [](int) { return true; },
      [&](const std::string& name, const at::Tensor& value) { writer->append(name, value); });
  if (info_.rank != 0) return;
  LlamaConfig config = model_->config();
  config.dtype = config_dtype(info_.compute_dtype);
  if (std::filesystem::is_directory(config_.model.path)) writer->copy_companions(config_.model.path);
  writer->finish(config);
}

}  // namespace trireme
