#include "reader.h"

#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace trireme {

namespace {

constexpr size_t kMaxPath = 4096;

std::string qualified(const Section& section, const Key& key) { return fmt::format("{}.{}", section.name, key.name); }

std::string did_you_mean_all(const std::vector<std::string>& names) {
  return names.empty() ? "" : fmt::format(" Did you mean '{}'?", join(names, "' or '"));
}

/// Keys that begin with the words of `key`, as keep_last for keep, or count the same in another unit, as every_samples
/// for every_steps.
std::vector<std::string> same_beginning(const std::string& key, const std::vector<std::string>& keys) {
  const auto without_unit = [](const std::string& name) {
    for (const std::string_view unit : {"_steps", "_samples", "_minutes", "_epochs", "_tokens", "_iters"})
      if (name.ends_with(unit)) return name.substr(0, name.size() - unit.size());
    return std::string();
  };
  const std::string words = without_unit(key);
  std::vector<std::string> found;
  for (const std::string& candidate : keys)
    if (candidate.starts_with(key + "_") || (!words.empty() && without_unit(candidate) == words))
      found.push_back(candidate);
  return found;
}

/// What to write for a word that is none of the key's choices.
std::string word_hint(const Key& key, const std::string& word) {
  const auto found = std::find_if(key.words_elsewhere.begin(), key.words_elsewhere.end(),
                                  [&](const auto& pair) { return pair.first == word; });
  if (found != key.words_elsewhere.end()) return did_you_mean_all({found->second});
  std::vector<std::string> words;
  for (const KeyChoice& choice : key.choices) words.emplace_back(choice.word);
  return did_you_mean(word, words);
}

bool in_range(const Key& key, double value) {
  return std::isfinite(value) && (key.above_min ? value > key.min : value >= key.min) &&
         (key.below_max ? value < key.max : value <= key.max);
}

constexpr const char *kAccumulation =
                         " Gradients accumulate over batch.global_batch_size / (batch.micro_batch_size x ranks) "
                         "micro-batches.",
                     *kRows = " data.train has rows: trireme data chat, data pack and others make them.",
                     *kPacking = " Rows are packed before the run: trireme data chat, trireme data pack.",
                     *kTemplate = " trireme data chat writes conversations by the model's template (--template).",
                     *kLossMask = " trireme data chat decides which tokens have a loss.",
                     *kMixing = " trireme data chat mixes files: a --weight for each --input.",
                     *kFewBits =
                         " Matrices beneath adapters have four bits with precision.frozen: nf4, eight with fp8.",
                     *kAttention = " Attention always runs in fused kernels.",
                     *kAdapter = " A section lora trains an adapter; without it all parameters are trained.",
                     *kResumes = " A run resumes by itself when output.dir holds its checkpoints.",
                     *kTensorboard =
                         " logging.tensorboard: true writes event files, which wandb sync --sync-tensorboard takes.",
                     *kUpload = " Nothing is uploaded: hf upload takes adapter/ or model/ of output.dir.",
                     *kReadAhead = " Rows are read ahead without a setting.",
                     *kFused = " Fused kernels run without a setting.",
                     *kSharding = " The plan shards what is trained: parallel.policy, parallel.shard_size.",
                     *kTokens =
                         " The model's files hold its tokens: trireme model resize-vocab --add-token, --eos-token.",
                     *kEvaluations = " Evaluations have no batch size and no number format of their own.",
                     *kSavings = " output.save_every_samples counts samples.",
                     *kBest = " The best evaluation is that of the lowest loss, for BERT of the highest accuracy.",
                     *kReference = " The reference stays the model that training starts from.",
                     *kModelFiles = " config.json of model.path has what the model is: change it there.",
                     *kOneRate = " All parameters have optimizer.lr, matrices under Muon optimizer.matrix_lr.",
                     *kLosses = " Section preference has the losses that are there; this is none of them.";

/// Other trainers' names for what is no key here.
const std::map<std::string_view, const char*> kNoKeys = {
    {"gradient_accumulation_steps", kAccumulation},
    {"accumulate_grad_batches", kAccumulation},
    {"init_lora_weights", " A is drawn and B is zero, as with peft's default; lora.adapter starts from an adapter."},
    {"lora_target_linear", " lora.target_modules: all-linear takes every product of the blocks."},
    {"resume_from_checkpoint", kResumes},
    {"auto_resume_from_checkpoints", kResumes},
    {"datasets", kRows},
    {"dataset_dir", kRows},
    {"dataset_name", kRows},
    {"packing", kPacking},
    {"sample_packing", kPacking},
    {"group_by_length", kPacking},
    {"chat_template", kTemplate},
    {"template", kTemplate},
    {"assistant_only_loss", kLossMask},
    {"completion_only_loss", kLossMask},
    {"train_on_inputs", kLossMask},
    {"train_on_prompt", kLossMask},
    {"mask_history", " trireme data chat --loss last: a loss on the last answer of a conversation alone."},
    {"last_response_only", " trireme data chat --loss last: a loss on the last answer of a conversation alone."},
    {"interleave_probs", kMixing},
    {"dataset_mixer", kMixing},
    {"dataset_mixture", kMixing},
    {"truncation_mode", " trireme data preference cuts pairs of answers: --max-length, --truncation-mode."},
    {"val_set_size", " trireme data chat and data pack divide the data: --valid-fraction."},
    {"val_size", " trireme data chat and data pack divide the data: --valid-fraction."},
    {"load_in_4bit", kFewBits},
    {"load_in_8bit", kFewBits},
    {"quantization_bit", kFewBits},
    {"deepspeed", kSharding},
    {"report_to", kTensorboard},
    {"use_wandb", kTensorboard},
    {"wandb_project", kTensorboard},
    {"flash_attention", kAttention},
    {"flash_attn", kAttention},
    {"attn_implementation", kAttention},
    {"dataloader_num_workers", kReadAhead},
    {"metric_for_best_model", kBest},
    {"finetuning_type", kAdapter},
    {"adapter", kAdapter},
    {"peft_type", kAdapter},
    {"dataset_config", kRows},
    {"dataset_train_split", kRows},
    {"dataset_test_split", kRows},
    {"dataset_kwargs", kRows},
    {"dataset_num_proc", kRows},
    {"dataset_streaming", kRows},
    {"streaming", kRows},
    {"pretraining_dataset", kRows},
    {"dataset_prepared_path", kRows},
    {"dataset_text_field", " trireme data chat and data pack take --field; data.column names the field of documents."},
    {"eval_packing", kPacking},
    {"packing_strategy", kPacking},
    {"padding_free", kPacking},
    {"eval_sample_packing", kPacking},
    {"pad_to_sequence_len", kPacking},
    {"sample_packing_eff_est", kPacking},
    {"chat_template_path", kTemplate},
    {"chat_template_jinja", kTemplate},
    {"default_system_message", kTemplate},
    {"roles_to_train", kLossMask},
    {"train_on_eos", kLossMask},
    {"train_on_eot", kLossMask},
    {"excess_length_strategy", " trireme data chat --long cuts or drops conversations that are longer than a row."},
    {"eos_token",
     " data.eos_token is the id that ends a document. The token that ends a turn of a chat, as TRL's eos_token, is the "
     "model's: trireme model resize-vocab --eos-token."},
    {"eot_tokens", kTokens},
    {"pad_token", kTokens},
    {"resize_vocab", kTokens},
    {"special_tokens", kTokens},
    {"tokens", kTokens},
    {"added_tokens_overrides", kTokens},
    {"resize_token_embeddings_to_32x", kTokens},
    {"use_peft", kAdapter},
    {"lora_task_type", kAdapter},
    {"xformers_attention", kAttention},
    {"sdp_attention", kAttention},
    {"flex_attention", kAttention},
    {"eager_attention", kAttention},
    {"torch_compile", kFused},
    {"use_liger_kernel", kFused},
    {"cut_cross_entropy", kFused},
    {"lora_mlp_kernel", kFused},
    {"lora_qkv_kernel", kFused},
    {"lora_o_kernel", kFused},
    {"fsdp_config", kSharding},
    {"fsdp_version", kSharding},
    {"dp_replicate_size", kSharding},
    {"tensor_parallel_size",
     " Tensors are not divided: parallel.policy full shards weights, parallel.context_size rows."},
    {"eval_batch_size", kEvaluations},
    {"per_device_eval_batch_size", kEvaluations},
    {"eval_strategy", " eval.every_samples counts samples."},
    {"evals_per_epoch", " eval.every_samples counts samples."},
    {"save_strategy", kSavings},
    {"saves_per_epoch", kSavings},
    {"logging_strategy", " logging.every_steps counts steps."},
    {"greater_is_better", kBest},
    {"f_divergence_type", kLosses},
    {"f_alpha_divergence_coef", kLosses},
    {"discopop_tau", kLosses},
    {"ld_alpha", kLosses},
    {"loss_weights", kLosses},
    {"use_weighting", kLosses},
    {"dpo_use_weighting", kLosses},
    {"sync_ref_model", kReference},
    {"ref_model_sync_steps", kReference},
    {"average_tokens_across_devices", " train.loss: token_mean is the mean over the tokens of all ranks."},
    {"lr_scheduler_kwargs", " Section schedule has the keys of each schedule."},
    {"cosine_min_lr_ratio", " schedule.min_lr is a rate: the ratio times optimizer.lr."},
    {"optim_args", " Section optimizer has the keys of each optimizer."},
    {"gradient_checkpointing_kwargs", " parallel.recompute says what backward recomputes."},
    {"model_revision", " model.path is a directory: hf download --revision chooses."},
    {"use_cpu", " TRIREME_DEVICE=cpu in the environment forces the CPU."},
    {"run_name", kTensorboard},
    {"wandb_name", kTensorboard},
    {"wandb_entity", kTensorboard},
    {"mlflow_tracking_uri", kTensorboard},
    {"push_to_hub", kUpload},
    {"hub_model_id", kUpload},
    {"hub_strategy", kUpload},
    {"dataloader_prefetch_factor", kReadAhead},
    {"dataloader_pin_memory", kReadAhead},
    {"liger_rope", kFused},
    {"liger_rms_norm", kFused},
    {"liger_glu_activation", kFused},
    {"liger_fused_linear_cross_entropy", kFused},
    {"dataset_processes", kRows},
    {"train_sampling_strategy", kPacking},
    {"curriculum_sampling", " data.shuffle: false reads rows in the order of the file."},
    {"device_map", kSharding},
    {"trust_remote_code", " No code of a model is ever run."},
    {"ignore_data_skip", kResumes},
    {"neat_packing", kPacking},
    {"max_samples", " A run of fewer rows has fewer train.max_steps, or a train.epochs below 1."},
    {"default_system", " trireme data chat reads the system message of each row, or its field system."},
    {"enable_thinking", " trireme data chat --variable enable_thinking=false sets a variable of the template."},
    {"apply_lora_to_mlp", " lora.target_modules names the MLP's matrices too: gate_proj, up_proj, down_proj."},
    {"do_train", " A run trains, and evaluates data.valid where it is given."},
    {"do_eval", " A run trains, and evaluates data.valid where it is given."},
    {"save_only_model", " Checkpoints always have the optimizer's state; adapter/ or model/ has the weights alone."},
    {"bf16_full_eval", kEvaluations},
    {"fp16_full_eval", kEvaluations},
    {"eval_on_start", " The first evaluation comes after eval.every_samples, or later by eval.skip_first."},
    {"eval_delay", " eval.skip_first leaves out the first evaluations."},
    {"do_predict", " data.test is evaluated when training has ended."},
    {"auto_find_batch_size", " --dry-run says which batch.micro_batch_size fits."},
    {"activation_checkpointing_kwargs", " parallel.recompute says what backward recomputes."},
    {"remove_unused_columns", kRows},
    {"pad_to_multiple_of", kPacking},
    {"batch_flattening", kPacking},
    {"eval_sequence_len", " Rows of data.valid have data.seq_length tokens, as those of data.train."},
    {"min_sample_len", kRows},
    {"dataset_exact_deduplication", kRows},
    {"shuffle_before_merging_datasets", kRows},
    {"skip_prepare_dataset", kRows},
    {"chat_template_kwargs", " trireme data chat --variable NAME=VALUE sets a variable of the template."},
    {"model_init_kwargs", kModelFiles},
    {"overrides_of_model_config", kModelFiles},
    {"rope_scaling", kModelFiles},
    {"ref_model_mixup_alpha", kReference},
    {"embedding_lr", kOneRate},
    {"embedding_lr_scale", kOneRate},
    {"lr_groups", kOneRate},
    {"loraplus_lr_ratio", kOneRate},
    {"loraplus_lr_embedding", kOneRate},
    {"unfrozen_parameters", kAdapter},
    {"lora_target_parameters", " Adapters are of matrices: lora.target_modules, lora.modules_to_save."},
    {"peft_init_lora_weights",
     " A is drawn and B is zero, as with peft's default; lora.adapter starts from an adapter."},
    {"merge_lora", " trireme adapter merge writes the model with its adapter."},
    {"relora", " An adapter is trained from the start to the end of a run."},
    {"use_bnb_nested_quant", kFewBits},
    {"simpo_gamma", kLosses},
    {"cpo_alpha", kLosses},
    {"dpo_loss_weights", kLosses},
    {"use_mlflow", kTensorboard},
    {"chunked_cross_entropy", kFused},
    {"loss_scale",
     " precision.loss_scale is the factor of fp16's gradients; trireme data chat decides which tokens have a loss."}};

/// What to write in place of a key that has another name now; "": it never was a key.
std::string retired_advice(const Section& section, const YamlEntry& entry) {
  for (const Key& key : section.keys)
    for (const RetiredKey& retired : key.retired) {
      if (entry.key != retired.name) continue;
      const std::string renamed = fmt::format("{0}.{1} is now {0}.{2}", section.name, retired.name, key.name);
      const char* word = retired.word_now(entry.value.text);
      return word == nullptr ? renamed : fmt::format("{}: write '{}: {}'", renamed, key.name, word);
    }
  return "";
}

}  // namespace

void Reader::read(Config& config) {
  for (const YamlEntry& entry : root_.entries)
    if (find_section(entry.key) == nullptr)
      problems_.add(entry.place, fmt::format("unknown section '{}'.{}", shown(entry.key), suggest(nullptr, entry.key)));
  for (const Section& section : sections()) read_section(section, config);
}

bool Reader::readable(const std::vector<std::string>& keys) const {
  return std::none_of(keys.begin(), keys.end(), [&](const std::string& key) { return unreadable_.contains(key); });
}

Place Reader::place_of(const std::string& qualified) const {
  if (const auto found = places_.find(qualified); found != places_.end()) return found->second;
  const auto section = places_.find(qualified.substr(0, qualified.find('.')));
  return section != places_.end() ? section->second : Place{};
}

void Reader::read_section(const Section& section, Config& config) {
  const YamlEntry* entry = root_.find(section.name);
  const bool is_null = entry != nullptr && entry->value.kind == YamlNode::Kind::kNull;
  if (section.optional) {
    if (entry == nullptr || (is_null && !entry->value.empty)) return section.exist(config, false);
    if (!has(section))
      return refuse_for_family(entry->place, fmt::format("section '{}'", section.name), section.feature,
                               section.instead);
    if (is_null)
      return problems_.add(
          entry->place,
          fmt::format("section '{0}' is empty: write '{0}: {{}}' for its defaults, or leave it out", section.name));
    section.exist(config, true);
  }
  if (entry != nullptr) places_[section.name] = entry->place;
  const bool is_map = entry != nullptr && entry->value.kind == YamlNode::Kind::kMap;
  const bool broken = entry != nullptr && !is_map && !is_null;
  if (broken)
    problems_.add(entry->value.place,
                  fmt::format("section '{}' must hold keys and values, not {}", section.name, node_text(entry->value)));
  for (const Key& key : section.keys) {
    if (const YamlEntry* given = is_map ? entry->value.find(key.name) : nullptr) {
      read_key(section, key, given->value, config);
    } else if (broken || key.required) {
      const std::string expected = expectation(key.offered(program_.features));
      if (!broken)
        problems_.add(place_of(section.name), fmt::format("{} is missing: {}", qualified(section, key), expected));
      unreadable_.insert(qualified(section, key));
    }
  }
  if (is_map) check_keys(section, entry->value);
}

void Reader::read_key(const Section& section, const Key& key, const YamlNode& node, Config& config) {
  const std::string name = qualified(section, key);
  const Key offered = key.offered(program_.features);
  places_[name] = node.place;
  const KeyChoice* choice = key.choice(node.text);
  if (choice != nullptr && !program_.features.has(choice->feature)) {
    refuse_for_family(node.place, fmt::format("{} {}", name, choice->word), choice->feature,
                      "use " + expectation(offered));
    unreadable_.insert(name);
    return;
  }
  const std::optional<Value> read = value(name, offered, node);
  // A resolved configuration names every key: those that this program lacks have their defaults.
  const bool foreign = read && !program_.features.has(key.feature) && *read != section.get(config, key);
  if (foreign) refuse_for_family(node.place, name, key.feature, key.instead);
  if (!read || foreign)
    unreadable_.insert(name);
  else
    section.set(config, key, *read);
}

void Reader::check_keys(const Section& section, const YamlNode& node) {
  for (const YamlEntry& entry : node.entries) {
    if (section.find(entry.key) != nullptr) continue;
    const std::string advice = retired_advice(section, entry);
    problems_.add(entry.place, !advice.empty() ? advice
                                               : fmt::format("unknown key '{}' in section '{}'.{}", shown(entry.key),
                                                             section.name, suggest(&section, entry.key)));
  }
}

std::string Reader::name_elsewhere(const Section* section, const std::string& key) const {
  for (const std::string& name : {fmt::format("{}.{}", section == nullptr ? "" : section->name, key), key}) {
    std::vector<std::string> ours;
    bool known = false;
    const char* note = "";
    for (const Section& one : sections())
      for (const Key& candidate : one.keys) {
        if (!candidate.is_called(name)) continue;
        known = true;
        note = candidate.note;
        if (has(one, candidate)) ours.push_back(&one == section ? candidate.name : qualified(one, candidate));
      }
    if (known) return ours.empty() ? "" : did_you_mean_all(ours) + note;
  }
  const auto none = kNoKeys.find(key);
  return none == kNoKeys.end() ? "" : none->second;
}

std::string Reader::suggest(const Section* section, const std::string& key) const {
  if (!problems_.wants_suggestions()) return "";
  if (const std::string text = name_elsewhere(section, key); !text.empty()) return text;
  std::vector<std::string> near, elsewhere;
  for (const Section& one : sections()) {
    if (!has(one)) continue;
    if (key == one.name) return fmt::format(" '{}' is a section of its own: indent it less.", one.name);
    if (key.starts_with(std::string(one.name) + "."))
      return fmt::format(" Write '{}:' and its keys indented under it.", one.name);
    if (section == nullptr) near.emplace_back(one.name);
    for (const Key& candidate : one.keys) {
      if (!has(one, candidate)) continue;
      if (&one == section) near.emplace_back(candidate.name);
      if (candidate.name == key) elsewhere.push_back(qualified(one, candidate));
    }
  }
  // A key that counts something else in its own section is nearer than one of the same name elsewhere.
  const auto own = section == nullptr ? std::vector<std::string>() : same_beginning(key, near);
  if (!elsewhere.empty() && own.empty()) return did_you_mean_all(elsewhere);
  if (const std::string text = did_you_mean(key, near); !text.empty()) return text;
  if (!own.empty()) return did_you_mean_all(own);
  for (const Section& one : sections()) {
    std::vector<std::string> names;
    for (const Key& candidate : one.keys)
      if (has(one, candidate)) names.emplace_back(candidate.name);
    const auto found = nearest_word(key, names);
    if (found && edit_distance(key, *found) * 4 <= static_cast<int>(found->size()))
      return did_you_mean_all({fmt::format("{}.{}", one.name, *found)});
  }
  return "";
}

std::nullopt_t Reader::refuse(const std::string& name, const YamlNode& node, const std::string& expected,
                              const std::string& hint) {
  problems_.add(node.place, fmt::format("{} must be {}, not {}{}{}", name, expected, node_text(node),
                                        hint.empty() ? "" : ".", hint));
  return std::nullopt;
}

void Reader::refuse_for_family(const Place& place, const std::string& what, Feature feature,
                               const std::string& instead) {
  problems_.add(place, fmt::format("{} is not for {}, which {}{}{}", what, program_.name, without_feature(feature),
                                   instead.empty() ? "" : ": ", instead));
}

std::optional<Value> Reader::value(const std::string& name, const Key& key, const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kNull && (key.optional || key.may_be_absent)) return Value{};
  if (key.map) return mapping(name, key, node);
  if (key.list) return list(name, key, node);
  const auto one = item(name, key, node, expectation(key));
  return one ? std::optional(Value{*one}) : std::nullopt;
}

bool Reader::check_pattern(const std::string& name, const Place& place, const std::string& pattern) {
  const std::string problem = pattern_problem(pattern);
  if (!problem.empty()) problems_.add(place, fmt::format("{}: the pattern '{}' {}", name, shown(pattern), problem));
  return problem.empty();
}

std::optional<Value> Reader::mapping(const std::string& name, const Key& key, const YamlNode& node) {
  Key values = key;
  values.choices.clear();
  values.map = values.may_be_absent = false;
  values.list = key.lists;
  const auto value_of = [&](const std::string& of, const YamlNode& at) -> std::optional<std::string> {
    if (!key.lists) return item(of, values, at, item_expectation(values));
    const auto items = list(of, values, at);
    return items ? std::optional("[" + join(*items, ", ") + "]") : std::nullopt;
  };
  if (key.lists && node.kind == YamlNode::Kind::kList) {
    if (node.items.empty()) return Value{};
    const auto items = value_of(name, node);
    return items ? std::optional(Value{"", *items}) : std::nullopt;
  }
  if (node.kind != YamlNode::Kind::kMap) return refuse(name, node, expectation(key));
  Value read;
  bool good = true;
  for (const YamlEntry& entry : node.entries) {
    const auto one = value_of(fmt::format("{} {}", name, shown(entry.key)), entry.value);
    if (key.choices.empty()) {
      good &= check_pattern(name, entry.place, entry.key);
    } else if (key.choice(std::string_view(entry.key).substr(entry.key.rfind('.') + 1)) == nullptr) {
      problems_.add(entry.place, fmt::format("{} must be {}.{}", name, expectation(key), word_hint(key, entry.key)));
      good = false;
    }
    good &= one.has_value();
    read.insert(read.end(), {entry.key, one.value_or("")});
  }
  return good ? std::optional(std::move(read)) : std::nullopt;
}

std::optional<Value> Reader::list(const std::string& name, const Key& key, const YamlNode& node) {
  const std::string expected = expectation(key);
  if (key.selector && node.kind == YamlNode::Kind::kScalar) {
    const Value pattern = {"", node.text};
    if (ModuleSelector{{}, node.text}.all_linear()) return pattern;
    if (node.text.find_first_of("\\.^$*+?()[]{}|") != std::string::npos)  // otherwise it matches no path
      return check_pattern(name, node.place, node.text) ? std::optional(pattern) : std::nullopt;
  }
  const bool names = key.type == Type::kText || !key.choices.empty();
  if (key.one_or_more && node.kind == YamlNode::Kind::kScalar) {
    const auto one = item(name, key, node, expected);
    return one ? std::optional(Value{*one}) : std::nullopt;
  }
  if (node.kind != YamlNode::Kind::kList) {
    if (!names || node.kind != YamlNode::Kind::kScalar) return refuse(name, node, expected);
    const bool is_item = key.choices.empty() || key.choice(node.text) != nullptr;
    return refuse(name, node, expected,
                  is_item ? fmt::format(" Did you mean '[{}]'?", shown(node.text)) : word_hint(key, node.text));
  }
  if (names && node.items.empty() && !key.may_be_absent) {
    problems_.add(node.place, fmt::format("{} must be {}, not an empty list", name, expected));
    return std::nullopt;
  }
  if (key.length > 0 && node.items.size() != key.length) {
    problems_.add(node.place, fmt::format("{} must be {}, not {} of them", name, expected, node.items.size()));
    return std::nullopt;
  }
  Value read;
  bool good = true;
  for (const YamlNode& one : node.items) {
    const auto text = item(name, key, one, item_expectation(key));
    good &= text.has_value();
    read.push_back(text.value_or(""));
  }
  if (!good) return std::nullopt;
  for (size_t i = 0; names && i < read.size(); ++i) {
    const auto end = read.begin() + static_cast<long>(i);
    if (std::find(read.begin(), end, read[i]) == end) continue;
    problems_.add(node.items[i].place, fmt::format("{} has '{}' twice", name, shown(read[i])));
    good = false;
  }
  return good ? std::optional(std::move(read)) : std::nullopt;
}

std::optional<std::string> Reader::item(const std::string& name, const Key& key, const YamlNode& node,
                                        const std::string& expected) {
  const bool scalar = node.kind == YamlNode::Kind::kScalar;
  const size_t last = key.selector ? node.text.rfind('.') + 1 : 0;
  if (scalar && key.choice(std::string_view(node.text).substr(last)) != nullptr) return node.text;
  const bool words = !key.choices.empty();
  if (!scalar && (words || key.type == Type::kText)) return refuse(name, node, expected);
  std::string hint;
  switch (key.type) {
    case Type::kBool:
      if (const auto read = read_bool(node, hint)) return *read ? "true" : "false";
      return refuse(name, node, expected, hint);
    case Type::kInteger: {
      if (words && plain_type(node) != Plain::kInteger) break;
      const auto read = read_integer(node, hint);
      // Once more as an integer: 2^53 + 1 as a double is 2^53.
      if (read && in_range(key, static_cast<double>(*read)) &&
          (std::isinf(key.max) || *read <= static_cast<int64_t>(key.max)))
        return std::to_string(*read);
      return refuse(name, node, expected, hint);
    }
    case Type::kNumber: {
      const auto read = read_number(node, hint);
      if (read && in_range(key, *read)) return format_exact(*read);
      return refuse(name, node, expected, hint);
    }
    case Type::kShare: {
      if (node.text.empty() || node.text.find_first_not_of("0123456789./") != std::string::npos) break;
      if (const auto share = parse_fraction(node.text); share && *share >= 0 && *share <= 1) return node.text;
      return refuse(name, node, expected);
    }
    case Type::kText:
      if (words) break;
      if (plain_type(node) != Plain::kString)
        return refuse(name, node, expected,
                      fmt::format(" If it is one, write it in quotes: \"{}\"{}", shown(node.text),
                                  key.path && name.starts_with("data.") && node.text.find('.') != std::string::npos
                                      ? ". The weight of a file is written {path: …, weight: 0.5}"
                                      : ""));
      if (!key.path || (node.text == key.not_path && !node.text.empty())) return node.text;
      return path(name, node);
  }
  return refuse(name, node, expected, word_hint(key, node.text));
}

std::optional<std::string> Reader::path(const std::string& name, const YamlNode& node) {
  const auto fail = [&](const std::string& why) {
    problems_.add(node.place, fmt::format("{} must be a path, but {} {}", name, node_text(node), why));
    return std::nullopt;
  };
  if (node.text.empty()) return fail("is empty");
  if (node.text.find('\0') != std::string::npos) return fail("holds a NUL byte");
  if (node.text == "~" || node.text.starts_with("~/"))
    return fail("begins with ~, which a shell expands and this file does not: write the whole path");
  std::filesystem::path path = tidy_path(base_ / node.text);
  // A folder may have such a name.
  const auto is_foreign = [&](const char* mark) {
    std::error_code error;
    return node.text.find(mark) != std::string::npos && !std::filesystem::exists(path.parent_path(), error);
  };
  if (is_foreign("${")) return fail("holds ${, which a shell expands and this file does not: write the whole path");
  if (is_foreign("://")) return fail("is the address of a service: write a path of a file system");
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  const std::string text = path.string();
  if (text.size() > kMaxPath) return fail(fmt::format("is longer than {} bytes", kMaxPath));
  if (!is_valid_utf8(text)) return fail("lies in a directory whose name is not UTF-8");
  return text;
}

}  // namespace trireme
