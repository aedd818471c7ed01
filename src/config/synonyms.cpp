#include "synonyms.h"

#include <fmt/format.h>

namespace trireme {

namespace {

/// Keys of other trainers, and what they are here.
constexpr std::pair<const char*, const char*> kSynonyms[] = {
    {"learning_rate", "optimizer.lr"},
    {"base_lr", "optimizer.lr"},
    {"max_lr", "optimizer.lr"},
    {"optim", "optimizer.name"},
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"adam_epsilon", "optimizer.eps"},
    {"epsilon", "optimizer.eps"},
    {"max_grad_norm", "optimizer.grad_clip"},
    {"gradient_clip_val", "optimizer.grad_clip"},
    {"clip_grad", "optimizer.grad_clip"},
    {"lr_scheduler_type", "schedule.name"},
    {"scheduler", "schedule.name"},
    {"num_warmup_steps", "schedule.warmup_steps"},
    {"batch_size", "batch.global_batch_size"},
    {"train_batch_size", "batch.global_batch_size"},
    {"per_device_train_batch_size", "batch.micro_batch_size"},
    {"per_device_batch_size", "batch.micro_batch_size"},
    {"local_batch_size", "batch.micro_batch_size"},
    {"gradient_accumulation_steps", "batch.global_batch_size"},
    {"accumulate_grad_batches", "batch.global_batch_size"},
    {"num_steps", "train.max_steps"},
    {"steps", "train.max_steps"},
    {"max_seq_length", "data.seq_length"},
    {"max_length", "data.seq_length"},
    {"seq_len", "data.seq_length"},
    {"sequence_length", "data.seq_length"},
    {"block_size", "data.seq_length"},
    {"dataset", "data.train"},
    {"train_file", "data.train"},
    {"validation_file", "data.valid"},
    {"rank", "lora.r"},
    {"lora_r", "lora.r"},
    {"lora_rank", "lora.r"},
    {"lora_alpha", "lora.alpha"},
    {"lora_dropout", "lora.dropout"},
    {"lora_target_modules", "lora.target_modules"},
    {"modules", "lora.target_modules"},
    {"model_name_or_path", "model.path"},
    {"pretrained_model_name_or_path", "model.path"},
    {"bf16", "precision.compute"},
    {"fp16", "precision.compute"},
    {"dtype", "precision.compute"},
    {"mixed_precision", "precision.compute"},
    {"fp8", "precision.linear"},
    {"gradient_checkpointing", "parallel.recompute"},
    {"activation_checkpointing", "parallel.recompute"},
    {"sharding_strategy", "parallel.policy"},
    {"output_dir", "output.dir"},
    {"save_steps", "output.save_every_samples"},
    {"save_interval", "output.save_every_samples"},
    {"eval_steps", "eval.every_samples"},
    {"val_check_interval", "eval.every_samples"},
    {"logging_steps", "logging.every_steps"},
    {"log_interval", "logging.every_steps"},
};

}  // namespace

std::string suggest_synonym(const std::string& key,
                            const std::vector<std::pair<std::string, std::vector<std::string>>>& offered) {
  for (const auto& [name, ours] : kSynonyms) {
    if (key != name) continue;
    for (const auto& [section, keys] : offered)
      for (const std::string& candidate : keys)
        if (section + "." + candidate == ours) return fmt::format(" Did you mean '{}'?", ours);
  }
  return "";
}

}  // namespace trireme
