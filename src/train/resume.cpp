#include "resume.h"

#include "checkpoint_writer.h"
#include "data/rows.h"
#include "models/common/stored.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/collective_check.h"
#include "trireme/config/keys.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace trireme {

namespace {

std::string place_text(const CheckpointTensor& tensor) {
  return fmt::format("{} at {}", shape_text(tensor.shape), tensor.offset);
}

void compare_tensors(const CheckpointUnit& ours, const CheckpointUnit& theirs, std::vector<std::string>& differences) {
  std::map<std::string, const CheckpointTensor*> there;
  for (const CheckpointTensor& tensor : theirs.tensors) there[tensor.name] = &tensor;
  for (const CheckpointTensor& tensor : ours.tensors) {
    const auto found = there.find(tensor.name);
    if (found == there.end())
      differences.push_back(fmt::format("{} is missing", tensor.name));
    else if (!(*found->second == tensor))
      differences.push_back(
          fmt::format("{} has shape {}, the run's is {}", tensor.name, place_text(*found->second), place_text(tensor)));
    if (found != there.end()) there.erase(found);
  }
  for (const auto& [name, tensor] : there) differences.push_back(fmt::format("{} is there, which the run lacks", name));
}

/// The results and errors of `find` on all ranks as one text, equal on every rank. A StorageError ends all: another
/// start may read what this one cannot. Collective.
std::string shared_problem(Communicator& comm, const std::function<std::string()>& find) {
  std::string mine;
  collective_check(comm, [&] {
    try {
      mine = find();
    } catch (const StorageError& error) {
      throw ModelError(fmt::format("{}: nothing is changed; start again when it can be read", error.what()));
    } catch (const Error& error) {
      mine = error.what();
    }
  });
  std::vector<std::string> problems = problems_of_ranks(comm, mine);
  const size_t more = problems.size() - std::min<size_t>(problems.size(), 5);
  problems.resize(problems.size() - more);
  return more > 0 ? fmt::format("{}; and more from {} ranks", join(problems, "; "), more) : join(problems, "; ");
}

/// ModelError where some ranks saw a checkpoint's manifest (`there`) and others did not: it may be whole. Collective.
void require_one_view(Communicator& comm, const std::filesystem::path& manifest, bool there) {
  const bool anywhere = comm.all_reduce_host({there ? 1.0 : 0.0}, ReduceOp::kMax)[0] > 0;
  collective_check(comm, [&] {
    if (there || !anywhere) return;
    throw ModelError(
        fmt::format("{}{} is not there, and other ranks see it: nothing is changed; start again when every "
                    "host sees the checkpoints",
                    comm.rank() == 0 ? fmt::format("rank 0 on {}: ", host_name()) : "", manifest.string()));
  });
}

/// Loads one checkpoint, or says why it cannot be gone on from.
class Loader {
 public:
  Loader(const CheckpointRun& run, Communicator& comm, const ResumeChoices& choices,
         const std::vector<StateTensor>& state)
      : run_(run), comm_(comm), choices_(choices), state_(state) {}
  /// Collective; `reason` is the same on all ranks, and is set where there is no result.
  std::optional<ResumedRun> load(const std::filesystem::path& directory, std::string& reason) const;

 private:
  void check_run(const std::filesystem::path& directory, const CheckpointManifest& manifest) const;
  std::string compare_with_model(const CheckpointManifest& manifest) const;
  void check_inputs(const CheckpointManifest& manifest) const;
  std::string evaluation_change(const CheckpointManifest& manifest, const Config& then) const;
  void fill(CheckpointReader& reader) const;
  const CheckpointRun& run_;
  Communicator& comm_;
  const ResumeChoices& choices_;
  const std::vector<StateTensor>& state_;
};

std::string Loader::compare_with_model(const CheckpointManifest& manifest) const {
  std::vector<std::string> differences;
  std::map<std::string, const CheckpointUnit*> units;
  for (const CheckpointUnit& unit : manifest.units) units[unit.name] = &unit;
  std::map<std::string, DType> vectors;
  for (const CheckpointFile& file : manifest.files)
    for (const CheckpointPiece& piece : file.pieces) vectors[piece.tensor_name()] = piece.dtype;
  for (const CheckpointUnit& ours : run_.manifest.units) {
    const auto found = units.find(ours.name);
    if (found == units.end()) {
      differences.push_back(fmt::format("unit {} is missing", ours.name));
      continue;
    }
    const CheckpointUnit& theirs = *found->second;
    if (manifest.version == 1 ? theirs.numel < ours.numel : theirs.numel != ours.numel)
      differences.push_back(
          fmt::format("unit {} has {} elements, the run's has {}", ours.name, theirs.numel, ours.numel));
    if (manifest.version != 1) compare_tensors(ours, theirs, differences);
    units.erase(found);
  }
  for (const auto& [name, unit] : units)
    differences.push_back(fmt::format("unit {} is there, which the run lacks", name));
  for (const StateTensor& ours : state_) {
    const std::string name = stored_name(ours);
    const auto found = vectors.find(name);
    if (found == vectors.end()) {
      differences.push_back(fmt::format("{} is missing", name));
      continue;
    }
    if (const DType dtype = to_file_dtype(ours.tensor.scalar_type()); found->second != dtype)
      differences.push_back(
          fmt::format("{} is {}, the run's is {}", name, dtype_name(found->second), dtype_name(dtype)));
    vectors.erase(found);
  }
  for (const auto& [name, dtype] : vectors)
    differences.push_back(fmt::format("{} is there, which the run lacks", name));
  if (manifest.version != 1 && manifest.samples != run_.samples_after(manifest.step))
    differences.push_back(fmt::format("it has seen {} samples in {} steps, this run would have seen {}",
                                      manifest.samples, manifest.step, run_.samples_after(manifest.step)));
  return summarise_differences(differences);
}

void Loader::check_inputs(const CheckpointManifest& manifest) const {
  const auto compare = [&](const std::vector<Fingerprint>& now, const std::vector<Fingerprint>& then) {
    if (then.empty()) return std::string();
    if (now.size() != then.size()) {
      const auto lacks = [](const std::vector<Fingerprint>& files, const Fingerprint& file) {
        return std::ranges::none_of(files, [&](const Fingerprint& other) { return other.hash == file.hash; });
      };
      const auto gone = std::ranges::find_if(then, [&](const Fingerprint& file) { return lacks(now, file); });
      const auto fresh = std::ranges::find_if(now, [&](const Fingerprint& file) { return lacks(then, file); });
      return fmt::format("{} files where there were {}{}{}", now.size(), then.size(),
                         gone == then.end() ? "" : ", without " + gone->path,
                         fresh == now.end() ? "" : ", and with " + fresh->path);
    }
    for (size_t i = 0; i < now.size(); ++i)
      if (!now[i].same_content(then[i]))
        return fmt::format("{} is not what {} was (fingerprints {} and {})", now[i].path, then[i].path, now[i].hash,
                           then[i].hash);
    return std::string();
  };
  const auto refuse = [&](ExitCode code, const std::string& text, const char* fresh) {
    if (!choices_.allow_changed_data)
      throw Error(code, text +
                            "; put the old files back, choose another output.dir, or add --allow-changed-data to go on "
                            "with the new " +
                            fresh);
    log_warn(text + "; going on, as --allow-changed-data says");
  };
  if (const std::string problem = compare(run_.manifest.data, manifest.data);
      !problem.empty() && !compare(run_.former_data(), manifest.data).empty())
    refuse(ExitCode::kData,
           fmt::format("the training data changed since the checkpoint of step {}: {}", manifest.step, problem),
           "rows");
  if (const std::string problem = compare(run_.manifest.base, manifest.base); !problem.empty())
    throw ModelError(
        fmt::format("the base model changed since the checkpoint of step {}: {}; put the old files "
                    "back or choose another "
                    "output.dir",
                    manifest.step, problem));
  if (const std::string problem = compare(run_.manifest.inputs, manifest.inputs); !problem.empty())
    refuse(ExitCode::kModel,
           fmt::format("a configuration, an adapter or a tokenizer that the run reads changed since the checkpoint of "
                       "step {}: {}",
                       manifest.step, problem),
           "files");
}

/// `then`: the configuration of the run that saved it.
std::string Loader::evaluation_change(const CheckpointManifest& manifest, const Config& then) const {
  const Config now = parse_config(run_.manifest.config, "this run");
  const SplitKeys before = split_keys(then, Split::kValid), keys = split_keys(now, Split::kValid);
  const auto read = [&](const SplitKeys& split) { return split.samples.value_or(run_.evaluation_rows); };
  if (read(before) != read(keys)) return keys.samples_key;
  const auto hashes = [](const std::vector<Fingerprint>& files) {
    std::vector<std::string> all;
    for (const Fingerprint& file : files) all.push_back(file.hash);
    return all;
  };
  const bool same = manifest.evaluation.empty() ? before.files == keys.files
                                                : hashes(manifest.evaluation) == hashes(run_.manifest.evaluation);
  return same ? "" : keys.key;
}

void Loader::fill(CheckpointReader& reader) const {
  at::NoGradGuard no_grad;
  for (const auto& [kind, shard, tensor] : state_) {
    int64_t begin = 0, end = 1;
    if (shard != nullptr) {
      begin = std::min(shard->begin, shard->unit_numel);
      end = std::min(shard->begin + tensor.numel(), shard->unit_numel);
    }
    const at::Tensor flat = tensor.view({-1});
    const int64_t at = copy_elements(reader.read(stored_kind(kind), shard == nullptr ? "" : shard->name, begin, end),
                                     tensor.scalar_type(), flat);
    if (at < flat.numel()) flat.narrow(0, at, flat.numel() - at).zero_();
  }
}

void Loader::check_run(const std::filesystem::path& directory, const CheckpointManifest& manifest) const {
  if (manifest.version != 1 && manifest.run_id != run_.manifest.run_id)
    throw ModelError(fmt::format(
        "it belongs to run {}, this is run {} (by run.json of output.dir, or a new one where that is missing)",
        manifest.run_id, run_.manifest.run_id));
  if (const auto differences = check_checkpoint_layout(directory, manifest); !differences.empty())
    throw ModelError(summarise_differences(differences));
  // A null type is that of the device.
  if (!manifest.compute_dtype.empty() && manifest.compute_dtype != run_.manifest.compute_dtype)
    throw ModelError(fmt::format("it was computed in {0}, and this run would go on in {1}: set precision.compute: {0}",
                                 manifest.compute_dtype, run_.manifest.compute_dtype));
  // Hashes also differ when a later version has more keys, so the keys are compared.
  if (manifest.version == 1 || manifest.config_hash == run_.manifest.config_hash) return;
  const auto changes = deciding_changes(parse_config(manifest.config, directory.string()),
                                        parse_config(run_.manifest.config, "this run"), choices_.nulls);
  if (!changes.empty())
    throw ModelError(fmt::format("it was made with another configuration: {}", summarise_differences(changes)));
}

std::optional<ResumedRun> Loader::load(const std::filesystem::path& directory, std::string& reason) const {
  const double begin = steady_seconds();
  CheckpointManifest manifest;
  bool there = false;
  reason = shared_problem(comm_, [&] {
    std::error_code ignored;
    there = std::filesystem::exists(directory / kManifestName, ignored);
    manifest = read_manifest(directory);
    if (comm_.rank() != 0) return std::string();
    check_run(directory, manifest);
    return compare_with_model(manifest);
  });
  if (!reason.empty()) {
    require_one_view(comm_, directory / kManifestName, there);
    return std::nullopt;
  }
  collective_check(comm_, [&] {
    if (comm_.rank() == 0) check_inputs(manifest);
  });
  // Each file is read and hashed by one rank, the one that probably loads from it.
  reason = shared_problem(comm_, [&] {
    std::vector<std::string> differences;
    for (auto f = static_cast<size_t>(comm_.rank()); f < manifest.files.size();
         f += static_cast<size_t>(comm_.size())) {
      const std::filesystem::path file = directory / manifest.files[f].name;
      if (std::error_code error; !std::filesystem::exists(file, error) && !error)
        throw StorageError(ExitCode::kModel, file.string() + " is not there, and rank 0 sees it");
      for (std::string& difference : check_checkpoint_hashes(directory, manifest, f))
        differences.push_back(std::move(difference));
    }
    return summarise_differences(differences);
  });
  if (!reason.empty()) return std::nullopt;
  ResumedRun resumed{loop_state(manifest), std::nullopt};
  if (manifest.version != 1) resumed.config = parse_config(manifest.config, directory.string());
  const bool compares = comm_.rank() == 0 && resumed.config;
  resumed.evaluation_change =
      comm_.all_gather_host(compares ? evaluation_change(manifest, *resumed.config) : std::string())[0];
  reason = shared_problem(comm_, [&] {
    CheckpointReader reader(directory, manifest);
    fill(reader);
    return std::string();
  });
  if (!reason.empty()) return std::nullopt;
  const double seconds = steady_seconds() - begin;
  const auto bytes = static_cast<double>(manifest.total_bytes());
  log_info(fmt::format(
      "resuming after step {} from {}: {} checked and loaded in {} ({}/s){}", manifest.step,
      directory.filename().string(), format_bytes(bytes), format_duration(seconds), format_bytes(bytes / seconds),
      manifest.world_size == run_.manifest.world_size && manifest.shard_size == run_.manifest.shard_size
          ? ""
          : fmt::format("; it was written by {} ranks with shard size {}", manifest.world_size, manifest.shard_size)));
  if (compares && manifest.world_size != run_.manifest.world_size)
    for (const auto& [said, by] :
         {std::pair(resumed.config->train.loss == TrainSection::Loss::kRankMean, "train.loss: rank_mean"),
          std::pair(resumed.config->optimizer.clip == OptimizerSection::Clip::kLocal, "optimizer.clip: local")})
      if (said)
        log_warn(fmt::format("{} depends on the number of ranks: {} until step {}, {} from here on", by,
                             manifest.world_size, manifest.step, run_.manifest.world_size));
  return resumed;
}

}  // namespace

std::optional<ResumedRun> resume_newest(const CheckpointFolder& folder, const CheckpointRun& run, Communicator& comm,
                                        const ResumeChoices& choices, const std::vector<StateTensor>& state) {
  std::string names;
  collective_check(comm, [&] {
    if (comm.rank() != 0) return;
    for (const auto& [step, directory] : list_checkpoints(folder.path()))
      names += (names.empty() ? "" : "\n") + directory.filename().string();
  });
  names = comm.all_gather_host(names)[0];
  if (names.empty()) return std::nullopt;
  const auto candidates = split(names, '\n');
  const Loader loader(run, comm, choices, state);
  std::vector<std::string> passed_over;
  std::string first_reason;
  std::optional<ResumedRun> resumed;
  for (const std::string& name : candidates) {
    std::string reason;
    resumed = loader.load(folder.path() / name, reason);
    if (resumed) break;
    if (comm.rank() == 0)
      log_warn(fmt::format("checkpoint {} is passed over: {}", (folder.path() / name).string(), reason));
    if (passed_over.empty()) first_reason = fmt::format("{}: {}", name, reason);
    passed_over.push_back(name);
  }
  if (!resumed && !choices.allow_fresh)
    throw CollectiveError(ExitCode::kModel,
                          fmt::format("none of the {} checkpoints in {} is whole ({}): restore one, or "
                                      "add --allow-fresh to start afresh",
                                      candidates.size(), folder.path().string(), first_reason));
  collective_check(comm, [&] {
    if (comm.rank() != 0) return;
    for (const std::string& name : passed_over)
      if (!resumed || folder.may_move(folder.path() / name)) folder.move_aside(folder.path() / name);
  });
  if (!resumed)
    log_warn(
        fmt::format("none of the {} checkpoints is whole: starting afresh, as --allow-fresh says", candidates.size()));
  return resumed;
}

namespace {

/// The effect on the schedule of a higher train.max_steps than in `before`, for a run that resumes after step
/// `completed`; the optimizer has counted `counted` steps.
void report_extension(const Config& before, const Config& config, int64_t completed, int64_t counted) {
  const int64_t now = config.train.max_steps;
  const char* schedule = word_of(config.schedule.name);
  const auto rate = [](const Config& of, int64_t step) {
    return learning_rate(of.schedule, of.optimizer.lr, of.train.max_steps, std::max<int64_t>(0, step));
  };
  bool unchanged = true;  // constant, and wsd before its decay
  for (int64_t step = 0; unchanged && step < counted; ++step) unchanged = rate(before, step) == rate(config, step);
  const std::string consequence =
      unchanged ? fmt::format("the {} schedule is that of a run which had this many steps from the start", schedule)
                : fmt::format(
                      "the {} schedule now ends at step {}: the learning rate was {:.3g} in step {} and is {:.3g} in "
                      "step {}, and the steps before followed the shorter one",
                      schedule, now, rate(before, counted - 1), completed, rate(config, counted), completed + 1);
  log_info(fmt::format("the run is extended from {} to {} steps and goes on after step {}; {}", before.train.max_steps,
                       now, completed, consequence));
}

/// Losses of other rows compare with none of the run's before.
void forget_evaluations(const ResumedRun& resumed, RunProgress& progress) {
  log_run_warn(
      fmt::format("{} is not what the evaluations up to step {} read: the best evaluation, train.patience "
                  "and the targets start anew",
                  resumed.evaluation_change, progress.evaluated_step));
  const RunProgress fresh;
  progress.best_score = fresh.best_score;
  progress.best_step = fresh.best_step;
  progress.evaluations_since_best = 0;
  progress.reached_target = false;
  progress.other_evaluation = true;
}

void restore(const RunParts& run, const ResumedRun& resumed, TrainStep& step, RunProgress& progress) {
  const LoopState& loop = resumed.loop;
  const bool extended = resumed.config && resumed.config->train.max_steps < run.config.train.max_steps;
  progress = loop.progress;
  if (!loop.has_samples) progress.samples = BatchSizes(run.config.batch).before(progress.completed);
  const auto targets = [](const Config& config) {
    return std::pair(config.eval.target_loss, config.eval.target_accuracy);
  };
  const bool other_target = resumed.config && targets(*resumed.config) != targets(run.config);
  progress.reached_target = progress.reached_target && !extended && !other_target;
  if (!resumed.evaluation_change.empty() && progress.best_step >= 0) forget_evaluations(resumed, progress);
  progress.out_of_patience = run.config.train.patience && progress.evaluations_since_best >= *run.config.train.patience;
  step.guard().restore(loop.guard);
  run.task.restore_data_state(progress.completed, loop.data_position);
  if (loop.fp8_scales && !step.units().restore_scales(*loop.fp8_scales))
    throw ModelError(
        fmt::format("the checkpoint of step {} has {} numbers of FP8 scales, which are not this run's: it is of "
                    "another model or program",
                    progress.completed, loop.fp8_scales->size()));
  if (extended)
    report_extension(*resumed.config, run.config, progress.completed,
                     progress.completed - step.guard().steps_skipped());
}

}  // namespace

void load_or_resume(const RunParts& run, const CheckpointFolder& folder, const CheckpointRun& description,
                    CheckpointSaver& saver, TrainStep& step, RunProgress& progress) {
  Communicator& comm = run.comm();
  const std::vector<UnitSpec>& units = step.units().units();
  const bool frozen = std::any_of(units.begin(), units.end(), [](const UnitSpec& unit) { return !unit.trained; });
  const bool periodic = run.config.output.save_every_samples || run.config.output.save_every_minutes;
  collective_check(comm, [&] {
    if (comm.rank() == 0) folder.open();
  });
  std::string warning;
  collective_check(comm, [&] {
    if (comm.rank() != 0) return;
    warning = check_checkpoint_space(run.config, folder.path(), run.directory.run_id(), units, run.grid.world.size);
    check_result_space(run.config, run.task.artefact_bytes());
  });
  if (!warning.empty()) log_warn(warning);
  if (periodic) saver.prepare(step.state());
  // If all weights are trained, a checkpoint holds every weight: the base model is not read.
  const auto load = [&] {
    collective_check(comm, [&] { run.task.load_weights(step.units()); });
    collective_check(comm, [&] { run.task.complete_weights(step.units()); });
  };
  if (frozen) load();
  const auto resumed = resume_newest(folder, description, comm, run.directory.choices(), step.state());
  if (!resumed) {
    if (!frozen) load();
    return;
  }
  step.weights_changed();
  restore(run, *resumed, step, progress);
  saver.resumed(progress.completed);
  collective_check(comm, [&] {
    if (comm.rank() != 0 || !resumed->config) return;
    for (const std::string& sentence : changed_row_order(*resumed->config, run.config)) log_run_warn(sentence);
  });
}

}  // namespace trireme
