#include "trireme/launcher/launcher.h"

#include "slurm_script.h"
#include "trireme/base/cpu_binding.h"
#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

namespace trireme {

namespace {

using Kind = ConfNode::Kind;

/// Stages of NeMo's launcher that are not there, and what to do instead.
const std::map<std::string, std::string>& other_stages() {
  static const std::map<std::string, std::string> stages = {
      {"data_preparation", "`trireme data megatron` makes .bin and .idx files"},
      {"conversion", "a run writes model/ in Hugging Face's format; `trireme model` and `trireme checkpoint` convert"},
      {"conversion_hf2nemo", "model.path takes a Hugging Face directory"},
      {"external_conversion", "model.path takes a Hugging Face directory"},
      {"evaluation", "limit_val_batches and limit_test_batches evaluate in the training stage"},
      {"export", "a run writes model/ in Hugging Face's format"},
      {"fine_tuning", "train_llama and train_gpt fine-tune with a configuration of their own"},
      {"peft", "train_llama and train_gpt train LoRA adapters with a configuration of their own"},
      {"data_curation", "there is no other command for it"},
  };
  return stages;
}

bool is_true(const char* variable) {
  const std::string word = lower(environment(variable));
  return word == "true" || word == "t" || word == "1";
}

std::string text_of(const ConfNode& root, const std::string& key) {
  const ConfNode* node = root.find(key);
  return node == nullptr || node->is(Kind::kNull) ? "" : node->str();
}

/// A path in a pattern of sbatch's and srun's --output.
std::string in_pattern(const std::filesystem::path& path) {
  std::string result;
  for (const char c : path.string()) result += c == '%' ? "%%" : std::string(1, c);
  return result;
}

/// A text inside of the double quotes of bash -c "…".
std::string in_double_quotes(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\' || c == '$' || c == '`') result += '\\';
    result += c;
  }
  return result;
}

/// `numa_mapping` as TRIREME_NUMA_MAPPING has it; "" where it is off.
std::string numa_mapping_text(const ConfNode& root, ConfProblems& problems) {
  const ConfNode* section = root.find("numa_mapping");
  if (section == nullptr || !section->is(Kind::kMap)) return "";
  const ConfNode* enable = section->find("enable");
  if (enable != nullptr && enable->is(Kind::kBool) && !enable->boolean) return "";
  std::vector<std::string> parts;
  for (const ConfEntry& entry : section->entries) {
    if (entry.key == "enable") continue;
    const ConfNode& value = entry.value;
    parts.push_back(fmt::format("{}={}", entry.key,
                                value.is(Kind::kBool)   ? (value.boolean ? "true" : "false")
                                : value.is(Kind::kNull) ? "null"
                                                        : value.str()));
  }
  try {
    return cpu_binding_text(parse_cpu_binding(join(parts, ",")));
  } catch (const ConfigError& error) {
    problems.add(section->place, error.what());
    return "";
  }
}

/// Seconds of sbatch's --time: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS; nullopt: no limit, or another
/// text.
std::optional<int64_t> slurm_seconds(const std::string& text) {
  const size_t dash = text.find('-');
  const bool days = dash != std::string::npos;
  std::vector<int64_t> parts;
  for (const std::string& part : split(days ? std::string_view(text).substr(dash + 1) : text, ':')) {
    if (part.empty() || part.size() > 9 || part.find_first_not_of("0123456789") != std::string::npos)
      return std::nullopt;
    parts.push_back(std::stoll(part));
  }
  if (days) {
    const std::string count = text.substr(0, dash);
    if (count.empty() || count.size() > 6 || count.find_first_not_of("0123456789") != std::string::npos)
      return std::nullopt;
    parts.front() += 24 * std::stoll(count);
  } else if (parts.size() < 3) {
    parts.insert(parts.begin(), 0);
  }
  if (parts.size() > 3) return std::nullopt;
  parts.resize(3);
  const int64_t seconds = (parts[0] * 60 + parts[1]) * 60 + parts[2];
  return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

std::string program_tree(const std::filesystem::path& program) {
  // build/<preset>/bin: LibTorch lies in .venv beside build.
  const std::filesystem::path bin = program.parent_path();
  if (bin.filename() == "bin" && bin.parent_path().parent_path().filename() == "build")
    return bin.parent_path().parent_path().parent_path().string();
  return bin.filename() == "bin" ? bin.parent_path().string() : bin.string();
}

}  // namespace

LauncherSettings launcher_settings() {
  LauncherSettings settings;
  settings.debug = is_true("NEMO_LAUNCHER_DEBUG");
  settings.ci = is_true("NEMO_LAUNCHER_CI");
  settings.memory_measure = is_true("NEMO_LAUNCHER_MEMORY_MEASURE");
  settings.in_allocation = std::getenv("SLURM_JOB_ID") != nullptr;
  if (const char* program = std::getenv("TRIREME_PROGRAM")) settings.program = program;
  std::error_code error;
  settings.programs = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  settings.directory = std::filesystem::current_path();
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char tag[32];
  (void)std::strftime(tag, sizeof tag, "%m%d_%H%M%S", &local);
  settings.time_tag = tag;
  return settings;
}

Launcher::Launcher(const std::filesystem::path& config, const std::vector<std::string>& overrides,
                   LauncherSettings settings)
    : settings_(std::move(settings)), source_(config.string()) {
  ConfProblems problems;
  const Composition composition = compose(config, overrides, problems);
  problems.throw_if_any(source_);
  notes_ = composition.notes;
  ConfResolver resolver(composition, problems);
  root_ = ConfNode(Kind::kMap);
  for (const char* key :
       {"stages", "cluster_type", "cluster", "launcher_scripts_path", "data_dir", "base_results_dir",
        "container_mounts", "container", "env_vars", "numa_mapping", "wandb_api_key_file", "training_config"})
    if (auto node = resolver.at(key)) root_.at_or_add(key) = std::move(*node);
  if (const ConfNode* stages = root_.find("stages"); stages != nullptr && stages->is(Kind::kList)) {
    for (const ConfNode& stage : stages->items) {
      const std::string name = stage.str();
      if (name == "training") {
        stages_.push_back(name);
      } else if (const auto other = other_stages().find(name); other != other_stages().end()) {
        problems.add(stage.place, fmt::format("stage '{}' is not there: {}", name, other->second));
      } else {
        problems.add(stage.place,
                     fmt::format("there is no stage '{}', only training.{}", name, did_you_mean(name, {"training"})));
      }
    }
  } else {
    problems.add(fmt::format("{}: 'stages' must be a list: stages=[training]", source_));
  }
  if (stages_.empty() && problems.empty())
    problems.add(fmt::format("{}: 'stages' is empty: stages=[training]", source_));
  check_cluster(problems);
  if (auto training = resolver.at("training"))
    training_ = std::move(*training);
  else
    problems.add(
        fmt::format("{}: there is no 'training': add training=gpt3/126m, or a line of the defaults list", source_));
  const ConfNode* run = training_.find("run");
  if (problems.empty())
    for (const char* key : {"name", "results_dir"})
      if (run == nullptr || text_of(*run, key).empty())
        problems.add(run != nullptr ? run->place : training_.place, fmt::format("training.run.{} must be set", key));
  (void)numa_mapping_text(root_, problems);
  problems.throw_if_any(source_);
  NemoImport import;
  import.base = settings_.directory;
  import.ignore_unknown = settings_.ignore_unknown;
  import.vocab_size = settings_.vocab_size;
  import.tokenizer = settings_.tokenizer;
  imported_ = import_nemo(training_, source_, import);
  note_time_limit();
  if (settings_.tokenizer && imported_.model && !imported_.tokenizer)
    notes_.push_back(
        fmt::format("the tokenizer's files are not here: the model has {} tokens, and the results have no tokenizer",
                    imported_.model->vocab_size));
}

void Launcher::check_cluster(ConfProblems& problems) {
  const ConfNode* type = root_.find("cluster_type");
  const std::string name = type == nullptr ? "" : type->str();
  if (name != "bcm" && name != "interactive")
    problems.add(type == nullptr ? fmt::format("{}: 'cluster_type' must be bcm (Slurm) or interactive", source_)
                                 : fmt::format("{}: cluster_type must be bcm (Slurm) or interactive, not '{}'.{}",
                                               type->place.text(), name, did_you_mean(name, {"bcm", "interactive"})));
  const ConfNode* cluster = root_.find("cluster");
  if (name == "bcm" && (cluster == nullptr || !cluster->is(Kind::kMap)))
    problems.add(fmt::format("{}: there is no 'cluster': add cluster=bcm, or a line of the defaults list", source_));
  if (name == "bcm" && cluster != nullptr)
    for (const ConfEntry& entry : cluster->entries)
      if (!is_sbatch_key(entry.key))
        notes_.push_back(fmt::format("{}: cluster.{} is unknown to NeMo's launcher: sbatch gets it as it is",
                                     entry.place.text(), entry.key));
  if (!text_of(root_, "wandb_api_key_file").empty())
    notes_.push_back("wandb_api_key_file means nothing here: nothing is sent anywhere");
}

void Launcher::note_time_limit() {
  const ConfNode *run = training_.find("run"), *trainer = training_.find("trainer"), *cluster = root_.find("cluster");
  if (text_of(root_, "cluster_type") != "bcm" || trainer == nullptr) return;
  std::string limit = text_of(*run, "time_limit");
  const auto seconds = slurm_seconds(limit);
  if (!seconds || !text_of(*cluster, "signal").empty()) return;
  const std::string max_time = text_of(*trainer, "max_time");
  const auto most = parse_day_time(max_time);
  if (most && *most < *seconds) return;
  notes_.push_back(fmt::format(
      "training.run.time_limit {} {}: Slurm stops the job with SIGTERM, and kills it after KillWait, by default 30 s, "
      "in which a checkpoint may not fit. Set training.trainer.max_time (days:hours:minutes:seconds) below it, or "
      "+cluster.signal=TERM@300",
      limit,
      most ? fmt::format("is not above training.trainer.max_time {}", max_time) : "without training.trainer.max_time"));
}

std::string Launcher::absolute(const std::string& path) const {
  const std::filesystem::path given = path;
  return (given.is_absolute() ? given : settings_.directory / given).lexically_normal().string();
}

std::string Launcher::mounts(const std::filesystem::path& program) const {
  std::vector<std::string> all;
  const auto add = [&](const std::string& mount) {
    if (std::find(all.begin(), all.end(), mount) == all.end()) all.push_back(mount);
  };
  for (const char* key : {"launcher_scripts_path", "data_dir", "base_results_dir"})
    if (const std::string path = text_of(root_, key); !path.empty()) add(absolute(path) + ":" + absolute(path));
  const std::string tree = program_tree(program);
  add(tree + ":" + tree);
  if (const ConfNode* more = root_.find("container_mounts"); more != nullptr && more->is(Kind::kList))
    for (const ConfNode& mount : more->items)
      if (!mount.is(Kind::kNull))
        add(mount.str().find(':') == std::string::npos ? mount.str() + ":" + mount.str() : mount.str());
  return join(all, ",");
}

/// The parts of both kinds of scripts.
struct Launcher::JobParts {
  std::filesystem::path folder, config, program;
  std::string name, job_name, dependency;
  ConfNode nodes, tasks, time;
  std::vector<std::string> setup, command;
};

Launcher::JobParts Launcher::job_parts(const ConfNode& training, const std::string& dependency, bool continues) const {
  const ConfNode& run = *training.find("run");
  JobParts parts;
  parts.name = text_of(run, "name");
  parts.folder = absolute(text_of(run, "results_dir"));
  parts.config = parts.folder / (parts.name + ".yaml");
  parts.program = settings_.program.empty() ? settings_.programs / imported_.program
                                            : std::filesystem::path(absolute(settings_.program));
  parts.dependency = dependency.empty() ? text_of(run, "dependency") : dependency;
  const ConfNode* trainer = training.find("trainer");
  const auto first = [&](const char* of_run, const char* of_trainer) {
    const ConfNode* found = run.find(of_run);
    if (found == nullptr || found->is(Kind::kNull)) found = trainer == nullptr ? nullptr : trainer->find(of_trainer);
    return found == nullptr ? ConfNode{} : *found;
  };
  parts.nodes = first("nodes", "num_nodes");
  parts.tasks = first("ntasks_per_node", "devices");
  if (const ConfNode* time = run.find("time_limit")) parts.time = *time;

  if (const ConfNode* variables = root_.find("env_vars"); variables != nullptr)
    for (const ConfEntry& entry : variables->entries)
      if (!entry.value.is(Kind::kNull))
        parts.setup.push_back(fmt::format("export {}={}", entry.key, shell_quote(entry.value.str())));
  const bool cpu = trainer != nullptr && text_of(*trainer, "accelerator") == "cpu";
  if (cpu) parts.setup.emplace_back("export TRIREME_DEVICE=cpu");
  ConfProblems none;
  if (const std::string mapping = numa_mapping_text(root_, none); !mapping.empty())
    parts.setup.push_back("export TRIREME_NUMA_MAPPING=" + mapping);
  const ConfNode* manager = training.find("exp_manager");
  const ConfNode* resume = manager == nullptr ? nullptr : manager->find("resume_if_exists");
  const std::string results = shell_quote(imported_.output_dir);
  if (resume != nullptr && resume->is(Kind::kBool) && resume->boolean) {
    if (continues)
      parts.setup.insert(parts.setup.end(),
                         {"# a stage before this one may have come to the end of the run",
                          fmt::format("if grep -Eqs '\"max_steps\": {},?$' {}/finished.json; then",
                                      trainer == nullptr ? "" : text_of(*trainer, "max_steps"), results),
                          "  echo \"the run is finished: nothing is left for this stage\"", "  exit 0", "fi"});
  } else {
    parts.setup.insert(
        parts.setup.end(),
        {"# resume_if_exists is False: an earlier run's files move to run_<k> beside them, this run starts afresh",
         fmt::format("results={}", results), "if [ -e \"$results/metrics.jsonl\" ]; then",
         "  k=0; while [ -e \"$(dirname \"$results\")/run_$k\" ]; do k=$((k + 1)); done",
         "  mv \"$results\" \"$(dirname \"$results\")/run_$k\" && mkdir \"$results\"", "fi"});
  }

  std::vector<std::string> words;
  std::vector<std::string> devices;
  if (parts.tasks.is(Kind::kInteger) && !cpu)
    for (int64_t i = 0; i < parts.tasks.integer; ++i) devices.push_back(std::to_string(i));
  if (!devices.empty()) words.push_back("CUDA_VISIBLE_DEVICES=" + join(devices, ","));
  const ConfNode* model = training.find("model");
  const ConfNode* nsys = model == nullptr ? nullptr : model->find("nsys_profile");
  if (nsys != nullptr && text_of(*nsys, "enabled") == "True") {
    std::vector<std::string> traces;
    if (const ConfNode* trace = nsys->find("trace"))
      for (const ConfNode& item : trace->items) traces.push_back(item.str());
    const std::string output = in_double_quotes(shell_quote((parts.folder / "results" / "profile_logs").string()));
    words.push_back(fmt::format(
        "nsys profile -s none -t {} -o {}/profile_\\${{SLURM_JOB_ID}}_node\\${{SLURM_NODEID}}_rank\\${{SLURM_PROCID}} "
        "--force-overwrite true --capture-range=cudaProfilerApi --capture-range-end=stop",
        join(traces, ","), output));
    parts.setup.push_back("mkdir -p " + shell_quote((parts.folder / "results" / "profile_logs").string()));
  }
  words.push_back(in_double_quotes(shell_quote(parts.program.string())) + " --config " +
                  in_double_quotes(shell_quote(parts.config.string())));
  parts.command = {join(words, " ")};
  return parts;
}

LaunchStage Launcher::stage(size_t index, const std::string& dependency) const {
  LaunchStage stage;
  stage.name = stages_.at(index);
  stage.imported = imported_;
  stage.interactive = text_of(root_, "cluster_type") == "interactive";
  const JobParts parts = job_parts(training_, dependency, index > 0);
  stage.folder = parts.folder;
  stage.model_directory = parts.folder / "model";
  ConfNode saved = training_;
  if (!dependency.empty()) saved.find("run")->at_or_add("dependency") = ConfNode(dependency);
  stage.files.emplace_back(parts.folder / (parts.name + "_hydra.yaml"), conf_yaml(saved));
  stage.files.emplace_back(parts.config, imported_.yaml);

  if (stage.interactive) {
    if (parts.nodes.is(Kind::kInteger) && parts.nodes.integer != 1 && !settings_.in_allocation)
      throw ConfigError(
          fmt::format("{}: {} nodes: cluster_type interactive has one node, or runs inside a Slurm allocation (salloc)",
                      source_, parts.nodes.str()));
    stage.job_name = parts.name;
    InteractiveScript script;
    script.setup = parts.setup;
    // Open MPI binds a rank to one core unless told not to; TRIREME_NUMA_MAPPING decides here.
    script.setup.insert(script.setup.begin(), "export OMPI_MCA_hwloc_base_binding_policy=none");
    script.command = parts.command;
    script.log = (parts.folder / fmt::format("log-{}_{}.out", parts.name, settings_.time_tag)).string();
    if (settings_.in_allocation) {
      script.launcher = {"srun", "--nodes=" + parts.nodes.str(), "--ntasks-per-node=" + parts.tasks.str()};
      // Otherwise salloc's SLURM_NTASKS is the number, and --ntasks-per-node only a limit.
      if (parts.nodes.is(Kind::kInteger) && parts.tasks.is(Kind::kInteger))
        script.launcher.push_back(fmt::format("--ntasks={}", parts.nodes.integer * parts.tasks.integer));
    } else if (parts.tasks.is(Kind::kInteger) && parts.tasks.integer > 1) {
      script.launcher = {"mpirun", "-n", parts.tasks.str()};
    }
    if (const ConfNode* cluster = root_.find("cluster"); cluster != nullptr && settings_.in_allocation)
      if (const ConfNode* args = cluster->find("srun_args"))
        for (const ConfNode& arg : args->items)
          if (arg.str().find("container") == std::string::npos) script.launcher.push_back(arg.str());
    stage.submission = parts.folder / (stage.job_name + "_submission.sh");
    stage.files.emplace_back(stage.submission, interactive_script(script));
    return stage;
  }

  const ConfNode& cluster = *root_.find("cluster");
  stage.job_name = text_of(cluster, "job_name_prefix") + parts.name;
  SlurmScript script;
  const auto text = [](const std::string& value) { return value.empty() ? ConfNode() : ConfNode(value); };
  for (const ConfEntry& entry : cluster.entries)
    if (entry.key != "job_name_prefix" && entry.key != "srun_args" && entry.key != "stderr_to_stdout")
      script.parameters[entry.key] = entry.value;
  script.parameters["job_name"] = text(stage.job_name);
  script.parameters["nodes"] = parts.nodes;
  script.parameters["ntasks_per_node"] = parts.tasks;
  script.parameters["time"] = parts.time;
  script.parameters["dependency"] = text(parts.dependency);
  const bool together = text_of(cluster, "stderr_to_stdout") == "True";
  const std::string log = in_pattern(parts.folder / ("log-" + stage.job_name)) + "_%j";
  script.output = settings_.ci ? in_pattern(parts.folder) + "/slurm_%j.out" : log + ".out";
  script.error = settings_.ci ? script.output : log + ".err";
  script.parameters["output"] = text(script.output);
  if (!together || settings_.ci) script.parameters["error"] = text(script.error);
  if (together) script.error.clear();
  if (settings_.memory_measure) {
    script.memory_log = script.output;
    script.memory_log.replace(script.memory_log.rfind("_%j"), 0, "_mem");
  }
  script.setup = parts.setup;
  script.command = parts.command;
  script.container_image = text_of(root_, "container");
  if (!script.container_image.empty()) script.container_mounts = mounts(parts.program);
  if (const ConfNode* args = cluster.find("srun_args"); args != nullptr)
    for (const ConfNode& arg : args->items) {
      // Options of the container plugin, which a cluster without containers does not have.
      const bool of_container = arg.str().starts_with("--container-") || arg.str().starts_with("--no-container-");
      if (!of_container || !script.container_image.empty()) script.srun_args.push_back(arg.str());
    }
  stage.submission = parts.folder / (stage.job_name + "_submission.sh");
  stage.files.emplace_back(stage.submission, slurm_script(script));
  return stage;
}

std::vector<std::pair<std::string, std::string>> describe_cluster(const ConfNode& cluster) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const ConfEntry& entry : cluster.entries) {
    std::string became;
    if (entry.key == "job_name_prefix")
      became = "in front of run.name: --job-name, and the names of the script and of the logs";
    else if (entry.key == "srun_args")
      became = "options of srun (those of containers only where container is set)";
    else if (entry.key == "stderr_to_stdout")
      became = "True: no --error, one log for both";
    else if (const auto option = sbatch_option(entry.key, entry.value))
      became = "#SBATCH " + *option + (is_sbatch_key(entry.key) ? "" : "; unknown to NeMo's launcher, passed as it is");
    else
      became = "not written";
    lines.emplace_back(fmt::format("{} = {}", entry.key, entry.value.str()), became);
  }
  return lines;
}

}  // namespace trireme
