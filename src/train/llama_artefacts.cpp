// Loading weights into a Llama run and writing its adapter or model.
#include "llama_task.h"

#include "models/llama/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/peft_adapter.h"
#include "trireme/formats/safetensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

/// Files beside the weights that make a directory a complete Hugging Face model.
constexpr const char* kCompanions[] = {"tokenizer.model", "tokenizer.json", "tokenizer_config.json",
                                       "special_tokens_map.json", "generation_config.json"};

}  // namespace

void LlamaTask::check_weights() {
  if (config_.model.init == "checkpoint") {
    source_ = open_weights(config_.model.path);
    trireme::check_weights(model_->units(), *source_, config_.model.path);
  }
  if (!config_.lora || !config_.lora->adapter) return;
  const std::string& path = *config_.lora->adapter;
  const Adapter adapter = read_adapter(path);
  try {
    adapter_ = import_adapter(adapter, *model_);
  } catch (const ModelError& error) {
    throw ModelError(fmt::format("lora.adapter {}: {}", path, error.what()));
  }
}

void LlamaTask::load_weights(ShardedUnits& units) {
  const auto seed = static_cast<uint64_t>(config_.train.seed);
  if (!source_ && adapter_.empty()) check_weights();
  if (config_.model.init == "random") {
    units.initialise(seed, /*only_replicated=*/false);
  } else {
    load_units(units, *source_, config_.model.path, info_.world_size);
    units.initialise(seed, /*only_replicated=*/true);
    source_.reset();
  }
  for (const auto& [name, value] : adapter_)
    TRIREME_CHECK(units.assign(name, value), "adapter tensor ", name, " has no place in the model");
  if (!adapter_.empty()) log_info(fmt::format("starting from adapter {}", *config_.lora->adapter));
  adapter_.clear();
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
  const Adapter adapter = export_adapter(tensors, *model_, config_.model.path);
  make_directories(directory);
  write_adapter(directory, adapter, DType::kF32);
}

void LlamaTask::save_model(ShardedUnits& units, const std::filesystem::path& directory) {
  constexpr int64_t kMaxFileBytes = 5'000'000'000;
  const DType dtype = file_dtype(info_.compute_dtype);
  std::vector<std::pair<std::string, TensorInfo>> tensors;
  for (const UnitSpec& unit : units.units()) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (const ParameterPart& part : parameter.parts) {
        std::vector<int64_t> shape = parameter.shape;
        shape[0] = part.rows;
        tensors.emplace_back(part.name, TensorInfo{dtype, shape});
      }
    }
  }
  const ShardPlan plan = plan_safetensors_shards(tensors, kMaxFileBytes);
  std::unique_ptr<SafetensorsWriter> writer;
  size_t file = 0, in_file = 0;
  if (info_.rank == 0) make_directories(directory);
  units.export_tensors(
      info_.compute_dtype, [](int) { return true; },
      [&](const std::string& name, const at::Tensor& value) {
        if (!writer) {
          std::vector<std::pair<std::string, TensorInfo>> mine;
          for (const size_t index : plan.files[file].second) mine.push_back(tensors[index]);
          writer = std::make_unique<SafetensorsWriter>(directory / plan.files[file].first, mine);
          in_file = 0;
        }
        const size_t index = plan.files[file].second[in_file];
        TRIREME_CHECK(tensors[index].first == name, "export gives ", name, " where ", tensors[index].first, " is due");
        writer->append(value.const_data_ptr(), value.nbytes());
        if (++in_file == plan.files[file].second.size()) {
          writer->commit();
          writer.reset();
          ++file;
        }
      });
  if (info_.rank != 0) return;
  LlamaConfig config = model_->config();
  config.dtype = config_dtype(info_.compute_dtype);
  if (plan.files.size() > 1)
    write_file_atomic(directory / "model.safetensors.index.json", safetensors_index_json(plan, tensors));
  const std::filesystem::path base = std::filesystem::is_directory(config_.model.path)
                                         ? std::filesystem::path(config_.model.path)
                                         : std::filesystem::path();
  for (const char* name : kCompanions)
    if (!base.empty() && std::filesystem::is_regular_file(base / name))
      write_file_atomic(directory / name, read_text_file(base / name, ExitCode::kModel));
  write_file_atomic(directory / "config.json", llama_config_json(config));
}

}  // namespace trireme
