#include "titan_options.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace trireme {

struct TitanOptions::Value {
  enum class Type { kText, kInteger, kNumber, kFlag, kList, kOther } type = Type::kOther;
  std::string text;  // as TOML writes it
  std::string string;
  int64_t integer = 0;
  double number = 0;
  bool flag = false;
  std::vector<std::string> list;
};

namespace {

/// Keys of torchtitan v0.2 and a little before, and why those that the importer does not read have no meaning here. An
/// empty reason: the importer reads it.
const std::map<std::string, std::string>& known_keys() {
  static const std::map<std::string, std::string> keys = [] {
    std::map<std::string, std::string> all;
    const auto add = [&](const std::string& section, const std::vector<const char*>& names,
                         const std::string& why = "") {
      for (const char* name : names) all[section + "." + name] = why;
    };
    add("job", {"dump_folder"});
    add("job",
        {"config_file", "description", "print_config", "save_config_file", "custom_config_module",
         "use_for_integration_test"},
        "no meaning here: --print-config prints the configuration, output.dir/config.yaml keeps it");
    add("profiling",
        {"enable_profiling", "profile_freq", "profiler_active", "profiler_warmup", "enable_memory_snapshot"});
    add("profiling", {"save_traces_folder", "save_memory_snapshot_folder"}, "no key: always profile/ in output.dir");
    add("metrics", {"log_freq", "enable_tensorboard"});
    add("metrics", {"save_tb_folder", "save_for_all_ranks"},
        "no key: rank 0 writes events to tensorboard/ in output.dir (logging.tensorboard)");
    add("metrics", {"enable_wandb", "disable_color_printing"},
        "no meaning here: nothing is sent anywhere, nothing is coloured");
    add("model", {"name", "flavor", "hf_assets_path", "tokenizer_path", "converters"});
    add("model", {"print_after_conversion"}, "no meaning here: --dry-run prints the plan");
    add("optimizer", {"name", "lr", "beta1", "beta2", "eps", "weight_decay"});
    add("optimizer", {"implementation"}, "no meaning here: one fused pass");
    add("optimizer", {"early_step_in_backward"},
        "no key: the step follows backward, because clipping needs the whole norm");
    add("lr_scheduler", {"warmup_steps", "decay_ratio", "decay_type", "min_lr_factor", "lr_min", "total_steps"});
    add("training", {"dataset", "dataset_path", "local_batch_size", "batch_size", "global_batch_size", "seq_len",
                     "max_norm", "steps", "dtype", "mixed_precision_param", "mixed_precision_reduce", "seed"});
    add("training", {"enable_cpu_offload"},
        "no key: weights stay on the GPU; parallel.shard_size and recompute save memory");
    add("training", {"gc_freq", "gc_debug", "compile"}, "no meaning here: there is no Python");
    add("training", {"deterministic", "deterministic_warn_only"}, "always: the same seed and ranks give the same bits");
    add("debug", {"seed"});
    add("debug", {"deterministic", "deterministic_warn_only"}, "always: the same seed and ranks give the same bits");
    add("debug", {"moe_force_load_balance"}, "no meaning here: there is no mixture of experts");
    add("training", {"debug_moe_force_load_balance"}, "no meaning here: there is no mixture of experts");
    add("parallelism",
        {"data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
         "tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree", "expert_parallel_degree"});
    add("parallelism",
        {"enable_async_tensor_parallel", "disable_loss_parallel", "expert_tensor_parallel_degree",
         "context_parallel_rotate_method", "pipeline_parallel_split_points", "module_fqns_per_model_part",
         "pipeline_parallel_layers_per_stage", "pipeline_parallel_first_stage_less_layers",
         "pipeline_parallel_last_stage_less_layers", "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv",
         "pipeline_parallel_microbatch_size", "enable_compiled_autograd", "expert_parallel_comm_backend"},
        "no meaning here: it belongs to tensor, pipeline, context or expert parallelism");
    add("checkpoint",
        {"enable", "enable_checkpoint", "folder", "interval", "initial_load_path", "initial_load_in_hf",
         "last_save_model_only", "last_save_in_hf", "export_dtype", "async_mode", "keep_latest_k", "load_step"});
    add("checkpoint", {"initial_load_model_only", "initial_load_in_hf_quantized", "exclude_from_loading"},
        "no key: model.path gives weights alone, a resumed run its whole state");
    add("checkpoint",
        {"enable_first_step_checkpoint", "create_seed_checkpoint", "load_only", "enable_ft_dataloader_checkpoints",
         "model_weights_only"},
        "no key: initial weights depend on train.seed alone, on any number of ranks");
    add("activation_checkpoint", {"mode", "selective_ac_option"});
    add("activation_checkpoint",
        {"per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "memory_budget",
         "visualize_memory_budget_pareto", "preserve_rng_state", "determinism_check", "debug"},
        "no key: the plan weighs what is recomputed; --dry-run prints it");
    add("compile", {"enable", "components", "backend", "model_backend_override"},
        "no meaning here: the kernels are compiled ahead");
    for (const char* section : {"float8", "quantize.linear.float8"})
      add(section, {"recipe_name", "enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp",
                    "filter_fqns", "emulate"});
    add("comm", {"init_timeout_seconds", "train_timeout_seconds"},
        "no key: a rank that waits ends the run by itself; TRIREME_HANG_SECONDS sets another limit");
    add("comm", {"trace_buf_size", "save_traces_folder", "save_traces_file_prefix"},
        "no meaning here: the watchdog names the rank, the collective and the file");
    add("comm", {"mode"}, "no meaning here: `train_llama --dry-run --ranks N` checks without devices");
    add("validation", {"enable", "enabled", "dataset", "dataset_path", "freq", "steps"});
    add("validation", {"local_batch_size", "seq_len"}, "no key: as in training");
    add("memory_estimation", {"enable", "enabled", "disable_fake_mode"}, "no key: --dry-run prints the memory plan");
    add("experimental", {"custom_import", "custom_args_module"}, "no meaning here: there is no Python");
    add("fault_tolerance",
        {"enable", "process_group", "process_group_timeout_ms", "replica_id", "group_size", "min_replica_size",
         "semi_sync_method", "sync_steps", "should_quantize", "fragment_sync_delay", "fragment_update_alpha"},
        "no meaning here: a lost rank ends the run, the sbatch files start it again from its last checkpoint");
    return all;
  }();
  return keys;
}

std::string shown_value(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return out.str();
}

}  // namespace

TitanOptions::TitanOptions(const std::filesystem::path& file, ImportDraft& draft) : draft_(draft) {
  std::string content;
  try {
    content = read_text_file(file, ExitCode::kConfig, 1 << 20);
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
  toml::table root;
  try {
    root = toml::parse(content, file.string());
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("{}:{}:{}: {}", file.string(), error.source().begin.line, error.source().begin.column,
                                  std::string(error.description())));
  }
  std::vector<std::string> known, sections;
  for (const auto& [name, why] : known_keys()) {
    known.push_back(name);
    sections.push_back(name.substr(0, name.rfind('.')));
  }
  const auto walk = [&](const auto& self, const toml::table& table, const std::string& prefix) -> void {
    for (const auto& [key, node] : table) {
      const std::string name = prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
      const auto place = node.source().begin;
      if (node.is_table()) {
        const bool is_section = std::any_of(sections.begin(), sections.end(), [&](const std::string& section) {
          return section == name || section.starts_with(name + ".");
        });
        if (is_section)
          self(self, *node.as_table(), name);
        else
          draft_.problem(fmt::format("{}:{}:{}: unknown section [{}].{}", file.string(), place.line, place.column, name,
                                     did_you_mean(name, sections)));
        continue;
      }
      if (!known_keys().contains(name)) {
        std::string hint = did_you_mean(name, known);
        for (const std::string& candidate : known)
          if (hint.empty() && candidate.ends_with("." + std::string(key.str())))
            hint = fmt::format(" Did you mean '{}'?", candidate);
        draft_.problem(
            fmt::format("{}:{}:{}: unknown key '{}'.{}", file.string(), place.line, place.column, name, hint));
        continue;
      }
      auto value = std::make_unique<Value>();
      value->text = shown_value(node);
      if (const auto* text = node.as_string()) {
        value->type = Value::Type::kText;
        value->string = text->get();
      } else if (const auto* integer = node.as_integer()) {
        value->type = Value::Type::kInteger;
        value->integer = integer->get();
        value->number = static_cast<double>(integer->get());
      } else if (const auto* number = node.as_floating_point()) {
        value->type = Value::Type::kNumber;
        value->number = number->get();
      } else if (const auto* flag = node.as_boolean()) {
        value->type = Value::Type::kFlag;
        value->flag = flag->get();
      } else if (const auto* list = node.as_array()) {
        value->type = Value::Type::kList;
        for (const auto& item : *list)
          if (const auto* text_item = item.as_string()) value->list.push_back(text_item->get());
      }
      values_[name] = std::move(value);
    }
  };
  walk(walk, root, "");
}

TitanOptions::~TitanOptions() = default;

bool TitanOptions::has_section(const std::string& name) const {
  const auto found = values_.lower_bound(name + ".");
  return found != values_.end() && found->first.starts_with(name + ".");
}

const TitanOptions::Value* TitanOptions::find(const std::string& name) {
  TRIREME_CHECK(known_keys().contains(name), "'", name, "' is not in the table of torchtitan's keys");
  read_.insert(name);
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : found->second.get();
}

std::string TitanOptions::shown(const std::string& name) const {
  shown_.insert(name);
  const auto found = values_.find(name);
  return found == values_.end() ? name + " (default)" : fmt::format("{} = {}", name, found->second->text);
}

void TitanOptions::refuse(const std::string& name, const std::string& expected) {
  draft_.problem(fmt::format("{}: must be {}", shown(name), expected));
}

std::string TitanOptions::text(const std::string& name, const std::string& otherwise) {
  const Value* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->type == Value::Type::kText) return value->string;
  if (value->type == Value::Type::kInteger) return value->text;  // selective_ac_option = 2
  refuse(name, "a string");
  return otherwise;
}

std::string TitanOptions::word(const std::string& name, const std::string& otherwise,
                               const std::vector<std::string>& words) {
  const std::string value = text(name, otherwise);
  if (std::find(words.begin(), words.end(), value) != words.end()) return value;
  draft_.problem(fmt::format("{}: one of {}.{}", shown(name), join(words, ", "), did_you_mean(value, words)));
  return otherwise;
}

int64_t TitanOptions::integer(const std::string& name, int64_t otherwise) {
  const Value* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->type == Value::Type::kInteger) return value->integer;
  refuse(name, "an integer");
  return otherwise;
}

double TitanOptions::number(const std::string& name, double otherwise) {
  const Value* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->type == Value::Type::kInteger || value->type == Value::Type::kNumber) return value->number;
  refuse(name, "a number");
  return otherwise;
}

bool TitanOptions::flag(const std::string& name, bool otherwise) {
  const Value* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->type == Value::Type::kFlag) return value->flag;
  refuse(name, "true or false");
  return otherwise;
}

std::vector<std::string> TitanOptions::list(const std::string& name) {
  const Value* value = find(name);
  if (value == nullptr) return {};
  if (value->type == Value::Type::kList) return value->list;
  if (value->type == Value::Type::kText)
    return value->string.empty() ? std::vector<std::string>{} : split(value->string, ',');
  refuse(name, "a list of strings");
  return {};
}

void TitanOptions::no_key(const std::string& name, const std::string& why) {
  if (find(name) != nullptr) draft_.say(shown(name), why);
}

void TitanOptions::rest() {
  for (const auto& [name, value] : values_) {
    const std::string& why = known_keys().at(name);
    if (!why.empty())
      draft_.say(shown(name), why);
    else if (!shown_.contains(name))
      draft_.say(shown(name), read_.contains(name) ? "counted in the lines of its section above"
                                                   : "nothing: the option that it belongs to is off");
  }
}

}  // namespace trireme
