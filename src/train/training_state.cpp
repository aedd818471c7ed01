#include "training_state.h"

#include "data/rows.h"
#include "preference_loss.h"
#include "run_directory.h"
#include "trireme/base/error.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/optim/optimizer.h"

#include <cmath>

namespace trireme {

namespace {

constexpr const char *kSamplesName = "samples", *kEvaluatedStepName = "evaluated_step",
                     *kEvaluationOpenName = "evaluation_left", *kReachedTargetName = "reached_target",
                     *kConsecutiveSkipsName = "consecutive_skips", *kSkippedStepsName = "left_out",
                     *kLossWindowName = "loss_window", *kFp8ScalesName = "task", *kDataName = "data",
                     *kBestName = "best_evaluation";

/// The checkpoint tensors of the trained units, by their places in the units' vectors; and the vectors of their own
/// that `optimizer` has for elements of some units.
std::vector<CheckpointUnit> describe_units(const std::vector<UnitSpec>& units, const OptimizerTraits& optimizer) {
  std::vector<CheckpointUnit> described;
  for (const UnitSpec& unit : units) {
    if (!unit.trained) continue;
    const UnitLayout layout = make_layout(unit, 1);
    CheckpointUnit entry{unit.name, layout.numel, {}};
    for (const LayoutPiece& piece : pieces_in_range(unit, layout, 0, layout.numel)) {
      const ParameterSpec& parameter = unit.parameters[piece.parameter];
      std::vector<int64_t> shape = parameter.shape;
      shape[0] = parameter.parts[piece.part].rows;
      entry.tensors.push_back({parameter.parts[piece.part].name, shape, piece.flat_begin});
    }
    described.push_back(std::move(entry));
    const int64_t matrices = optimizer.whole_matrices ? unit.matrix_numel() : 0;
    if (matrices > 0 && matrices < layout.numel)
      described.push_back({rest_name(unit.name), layout.numel - matrices, {}});
  }
  return described;
}

/// What results depend on beside rows and a frozen base: the configuration of a model whose parameters all train, the
/// adapter that a preference run compares with in each step or whose rows of the vocabulary a run reads, and the
/// tokenizer of texts.
std::vector<Fingerprint> fingerprint_inputs(const Config& config, const RunFiles& files) {
  std::error_code error;
  std::vector<Fingerprint> inputs;
  if (!config.lora) {  // with adapters the manifest's base has it
    if (std::filesystem::is_regular_file(files.configuration, error))
      inputs.push_back(fingerprint_configuration(files.configuration));
    else
      inputs = fingerprint_model(config.model.path, /*with_weights=*/false);
  }
  const bool compared = has_reference(config) && !precomputes_reference(config);
  if (config.lora && config.lora->adapter && (compared || files.adapter_rows))
    for (Fingerprint& file : fingerprint_model(*config.lora->adapter, /*with_weights=*/true))
      inputs.push_back(std::move(file));
  for (const std::filesystem::path& file : files.tokenizer) inputs.push_back(fingerprint_tokenizer(file));
  return inputs;
}

std::vector<Fingerprint> base_fingerprints(const Config& config) {
  return fingerprint_model(config.model.path, config.model.init == ModelSection::Init::kCheckpoint);
}

std::vector<Fingerprint> former_data(const std::vector<std::string>& entries) {
  std::vector<Fingerprint> prints;
  for (const std::string& entry : entries) {
    if (std::filesystem::is_directory(entry)) {
      prints.push_back({entry, fingerprint_names(entry)});
      continue;
    }
    for (Fingerprint& file : fingerprint_files(to_paths(row_files({entry})), ExitCode::kData))
      prints.push_back(std::move(file));
  }
  return prints;
}

}  // namespace

const char* stored_kind(StateKind kind) {
  switch (kind) {
    case StateKind::kMaster: return "master";
    case StateKind::kFirstMoment: return "exp_avg";
    case StateKind::kSecondMoment: return "exp_avg_sq";
    case StateKind::kOptimizerSteps: return "step";
    case StateKind::kLossScale: return "loss_scale";
    case StateKind::kGrowthTracker: return "growth_tracker";
  }
  return "";
}

std::string stored_name(const StateTensor& state) {
  return checkpoint_tensor_name(stored_kind(state.kind), state.shard == nullptr ? "" : state.shard->name);
}

std::map<std::string, std::vector<double>> LoopState::numbers() const {
  std::map<std::string, std::vector<double>> numbers = {
      {kSamplesName, {static_cast<double>(progress.samples)}},
      {kEvaluatedStepName, {static_cast<double>(progress.evaluated_step)}},
      {kEvaluationOpenName, {progress.evaluation_open ? 1.0 : 0.0}},
      {kReachedTargetName, {progress.reached_target ? 1.0 : 0.0}},
      {kConsecutiveSkipsName, {static_cast<double>(guard.consecutive_skips)}},
      {kSkippedStepsName, {static_cast<double>(guard.skipped_steps)}},
      {kLossWindowName, guard.loss_window}};
  if (progress.best_step >= 0)
    numbers[kBestName] = {progress.best_score, static_cast<double>(progress.best_step),
                          static_cast<double>(progress.evaluations_since_best), progress.out_of_patience ? 1.0 : 0.0};
  if (fp8_scales) numbers[kFp8ScalesName] = *fp8_scales;
  if (!data_position.empty()) numbers[kDataName] = data_position;
  return numbers;
}

LoopState loop_state(const CheckpointManifest& manifest) {
  const auto list = [&](const char* name) {
    const auto found = manifest.numbers.find(name);
    return found == manifest.numbers.end() ? std::optional<std::vector<double>>() : found->second;
  };
  const auto number = [&](const char* name, double otherwise) {
    const auto values = list(name);
    return values && !values->empty() ? values->front() : otherwise;
  };
  const auto count = [&](const char* name, double otherwise) { return std::llround(number(name, otherwise)); };
  LoopState loop;
  loop.progress.completed = loop.progress.reported = manifest.step;
  loop.progress.evaluations = manifest.evaluations;
  loop.has_samples = manifest.numbers.contains(kSamplesName);
  loop.progress.samples = count(kSamplesName, 0);
  loop.progress.evaluated_step = count(kEvaluatedStepName, -1);
  loop.progress.evaluation_open = number(kEvaluationOpenName, 0) > 0;
  loop.progress.reached_target = number(kReachedTargetName, 0) > 0;
  if (const auto best = list(kBestName); best && best->size() == 4) {
    loop.progress.best_score = (*best)[0];
    loop.progress.best_step = std::llround((*best)[1]);
    loop.progress.evaluations_since_best = std::llround((*best)[2]);
    loop.progress.out_of_patience = (*best)[3] > 0;
  }
  loop.guard = {static_cast<int>(number(kConsecutiveSkipsName, 0)), count(kSkippedStepsName, 0),
                list(kLossWindowName).value_or(std::vector<double>())};
  loop.fp8_scales = list(kFp8ScalesName);
  loop.data_position = list(kDataName).value_or(std::vector<double>());
  return loop;
}

std::vector<Fingerprint> files_of_all_ranks(const Config& config, const RunFiles& files, bool from_start) {
  constexpr size_t kBlocks = 4;
  std::vector<Fingerprint> all = fingerprint_files(files.data, ExitCode::kData, kBlocks);
  const auto add = [&](const std::vector<Fingerprint>& more) { all.insert(all.end(), more.begin(), more.end()); };
  add(fingerprint_inputs(config, files));
  if (config.lora || from_start)
    for (const Fingerprint& file : base_fingerprints(config))
      add({std::filesystem::path(file.path).filename() == "config.json" ? fingerprint_configuration(file.path) : file});
  if (from_start) add(fingerprint_files(files.weights, ExitCode::kModel, 16));
  if (from_start && config.lora && config.lora->adapter)
    add(fingerprint_model(*config.lora->adapter, /*with_weights=*/true));
  for (const auto* rows : {&files.evaluation, &files.test})
    if (*rows != files.data) add(fingerprint_files(*rows, ExitCode::kData, kBlocks));
  return all;
}

CheckpointRun describe_run(const Config& config, const std::string& run_id, const RankGrid& grid,
                           const std::vector<UnitSpec>& units, at::ScalarType compute_dtype,
                           const std::optional<RunFiles>& files) {
  CheckpointRun run;
  CheckpointManifest& manifest = run.manifest;
  manifest.run_id = run_id;
  manifest.world_size = grid.world.size;
  manifest.shard_size = grid.shard.size;
  manifest.compute_dtype = type_name(compute_dtype);
  manifest.config = print_config(config);
  manifest.config_hash = configuration_hash(config);
  manifest.seed = config.train.seed;
  manifest.units = describe_units(units, traits_of(config.optimizer.name));
  run.samples_after = [batches = BatchSizes(config.batch)](int64_t steps) { return batches.before(steps); };
  run.tokens_per_sample = config.data.seq_length;
  if (!files) return run;
  manifest.data = fingerprint_files(files->data, ExitCode::kData);
  run.former_data = [entries = config.data.train] { return former_data(entries); };
  if (config.lora) manifest.base = base_fingerprints(config);
  manifest.inputs = fingerprint_inputs(config, *files);
  run.evaluation_rows = files->evaluation_rows;
  manifest.evaluation =
      files->evaluation == files->data ? manifest.data : fingerprint_files(files->evaluation, ExitCode::kData);
  return run;
}

}  // namespace trireme
