// The training configurations of NeMo's launcher as ours: data, optimizer, run.
#include "nemo_importer.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme {

void NemoImporter::data() {
  const int64_t length = options_.integer("model.data.seq_length", options_.integer("model.encoder_seq_length", 2048));
  if (options_.integer("model.encoder_seq_length", length) != length)
    refuse("model.data.seq_length", fmt::format("must be {}", options_.shown("model.encoder_seq_length")));
  else
    options_.no_key("model.encoder_seq_length", "as model.data.seq_length");
  set("model.data.seq_length", "data.seq_length", std::to_string(length));
  const std::string impl = options_.word("model.data.data_impl", "mmap", {"mmap", "mock"});
  mock_ = impl == "mock" || options_.flag("model.data.mock_dataset", false);
  if (!is("model.data.dataloader_type", "single", {"single"}))
    refuse("model.data.dataloader_type", "only single: samples in the order of the index map");
  else
    options_.no_key("model.data.dataloader_type", "always: samples in the order of the index map");
  only("model.data.legacy_dataset", true,
       "the maps are NeMo's; in the result data.index_rules: core has Megatron core's");
  only("model.data.shuffle_documents", true, "the index maps shuffle documents");
  only("model.data.no_seqlen_plus_one_input_tokens", false, "rows are read with the token after their last one");
  if (mock_) {
    draft_.set("data.train", "mock");
    draft_.say(options_.shown("model.data.data_impl"),
               "data.train: mock; labels are drawn independently, the loss stays at ln(vocabulary)");
    if (prefix_.is(ConfNode::Kind::kList) && !prefix_.items.empty())
      draft_.say("model.data.data_prefix", "not read: the data is mock");
    for (const char* option : {"model.data.splits_string", "model.data.index_mapping_dir", "model.data.data_prefix"})
      options_.no_key(option, "no meaning with mock data");
    return;
  }
  data_prefixes();
  if (options_.given("model.data.index_mapping_dir"))
    set("model.data.index_mapping_dir", "data.index_cache",
        yaml_text(absolute(options_.text("model.data.index_mapping_dir", ""))));
  for (const char* name : {"reset_position_ids", "reset_attention_mask", "eod_mask_loss"}) {
    const std::string option = std::string("model.data.") + name;
    const bool on = options_.flag(option, false);
    // NeMo's end of a document is the tokenizer's EOS; GPT-2's vocabulary ends with it.
    const std::optional<int64_t> eos = tokenizer_ ? tokenizer_->eos
                                       : gpt_     ? std::optional<int64_t>(50256)
                                                  : std::nullopt;
    if (on && eos)
      draft_.set("data.eos_token", std::to_string(*eos));
    else if (on)
      refuse(option, "the id that ends a document is not known here: the tokenizer's file is not there");
    if (on)
      set(option, std::string("data.") + name, "true");
    else
      options_.no_key(option, "the default");
  }
}

void NemoImporter::data_prefixes() {
  if (prefix_.is(ConfNode::Kind::kMap)) {
    options_.no_key("model.data.data_impl", "data.train names .bin and .idx files");
    // One set of files for each of the three.
    for (const auto& [name, key] :
         {std::pair("train", "data.train"), {"validation", "data.valid"}, {"test", "data.test"}}) {
      const std::string option = std::string("model.data.data_prefix.") + name;
      const std::vector<std::string> paths = options_.list(option);
      if (paths.size() > 1) {
        refuse(option, "one set of files each; a blend is a list in data_prefix");
      } else if (!paths.empty()) {
        set(option, key, yaml_text(absolute(paths.front())));
      }
    }
    return;
  }
  const std::vector<ConfNode>& items = prefix_.items;
  if (items.empty()) {
    draft_.problem(
        fmt::format("{}: names no data: write a path, or weights and paths in turn (data_impl=mock needs none)",
                    options_.shown("model.data.data_prefix")));
    draft_.set("data.train", "none");
    return;
  }
  std::string parts;
  if (items.size() == 1) {
    parts = yaml_text(absolute(items.front().str()));
  } else {
    for (size_t i = 0; i < items.size(); i += 2) {
      const bool number = items[i].is(ConfNode::Kind::kNumber) || items[i].is(ConfNode::Kind::kInteger);
      if (!number || i + 1 == items.size() || !items[i + 1].is(ConfNode::Kind::kText)) {
        draft_.problem(fmt::format("{}: model.data.data_prefix: weights and paths must follow each other, not {}",
                                   items[i].place.text(), items[i].str()));
        break;
      }
      parts += fmt::format("\n    - {{path: {}, weight: {}}}", yaml_text(absolute(items[i + 1].text)), items[i].str());
    }
  }
  draft_.set("data.train", parts);
  draft_.say("model.data.data_prefix",
             items.size() == 1 ? "data.train: " + parts
                               : fmt::format("data.train: {} sets of files with weights", items.size() / 2));
  (void)options_.shown("model.data.data_prefix");  // the line above is without the long list
  options_.no_key("model.data.data_impl", "data.train names .bin and .idx files");
  const std::string splits = options_.text("model.data.splits_string", "900,50,50");
  set("model.data.splits_string", "data.splits", yaml_text(splits));
  splits_ = true;
}

void NemoImporter::optimizer() {
  const std::string name = options_.word("model.optim.name", "distributed_fused_adam",
                                         {"distributed_fused_adam", "mcore_distributed_optim", "fused_adam", "adamw"});
  draft_.set("optimizer.name", "adamw");
  set("model.optim.lr", "optimizer.lr", yaml_number(options_.number("model.optim.lr", 1e-4)));
  set("model.optim.weight_decay", "optimizer.weight_decay",
      yaml_number(options_.number("model.optim.weight_decay", 0.01)));
  std::vector<std::string> betas = options_.list("model.optim.betas");
  if (betas.empty()) betas = {"0.9", "0.999"};
  set("model.optim.betas", "optimizer.betas", "[" + join(betas, ", ") + "]");
  set("model.optim.eps", "optimizer.eps", yaml_number(options_.number("model.optim.eps", 1e-8)));
  const double clip = options_.number("trainer.gradient_clip_val", 0);
  set("trainer.gradient_clip_val", "optimizer.grad_clip", yaml_number(clip));

  const bool fsdp = options_.flag("model.fsdp", false), divided = name != "fused_adam" && name != "adamw";
  const std::string strategy = options_.word("model.fsdp_sharding_strategy", "full", {"full", "hybrid", "grad"});
  if (fsdp) {
    set("model.fsdp_sharding_strategy", "parallel.policy", strategy == "grad" ? "gradients" : "full");
    draft_.set("parallel.shard_size", strategy == "hybrid" ? "auto" : "world");
    draft_.say(options_.shown("model.optim.name"), "optimizer.name: adamw; FSDP divides its state");
  } else {
    options_.no_key("model.fsdp_sharding_strategy", "not used there: model.fsdp is off");
    // It reduces and scatters after the last micro-batch only, and keeps whole gradients until then.
    const std::string policy = !divided ? "none" : global_ / (micro_ * ranks_) > 1 ? "optimizer" : "gradients";
    draft_.set("parallel.policy", policy);
    draft_.say(options_.shown("model.optim.name"),
               fmt::format("optimizer.name: adamw, parallel.policy: {}{}", policy,
                           policy == "optimizer" ? " (gradients stay whole over the micro-batches of a step)" : ""));
  }
  options_.no_key("model.fsdp", fsdp ? "parallel.policy" : "parallel.policy, from the optimizer");
  const std::string reduce = options_.text(fsdp ? "model.fsdp_grad_reduce_dtype" : "model.optim.grad_sync_dtype", "32");
  if (const std::string option = fsdp ? "model.fsdp_grad_reduce_dtype" : "model.optim.grad_sync_dtype";
      options_.given(option)) {
    const bool low = reduce.starts_with("bf16") || reduce.starts_with("16");
    if (!low && !reduce.starts_with("32") && reduce != "fp32") refuse(option, "one of 32, bf16, 16");
    set(option, "parallel.reduce_dtype", low ? "compute" : "fp32");
  }
  if (!fsdp) options_.no_key("model.fsdp_grad_reduce_dtype", "not used there: model.fsdp is off");
}

void NemoImporter::schedule() {
  const std::string name = options_.word("model.optim.sched.name", "CosineAnnealing", {"CosineAnnealing"});
  draft_.set("schedule.name", "cosine");
  draft_.say(options_.shown("model.optim.sched.name"), name == "CosineAnnealing" ? "schedule.name: cosine" : "");
  const int64_t constant = options_.count("model.optim.sched.constant_steps", 0, 0);
  if (constant > 0)
    set("model.optim.sched.constant_steps", "schedule.constant_steps", std::to_string(constant));
  else
    options_.no_key("model.optim.sched.constant_steps", "the default");
  const int64_t warmup = options_.integer("model.optim.sched.warmup_steps", 0);
  set("model.optim.sched.warmup_steps", "schedule.warmup_steps", std::to_string(warmup));
  set("model.optim.sched.min_lr", "schedule.min_lr", yaml_number(options_.number("model.optim.sched.min_lr", 0)));
  for (const char* option : {"model.optim.sched.max_steps", "model.optim.sched.max_steps_for_lr_sched"})
    if (options_.given(option) && options_.integer(option, 0) != options_.integer("trainer.max_steps", 0))
      refuse(option, "the schedule has the length of the run, trainer.max_steps");
}

void NemoImporter::trainer() {
  const int64_t steps = options_.integer("trainer.max_steps", 1);
  if (steps < 1) refuse("trainer.max_steps", "must be at least 1");
  set("trainer.max_steps", "train.max_steps", std::to_string(std::max<int64_t>(1, steps)));
  if (options_.given("trainer.deterministic"))
    set("trainer.deterministic", "train.deterministic",
        options_.flag("trainer.deterministic", false) ? "true" : "false");
  if (const std::string train = "trainer.limit_train_batches"; options_.given(train)) {
    // Batches of an epoch; max_steps ends the run.
    if (options_.is_fraction(train) ? options_.number(train, 1) != 1 : options_.integer(train, steps) < steps)
      refuse(train, "the run would read the same rows again: leave it out, or set it to trainer.max_steps");
    else
      options_.no_key(train, "no key: max_steps ends the run");
  }
  if (options_.flag("model.deterministic_mode", false)) set("model.deterministic_mode", "train.deterministic", "true");
  if (options_.given("trainer.max_time"))
    set("trainer.max_time", "train.max_time", yaml_text(options_.text("trainer.max_time", "")));
  set("trainer.log_every_n_steps", "logging.every_steps",
      std::to_string(options_.count("trainer.log_every_n_steps", 10, 1)));
  if (options_.integer("trainer.accumulate_grad_batches", 1) != 1)
    refuse("trainer.accumulate_grad_batches",
           "must be 1, as in NeMo: global and micro batch size give the micro-batches");
  else
    options_.no_key("trainer.accumulate_grad_batches", "no key: global and micro batch size give the micro-batches");
  set("model.seed", "train.seed", std::to_string(options_.integer("model.seed", 1234)));
  draft_.set("train.loss", "token_mean");
}

NemoImporter::Batches NemoImporter::batches(const std::string& option) {
  // Lightning: an integer counts batches, a fraction is a share of all, and the default is 1.0.
  if (!options_.given(option) || (options_.is_fraction(option) && options_.number(option, 1) == 1)) return {true, 0};
  const double count = options_.number(option, 0);
  if (options_.is_fraction(option) && count != 0)
    refuse(option, count > 0 && count < 1 ? "a share of the batches is not available: write a number of batches, or 1.0"
                                          : "a number of batches is an integer, as NeMo says; 1.0 is all of them");
  else if (count < 0 || count > 2147483647)
    refuse(option, "must be a number of batches from 0 to 2147483647, or 1.0 for all");
  return {false, static_cast<int64_t>(std::clamp(count, 0.0, 2147483647.0)) * global_};
}

int64_t NemoImporter::validation_interval() {
  const std::string option = "trainer.val_check_interval";
  if (!options_.given(option)) return 0;
  if (options_.is_fraction(option)) {
    if (options_.number(option, 1) != 1) refuse(option, "must be a number of steps, or 1.0 for the end of the run");
    return 0;
  }
  const int64_t every = options_.integer(option, 1);
  if (every < 1 || every > 2147483647)
    refuse(option, "must be a number of steps from 1 to 2147483647, or 1.0 for the end of the run");
  return std::clamp<int64_t>(every, 1, 2147483647);
}

void NemoImporter::evaluation() {
  const int64_t every = validation_interval();
  const auto evaluated = [&](const char* option, const char* key, const char* data_key, const Batches& count) {
    if (mock_) draft_.set(data_key, "mock", options_.origin(option));
    if (!count.all)
      set(option, key, std::to_string(count.samples), fmt::format("{} batches", count.samples / global_));
    else if (mock_)
      refuse(option, "mock data has no end: write a number of batches");
    else if (prefix_.items.size() > 2)
      refuse(option, "a blend has no end: write a number of batches");
    else
      draft_.say(options_.shown(option), fmt::format("{}: null, all rows", key));
  };
  const Batches valid = batches("trainer.limit_val_batches"), test = batches("trainer.limit_test_batches");
  const bool validates = valid.all ? options_.given("trainer.limit_val_batches") || !mock_ : valid.samples > 0;
  if (validates) {
    if (every > 0)
      set("trainer.val_check_interval", "eval.every_samples", std::to_string(every * global_),
          fmt::format("{} steps", every));
    else
      options_.no_key("trainer.val_check_interval", "eval.every_samples: null, at the end of the run");
    evaluated("trainer.limit_val_batches", "eval.samples", "data.valid", valid);
  } else {
    options_.no_key("trainer.val_check_interval", "nothing: limit_val_batches is 0");
    options_.no_key("trainer.limit_val_batches",
                    splits_ ? fmt::format("eval.samples: {}; an evaluation of one batch at the end remains", global_)
                            : "no data.valid, no evaluation");
    if (splits_) draft_.set("eval.samples", std::to_string(global_));
  }
  const bool has_test = splits_ || mock_ || options_.given("model.data.data_prefix.test");
  if (validates && has_test && options_.given("trainer.limit_test_batches") && (test.all || test.samples > 0))
    evaluated("trainer.limit_test_batches", "eval.test_samples", "data.test", test);
  else
    options_.no_key("trainer.limit_test_batches",
                    validates ? "nothing: there are no test rows, or 0 of them" : "nothing: there is no validation");
}

void NemoImporter::precision() {
  const std::string text = options_.text("trainer.precision", "bf16");
  const bool bf16 = text.starts_with("bf16"), fp16 = text.starts_with("16"), fp32 = text.starts_with("32");
  const std::string suffix = text.substr(std::min<size_t>(text.size(), bf16 ? 4 : 2));
  if ((!bf16 && !fp16 && !fp32) || (!suffix.empty() && suffix != "-mixed" && suffix != "-true"))
    refuse("trainer.precision", "one of bf16, 16, 32, and their -mixed and -true");
  set("trainer.precision", "precision.compute", fp32 ? "fp32" : fp16 ? "fp16" : "bf16");
  const double scale = options_.number("model.native_amp_init_scale", 65536);
  if (fp16 && !(scale >= 1)) refuse("model.native_amp_init_scale", "must be at least 1");
  if (fp16)
    set("model.native_amp_init_scale", "precision.loss_scale", yaml_number(std::clamp(scale, 1.0, 16777216.0)),
        scale > 16777216 ? "the largest that is allowed" : "");
  else
    options_.no_key("model.native_amp_init_scale", "no meaning here: only fp16 has a loss scale");
  const bool fp8 = options_.flag("model.fp8", false);
  if (fp8 && options_.flag("model.fp8_e4m3", false))
    refuse("model.fp8_e4m3", "gradients are E5M2: set fp8_hybrid");
  else
    options_.no_key("model.fp8_e4m3", "gradients are E5M2, as with fp8_hybrid");
  if (!fp8) {
    options_.no_key("model.fp8", "precision.linear: compute");
    return;
  }
  set("model.fp8", "precision.linear", "fp8", "precision.fp8_recipe: delayed");
  draft_.set("precision.fp8_recipe", "delayed");
}

void NemoImporter::parallel() {
  if (!options_.flag("model.fsdp", false))
    draft_.say("parallel.shard_size",
               "auto: the plan chooses the ranks that share; world divides over all, as NeMo does");
}

void NemoImporter::recompute() {
  const std::string what = options_.text("model.activations_checkpoint_granularity", "none"),
                    how = options_.word("model.activations_checkpoint_method", "uniform", {"uniform", "block"});
  const int64_t count = options_.integer("model.activations_checkpoint_num_layers", 0);
  std::string value = "none";
  if (what == "full" && how == "block")
    value = count >= layers_ ? "full" : count > 0 ? fmt::format("{}/{}", count, layers_) : "none";
  else if (what == "full")
    value = "full";
  else if (what != "none" && what != "selective")
    refuse("model.activations_checkpoint_granularity", "one of null, selective, full");
  set("model.activations_checkpoint_granularity", "parallel.recompute", value,
      what == "selective" ? "the attention kernels keep no scores: they always recompute them" : "");
  const std::string of = what == "full" ? "parallel.recompute" : "nothing: granularity is not full";
  options_.no_key("model.activations_checkpoint_method", of);
  options_.no_key("model.activations_checkpoint_num_layers", of);
}

void NemoImporter::experiment() {
  set("exp_manager.explicit_log_dir", "output.dir",
      yaml_text(absolute(options_.text("exp_manager.explicit_log_dir", "results"))));
  const bool saves = options_.flag("exp_manager.create_checkpoint_callback", true);
  const int64_t every = validation_interval();
  if (saves) {
    if (every > 0)
      set("exp_manager.create_checkpoint_callback", "output.save_every_samples", std::to_string(every * global_),
          "after each validation");
    else
      options_.no_key("exp_manager.create_checkpoint_callback", "a signal saves (output.save_on_stop)");
    const int64_t keep = options_.integer("exp_manager.checkpoint_callback_params.save_top_k", 10);
    set("exp_manager.checkpoint_callback_params.save_top_k", "output.keep_last",
        std::to_string(std::max<int64_t>(2, keep < 0 ? 9007199254740991 / 4194304 : keep)),
        "the newest; NeMo keeps the best and the last");
  } else {
    set("exp_manager.create_checkpoint_callback", "output.save_on_stop", "false", "no checkpoints");
    options_.no_key("exp_manager.checkpoint_callback_params.save_top_k", "no checkpoints");
  }
  options_.no_key("exp_manager.resume_if_exists",
                  options_.flag("exp_manager.resume_if_exists", false)
                      ? "always: a run goes on from the newest whole checkpoint in output.dir"
                      : "no key: `trireme launch` moves the results of an earlier run to run_<k>");
  options_.no_key("exp_manager.create_wandb_logger", "no meaning here: nothing is sent anywhere");
  draft_.set("logging.style", "nemo");
  draft_.say("exp_manager", "logging.style: nemo: log files and TensorBoard events of NeMo's experiment manager");
}

void NemoImporter::profile() {
  if (!options_.flag("model.nsys_profile.enabled", false)) {
    for (const char* name : {"enabled", "start_step", "end_step", "ranks", "gen_shape"})
      options_.no_key(std::string("model.nsys_profile.") + name, "nothing: profiling is off");
    return;
  }
  const int64_t start = options_.count("model.nsys_profile.start_step", 10, 0),
                end = options_.count("model.nsys_profile.end_step", 10, start);
  std::vector<std::string> ranks = options_.list("model.nsys_profile.ranks");
  if (ranks.empty()) ranks = {"0"};
  draft_.set("profile.wait", std::to_string(std::max<int64_t>(0, start - 1)));
  draft_.set("profile.warmup", start > 0 ? "1" : "0");
  draft_.set("profile.active", std::to_string(end - start + 1));
  draft_.set("profile.repeat", "1");
  draft_.set("profile.ranks", "[" + join(ranks, ", ") + "]");
  draft_.set("profile.shapes", options_.flag("model.nsys_profile.gen_shape", false) ? "true" : "false");
  draft_.say(options_.shown("model.nsys_profile.enabled"),
             fmt::format("profile: steps {} to {} of ranks {}, between cudaProfilerStart and cudaProfilerStop",
                         start + 1, end + 1, join(ranks, ", ")));
}

}  // namespace trireme
