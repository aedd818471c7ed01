// What a decoder starts from, and writing its adapter or model.
#include "causal_lm_task.h"

#include "models/decoder/adapter.h"
#include "models/decoder/model_directory.h"
#include "models/decoder/vocabulary.h"
#include "models/decoder/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/peft_adapter.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

void CausalLmTask::check_start() {
  // Before the weights: the rows of the vocabulary that an adapter holds are read in place of the base model's.
  if (!config_.lora || !config_.lora->adapter) return;
  const std::string& path = *config_.lora->adapter;
  const Adapter start = read_adapter(path);
  try {
    adapter_ = import_adapter(start, *model_);
  } catch (const ModelError& error) {
    throw ModelError(fmt::format("lora.adapter {}: {}", path, error.what()));
  }
  token_rows_ = start.token_rows;
  if (const std::string other = other_base(start, config_.model.path, "model.path");
      !other.empty() && rank_.grid.world.rank == 0)
    log_warn(fmt::format("lora.adapter {}: {}", path, other));
  log_info(fmt::format("starting from adapter {} ({} modules)", path, start.modules.size()));
}

std::unique_ptr<WeightSource> CausalLmTask::open_weights() const {
  DecoderConfig stored = model_->config();
  stored.vocab_size = stored_vocab_;
  return open_decoder_weights(config_.model.path, stored, model_->config().vocab_size, seed(), token_rows_);
}

namespace {

/// Last rows of a matrix that are all but equal, as transformers' resize_token_embeddings() draws those it adds. Fewer
/// than two, or rows of zeros, which fill a vocabulary up: none.
int64_t equal_last_rows(const WeightSource& source, const std::string& name, int64_t rows) {
  constexpr int64_t kMost = 1024;
  constexpr double kClose = 1e-2;  // added rows differ by about 1e-4 of their norm, trained ones by about their norm
  const at::Tensor last = matrix_rows(source, name, std::max<int64_t>(0, rows - kMost), rows);
  const at::Tensor reference = last.select(0, last.size(0) - 1);
  const double norm = reference.norm().item<double>();
  if (norm == 0) return 0;
  const at::Tensor differs = (last - reference).norm(2, 1).gt(kClose * norm);
  int64_t equal = 0;
  while (equal < last.size(0) && !differs[last.size(0) - 1 - equal].item<bool>()) ++equal;
  return equal < 2 ? 0 : equal;
}

}  // namespace

void CausalLmTask::weights_loaded(ShardedUnits& units, const WeightSource* source) {
  const int64_t rows = model_->config().vocab_size;
  const std::map<std::string, TokenRows> start = token_rows_;
  if (source == nullptr)
    token_rows_.clear();
  else if (config_.lora && rank_.grid.world.rank == 0)
    token_rows_ = adapter_token_rows(*source, model_->config(), stored_vocab_, token_rows_);
  if (source != nullptr && rows > stored_vocab_)
    log_info(fmt::format("vocabulary: {} rows of the model, {} new ones", format_count(stored_vocab_),
                         format_count(rows - stored_vocab_)));
  // The trained rows start as those of the weights, or as lora.adapter's, which the weights' type may round.
  if (source != nullptr && model_->lora() && model_->lora()->rows_begin < model_->lora()->rows_end) {
    const int64_t begin = model_->lora()->rows_begin, end = model_->lora()->rows_end;
    for (const std::string& module : token_modules(model_->config())) {
      const at::Tensor trained = matrix_rows(*source, module + ".weight", begin, end);
      if (const auto part = start.find(module); part != start.end())
        for (size_t i = 0; i < part->second.ids.size(); ++i)
          if (const int64_t id = part->second.ids[i]; id >= begin && id < end)
            std::copy_n(part->second.values.data() + static_cast<int64_t>(i) * part->second.columns,
                        part->second.columns, trained[id - begin].mutable_data_ptr<float>());
      adapter_[module + kTokenRowsSuffix] = trained;
    }
  }
  if (source != nullptr && config_.lora && model_->lora()->rows_begin == model_->lora()->rows_end &&
      rank_.grid.world.rank == 0) {
    const int64_t equal =
        equal_last_rows(*source, token_modules(model_->config()).front() + ".weight", model_->config().vocab_size);
    if (equal > 0)
      log_warn(fmt::format(
          "rows {} to {} of the vocabulary are all but equal, as rows that were added to a base and not trained since. "
          "LoRA keeps them as they are: if the data uses their tokens, put \"{}\": {{\"first\": {}}} into "
          "{}/config.json, "
          "and they are trained",
          rows - equal, rows - 1, kAddedRowsKey, rows - equal, config_.model.path));
  }
  for (const auto& [name, value] : adapter_)
    TRIREME_CHECK(units.assign(name, value), "adapter tensor ", name, " has no place in the model");
  adapter_.clear();
}

void CausalLmTask::save_artefact(ShardedUnits& units, const std::filesystem::path& directory) {
  if (config_.lora) return save_adapter(units, directory / "adapter");
  const auto writer = export_model(units, [&] {
    return std::make_unique<ModelDirectoryWriter>(directory / "model",
                                                  stored_tensors(model_->units(), to_file_dtype(rank_.compute_dtype)));
  });
  if (!writer) return;
  DecoderConfig config = model_->config();
  config.dtype = config_dtype_name(to_file_dtype(rank_.compute_dtype));
  if (std::filesystem::is_directory(config_.model.path)) writer->copy_companions(config_.model.path);
  writer->finish(config);
}

void CausalLmTask::save_adapter(ShardedUnits& units, const std::filesystem::path& directory) {
  std::map<std::string, at::Tensor> tensors;
  units.export_tensors(
      at::kFloat, [&](int unit) { return units.units()[unit].replicated; },
      [&](const std::string& name, const at::Tensor& value) { tensors[name] = value; });
  if (rank_.grid.world.rank != 0) return;
  Adapter adapter = export_adapter(tensors, *model_, config_.model.path, token_rows_);
  if (config_.model.init == ModelSection::Init::kCheckpoint) adapter.base_hash = base_hash(config_.model.path);
  make_directories(directory);
  write_adapter(directory, adapter, DType::kF32);
}

}  // namespace trireme
