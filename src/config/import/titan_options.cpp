#include "titan_options.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <fmt/format.h>

#include <sstream>

namespace trireme {

namespace {

/// Keys of torchtitan 0.2.0 to 0.2.2 and a little before.
const KnownKeys& torchtitan_keys() {
  static const KnownKeys keys = known_keys({
      {"job", "dump_folder"},
      {"job", "config_file description print_config save_config_file custom_config_module use_for_integration_test",
       "no meaning here: --print-config prints the configuration, output.dir/config.yaml keeps it"},
      {"profiling", "enable_profiling profile_freq profiler_active profiler_warmup enable_memory_snapshot"},
      {"profiling", "save_traces_folder save_memory_snapshot_folder", "no key: always profile/ in output.dir"},
      {"metrics", "log_freq enable_tensorboard"},
      {"metrics", "save_tb_folder save_for_all_ranks",
       "no key: rank 0 writes events to tensorboard/ in output.dir (logging.tensorboard)"},
      {"metrics", "enable_wandb disable_color_printing",
       "no meaning here: nothing is sent anywhere, nothing is coloured"},
      {"model", "name flavor hf_assets_path tokenizer_path converters"},
      {"model", "print_after_conversion", "no meaning here: --dry-run prints the plan"},
      {"optimizer", "name lr beta1 beta2 eps weight_decay"},
      {"optimizer", "implementation", "no meaning here: one fused pass"},
      {"optimizer", "early_step_in_backward"},
      {"lr_scheduler", "warmup_steps decay_ratio decay_type min_lr_factor lr_min total_steps"},
      {"training",
       "dataset dataset_path local_batch_size batch_size global_batch_size seq_len max_norm steps dtype "
       "mixed_precision_param mixed_precision_reduce seed"},
      {"training", "enable_cpu_offload",
       "no key: weights stay on the GPU; parallel.shard_size and recompute save memory"},
      {"training", "gc_freq gc_debug compile", "no meaning here: there is no Python"},
      {"training", "deterministic"},
      {"training", "deterministic_warn_only", "no key: an operation without a deterministic form is an error"},
      {"debug", "seed"},
      {"debug", "deterministic"},
      {"debug", "deterministic_warn_only", "no key: an operation without a deterministic form is an error"},
      {"debug", "moe_force_load_balance", "no meaning here: there is no mixture of experts"},
      {"training", "debug_moe_force_load_balance", "no meaning here: there is no mixture of experts"},
      {"parallelism",
       "data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward tensor_parallel_degree "
       "pipeline_parallel_degree context_parallel_degree expert_parallel_degree"},
      {"parallelism",
       "enable_async_tensor_parallel disable_loss_parallel expert_tensor_parallel_degree "
       "context_parallel_rotate_method pipeline_parallel_split_points module_fqns_per_model_part "
       "pipeline_parallel_layers_per_stage pipeline_parallel_first_stage_less_layers "
       "pipeline_parallel_last_stage_less_layers pipeline_parallel_schedule pipeline_parallel_schedule_csv "
       "pipeline_parallel_microbatch_size pipeline_parallel_expert_parallel_overlap context_parallel_load_balancer "
       "enable_compiled_autograd expert_parallel_comm_backend",
       "no meaning here: it belongs to tensor, pipeline, context or expert parallelism"},
      {"checkpoint",
       "enable enable_checkpoint folder interval initial_load_path initial_load_in_hf last_save_model_only "
       "last_save_in_hf export_dtype async_mode keep_latest_k load_step exclude_from_loading"},
      {"checkpoint", "initial_load_model_only initial_load_in_hf_quantized",
       "no key: model.path gives weights alone, a resumed run its whole state"},
      {"checkpoint",
       "enable_first_step_checkpoint create_seed_checkpoint load_only enable_ft_dataloader_checkpoints "
       "model_weights_only",
       "no key: initial weights depend on train.seed alone, on any number of ranks"},
      {"activation_checkpoint", "mode selective_ac_option"},
      {"activation_checkpoint",
       "per_op_sac_force_recompute_mm_shapes_by_fqns early_stop memory_budget visualize_memory_budget_pareto "
       "preserve_rng_state determinism_check debug",
       "no key: the plan weighs what is recomputed; --dry-run prints it"},
      {"compile", "enable components backend model_backend_override",
       "no meaning here: the kernels are compiled ahead"},
      {"float8",
       "recipe_name enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp filter_fqns emulate"},
      {"quantize.linear.float8",
       "recipe_name enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp filter_fqns emulate"},
      {"comm", "init_timeout_seconds train_timeout_seconds",
       "no key: a rank that waits ends the run by itself; TRIREME_HANG_SECONDS sets another limit"},
      {"comm", "trace_buf_size save_traces_folder save_traces_file_prefix",
       "no meaning here: the watchdog names the rank, the collective and the file"},
      {"comm", "mode", "no meaning here: `train_llama --dry-run --ranks N` checks without devices"},
      {"validation", "enable enabled dataset dataset_path freq steps local_batch_size seq_len"},
      {"training.dataloader", "num_workers persistent_workers pin_memory prefetch_factor",
       "no effect on results: a thread of each rank prepares the next rows"},
      {"validation.dataloader", "num_workers persistent_workers pin_memory prefetch_factor",
       "no effect on results: a thread of each rank prepares the next rows"},
      {"quantize.linear.mx", "filter_fqns mxfp8_dim1_cast_kernel_choice recipe_name",
       "nothing: model.converters does not name it"},
      {"quantize.grouped_mm.mx", "fqns recipe_name", "nothing: model.converters does not name it"},
      {"quantize.grouped_mm.float8", "fqns", "nothing: model.converters does not name it"},
      {"memory_estimation", "enable enabled disable_fake_mode", "no key: --dry-run prints the memory plan"},
      {"experimental", "custom_import custom_args_module", "no meaning here: there is no Python"},
      {"fault_tolerance", "enable"},
      {"fault_tolerance",
       "process_group process_group_timeout_ms replica_id group_size min_replica_size semi_sync_method sync_steps "
       "should_quantize fragment_sync_delay fragment_update_alpha",
       "no meaning here: a lost rank ends the run, the sbatch files start it again from its last checkpoint"},
  });
  return keys;
}

std::string shown_value(const toml::node& node) {
  if (node.is_floating_point()) return format_exact(node.as_floating_point()->get());  // toml++ prints 17 digits
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return out.str();
}

ConfNode conf_node(const toml::node& node) {
  ConfNode value;
  using Kind = ConfNode::Kind;
  if (const auto* text = node.as_string()) {
    value.kind = Kind::kText;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = Kind::kInteger;
    value.integer = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.kind = Kind::kNumber;
    value.number = number->get();
  } else if (const auto* flag = node.as_boolean()) {
    value.kind = Kind::kBool;
    value.boolean = flag->get();
  } else if (const auto* list = node.as_array()) {
    value.kind = Kind::kList;
    for (const auto& item : *list)
      if (item.is_string()) value.items.push_back(conf_node(item));
  } else {
    value.kind = Kind::kMap;  // a date or a time, which no option takes
  }
  return value;
}

}  // namespace

TitanOptions::TitanOptions(const std::filesystem::path& file, ImportDraft& draft)
    : TreeOptions(torchtitan_keys(), draft) {
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
  const auto walk = [&](const auto& self, const toml::table& table, const std::string& prefix) -> void {
    for (const auto& [key, node] : table) {
      const std::string name = prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
      const auto place = node.source().begin;
      const std::string here = fmt::format("{}:{}:{}", file.string(), place.line, place.column);
      if (node.is_table()) {
        if (is_section(name))
          self(self, *node.as_table(), name);
        else
          unknown_section(name, here);
        continue;
      }
      add(name, {conf_node(node), shown_value(node), here});
    }
  };
  walk(walk, root, "");
}

}  // namespace trireme
