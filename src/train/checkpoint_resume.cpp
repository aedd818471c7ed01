// Resuming: the newest whole checkpoint of this run, on any number of ranks.
#include "checkpoint.h"

#include "collective_check.h"
#include "run_directory.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/nn/scalar_type.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

struct VectorInfo {
  DType dtype = DType::kF32;
  int64_t numel = 0;
};

std::string shape_text(const CheckpointTensor& tensor) {
  std::string text;
  for (const int64_t extent : tensor.shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return fmt::format("[{}] at {}", text, tensor.offset);
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
          fmt::format("{} has shape {}, the run's is {}", tensor.name, shape_text(*found->second), shape_text(tensor)));
    if (found != there.end()) there.erase(found);
  }
  for (const auto& [name, tensor] : there) differences.push_back(fmt::format("{} is there, which the run lacks", name));
}

/// The problems of all ranks as one text, the same on every rank. Collective.
std::string shared_problem(Communicator& comm, const std::string& mine) {
  std::string all;
  size_t shown = 0, problems = 0;
  for (const std::string& text : comm.all_gather_host(mine)) {
    if (text.empty() || (problems++, shown == 5)) continue;
    ++shown;
    all += (all.empty() ? "" : "; ") + text;
  }
  return problems > shown ? fmt::format("{}; and more from {} ranks", all, problems - shown) : all;
}

}  // namespace

std::string Checkpoints::compare_with_model(const CheckpointManifest& manifest, const NamedTensors& state) const {
  std::vector<std::string> differences;
  std::map<std::string, const CheckpointUnit*> units;
  for (const CheckpointUnit& unit : manifest.units) units[unit.name] = &unit;
  std::map<std::string, VectorInfo> vectors;
  for (const CheckpointFile& file : manifest.files)
    for (const CheckpointPiece& piece : file.pieces) {
      VectorInfo& info = vectors[piece.tensor_name()];
      info.dtype = piece.dtype;
      info.numel += piece.count;
    }
  for (const CheckpointUnit& ours : described_units()) {
    const auto found = units.find(ours.name);
    if (found == units.end()) {
      differences.push_back(fmt::format("unit {} is missing", ours.name));
    } else if (manifest.version == 1 ? found->second->numel < ours.numel : found->second->numel != ours.numel) {
      differences.push_back(
          fmt::format("unit {} has {} elements, the run's has {}", ours.name, found->second->numel, ours.numel));
      if (manifest.version != 1) compare_tensors(ours, *found->second, differences);
    } else if (manifest.version != 1) {
      compare_tensors(ours, *found->second, differences);
    }
    if (found != units.end()) units.erase(found);
  }
  for (const auto& [name, unit] : units)
    differences.push_back(fmt::format("unit {} is there, which the run lacks", name));
  for (const auto& [name, tensor] : state) {
    const auto found = vectors.find(name);
    if (found == vectors.end()) {
      differences.push_back(fmt::format("{} is missing", name));
      continue;
    }
    if (found->second.dtype != to_file_dtype(tensor.scalar_type()))
      differences.push_back(fmt::format("{} is {}, the run's is {}", name, dtype_name(found->second.dtype),
                                        dtype_name(to_file_dtype(tensor.scalar_type()))));
    vectors.erase(found);
  }
  for (const auto& [name, info] : vectors) differences.push_back(fmt::format("{} is there, which the run lacks", name));
  if (manifest.version != 1 && manifest.samples != options_.samples_after(manifest.step))
    differences.push_back(fmt::format("it has seen {} samples in {} steps, this run would have seen {}",
                                      manifest.samples, manifest.step, options_.samples_after(manifest.step)));
  return summarise_differences(differences);
}

void Checkpoints::check_inputs(const CheckpointManifest& manifest) const {
  const auto compare = [&](const std::vector<Fingerprint>& now, const std::vector<Fingerprint>& then) {
    if (then.empty()) return std::string();
    if (now.size() != then.size()) return fmt::format("{} files where there were {}", now.size(), then.size());
    for (size_t i = 0; i < now.size(); ++i)
      if (now[i].hash != then[i].hash)
        return fmt::format("{} is not what {} was (fingerprints {} and {})", now[i].path, then[i].path, now[i].hash,
                           then[i].hash);
    return std::string();
  };
  if (const std::string problem = compare(options_.data, manifest.data); !problem.empty()) {
    const std::string text =
        fmt::format("the training data changed since the checkpoint of step {}: {}", manifest.step, problem);
    if (!options_.allow_changed_data)
      throw DataError(text +
                      "; put the old files back, choose another output.dir, or add "
                      "--allow-changed-data to go on with the new rows");
    log_warn(text + "; going on, as --allow-changed-data says");
  }
  if (const std::string problem = compare(options_.base, manifest.base); !problem.empty())
    throw ModelError(
        fmt::format("the base model changed since the checkpoint of step {}: {}; put the old files "
                    "back or choose another "
                    "output.dir",
                    manifest.step, problem));
}

void Checkpoints::fill(CheckpointReader& reader, const NamedTensors& state) const {
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : state) {
    const size_t dot = name.find('.');
    const std::string kind = name.substr(0, dot), unit = dot == std::string::npos ? "" : name.substr(dot + 1);
    int64_t begin = 0, end = 1;
    if (!unit.empty()) {
      const Placement& place = placements_.at(unit);
      begin = std::min(place.begin, place.numel);
      end = std::min(place.begin + place.shard_numel, place.numel);
    }
    at::Tensor flat = tensor.view({-1});
    int64_t at = 0;
    for (const ElementSpan& span : reader.read(kind, unit, begin, end)) {
      // The map is read-only and nothing writes to this tensor.
      flat.narrow(0, at, span.count)
          .copy_(at::from_blob(const_cast<std::byte*>(span.data), {span.count},
                               at::TensorOptions().dtype(tensor.scalar_type())));
      at += span.count;
    }
    if (at < flat.numel()) flat.narrow(0, at, flat.numel() - at).zero_();
  }
}

std::optional<LoopState> Checkpoints::load_candidate(const std::filesystem::path& directory, const NamedTensors& state,
                                                     std::string& reason) {
  const double begin = steady_seconds();
  CheckpointManifest manifest;
  std::string mine;
  try {
    manifest = read_manifest(directory);
    if (comm_.rank() == 0) {
      if (manifest.version != 1 && manifest.run_id != options_.run_id)
        throw ModelError(fmt::format("it belongs to run {}, this is run {}", manifest.run_id, options_.run_id));
      if (const auto differences = check_checkpoint_layout(directory, manifest); !differences.empty())
        throw ModelError(summarise_differences(differences));
      // Hashes also differ when a later version has more keys, so the keys are compared.
      if (manifest.version != 1 && manifest.config_hash != options_.config_hash) {
        const auto changes = deciding_changes(parse_config(manifest.config, directory.string()),
                                              parse_config(options_.config, "this run"), options_.nulls);
        if (!changes.empty())
          throw ModelError(fmt::format("it was made with another configuration: {}", summarise_differences(changes)));
      }
      mine = compare_with_model(manifest, state);
    }
  } catch (const Error& error) {
    mine = error.what();
  }
  if (reason = shared_problem(comm_, mine); !reason.empty()) return std::nullopt;
  collective_check(comm_, [&] {
    if (comm_.rank() == 0) check_inputs(manifest);
  });

  // Each file is read and hashed by one rank, the one that probably loads from it.
  mine.clear();
  try {
    std::vector<std::string> differences;
    for (size_t f = static_cast<size_t>(options_.grid.world.rank); f < manifest.files.size();
         f += static_cast<size_t>(options_.grid.world.size))
      for (std::string& difference : check_checkpoint_hashes(directory, manifest, f))
        differences.push_back(std::move(difference));
    mine = summarise_differences(differences);
  } catch (const Error& error) {
    mine = error.what();
  }
  if (reason = shared_problem(comm_, mine); !reason.empty()) return std::nullopt;

  LoopState loop{manifest.step, manifest.evaluations, manifest.numbers};
  if (manifest.version != 1) loop.config = parse_config(manifest.config, directory.string());
  const uint64_t bytes = manifest.total_bytes();
  const int64_t world = manifest.world_size, shards = manifest.shard_size;
  mine.clear();
  try {
    CheckpointReader reader(directory, std::move(manifest));
    fill(reader, state);
  } catch (const Error& error) {
    mine = error.what();
  }
  if (reason = shared_problem(comm_, mine); !reason.empty()) return std::nullopt;
  const double seconds = steady_seconds() - begin;
  log_info(fmt::format("resuming after step {} from {}: {} checked and loaded in {} ({}/s){}", loop.completed_steps,
                       directory.filename().string(), format_bytes(static_cast<double>(bytes)),
                       format_duration(seconds), format_bytes(static_cast<double>(bytes) / seconds),
                       world == options_.grid.world.size && shards == options_.grid.shard.size
                           ? ""
                           : fmt::format("; it was written by {} ranks with shard size {}", world, shards)));
  return loop;
}

std::optional<LoopState> Checkpoints::resume(const NamedTensors& state) {
  std::string names;
  if (comm_.rank() == 0) {
    for (const auto& [step, directory] : list_checkpoints(directory_))
      names += (names.empty() ? "" : "\n") + directory.filename().string();
  }
  names = comm_.all_gather_host(names)[0];
  if (names.empty()) return std::nullopt;
  const auto candidates = split(names, '\n');
  std::vector<std::string> passed_over, reasons;
  std::optional<LoopState> loop;
  for (const std::string& name : candidates) {
    std::string reason;
    loop = load_candidate(directory_ / name, state, reason);
    if (loop) break;
    if (comm_.rank() == 0)
      log_warn(fmt::format("checkpoint {} is passed over: {}", (directory_ / name).string(), reason));
    passed_over.push_back(name);
    reasons.push_back(fmt::format("{}: {}", name, reason));
  }
  if (!loop && !options_.allow_fresh)
    throw CollectiveError(ExitCode::kModel,
                          fmt::format("none of the {} checkpoints in {} is whole ({}): restore one, or "
                                      "add --allow-fresh to start afresh",
                                      candidates.size(), directory_.string(), reasons.front()));
  if (loop) committed_step_ = loop->completed_steps;
  // Moved aside: retain() must not count them, and later saves need their names.
  collective_check(comm_, [&] {
    if (comm_.rank() != 0) return;
    for (const std::string& name : passed_over) {
      std::string owner = options_.run_id;
      try {
        owner = read_manifest(directory_ / name).run_id;
      } catch (const Error&) {
        // not whole: it belongs to no run
      }
      if (owner == options_.run_id || owner.empty()) move_aside(directory_ / name);
    }
  });
  if (!loop)
    log_warn(
        fmt::format("none of the {} checkpoints is whole: starting afresh, as --allow-fresh says", candidates.size()));
  return loop;
}

}  // namespace trireme
