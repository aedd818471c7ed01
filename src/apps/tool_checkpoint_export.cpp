// `trireme checkpoint export`.
#include "checkpoint_selection.h"
#include "tools.h"

#include "models/bert/files.h"
#include "models/decoder/adapter.h"
#include "models/decoder/family.h"
#include "models/decoder/model_directory.h"
#include "models/decoder/vocabulary.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/config/config.h"
#include "trireme/formats/checkpoint/finished_run.h"
#include "trireme/formats/huggingface/staged_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

namespace trireme {

namespace fs = std::filesystem;

namespace {

struct CheckpointExport {
  std::string checkpoint, output, dtype, model, adapter;  // the last three may be empty: the run's own
};

/// Reads whole tensors of the masters by their Hugging Face names.
class MasterTensors {
 public:
  explicit MasterTensors(CheckpointReader& reader) : reader_(reader) {
    for (const CheckpointUnit& unit : reader.manifest().units)
      for (const CheckpointTensor& tensor : unit.tensors) placements_[tensor.name] = {unit.name, &tensor};
  }
  at::Tensor read(const std::string& name) {
    const auto found = placements_.find(name);
    if (found == placements_.end()) throw ModelError(fmt::format("the checkpoint has no tensor {}", name));
    const auto& [unit, tensor] = found->second;
    const at::Tensor value = at::empty(tensor->shape, to_scalar_type(reader_.dtype("master", unit)));
    copy_elements(reader_.read("master", unit, tensor->offset, tensor->offset + value.numel()), value.scalar_type(),
                  value.view({-1}));
    return value;
  }
  const CheckpointManifest& manifest() const { return reader_.manifest(); }
  bool has(const std::string& name) const { return placements_.contains(name); }
  const std::vector<int64_t>& shape(const std::string& name) const { return placements_.at(name).second->shape; }
  /// Extent of the first dimension. ModelError.
  int64_t rows(const std::string& name) const {
    if (!has(name) || shape(name).empty()) throw ModelError(fmt::format("the checkpoint has no matrix {}", name));
    return shape(name)[0];
  }
  std::vector<std::string> names() const { return keys_of(placements_); }

 private:
  CheckpointReader& reader_;
  std::map<std::string, std::pair<std::string, const CheckpointTensor*>> placements_;
};

/// ModelError where the checkpoint's tensor is not that of the model that `base` describes. Rows beyond a vocabulary's
/// own may be there.
void require_fit(MasterTensors& masters, const std::string& name, const std::vector<int64_t>& expected,
                 const fs::path& base) {
  const std::vector<int64_t> shape = masters.has(name) ? masters.shape(name) : std::vector<int64_t>();
  if (shape.size() != expected.size() || shape[0] < expected[0] ||
      !std::equal(shape.begin() + 1, shape.end(), expected.begin() + 1))
    throw ModelError(fmt::format("the checkpoint's {} is of another model than {}", name, base.string()));
}

/// What `option` gave, else `known`, which the run has under `key`. ModelError where that is not there.
fs::path given_or_known(const std::string& given, const char* option, const std::string& known, const char* key) {
  if (!given.empty()) return given;
  if (!fs::exists(known))
    throw ModelError(
        fmt::format("{} does not exist, which is the run's {}: say with {} where it is now", known, key, option));
  return known;
}

void export_bert(MasterTensors& masters, const Config& config, const fs::path& base, const fs::path& output,
                 DType dtype) {
  BertConfig shape = read_bert_config(bert_config_path(base));
  const BertModel model(shape, config.model.pad_vocab_to.value_or(kDefaultVocabMultiple));
  const std::vector<StoredTensor> tensors = stored_tensors(model.units(), dtype);
  for (const StoredTensor& tensor : tensors) require_fit(masters, tensor.name, tensor.info.shape, base);
  BertDirectoryWriter writer(output, tensors);
  for (const StoredTensor& tensor : tensors) writer.append(tensor.name, masters.read(tensor.name));
  shape.dtype = torch_dtype_name(dtype);
  writer.finish(base, shape);
}

/// ModelError where the checkpoint has other rows of tokens than `ids`, those that `base` says were added to it.
void require_rows(MasterTensors& masters, const std::string& name, const std::vector<int64_t>& ids,
                  const fs::path& base) {
  const int64_t rows = masters.shape(name)[0];
  if (rows != std::ssize(ids))
    throw ModelError(fmt::format(
        "the checkpoint's {} has {}, and {} says that {} were added: give --model a copy of the "
        "base with \"{}\": {{\"first\": {}}}",
        name, counted(rows, "row"), (base / "config.json").string(), ids.size(), kAddedRowsKey, ids.back() + 1 - rows));
}

/// ModelError where the checkpoint's tensors are not those that `model` trains.
void require_trained_tensors(MasterTensors& masters, const DecoderModel& model, const fs::path& base) {
  size_t trained = 0;
  for (const UnitSpec& unit : model.units())
    for (const ParameterSpec& parameter : unit.parameters)
      for (size_t part = 0; unit.trained && part < parameter.parts.size(); ++part, ++trained) {
        std::vector<int64_t> expected = parameter.shape;
        expected[0] = parameter.parts[part].rows;
        require_fit(masters, parameter.parts[part].name, expected, base);
      }
  for (const auto& [module, ids] : model.token_rows()) require_rows(masters, module + kTokenRowsSuffix, ids, base);
  if (masters.names().size() != trained)
    throw ModelError(
        fmt::format("the checkpoint has {} trained tensors, and the run would have {} with {}: it is of "
                    "another model",
                    masters.names().size(), trained, base.string()));
}

/// The model in `base` with the rows that the run added to its vocabulary.
DecoderConfig resized_shape(const Config& config, const fs::path& base) {
  DecoderConfig shape = read_model_shape(base);
  shape.vocab_size = resized_vocab(shape.vocab_size, config.model.vocab_size, config.model.pad_vocab_to);
  return shape;
}

void export_lora(MasterTensors& masters, const Config& config, const fs::path& base, const CheckpointExport& options,
                 DType dtype) {
  const DecoderConfig stored = read_model_shape(base);
  DecoderConfig shape = resized_shape(config, base);
  const AddedRows added = added_rows(base, stored.vocab_size, config.model.vocab_size.value_or(stored.vocab_size));
  LoraOptions lora = *config.lora;
  train_added_rows(added, shape, lora);
  const DecoderModel model(shape, std::move(lora));
  require_trained_tensors(masters, model, base);
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& name : masters.names()) tensors[name] = masters.read(name).to(at::kFloat);
  std::map<std::string, TokenRows> start, rows;
  if (config.lora->adapter)
    start = read_adapter(given_or_known(options.adapter, "--adapter", *config.lora->adapter, "lora.adapter"), stored)
                .token_rows;
  if (config.model.init != ModelSection::Init::kRandom && (shape.vocab_size > stored.vocab_size || !start.empty()))
    rows = adapter_token_rows(
        *open_decoder_weights(base, stored, shape.vocab_size, static_cast<uint64_t>(config.train.seed), start), shape,
        stored.vocab_size, start);
  const std::string trained_on = base_hash(masters.manifest().base), given = base_hash(base);
  const bool other = !trained_on.empty() && !given.empty() && given != trained_on;
  if (other)
    log_warn(fmt::format("{} has other weights than the base {} had in the run: the adapter names that base",
                         base.string(), config.model.path));
  Adapter adapter = export_adapter(
      tensors, model, other ? config.model.path : fs::absolute(base).lexically_normal().string(), std::move(rows));
  adapter.base_hash = trained_on;
  make_directories(options.output);
  write_adapter(options.output, adapter, dtype);
}

void export_decoder(MasterTensors& masters, const Config& config, const fs::path& base, const fs::path& output,
                    DType dtype) {
  DecoderConfig shape = resized_shape(config, base);
  extend_positions(shape, config.data.seq_length);
  // The padded size of the vocabulary depends on the program, which a checkpoint does not name.
  shape.vocab_size = masters.rows(family_of(shape).names.embedding + ".weight");
  const std::vector<StoredTensor> declared = stored_tensors(DecoderModel(shape, std::nullopt).units(), dtype);
  for (const StoredTensor& tensor : declared) require_fit(masters, tensor.name, tensor.info.shape, base);
  ModelDirectoryWriter writer(output, declared);
  for (const StoredTensor& tensor : declared) writer.append(tensor.name, masters.read(tensor.name));
  if (fs::is_directory(base)) writer.copy_companions(base);
  shape.dtype = torch_dtype_name(dtype);
  writer.finish(shape);
}

/// The weights do not say what their configuration and tokenizer were.
void warn_of_changed_files(const CheckpointManifest& manifest, const Config& config, const fs::path& base) {
  const fs::path known = config.model.path;
  std::error_code error;
  for (size_t i = 0; i < manifest.inputs.size(); ++i) {
    const fs::path then = manifest.inputs[i].path;
    if (then != known && then != known / then.filename()) continue;  // of an adapter
    const fs::path now = fs::is_directory(base, error) ? base / then.filename() : base;
    if (!fs::exists(now, error)) continue;
    const bool configuration = i == 0 && !config.lora && then.extension() == ".json";
    const Fingerprint print = configuration ? fingerprint_configuration(now) : fingerprint_tokenizer(now);
    if (!print.same_content(manifest.inputs[i]))
      log_warn(
          fmt::format("{} is not what {} was in the run: the exported model has it as it is now; name with "
                      "--model a directory that has the old one if that is not meant",
                      now.string(), then.string()));
  }
}

/// ModelError if no checkpoint that `asked` means is whole. Fills the manifest.
fs::path newest_whole(const std::string& asked, CheckpointManifest& manifest) {
  std::string problem;
  for (const fs::path& candidate : selected_checkpoints(asked)) {
    if (problem = checkpoint_problem(candidate, manifest); problem.empty()) return candidate;
    log_warn(fmt::format("{} is damaged: {}", candidate.string(), problem));
  }
  throw ModelError(fmt::format("no checkpoint in {} is whole: {}", asked, problem));
}

/// A finished run whose last step has no whole checkpoint: what the user most likely wants lies there already.
void refuse_older_than_final(const fs::path& asked, const fs::path& checkpoint, int64_t step) {
  if (is_checkpoint(asked)) return;
  for (const fs::path& run : runs_of_checkpoints(asked)) {
    const auto finished = finished_run(run);
    if (!finished || finished->step <= step) continue;
    const fs::path final_model = run / (fs::exists(run / "adapter") ? "adapter" : "model");
    throw ModelError(
        fmt::format("the run in {} finished after step {}, and its newest whole checkpoint is of step {}: what it "
                    "trained in the end is {}; name {} to export step {}",
                    run.string(), finished->step, step, final_model.string(), checkpoint.string(), step));
  }
}

void export_checkpoint(const CheckpointExport& options) {
  at::NoGradGuard no_grad;
  const fs::path output = options.output;
  for (const char* taken : {"config.json", "adapter_config.json"})
    if (fs::exists(output / taken))
      throw WriteError(
          fmt::format("checkpoint export: {} already holds {}; choose another directory", options.output, taken));
  CheckpointManifest manifest;
  const fs::path directory = newest_whole(options.checkpoint, manifest);
  refuse_older_than_final(options.checkpoint, directory, manifest.step);
  if (manifest.version == 1)
    throw ModelError(
        fmt::format("{} has format version 1, which does not name its tensors: start the run again, it reads version 1 "
                    "and saves version {}",
                    directory.string(), CheckpointManifest::kVersion));
  if (const fs::path target = fs::weakly_canonical(output);
      checkpoint_step(target) && target.parent_path() == fs::weakly_canonical(directory).parent_path())
    throw ConfigError(fmt::format(
        "checkpoint export: {} has the name of a checkpoint of the run; choose another directory", options.output));
  const Config config = parse_config(manifest.config, (directory / kManifestName).string());
  // A model's files replace all files of a model in their directory; an export that was interrupted has left its own.
  if (!config.lora && !fs::exists(output / kStagedModel) && !model_file_in(output).empty())
    throw WriteError(
        fmt::format("checkpoint export: {} holds files of a model or tokenizer, which the exported model's would "
                    "replace; choose another directory",
                    options.output));
  const fs::path base = given_or_known(options.model, "--model", config.model.path, "model.path");
  warn_of_changed_files(manifest, config, base);
  CheckpointReader reader(directory, std::move(manifest));
  MasterTensors masters(reader);
  const DType dtype = dtype_option("checkpoint export", !options.dtype.empty() ? options.dtype
                                                        : config.lora          ? "fp32"
                                                                               : reader.manifest().compute_dtype);
  if (masters.has("bert.embeddings.word_embeddings.weight"))
    export_bert(masters, config, base, output, dtype);
  else if (config.lora)
    export_lora(masters, config, base, options, dtype);
  else
    export_decoder(masters, config, base, output, dtype);
  fmt::print("{}: {} after step {} in {}\n", directory.string(), config.lora ? "adapter" : "model",
             reader.manifest().step, options.output);
}

}  // namespace

void add_checkpoint_export(CLI::App& tool) {
  auto options = std::make_shared<CheckpointExport>();
  CLI::App* command = tool.add_subcommand("export", "Write the PEFT adapter or the Hugging Face model of a checkpoint");
  command->add_option("dir", options->checkpoint, "One checkpoint, or a run (its newest whole one)")->required();
  command->add_option("--output", options->output, "Directory to write")->required();
  command->add_option("--dtype", options->dtype,
                      "fp32, bf16 or fp16 (default: adapters fp32, models the run's precision)");
  command->add_option("--model", options->model, "Base model directory (default: the run's model.path)");
  command->add_option("--adapter", options->adapter,
                      "Adapter that the run started from (default: the run's lora.adapter)");
  command->callback([options] { export_checkpoint(*options); });
}

}  // namespace trireme
