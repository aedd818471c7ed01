#include "nemo_keys.h"

#include <fmt/format.h>

namespace trireme {

const KnownKeys& nemo_training_keys() {
  static const KnownKeys keys = [] {
    KnownKeys all = known_keys({
        {"run", "name results_dir time_limit dependency nodes ntasks_per_node",
         "no key: of the job that `trireme launch` submits"},
        {"run", "preprocessed_dir blending_alpha", "no key: write model.data.data_prefix out"},
        {"env_vars", "NVTE_FUSED_ATTN", "no meaning here: of Transformer Engine"},
        {"s3_checkpointing", "max_write_concurrency max_read_concurrency chunk_size_MB enable_async_checkpointing",
         "no meaning here: checkpoints are files"},
        {"trainer", "limit_train_batches"},
        {"trainer",
         "num_nodes devices precision max_steps max_time log_every_n_steps val_check_interval limit_val_batches "
         "limit_test_batches accumulate_grad_batches gradient_clip_val accelerator max_epochs deterministic"},
        {"trainer",
         "logger enable_checkpointing use_distributed_sampler replace_sampler_ddp benchmark enable_model_summary "
         "num_sanity_val_steps enable_progress_bar",
         "no meaning here: PyTorch Lightning's"},
        {"exp_manager", "explicit_log_dir resume_if_exists create_checkpoint_callback create_wandb_logger"},
        {"exp_manager", "exp_dir name create_tensorboard_logger", "no key: event files are in explicit_log_dir"},
        {"exp_manager", "resume_ignore_no_checkpoint", "always: a run without checkpoints starts from step 1"},
        {"exp_manager", "resume_from_checkpoint resume_past_end seconds_to_sleep",
         "no key: the newest whole checkpoint in the results folder is resumed"},
        {"exp_manager",
         "log_step_timing log_global_rank_0_only log_local_rank_0_only create_neptune_logger create_mlflow_logger "
         "create_dllogger_logger",
         "no key: logging.style nemo writes NeMo's tags and logs"},
        {"exp_manager.step_timing_kwargs", "sync_cuda buffer_size",
         "no key: every step is timed, without a synchronisation of its own"},
        {"exp_manager.wandb_logger_kwargs", "project name group resume", "no meaning here: nothing is sent anywhere"},
        {"exp_manager.neptune_logger_kwargs", "description log_model_checkpoints name prefix project tags",
         "no meaning here: nothing is sent anywhere"},
        {"exp_manager.checkpoint_callback_params", "save_top_k"},
        {"exp_manager.checkpoint_callback_params",
         "monitor mode filename model_parallel_size save_last every_n_epochs every_n_train_steps save_best_model "
         "dirpath async_save",
         "no key: checkpoints are named by their step, and the newest are kept"},
        {"exp_manager.checkpoint_callback_params", "always_save_nemo save_nemo_on_train_end",
         "no key: the end of a run always writes model/ in Hugging Face's format"},
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
         "fp8 fp8_e4m3 seed restore_from_path resume_from_checkpoint seq_len_interpolation_factor cpu_offloading"},
        {"model", "apply_query_key_layer_scaling", "no key: it divides and multiplies by the same number"},
        {"model", "name pre_process post_process attention_type mcore_gpt",
         "no meaning here: there is one implementation"},
        {"model", "transformer_engine", "no key: always the own kernels; precision.linear says FP8"},
        {"model",
         "persist_layer_norm grad_div_ar_fusion gradient_accumulation_fusion bias_dropout_add_fusion "
         "masked_softmax_fusion apply_rope_fusion cross_entropy_loss_fusion use_flash_attention "
         "get_attention_mask_from_fusion use_emha",
         "no key: fused wherever a kernel exists"},
        {"model", "gradient_as_bucket_view", "always: gradients lie in one flat buffer of each unit"},
        {"model", "fsdp_sharded_checkpoint", "always: every rank writes its shards"},
        {"model",
         "num_micro_batches_with_partial_activation_checkpoints activations_checkpoint_layers_per_pipeline "
         "overlap_p2p_comm batch_p2p_comm",
         "no meaning here: of pipeline parallelism"},
        {"model",
         "sequence_parallel ub_tp_comm_overlap tp_comm_atomic_ag tp_comm_atomic_rs tp_comm_split_ag tp_comm_split_rs "
         "tp_comm_overlap_ag tp_comm_overlap_rs nccl_communicator_config_path",
         "no meaning here: of tensor parallelism"},
        {"model", "native_amp_growth_interval hysteresis", "no key: the loss scale of fp16 has its own rule"},
        {"model", "megatron_amp_O2", "always: weights in the compute type with fp32 masters"},
        {"model", "grad_allreduce_chunk_size_mb sync_batch_comm gc_interval",
         "no key: a unit's gradients are reduced as one, when its backward has ended"},
        {"model",
         "validation_param_sync_overlap dist_ckpt_format dist_ckpt_load_on_device dist_ckpt_parallel_save "
         "enable_megatron_timers use_tp_pp_dp_mapping enable_cuda_graph defer_embedding_wgrad_compute "
         "wgrad_deferral_limit use_te_rng_tracker",
         "no effect on results: of NeMo's communication, timers and checkpoint files"},
        {"model.megatron_timer_kwargs", "log_every_n_steps log_mode barrier", "no meaning here: of its timers"},
        {"model", "sharp", "no key: NCCL_COLLNET_ENABLE=1 in env_vars"},
        {"model", "fp8_hybrid", "always: E4M3 forward, E5M2 for gradients"},
        {"model", "fp8_margin fp8_interval fp8_amax_history_len fp8_amax_compute_algo fp8_wgrad fp8_params reduce_amax",
         "no key: precision.fp8_recipe: delayed scales by the maximum of the step before; tensorwise and rowwise are "
         "the choices beside it"},
        {"model", "use_cpu_initialization", "no key: initial weights depend on train.seed alone"},
        {"model", "onnx_safe apex_transformer_log_level", "no meaning here"},
        {"model", "cpu_offloading_num_layers cpu_offloading_activations cpu_offloading_weights",
         "no key: parallel.recompute and the policies save memory"},
        {"model.tokenizer", "type library model vocab_file merge_file"},
        {"model.tokenizer", "delimiter use_fast sentencepiece_legacy special_tokens",
         "no key: the data holds token ids"},
        {"model.nsys_profile", "enabled start_step end_step ranks gen_shape"},
        {"model.nsys_profile", "trace", "no key: of the nsys command that `trireme launch` writes"},
        {"model.optim", "name lr weight_decay betas eps grad_sync_dtype"},
        {"model.optim",
         "bucket_cap_mb overlap_grad_sync overlap_param_sync contiguous_grad_buffer contiguous_param_buffer dtype "
         "param_sync_dtype capturable master_weights nccl_ub lock_timeout",
         "always: reductions and gathers of flat units run beside the computation"},
        {"model.optim.sched", "name warmup_steps constant_steps min_lr max_steps max_steps_for_lr_sched"},
        {"model.data",
         "data_impl data_prefix splits_string seq_length dataloader_type reset_position_ids reset_attention_mask "
         "eod_mask_loss index_mapping_dir mock_dataset legacy_dataset no_seqlen_plus_one_input_tokens "
         "shuffle_documents"},
        {"model.data.data_prefix", "train validation test"},
        {"model.data",
         "skip_warmup num_workers delay_data_mmap exchange_indices_distributed validation_drop_last "
         "pad_samples_to_global_batch_size pin_memory persistent_workers mmap_bin_files delay_data_init",
         "no meaning here: files are mapped, rows are prepared while the step before runs"},
    });
    for (const char* product : {"fc1", "fc2", "proj", "qkv"})
      for (const char* pass : {"fprop", "dgrad", "wgrad"})
        all.merge(known_keys({{fmt::format("model.ub_tp_comm_overlap_cfg.{}_{}", product, pass).c_str(),
                               "method num_sm cga_size set_sm_margin num_splits aggregate atomic_gemm fp8_buf",
                               "no meaning here: of tensor parallelism"}}));
    all["name"] = all["restore_from_path"] = "no meaning here";
    return all;
  }();
  return keys;
}

namespace {

void add_below(const ConfNode& node, const std::string& prefix, TreeOptions& options) {
  for (const ConfEntry& entry : node.entries) {
    if (prefix.empty() && (entry.key == "hydra" || entry.key == "defaults")) continue;
    const std::string name = prefix.empty() ? entry.key : prefix + "." + entry.key;
    const ConfNode& value = entry.value;
    // The key in the file, or the override that gave the value.
    const std::string place = (value.place.line == 0 ? value.place : entry.place).text();
    if (!value.is(ConfNode::Kind::kMap))
      options.add(name, {value, value.str(), place});
    else if (options.is_section(name))
      add_below(value, name, options);
    else
      options.unknown_section(name, place);
  }
}

}  // namespace

void add_conf_options(const ConfNode& training, TreeOptions& options) { add_below(training, "", options); }

}  // namespace trireme
