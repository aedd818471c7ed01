// Loading weights into a BERT run and writing its model.
#include "bert_task.h"

#include "models/bert/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/safetensors.h"
#include "trireme/train/run.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace trireme {

namespace {

constexpr int64_t kMaxFileBytes = 5'000'000'000;

/// Files beside the weights that make a directory a complete Hugging Face model.
constexpr const char* kCompanions[] = {"vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};

/// Rows that the file gets: a padded vocabulary loses its padding.
int64_t stored_rows(const ParameterSpec& parameter, const ParameterPart& part, const BertModel& model) {
  const bool vocabulary = parameter.zero_rows_from >= 0 || part.name == "cls.predictions.bias";
  return vocabulary ? model.config().vocab_size : part.rows;
}

}  // namespace

void BertTask::load_weights(ShardedUnits& units) {
  if (config_.model.init == "random") {
    units.initialise(static_cast<uint64_t>(config_.train.seed), /*only_replicated=*/false);
    return;
  }
  const auto source = open_bert_weights(config_.model.path, *model_);
  load_units(units, *source, config_.model.path, rank_.world_size);
}

void BertTask::save_artefact(ShardedUnits& units, const std::filesystem::path& run) {
  const std::filesystem::path directory = run / "model";
  const DType dtype = file_dtype(rank_.compute_dtype);
  std::vector<std::pair<std::string, TensorInfo>> tensors;
  for (const UnitSpec& unit : units.units()) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const ParameterPart& part : parameter.parts) {
        std::vector<int64_t> shape = parameter.shape;
        shape[0] = stored_rows(parameter, part, *model_);
        tensors.emplace_back(part.name, TensorInfo{dtype, std::move(shape)});
      }
    }
  }
  const ShardPlan plan = plan_safetensors_shards(tensors, kMaxFileBytes);
  TRIREME_CHECK(plan.files.size() == 1, "a BERT of ", plan.total_bytes, " bytes");
  std::unique_ptr<SafetensorsWriter> writer;
  if (rank_.rank == 0) {
    make_directories(directory);
    writer = std::make_unique<SafetensorsWriter>(directory / plan.files[0].first, tensors);
  }
  size_t next = 0;
  units.export_tensors(rank_.compute_dtype, [](int) { return true; }, [&](const std::string& name, const at::Tensor& value) {
    const auto& [due, info] = tensors.at(next++);
    TRIREME_CHECK(due == name, "export gives ", name, " where ", due, " is due");
    const at::Tensor stored = value.narrow(0, 0, info.shape[0]).contiguous();
    writer->append(stored.const_data_ptr(), stored.nbytes());
  });
  if (rank_.rank != 0) return;
  writer->commit();
  BertConfig config = model_->config();
  config.dtype = config_dtype(rank_.compute_dtype);
  const std::filesystem::path base = bert_config_path(config_.model.path);
  if (std::filesystem::is_directory(base))
    for (const char* name : kCompanions)
      if (std::filesystem::is_regular_file(base / name))
        write_file_atomic(directory / name, read_text_file(base / name, ExitCode::kModel));
  write_file_atomic(directory / "config.json", bert_config_json(config));
}

}  // namespace trireme
