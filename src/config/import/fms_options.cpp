#include "fms_options.h"

#include "trireme/base/fraction.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace trireme {

namespace {

/// Spelling -> name at HEAD. Those of March 2024 and of the AWS case are the ones with another name.
const std::map<std::string, std::string>& option_names() {
  static const std::map<std::string, std::string> names = [] {
    std::map<std::string, std::string> all = {
        {"model_name", "model_variant"},
        {"load_ckpt_path", "ckpt_load_path"},
        {"save_ckpt_path", "ckpt_save_path"},
        {"dataset_path", "data_path"},
        {"sep_token", "eos_token"},
        {"use_nsys", "use_nsight"},
        {"wandb_dir", "tracker_dir"},
        {"aim_dir", "tracker_dir"},
        {"wandb_project_name", "tracker_project_name"},
        {"aim_project_name", "tracker_project_name"},
        {"wandb_run_id", "tracker_run_id"},
        {"aim_run_id", "tracker_run_id"},
        {"dataset_name", "datasets"},
    };
    for (const std::string& name :
         split("model_variant ckpt_load_path ckpt_save_path use_dummy_dataset data_path file_type col_name "
               "tokenizer_path datasets weights seq_length vocab_size bos_token eos_token bol_token eol_token "
               "strip_tokens logical_shards num_workers sharding_strategy fsdp_activation_checkpointing "
               "selective_checkpointing mixed_precision low_cpu_fsdp batch_size num_steps training_stage learning_rate "
               "grad_clip_thresh seed resuming_dataset use_profiler profiler_rank0_only use_nsight report_interval "
               "checkpoint_interval tracker use_wandb use_aim tracker_dir tracker_project_name tracker_run_id "
               "use_torch_compile tp_size model_arch model_path n_speculator_heads speculator_width "
               "speculator_tie_weights speculator_scale_input stage2_start_step stage2_prompt_length stage2_batch_size "
               "stage2_seq_length",
               ' '))
      all[name] = name;
    return all;
  }();
  return names;
}

bool is_boolean(const std::string& name) {
  static const std::vector<std::string> names = split(
      "use_dummy_dataset fsdp_activation_checkpointing mixed_precision low_cpu_fsdp resuming_dataset use_profiler "
      "profiler_rank0_only use_nsight use_wandb use_aim use_torch_compile speculator_tie_weights "
      "speculator_scale_input",
      ' ');
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string trimmed(const std::string& text, const char* these) {
  const size_t first = text.find_first_not_of(these);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(these) - first + 1);
}

}  // namespace

FmsOptions::FmsOptions(const std::vector<std::string>& arguments, ImportDraft& draft) : draft_(draft) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("--") || argument.size() < 3) {
      draft_.problem(fmt::format("'{}' is no option: write --name=value", argument));
      continue;
    }
    const size_t equals = argument.find('=');
    std::string spelling = argument.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
    std::replace(spelling.begin(), spelling.end(), '-', '_');
    // fms-fsdp takes "ConfigName.param", too.
    if (const size_t dot = spelling.rfind('.'); dot != std::string::npos) spelling = spelling.substr(dot + 1);
    if (equals != std::string::npos) {
      take(spelling, argument.substr(equals + 1), argument);
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      take(spelling, arguments[i + 1], argument + " " + arguments[i + 1]);
      ++i;
    } else {
      take(spelling, std::nullopt, argument);
    }
  }
}

void FmsOptions::take(const std::string& spelling, const std::optional<std::string>& value,
                      const std::string& argument) {
  const auto& names = option_names();
  auto found = names.find(spelling);
  bool off = false;
  if (found == names.end() && !value && spelling.starts_with("no")) {  // fire's --nouse_profiler
    found = names.find(trimmed(spelling.substr(2), "_"));
    if (found != names.end() && !is_boolean(found->second)) found = names.end();
    off = found != names.end();
  }
  if (found == names.end()) {
    std::vector<std::string> known;
    for (const auto& [name, canonical] : names) known.push_back("--" + name);
    draft_.problem(
        fmt::format("unknown option '{}' (fms-fsdp ignores it).{}", argument, did_you_mean("--" + spelling, known)));
    return;
  }
  const std::string& name = found->second;
  if (!value && !is_boolean(name)) {
    draft_.problem(fmt::format("'{}' has no value: write {}=VALUE", argument, argument));
    return;
  }
  spellings_[found->first] = name;
  const auto [place, is_new] = values_.emplace(name, Value{value ? *value : off ? "false" : "true", argument});
  if (!is_new) draft_.problem(fmt::format("'{}' and '{}' set the same option", place->second.shown, argument));
}

std::string FmsOptions::text(const std::string& name, const std::string& otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : trimmed(found->second.text, "\"' ");
}

std::string FmsOptions::shown(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? name + " (default)" : found->second.shown;
}

int64_t FmsOptions::integer(const std::string& name, int64_t otherwise, int64_t least) {
  if (!given(name)) return otherwise;
  std::string digits = text(name, "");
  std::erase(digits, '_');
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc() && end == digits.data() + digits.size() && value >= least && value <= 2147483647)
    return value;
  draft_.problem(fmt::format("'{}' must be an integer from {} to 2147483647", shown(name), least));
  return otherwise;
}

double FmsOptions::number(const std::string& name, double otherwise) {
  if (!given(name)) return otherwise;
  if (const auto value = parse_fraction(text(name, ""))) return *value;
  draft_.problem(fmt::format("'{}' must be a number", shown(name)));
  return otherwise;
}

bool FmsOptions::flag(const std::string& name, bool otherwise) {
  if (!given(name)) return otherwise;
  const std::string word = lower(text(name, ""));
  for (const char* yes : {"true", "yes", "on", "y", "t", "1"})
    if (word == yes) return true;
  for (const char* no : {"false", "no", "off", "n", "f", "0", "none"})
    if (word == no) return false;
  draft_.problem(fmt::format("'{}' must be true or false", shown(name)));
  return otherwise;
}

std::optional<int64_t> FmsOptions::token(const std::string& name, std::optional<int64_t> otherwise) {
  if (!given(name)) return otherwise;
  const std::string word = lower(text(name, ""));
  if (word == "none" || word.empty()) return std::nullopt;
  return integer(name, otherwise.value_or(0), 0);
}

std::vector<std::string> FmsOptions::items(const std::string& name, const std::string& otherwise) const {
  std::vector<std::string> all;
  const std::string list = trimmed(text(name, otherwise), "()[] ");
  if (list.empty()) return all;
  for (const std::string& item : split(list, ',')) all.push_back(trimmed(item, "\"' "));
  return all;
}

}  // namespace trireme
