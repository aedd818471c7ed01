// `trireme checkpoint ls|verify|export|prune`: what a run can go on from.
#include "tools.h"

#include "models/bert/weights.h"
#include "models/llama/model_directory.h"
#include "models/llama/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/config/config.h"
#include "trireme/formats/training_checkpoint.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>

namespace trireme {

namespace {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& path) {
  return fs::exists(path / kManifestName) || checkpoint_step(path).has_value();
}

/// An output.dir stands for its checkpoints.
fs::path collection(const fs::path& path) {
  if (fs::is_directory(path / "checkpoints")) return path / "checkpoints";
  if (!fs::is_directory(path))
    throw ModelError(fmt::format(
        "{} is no directory: give a run's output.dir, its checkpoints or one checkpoint",
        path.string()));
  return path;
}

/// The checkpoints meant by a path: one, or all of a run, newest first.
std::vector<fs::path> selected(const fs::path& path) {
  if (is_checkpoint(path)) return {path};
  std::vector<fs::path> found;
  for (const auto& [step, directory] : list_checkpoints(collection(path)))
    found.push_back(directory);
  if (found.empty()) throw ModelError(fmt::format("there is no checkpoint in {}", path.string()));
  return found;
}

/// Empty when whole as far as sizes and headers tell.
std::string layout_problem(const fs::path& directory, CheckpointManifest& manifest) {
  try {
    manifest = read_manifest(directory);
    return summarise_differences(check_checkpoint_layout(directory, manifest));
  } catch (const Error& error) {
    return error.what();
  }
}

void list(const fs::path& path) {
  const std::vector<fs::path> directories = selected(path);
  fmt::print("{:<16}{:>12}{:>10}{:>7}{:>12}  {:<18}{}\n", "checkpoint", "samples", "ranks", "shard",
             "size", "run", "state");
  int64_t whole = 0, all = 0;
  for (const fs::path& directory : directories) {
    CheckpointManifest m;
    const std::string problem = layout_problem(directory, m);
    ++all;
    whole += problem.empty();
    fmt::print("{:<16}{:>12}{:>10}{:>7}{:>12}  {:<18}{}\n", directory.filename().string(),
               m.samples, m.world_size, m.shard_size,
               format_bytes(static_cast<double>(m.total_bytes())),
               m.run_id.empty() ? "-" : m.run_id, problem.empty() ? "whole" : problem);
  }
  fmt::print("{} of {} whole by sizes and headers; `trireme checkpoint verify` reads every byte\n",
             whole, all);
}

/// Reads every byte; throws nothing: the problem as text.
std::string full_problem(const fs::path& directory, CheckpointManifest& manifest) {
  if (std::string problem = layout_problem(directory, manifest); !problem.empty()) return problem;
  std::vector<std::string> differences;
  try {
    for (size_t file = 0; file < manifest.files.size(); ++file)
      for (std::string& difference : check_checkpoint_hashes(directory, manifest, file))
        differences.push_back(std::move(difference));
  } catch (const Error& error) {
    differences.emplace_back(error.what());
  }
  return summarise_differences(differences);
}

void verify(const fs::path& path) {
  std::vector<std::string> damaged;
  for (const fs::path& directory : selected(path)) {
    CheckpointManifest manifest;
    const double begin = steady_seconds();
    const std::string problem = full_problem(directory, manifest);
    const double seconds = steady_seconds() - begin,
                 bytes = static_cast<double>(manifest.total_bytes());
    if (problem.empty()) {
      fmt::print("{}: whole, {} in {} files, read at {}/s\n", directory.filename().string(),
                 format_bytes(bytes), manifest.files.size(), format_bytes(bytes / seconds));
    } else {
      fmt::print("{}: damaged: {}\n", directory.filename().string(), problem);
      damaged.push_back(directory.filename().string());
    }
  }
  if (!damaged.empty())
    throw ModelError(fmt::format("{} in {}: a run started again goes on from the newest whole one",
                                 damaged.size() == 1
                                     ? fmt::format("{} is damaged", damaged[0])
                                     : fmt::format("{} checkpoints are damaged", damaged.size()),
                                 path.string()));
}

// --- export ----------------------------------------------------------------------------------------------------------------------

struct ExportOptions {
  std::string checkpoint, output, dtype, model;
};

/// Reads whole tensors of the masters by their Hugging Face names.
class MasterTensors {
 public:
  explicit MasterTensors(CheckpointReader& reader) : reader_(reader) {
    for (const CheckpointUnit& unit : reader.manifest().units)
      for (const CheckpointTensor& tensor : unit.tensors)
        places_[tensor.name] = {unit.name, &tensor};
  }
  at::Tensor read(const std::string& name) {
    const auto found = places_.find(name);
    if (found == places_.end())
      throw ModelError(fmt::format("the checkpoint has no tensor {}", name));
    const auto& [unit, tensor] = found->second;
    at::Tensor value = at::empty(tensor->shape, to_scalar_type(reader_.dtype("master", unit)));
    at::Tensor flat = value.view({-1});
    int64_t at = 0;
    for (const ElementSpan& span :
         reader_.read("master", unit, tensor->offset, tensor->offset + value.numel())) {
      flat.narrow(0, at, span.count)
          .copy_(at::from_blob(const_cast<std::byte*>(span.data), {span.count},
                               at::TensorOptions().dtype(value.scalar_type())));
      at += span.count;
    }
    return value;
  }
  bool has(const std::string& name) const { return places_.contains(name); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, place] : places_) names.push_back(name);
    return names;
  }

 private:
  CheckpointReader& reader_;
  std::map<std::string, std::pair<std::string, const CheckpointTensor*>> places_;
};

DType export_dtype(const std::string& asked, const std::string& compute) {
  const std::string name = asked.empty() ? compute : asked;
  if (name == "f32" || name == "Float") return DType::kF32;
  if (name == "bf16" || name == "BFloat16") return DType::kBF16;
  if (name == "f16" || name == "Half") return DType::kF16;
  throw ConfigError(
      fmt::format("checkpoint export: --dtype is '{}'; choose f32, bf16 or f16", name));
}

LlamaConfig model_shape(const fs::path& path) {
  return fs::is_regular_file(path) ? read_llama_config(path) : read_model_config(path);
}

void export_bert(MasterTensors& masters, const Config& config, const fs::path& base, const fs::path& output, DType dtype) {
  BertConfig shape = read_bert_config(bert_config_path(base));
  const auto tensors = bert_file_tensors(BertModel(shape, config.model.pad_vocab_to), dtype);
  make_directories(output);
  SafetensorsWriter writer(output / "model.safetensors", tensors);
  for (const auto& [name, info] : tensors) {
    const at::Tensor value = masters.read(name);
    if (value.dim() != static_cast<int64_t>(info.shape.size()) || value.size(0) < info.shape[0] ||
        !std::equal(info.shape.begin() + 1, info.shape.end(), value.sizes().begin() + 1))
      throw ModelError(fmt::format("the checkpoint's {} is of another model than {}", name, base.string()));
    const at::Tensor stored = value.narrow(0, 0, info.shape[0]).to(to_scalar_type(dtype)).contiguous();
    writer.append(stored.const_data_ptr(), stored.nbytes());
  }
  writer.commit();
  shape.dtype = config_dtype_name(dtype);
  finish_bert_directory(output, base, shape);
}

void export_checkpoint(const ExportOptions& options) {
  at::NoGradGuard no_grad;
  const fs::path output = options.output;
  for (const char* taken : {"config.json", "adapter_config.json"})
    if (fs::exists(output / taken))
      throw WriteError(
          fmt::format("checkpoint export: {} already holds a {}; choose another directory",
                      options.output, taken));
  fs::path directory;
  CheckpointManifest manifest;
  std::string problem;
  for (const fs::path& candidate : selected(options.checkpoint)) {
    if (problem = full_problem(candidate, manifest); problem.empty()) {
      directory = candidate;
      break;
    }
    log_warn(fmt::format("{} is damaged: {}", candidate.string(), problem));
  }
  if (directory.empty())
    throw ModelError(fmt::format("no checkpoint in {} is whole: {}", options.checkpoint, problem));
  if (manifest.version == 1)
    throw ModelError(
        fmt::format("{} has format version 1, which does not name its tensors: start the run "
                    "again, it reads version 1 and "
                    "saves version {}",
                    directory.string(), CheckpointManifest::kVersion));
  const Config config = parse_config(manifest.config, (directory / kManifestName).string());
  const fs::path base = options.model.empty() ? config.model.path : options.model;
  CheckpointReader reader(directory, std::move(manifest));
  MasterTensors masters(reader);
  if (masters.has("bert.embeddings.word_embeddings.weight")) {
    export_bert(masters, config, base, output, export_dtype(options.dtype, reader.manifest().compute_dtype));
    fmt::print("{}: model after step {} in {}\n", directory.string(), reader.manifest().step, options.output);
    return;
  }
  LlamaConfig shape = model_shape(base);
  if (config.lora) {
    const LlamaModel model(shape, LoraOptions{config.lora->r, config.lora->alpha,
                                              config.lora->dropout, config.lora->target_modules});
    std::map<std::string, at::Tensor> tensors;
    for (const std::string& name : masters.names())
      tensors[name] = masters.read(name).to(at::kFloat);
    make_directories(output);
    write_adapter(output, export_adapter(tensors, model, base.string()),
                  options.dtype.empty() ? DType::kF32 : export_dtype(options.dtype, ""));
    fmt::print("{}: adapter after step {} in {}\n", directory.string(), reader.manifest().step,
               options.output);
    return;
  }
  const DType dtype = export_dtype(options.dtype, reader.manifest().compute_dtype);
  const auto declared = checkpoint_tensors(LlamaModel(shape, std::nullopt), dtype);
  make_directories(output);
  ModelDirectoryWriter writer(output, declared);
  for (const auto& [name, info] : declared) writer.append(name, masters.read(name));
  if (fs::is_directory(base)) writer.copy_companions(base);
  shape.dtype = config_dtype_name(dtype);
  writer.finish(shape);
  fmt::print("{}: model after step {} in {}\n", directory.string(), reader.manifest().step,
             options.output);
}

// --- prune -----------------------------------------------------------------------------------------------------------------------

/// Refuses while a run trains there: it does its own retention.
class IdleRun {
 public:
  explicit IdleRun(const fs::path& checkpoints) {
    const fs::path lock = checkpoints.parent_path() / ".lock";
    if (!fs::exists(lock)) return;
    fd_ = open(lock.c_str(), O_RDWR | O_CLOEXEC);
    if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(fd_);
      throw WriteError(
          fmt::format("a run is training in {}: wait for its end (it keeps output.keep_last "
                      "checkpoints by itself)",
                      checkpoints.parent_path().string()));
    }
  }
  ~IdleRun() {
    if (fd_ >= 0) close(fd_);
  }
  IdleRun(const IdleRun&) = delete;
  IdleRun& operator=(const IdleRun&) = delete;

 private:
  int fd_ = -1;
};

void prune(const fs::path& path, int64_t keep, bool dry_run) {
  if (is_checkpoint(path))
    throw ConfigError(fmt::format("{} is one checkpoint: prune takes a run's output.dir or its checkpoints", path.string()));
  const fs::path checkpoints = collection(path);
  const IdleRun idle(fs::weakly_canonical(checkpoints));
  std::vector<fs::path> removed;
  std::map<std::string, int64_t> kept;  // by run: one run's checkpoints never push out another's
  int64_t whole = 0;
  for (const auto& [step, directory] : list_checkpoints(checkpoints)) {
    CheckpointManifest manifest;
    // Every byte of those that stay is read: what looks whole and is not must not push out what is.
    if (const std::string problem = layout_problem(directory, manifest);
        problem.empty() && kept[manifest.run_id] >= keep) {
      removed.push_back(directory);
    } else if (const std::string damage = full_problem(directory, manifest); damage.empty()) {
      ++kept[manifest.run_id];
      ++whole;
    } else {
      log_warn(fmt::format("{} is damaged and stays: {}", directory.string(), damage));
    }
  }
  if (whole == 0)
    throw ModelError(
        fmt::format("no checkpoint in {} is whole: nothing is removed", checkpoints.string()));
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.starts_with("step-") &&
        (name.find(".tmp-") != std::string::npos || name.ends_with(".damaged")))
      removed.push_back(entry.path());
  }
  for (const fs::path& directory : removed) {
    fmt::print("{} {}\n", dry_run ? "would remove" : "removing", directory.string());
    std::error_code error;
    if (!dry_run) fs::remove_all(directory, error);
    if (error)
      throw WriteError(fmt::format("cannot remove {}: {}", directory.string(), error.message()));
  }
  fmt::print("{} whole kept, {} directories {}\n", whole, removed.size(),
             dry_run ? "to remove" : "removed");
}

}  // namespace

void add_checkpoint_tool(CLI::App& app) {
  CLI::App* tool =
      app.add_subcommand("checkpoint", "Checkpoints of a run: ls, verify, export, prune");
  tool->require_subcommand(1);

  auto directory = std::make_shared<std::string>();
  CLI::App* ls = tool->add_subcommand("ls", "What is there, newest first");
  ls->add_option("dir", *directory, "A run's output.dir, its checkpoints, or one checkpoint")
      ->required();
  ls->callback([directory] { list(*directory); });

  CLI::App* verify_tool = tool->add_subcommand(
      "verify", "Read every byte and compare the hashes; exit 4 when something is damaged");
  verify_tool
      ->add_option("dir", *directory, "A run's output.dir, its checkpoints, or one checkpoint")
      ->required();
  verify_tool->callback([directory] { verify(*directory); });

  auto options = std::make_shared<ExportOptions>();
  CLI::App* export_tool = tool->add_subcommand(
      "export", "Write the PEFT adapter or the Hugging Face model of a checkpoint");
  export_tool
      ->add_option("dir", options->checkpoint, "One checkpoint, or a run (its newest whole one)")
      ->required();
  export_tool->add_option("--output", options->output, "Directory to write")->required();
  export_tool->add_option("--dtype", options->dtype,
                          "f32, bf16 or f16 (default: adapters f32, models the run's precision)");
  export_tool->add_option("--model", options->model,
                          "Base model directory (default: the run's model.path)");
  export_tool->callback([options] { export_checkpoint(*options); });

  auto keep = std::make_shared<int64_t>(2);
  auto dry_run = std::make_shared<bool>(false);
  CLI::App* prune_tool = tool->add_subcommand(
      "prune", "Remove all but the newest whole checkpoints, and what dead runs left");
  prune_tool->add_option("dir", *directory, "A run's output.dir or its checkpoints")->required();
  prune_tool->add_option("--keep", *keep, "Whole checkpoints that stay")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  prune_tool->add_flag("--dry-run", *dry_run, "Only say what would go");
  prune_tool->callback([directory, keep, dry_run] { prune(*directory, *keep, *dry_run); });
}

}  // namespace trireme
