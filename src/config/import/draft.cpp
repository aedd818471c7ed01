#include "draft.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace trireme {

namespace {

constexpr const char* kResult = "the imported configuration";

}  // namespace

std::string yaml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string yaml_text(double value) { return format_exact(value); }
std::string yaml_text(int64_t value) { return std::to_string(value); }
std::string yaml_text(bool value) { return value ? "true" : "false"; }

ImportDraft::Entry& ImportDraft::entry(const std::string& key) {
  const size_t dot = key.find('.');
  TRIREME_CHECK(dot != std::string::npos, "'", key, "' is no section.key");
  const std::string section = key.substr(0, dot), name = key.substr(dot + 1);
  for (Entry& known : entries_)
    if (known.section == section && known.key == name) return known;
  Entry& made = entries_.emplace_back();
  made.section = section;
  made.key = name;
  return made;
}

void ImportDraft::set(const std::string& key, const std::string& value, const std::string& origin) {
  Entry& target = entry(key);
  target.value = value;
  target.origin = origin;
}

void ImportDraft::say(const std::string& option, const std::string& became) { report_.emplace_back(option, became); }

void ImportDraft::problem(const std::string& text) {
  if (std::find(problems_.begin(), problems_.end(), text) == problems_.end()) problems_.push_back(text);
}

std::string ImportDraft::yaml() {
  std::vector<std::string> sections;
  for (const Entry& one : entries_)
    if (std::find(sections.begin(), sections.end(), one.section) == sections.end()) sections.push_back(one.section);
  std::string text = fmt::format("# From {} by `trireme config import`.\n", source_);
  for (const std::string& section : sections) {
    text += section + ":\n";
    for (Entry& one : entries_) {
      if (one.section != section) continue;
      one.line = 1 + static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
      text += fmt::format("  {}: {}\n", one.key, one.value);
    }
  }
  return text;
}

std::vector<std::string> ImportDraft::refusals(const std::string& text) const {
  std::vector<std::string> all;
  try {
    (void)parse_config(text, kResult);
    return all;
  } catch (const ConfigError& error) {
    all = split(error.what(), '\n');
  }
  if (all.size() > 1) all.pop_back();  // how many there are
  const std::string prefix = fmt::format("{}:", kResult);
  for (std::string& problem : all) {
    if (!problem.starts_with(prefix)) continue;
    const auto line = static_cast<size_t>(std::atoll(problem.c_str() + prefix.size()));
    const size_t what = problem.find(": ", prefix.size());
    // The entry of the line, or the list that it is inside of.
    const Entry* of = nullptr;
    for (const Entry& one : entries_)
      if (one.line <= line && (of == nullptr || one.line > of->line)) of = &one;
    if (of == nullptr || what == std::string::npos) continue;
    problem = fmt::format("{}becomes {}.{}: {}, which is refused: {}", of->origin.empty() ? "" : of->origin + ": ",
                          of->section, of->key, of->value, problem.substr(what + 2));
  }
  return all;
}

ImportedConfig ImportDraft::finish() {
  const std::string text = yaml();
  if (problems_.empty())
    for (const std::string& refusal : refusals(text)) problem(refusal);
  if (!problems_.empty())
    throw ConfigError(fmt::format("{}\n{} problem{} in {}: nothing was written", join(problems_, "\n"),
                                  problems_.size(), problems_.size() == 1 ? "" : "s", source_));
  return {text, std::move(model_), std::move(report_)};
}

}  // namespace trireme
