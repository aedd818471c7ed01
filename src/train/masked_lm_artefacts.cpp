// Loading weights into a BERT run and writing its model.
#include "masked_lm_task.h"

#include "models/bert/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/safetensors.h"
#include "trireme/formats/staged_model.h"
#include "trireme/train/run.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <optional>

namespace trireme {

namespace {

constexpr int64_t kMaxFileBytes = 5'000'000'000;

}  // namespace

std::unique_ptr<WeightSource> MaskedLmTask::open_weights() const {
  return open_bert_weights(config_.model.path, *model_);
}

void MaskedLmTask::save_artefact(ShardedUnits& units, const std::filesystem::path& run) {
  const std::filesystem::path directory = run / "model";
  const auto tensors = bert_file_tensors(*model_, file_dtype(rank_.compute_dtype));
  const ShardPlan plan = plan_safetensors_shards(tensors, kMaxFileBytes);
  TRIREME_CHECK(plan.files.size() == 1, "a BERT of ", plan.total_bytes, " bytes");
  std::optional<StagedModel> staged;
  std::unique_ptr<SafetensorsWriter> writer;
  if (rank_.rank == 0) {
    staged.emplace(directory);
    writer = std::make_unique<SafetensorsWriter>(staged->path() / plan.files[0].first, tensors);
  }
  size_t next = 0;
  units.export_tensors(
      rank_.compute_dtype, [](int) { return true; },
      [&](const std::string& name, const at::Tensor& value) {
        const auto& [due, info] = tensors.at(next++);
        TRIREME_CHECK(due == name, "export gives ", name, " where ", due, " is due");
        const at::Tensor stored = value.narrow(0, 0, info.shape[0]).contiguous();
        writer->append(stored.const_data_ptr(), stored.nbytes());
      });
  if (rank_.rank != 0) return;
  writer->commit();
  BertConfig config = model_->config();
  config.dtype = config_dtype(rank_.compute_dtype);
  finish_bert_directory(staged->path(), config_.model.path, config);
  staged->commit();
}

}  // namespace trireme
