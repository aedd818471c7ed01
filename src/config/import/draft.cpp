#include "draft.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace trireme {

namespace {

/// Keys, or values of keys, that imports write and not every version has. The draft asks the reader: what it refuses
/// stands in the YAML as a comment, and the report says so.
const std::set<std::string>& newer_keys() {
  static const std::set<std::string> keys = {
      "parallel.policy",
      "optimizer.moments",
      "precision.linear",
      "precision.fp8_recipe",
      "data.bos_token",
      "data.eos_token",
      "data.bol_token",
      "data.eol_token",
      "data.strip_tokens",
      "data.logical_shards",
      "data.splits",
      "data.test",
      "data.reset_position_ids",
      "data.index_cache",
      "data.eod_mask_loss",
      "data.reset_attention_mask",
      "batch.rampup",
      "schedule.constant_steps",
      "train.deterministic",
      "train.max_time",
      "eval.test_samples",
      "eval.every_samples",
      "eval.samples",  // need data.valid or data.splits
      "profile.wait",
      "profile.warmup",
      "profile.active",
      "profile.repeat",
      "profile.ranks",
      "profile.memory",
      "profile.shapes",
      "profile.stacks",
  };
  return keys;
}

/// "" or what load_config() would say of `text`.
std::string refusal(const std::string& text) {
  try {
    (void)parse_config(text, "the imported configuration");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

std::string yaml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string yaml_number(double value) { return format_exact(value); }

ImportDraft::Entry& ImportDraft::entry(const std::string& key) {
  const size_t dot = key.find('.');
  TRIREME_CHECK(dot != std::string::npos, "'", key, "' is no section.key");
  const std::string section = key.substr(0, dot), name = key.substr(dot + 1);
  for (Entry& known : entries_)
    if (known.section == section && known.key == name) return known;
  Entry& made = entries_.emplace_back();
  made.section = section;
  made.key = name;
  made.newer = newer_keys().contains(key);
  return made;
}

void ImportDraft::set(const std::string& key, const std::string& value) { entry(key).value = value; }

void ImportDraft::set(const std::string& key, const std::string& value, const std::string& otherwise) {
  Entry& target = entry(key);
  target.value = value;
  target.otherwise = otherwise;
  target.newer = true;
}

void ImportDraft::say(const std::string& option, const std::string& became) { report_.emplace_back(option, became); }

void ImportDraft::problem(const std::string& text) {
  if (std::find(problems_.begin(), problems_.end(), text) == problems_.end()) problems_.push_back(text);
}

std::string ImportDraft::yaml() const {
  std::vector<std::string> sections;
  for (const Entry& one : entries_)
    if (std::find(sections.begin(), sections.end(), one.section) == sections.end()) sections.push_back(one.section);
  std::string text = fmt::format("# From {} by `trireme config import`.\n", source_);
  for (const std::string& section : sections) {
    bool live = false;
    std::string keys;
    for (const Entry& one : entries_) {
      if (one.section != section) continue;
      live |= one.live;
      if (one.live) keys += fmt::format("  {}: {}\n", one.key, one.value);
      if (!one.refused.empty()) keys += fmt::format("#  {}: {}  # not in this version\n", one.key, one.refused);
    }
    text += fmt::format("{}{}:\n{}", live ? "" : "# ", section, keys);
  }
  return text;
}

ImportedConfig ImportDraft::finish() {
  if (!problems_.empty())
    throw ConfigError(fmt::format("{}\n{} problem{} in {}: nothing was written", join(problems_, "\n"),
                                  problems_.size(), problems_.size() == 1 ? "" : "s", source_));
  for (Entry& one : entries_)
    if (one.newer && one.otherwise.empty()) one.live = false;
  for (Entry& one : entries_)
    if (!one.otherwise.empty()) std::swap(one.value, one.otherwise);
  // One at a time, each with those before it: a value may need another key.
  if (const std::string why = refusal(yaml()); !why.empty())
    throw ConfigError(fmt::format("{} makes a configuration that is refused:\n{}", source_, why));
  std::vector<std::string> refused;
  for (Entry& one : entries_) {
    if (!one.newer) continue;
    const Entry before = one;
    one.live = true;
    if (!one.otherwise.empty()) std::swap(one.value, one.otherwise);
    if (refusal(yaml()).empty()) continue;
    const std::string wanted = one.value;
    one = before;
    one.refused = wanted;
    refused.push_back(one.section + "." + one.key);
  }
  if (!refused.empty())
    say("not in this version",
        fmt::format("{}: in the YAML as comments; delete the # when a version has them", join(refused, ", ")));
  return {yaml(), std::move(model_), std::move(report_)};
}

}  // namespace trireme
