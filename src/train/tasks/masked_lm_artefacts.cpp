// The weights that a BERT run starts from, and writing its model.
#include "masked_lm_task.h"

#include "models/bert/files.h"

namespace trireme {

std::unique_ptr<WeightSource> MaskedLmTask::open_weights() const {
  return open_bert_weights(config_.model.path, *model_);
}

void MaskedLmTask::save_artefact(ShardedUnits& units, const std::filesystem::path& directory) {
  const auto writer = export_model(units, [&] {
    return std::make_unique<BertDirectoryWriter>(directory / "model",
                                                 stored_tensors(model_->units(), to_file_dtype(rank_.compute_dtype)));
  });
  if (!writer) return;
  BertConfig config = model_->config();
  config.dtype = torch_dtype_name(to_file_dtype(rank_.compute_dtype));
  writer->finish(config_.model.path, config);
}

}  // namespace trireme
