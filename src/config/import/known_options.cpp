// The options of the trainers that are imported.
#include "importer.h"
#include "trireme/base/text.h"

#include <initializer_list>

namespace trireme {

namespace {

/// Options of some sections, both separated by blanks; an empty section: they are in none.
struct KnownNames {
  const char* sections;
  const char* names;
  const char* why = "";
};

KnownOptions known(std::initializer_list<KnownNames> lines) {
  KnownOptions all;
  for (const KnownNames& line : lines)
    for (const std::string& section : split(line.sections, ' '))
      for (const std::string& name : split(line.names, ' '))
        all[section.empty() ? name : fmt::format("{}.{}", section, name)] = line.why;
  return all;
}

}  // namespace

const KnownOptions& fms_options() {
  static const KnownOptions options = known({
      {"",
       "model_variant ckpt_load_path ckpt_save_path use_dummy_dataset data_path file_type col_name datasets weights "
       "seq_length vocab_size bos_token eos_token bol_token eol_token strip_tokens logical_shards sharding_strategy "
       "fsdp_activation_checkpointing selective_checkpointing mixed_precision batch_size num_steps training_stage "
       "learning_rate grad_clip_thresh seed use_profiler use_nsight report_interval checkpoint_interval"},
      {"", "tokenizer_path", "copy its tokenizer.model to model/; tokenised data needs none"},
      {"", "num_workers", "no meaning here: a thread of each rank prepares the next rows while the step runs"},
      {"", "low_cpu_fsdp", "no meaning here: a rank makes its own shards only"},
      {"", "resuming_dataset", "no meaning here: a resumed run always goes on where its data stopped"},
      {"", "profiler_rank0_only", "profile.ranks, where use_profiler is on"},
      {"", "tracker use_wandb use_aim tracker_dir tracker_project_name tracker_run_id",
       "no meaning here: nothing is sent anywhere; metrics.jsonl in output.dir has every number"},
      {"", "use_torch_compile", "no meaning here: the kernels are compiled ahead"},
      {"",
       "tp_size model_arch model_path n_speculator_heads speculator_width speculator_tie_weights "
       "speculator_scale_input stage2_start_step stage2_prompt_length stage2_batch_size stage2_seq_length",
       "no meaning here: it is for fms-fsdp's speculator training, which Trireme lacks"},
  });
  return options;
}

const KnownOptions& torchtitan_options() {
  static const KnownOptions options = known({
      {"job", "dump_folder custom_config_module"},
      {"job", "config_file description print_config save_config_file use_for_integration_test",
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
       "mixed_precision_param mixed_precision_reduce seed deterministic"},
      {"training", "enable_cpu_offload",
       "no key: weights stay on the GPU; parallel.offload takes the optimizer's state to the host where memory lacks"},
      {"training", "gc_freq gc_debug compile", "no meaning here: there is no Python"},
      {"training debug", "deterministic_warn_only", "no key: an operation without a deterministic form is an error"},
      {"debug", "seed deterministic"},
      {"debug", "moe_force_load_balance", "no meaning here: there is no mixture of experts"},
      {"training", "debug_moe_force_load_balance", "no meaning here: there is no mixture of experts"},
      {"parallelism",
       "data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward tensor_parallel_degree "
       "pipeline_parallel_degree context_parallel_degree expert_parallel_degree"},
      {"parallelism",
       "enable_async_tensor_parallel disable_loss_parallel expert_tensor_parallel_degree "
       "pipeline_parallel_split_points module_fqns_per_model_part "
       "pipeline_parallel_layers_per_stage pipeline_parallel_first_stage_less_layers "
       "pipeline_parallel_last_stage_less_layers pipeline_parallel_schedule pipeline_parallel_schedule_csv "
       "pipeline_parallel_microbatch_size pipeline_parallel_expert_parallel_overlap "
       "expert_parallel_comm_backend",
       "no meaning here: it belongs to tensor, pipeline or expert parallelism"},
      {"parallelism", "enable_compiled_autograd", "no meaning here: the kernels are compiled ahead"},
      {"parallelism", "context_parallel_rotate_method context_parallel_load_balancer",
       "no meaning here: ranks that share a row exchange heads for tokens, which needs neither"},
      {"checkpoint",
       "enable enable_checkpoint interval initial_load_path initial_load_in_hf initial_load_in_hf_quantized "
       "keep_latest_k load_step load_only exclude_from_loading create_seed_checkpoint"},
      {"checkpoint", "folder", "always checkpoints/ in output.dir"},
      {"checkpoint", "async_mode", "no key: files are always written behind the steps"},
      {"checkpoint", "last_save_in_hf", "no key: the end of a run always writes model/ in Hugging Face's format"},
      {"checkpoint", "last_save_model_only model_weights_only",
       "no key: model/ is the model alone, checkpoints/ the whole state"},
      {"checkpoint", "export_dtype",
       "no key: model/ has the type of precision.compute; `trireme checkpoint export --dtype` writes others"},
      {"checkpoint", "initial_load_model_only",
       "no key: model.path gives weights alone, a resumed run its whole state"},
      {"checkpoint", "enable_first_step_checkpoint", "no key: the first checkpoint is that of checkpoint.interval"},
      {"checkpoint", "enable_ft_dataloader_checkpoints", "no meaning here: it belongs to fault_tolerance"},
      {"activation_checkpoint", "mode selective_ac_option"},
      {"activation_checkpoint",
       "per_op_sac_force_recompute_mm_shapes_by_fqns early_stop memory_budget visualize_memory_budget_pareto "
       "preserve_rng_state determinism_check debug",
       "no key: the plan weighs what is recomputed; --dry-run prints it"},
      {"compile", "enable components backend model_backend_override",
       "no meaning here: the kernels are compiled ahead"},
      {"float8 quantize.linear.float8", "recipe_name"},
      {"float8 quantize.linear.float8", "enable_fsdp_float8_all_gather",
       "no key: the precision recipe decides what is gathered in FP8"},
      {"float8 quantize.linear.float8", "precompute_float8_dynamic_scale_for_fsdp",
       "no key: the optimizer's pass makes the scales"},
      {"float8 quantize.linear.float8", "filter_fqns",
       "no key: FP8 is for the matrices of the blocks, not for head and embedding"},
      {"float8 quantize.linear.float8", "emulate", "no key: a CPU emulates FP8"},
      {"comm", "init_timeout_seconds train_timeout_seconds",
       "no key: a rank that waits ends the run by itself; TRIREME_HANG_SECONDS sets another limit"},
      {"comm", "trace_buf_size save_traces_folder save_traces_file_prefix",
       "no meaning here: the watchdog names the rank, the collective and the file"},
      {"comm", "mode"},
      {"validation", "enable enabled dataset dataset_path freq steps local_batch_size seq_len"},
      {"training.dataloader validation.dataloader", "num_workers persistent_workers pin_memory prefetch_factor",
       "no effect on results: a thread of each rank prepares the next rows"},
      {"quantize.linear.mx", "filter_fqns mxfp8_dim1_cast_kernel_choice recipe_name",
       "nothing: model.converters does not name it"},
      {"quantize.grouped_mm.mx", "fqns recipe_name", "nothing: model.converters does not name it"},
      {"quantize.grouped_mm.float8", "fqns", "nothing: model.converters does not name it"},
      {"memory_estimation", "enable enabled disable_fake_mode", "no key: --dry-run prints the memory plan"},
      {"experimental", "context_parallel_degree custom_import custom_args_module"},
      {"fault_tolerance", "enable"},
      {"fault_tolerance",
       "process_group process_group_timeout_ms replica_id group_size min_replica_size semi_sync_method sync_steps "
       "should_quantize fragment_sync_delay fragment_update_alpha",
       "no meaning here: a lost rank ends the run, the sbatch files start it again from its last checkpoint"},
  });
  return options;
}

const KnownOptions& nemo_options() {
  static const KnownOptions options = [] {
    KnownOptions all = known({
        {"run", "name results_dir time_limit dependency nodes ntasks_per_node",
         "no key: of the job that `trireme launch` submits"},
        {"run", "preprocessed_dir blending_alpha", "no key: write model.data.data_prefix out"},
        {"env_vars", "NVTE_FUSED_ATTN", "no meaning here: of Transformer Engine"},
        {"s3_checkpointing", "max_write_concurrency max_read_concurrency chunk_size_MB enable_async_checkpointing",
         "no meaning here: checkpoints are files"},
        {"trainer",
         "num_nodes devices precision max_steps max_time log_every_n_steps val_check_interval limit_val_batches "
         "limit_test_batches limit_train_batches accumulate_grad_batches gradient_clip_val deterministic"},
        {"trainer", "accelerator", "no key: GPUs where there are some; TRIREME_DEVICE=cpu forces the CPU"},
        {"trainer", "max_epochs", "no key: max_steps ends the run"},
        {"trainer", "logger enable_checkpointing", "no key: exp_manager says what is logged and saved"},
        {"trainer", "num_sanity_val_steps", "no key: nothing is validated before the first step"},
        {"trainer", "use_distributed_sampler replace_sampler_ddp benchmark enable_model_summary enable_progress_bar",
         "no effect on results: PyTorch Lightning's"},
        {"exp_manager",
         "explicit_log_dir exp_dir name resume_if_exists resume_from_checkpoint create_checkpoint_callback"},
        {"exp_manager", "create_tensorboard_logger", "no key: logging.style nemo always writes event files"},
        {"exp_manager", "resume_ignore_no_checkpoint", "no key: a run without checkpoints starts from step 1"},
        {"exp_manager", "resume_past_end",
         "no key: a run that is done ends at once; a larger train.max_steps extends it"},
        {"exp_manager", "seconds_to_sleep", "no meaning here: ranks wait for rank 0 where they need it"},
        {"exp_manager", "log_step_timing log_global_rank_0_only log_local_rank_0_only",
         "no key: logging.style nemo writes NeMo's tags and logs"},
        {"exp_manager.step_timing_kwargs", "sync_cuda buffer_size",
         "no key: every step is timed, without a synchronisation of its own"},
        {"exp_manager", "create_wandb_logger create_neptune_logger create_mlflow_logger create_dllogger_logger",
         "no meaning here: nothing is sent anywhere; metrics.jsonl in output.dir has every number"},
        {"exp_manager.wandb_logger_kwargs", "project name group resume", "no meaning here: nothing is sent anywhere"},
        {"exp_manager.neptune_logger_kwargs", "description log_model_checkpoints name prefix project tags",
         "no meaning here: nothing is sent anywhere"},
        {"exp_manager.checkpoint_callback_params",
         "save_top_k monitor mode every_n_epochs every_n_train_steps train_time_interval save_best_model save_last"},
        {"exp_manager.checkpoint_callback_params", "filename dirpath",
         "no key: always checkpoints/ in output.dir, named by their step"},
        {"exp_manager.checkpoint_callback_params", "model_parallel_size", "no meaning here: of tensor parallelism"},
        {"exp_manager.checkpoint_callback_params", "async_save", "no key: files are always written behind the steps"},
        {"exp_manager.checkpoint_callback_params", "save_nemo_on_train_end",
         "no key: the end of a run always writes model/ in Hugging Face's format"},
        {"exp_manager.checkpoint_callback_params", "always_save_nemo",
         "no key: `trireme checkpoint export` makes a model of any checkpoint"},
        {"model",
         "micro_batch_size global_batch_size rampup_batch_size tensor_model_parallel_size pipeline_model_parallel_size "
         "virtual_pipeline_model_parallel_size context_parallel_size expert_model_parallel_size encoder_seq_length "
         "max_position_embeddings num_layers hidden_size ffn_hidden_size num_attention_heads init_method_std "
         "use_scaled_init_method hidden_dropout attention_dropout ffn_dropout kv_channels num_query_groups "
         "normalization layernorm_epsilon do_layer_norm_weight_decay make_vocab_size_divisible_by bias activation "
         "openai_gelu bias_activation_fusion position_embedding_type rotary_percentage rotary_base "
         "scale_positional_embedding fp32_residual_connection fp16_lm_cross_entropy deterministic_mode "
         "share_embeddings_and_output_weights transformer_block_type normalize_attention_scores headscale "
         "layernorm_zero_centered_gamma activations_checkpoint_granularity activations_checkpoint_method "
         "activations_checkpoint_num_layers fsdp fsdp_sharding_strategy fsdp_grad_reduce_dtype native_amp_init_scale "
         "fp8 fp8_dot_product_attention fp8_e4m3 fp8_margin fp8_wgrad seed restore_from_path resume_from_checkpoint "
         "seq_len_interpolation_factor cpu_offloading"},
        {"model", "apply_query_key_layer_scaling", "no key: it divides and multiplies by the same number"},
        {"model", "name pre_process post_process attention_type mcore_gpt",
         "no meaning here: there is one implementation"},
        {"model", "transformer_engine", "no key: always the own kernels; precision.linear says FP8"},
        {"model",
         "persist_layer_norm grad_div_ar_fusion gradient_accumulation_fusion bias_dropout_add_fusion "
         "masked_softmax_fusion apply_rope_fusion cross_entropy_loss_fusion use_flash_attention "
         "get_attention_mask_from_fusion use_emha",
         "no key: fused wherever a kernel exists"},
        {"model", "gradient_as_bucket_view", "no key: gradients lie in one flat buffer of each unit"},
        {"model", "fsdp_sharded_checkpoint", "no key: every rank writes its shards"},
        {"model",
         "num_micro_batches_with_partial_activation_checkpoints activations_checkpoint_layers_per_pipeline "
         "overlap_p2p_comm batch_p2p_comm sync_batch_comm",
         "no meaning here: of pipeline parallelism"},
        {"model",
         "sequence_parallel ub_tp_comm_overlap tp_comm_atomic_ag tp_comm_atomic_rs tp_comm_split_ag tp_comm_split_rs "
         "tp_comm_overlap_ag tp_comm_overlap_rs",
         "no meaning here: of tensor parallelism"},
        {"model", "nccl_communicator_config_path", "no effect on results: NCCL_MIN_CTAS and NCCL_MAX_CTAS in env_vars"},
        {"model", "native_amp_growth_interval hysteresis", "no key: the loss scale of fp16 has its own rule"},
        {"model", "megatron_amp_O2", "no key: weights are in the compute type, with fp32 masters"},
        {"model", "grad_allreduce_chunk_size_mb",
         "no key: a unit's gradients are reduced as one, when its backward has ended"},
        {"model", "gc_interval", "no meaning here: there is no Python"},
        {"model",
         "validation_param_sync_overlap dist_ckpt_format dist_ckpt_load_on_device dist_ckpt_parallel_save "
         "enable_megatron_timers use_tp_pp_dp_mapping enable_cuda_graph defer_embedding_wgrad_compute "
         "wgrad_deferral_limit use_te_rng_tracker",
         "no effect on results: of NeMo's communication, timers and checkpoint files"},
        {"model.megatron_timer_kwargs", "log_every_n_steps log_mode barrier", "no meaning here: of its timers"},
        {"model", "sharp", "no key: NCCL_COLLNET_ENABLE=1 in env_vars"},
        {"model", "fp8_hybrid", "no key: E4M3 forward, E5M2 for gradients"},
        {"model", "fp8_params", "no key: FP8 weights are made of the masters, once a step"},
        {"model", "fp8_interval fp8_amax_history_len fp8_amax_compute_algo reduce_amax",
         "no key: precision.fp8_recipe: delayed scales by the maximum of the step before; tensorwise and rowwise are "
         "the choices beside it"},
        {"model", "use_cpu_initialization", "no key: initial weights depend on train.seed alone"},
        {"model", "onnx_safe apex_transformer_log_level", "no effect on results: of exports and of Apex's log"},
        {"model", "cpu_offloading_num_layers cpu_offloading_activations cpu_offloading_weights",
         "no key: parallel.offload chooses the layers; weights stay on the GPU"},
        {"model.tokenizer", "type library model vocab_file merge_file"},
        {"model.tokenizer", "delimiter use_fast sentencepiece_legacy special_tokens",
         "no key: the data holds token ids"},
        {"model.nsys_profile", "enabled start_step end_step ranks gen_shape"},
        {"model.nsys_profile", "trace", "no key: of the nsys command that `trireme launch` writes"},
        {"model.optim", "name lr weight_decay betas eps grad_sync_dtype dtype master_weights"},
        {"model.optim", "param_sync_dtype", "no key: weights are gathered in precision.compute, or in FP8"},
        {"model.optim",
         "bucket_cap_mb overlap_grad_sync overlap_param_sync contiguous_grad_buffer contiguous_param_buffer capturable "
         "nccl_ub lock_timeout",
         "no effect on results: flat units are reduced and gathered beside the computation"},
        {"model.optim.sched", "name warmup_steps constant_steps min_lr max_steps max_steps_for_lr_sched"},
        {"model.data",
         "data_impl data_prefix splits_string seq_length dataloader_type reset_position_ids reset_attention_mask "
         "eod_mask_loss index_mapping_dir mock_dataset legacy_dataset no_seqlen_plus_one_input_tokens "
         "shuffle_documents"},
        {"model.data.data_prefix", "train validation test"},
        {"model.data",
         "skip_warmup num_workers delay_data_mmap exchange_indices_distributed pin_memory persistent_workers "
         "mmap_bin_files delay_data_init",
         "no effect on results: files are mapped, rows are prepared while the step before runs"},
        {"model.data", "validation_drop_last pad_samples_to_global_batch_size",
         "no key: an evaluation of all rows has those of an incomplete last batch, without padding"},
    });
    for (const char* product : {"fc1", "fc2", "proj", "qkv"})
      for (const char* pass : {"fprop", "dgrad", "wgrad"})
        all.merge(known({{fmt::format("model.ub_tp_comm_overlap_cfg.{}_{}", product, pass).c_str(),
                          "method num_sm cga_size set_sm_margin num_splits aggregate atomic_gemm fp8_buf",
                          "no meaning here: of tensor parallelism"}}));
    all["name"] = "no key: exp_manager names the folder";
    all["restore_from_path"] = "";
    return all;
  }();
  return options;
}

}  // namespace trireme
