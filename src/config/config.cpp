#include "trireme/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "problems.h"
#include "reader.h"
#include "rules.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "yaml_tree.h"

namespace trireme {

namespace {

constexpr size_t kMaxFile = 1 << 20;

void put(std::vector<YamlEntry>& entries, YamlEntry entry) {
  std::erase_if(entries, [&](const YamlEntry& old) { return old.key == entry.key; });
  entries.push_back(std::move(entry));
}

std::string read_config_text(const std::filesystem::path& file) {
  try {
    return read_text_file(file, ExitCode::kConfig, kMaxFile);
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

int64_t count_hashes(std::string_view text) { return std::count(text.begin(), text.end(), '#'); }
int64_t count_hashes(const YamlNode& node) {
  int64_t count = count_hashes(node.text);
  for (const auto& entry : node.entries) count += count_hashes(entry.key) + count_hashes(entry.value);
  for (const YamlNode& item : node.items) count += count_hashes(item);
  return count;
}

// Puts one "section.key=value" into the tree, where the reader then finds it.
void apply_override(const std::string& text, int index, YamlNode& root, Problems& problems) {
  const Place place{index, 1, 1};
  const size_t before = problems.size();
  check_raw_text(text, place, problems);
  if (problems.size() > before) return;
  const size_t equals = text.find('=');
  const std::vector<std::string> path = split(text.substr(0, equals), '.');
  if (equals == std::string::npos || path.size() > 2 || path[0].empty() || path.back().empty()) {
    problems.add(place, "not of the form section.key=value");
    return;
  }
  const std::string raw = text.substr(equals + 1);
  YamlNode value = parse_yaml(raw, place, problems);
  if (problems.size() > before) return;
  if (count_hashes(value) < count_hashes(raw)) {
    problems.add(place, "the value has ' #', which begins a comment in YAML: put a text with ' #' in quotes");
    return;
  }
  const bool block = raw.starts_with('|') || raw.starts_with('>'), null = value.kind == YamlNode::Kind::kNull;
  // "...", "---" and "%x" say no null, and are read as one.
  if (null ? raw.find_first_of(".-%") != std::string::npos
           : value.kind == YamlNode::Kind::kScalar && !block &&
                 (value.quoted ? raw.find('\n') != std::string::npos
                               : plain_type(value) == Plain::kString && value.text != raw)) {
    problems.add(place,
                 fmt::format("YAML reads the text as {}: give it so, or in double quotes, with \\n for a line break",
                             null ? "null" : fmt::format("\"{}\"", shown(value.text))));
    return;
  }
  value.empty = false;  // "lora.adapter=" says null
  const Key* key = find_key(text.substr(0, equals));
  if (value.kind == YamlNode::Kind::kMap && (key == nullptr || !key->map)) {
    problems.add(place, "the value reads as a mapping: set one key at a time, and put a text with ': ' in quotes");
  } else if (path.size() == 1) {
    put(root.entries, {path[0], place, std::move(value)});
  } else {
    if (root.find(path[0]) == nullptr) root.entries.push_back({path[0], place, {}});
    YamlNode& section = root.find(path[0])->value;
    if (section.kind == YamlNode::Kind::kNull) section.kind = YamlNode::Kind::kMap;
    // Anything but a mapping is the reader's to report.
    if (section.kind == YamlNode::Kind::kMap) put(section.entries, {path[1], place, std::move(value)});
  }
}

void resolve_warmup(Config& config) {
  ScheduleSection& schedule = config.schedule;
  if (!schedule.warmup_ratio || schedule.warmup_steps > 0) return;  // both: check_rules() refuses them
  schedule.warmup_steps =
      static_cast<int64_t>(std::ceil(*schedule.warmup_ratio * static_cast<double>(config.train.max_steps)));
  schedule.warmup_ratio.reset();
}

const std::vector<std::string> kPartKeys = {"path", "weight", "name"};

YamlNode list_at(const Place& place) {
  YamlNode list;
  list.kind = YamlNode::Kind::kList;
  list.place = place;
  return list;
}

YamlNode scalar_at(const Place& place, std::string text, bool quoted) {
  YamlNode scalar;
  scalar.kind = YamlNode::Kind::kScalar;
  scalar.place = place;
  scalar.text = std::move(text);
  scalar.quoted = quoted;
  return scalar;
}

std::string last_part(const YamlNode& path) {
  return std::filesystem::path(path.text).lexically_normal().filename().string();
}

/// data.train as a list of {path, weight, name}: another way to write data.train, data.weights and data.names. Replaces
/// such a list by the three keys; a weight that is not given is 1, a name the path's last part.
void expand_train_parts(YamlNode& root, Problems& problems) {
  YamlEntry* data = root.find("data");
  if (data == nullptr || data->value.kind != YamlNode::Kind::kMap) return;
  YamlEntry* train = data->value.find("train");
  if (train == nullptr || train->value.kind != YamlNode::Kind::kList) return;
  const auto is_map = [](const YamlNode& item) { return item.kind == YamlNode::Kind::kMap; };
  const auto& items = train->value.items;
  if (std::none_of(items.begin(), items.end(), is_map)) return;

  const Place place = train->value.place;
  YamlNode paths = list_at(place), weights = list_at(place), names = list_at(place);
  bool weighted = false, named = false;
  for (const YamlNode& item : items) {
    if (!is_map(item)) {  // a path among mappings
      paths.items.push_back(item);
      weights.items.push_back(scalar_at(item.place, "1", false));
      names.items.push_back(scalar_at(item.place, last_part(item), true));
      continue;
    }
    for (const YamlEntry& entry : item.entries) {
      if (std::find(kPartKeys.begin(), kPartKeys.end(), entry.key) != kPartKeys.end()) continue;
      problems.add(entry.place,
                   fmt::format("unknown key '{}' in an entry of data.train, which has path, weight and name.{}",
                               shown(entry.key), did_you_mean(entry.key, kPartKeys)));
    }
    const YamlEntry* path = item.find("path");
    if (path == nullptr) {
      problems.add(item.place, "an entry of data.train has no path");
      continue;
    }
    const YamlEntry *weight = item.find("weight"), *name = item.find("name");
    weighted |= weight != nullptr;
    named |= name != nullptr;
    paths.items.push_back(path->value);
    weights.items.push_back(weight ? weight->value : scalar_at(item.place, "1", false));
    names.items.push_back(name ? name->value : scalar_at(item.place, last_part(path->value), true));
  }
  train->value = std::move(paths);
  const auto put = [&](const char* key, YamlNode list) {
    if (const YamlEntry* given = data->value.find(key)) {
      problems.add(given->place,
                   fmt::format("data.{} and the same in the entries of data.train: give one of them", key));
      return;
    }
    data->value.entries.push_back({key, place, std::move(list)});
  };
  // Entries that are mappings are parts of their own, whether they have weights and names or not.
  // One path without a weight is no blend.
  if (weighted || (!named && items.size() > 1)) put("weights", std::move(weights));
  if (named) put("names", std::move(names));
}

/// Replaces keys of earlier versions in a configuration that a run has printed, by what they meant there.
void replace_retired_keys(YamlNode& root) {
  for (const Section& section : sections())
    for (const Key& key : section.keys)
      for (const RetiredKey& retired : key.retired) {
        YamlEntry* in = root.find(section.name);
        const YamlEntry* entry = in == nullptr ? nullptr : in->value.find(retired.name);
        const char* word = entry == nullptr ? nullptr : retired.word_now(entry->value.text);
        if (word == nullptr) continue;  // a value that never was one is the reader's to report
        // A name that is a key again had its earlier meaning only before the key that took its place.
        if (section.find(retired.name) != nullptr && in->value.find(key.name) != nullptr) continue;
        YamlEntry replaced = *entry;
        replaced.key = key.name;
        replaced.value.text = word;
        std::erase_if(in->value.entries, [&](const YamlEntry& old) { return old.key == retired.name; });
        // Two old keys may have become one: the one that was not at its default counts.
        YamlEntry* before = in->value.find(key.name);
        if (before == nullptr)
          in->value.entries.push_back(std::move(replaced));
        else if (before->value.text == section.get(Config{}, key).front())
          *before = std::move(replaced);
      }
}

Config read_config(const std::string& text, const std::filesystem::path& directory,
                   const std::vector<std::string>& overrides, const ProgramKeys& program,
                   std::optional<int64_t> world_size, Problems& problems, bool saved = false,
                   const RuleProblem* late = nullptr) {
  check_raw_text(text, {}, problems);
  problems.throw_if_any();

  YamlNode root = parse_yaml(text, {}, problems);
  const bool syntax_error = !problems.empty() && root.kind == YamlNode::Kind::kNull;
  if (syntax_error) problems.throw_if_any();
  if (root.kind == YamlNode::Kind::kNull) {
    problems.add({}, "the file is empty");
    root.kind = YamlNode::Kind::kMap;
  } else if (root.kind != YamlNode::Kind::kMap) {
    problems.add(root.place, "a configuration is made of sections (model:, data:, …) with keys under them");
    problems.throw_if_any();
  }
  for (size_t i = 0; i < overrides.size(); ++i) apply_override(overrides[i], static_cast<int>(i), root, problems);

  if (saved) replace_retired_keys(root);
  expand_train_parts(root, problems);
  Config config = program.defaults;
  Reader reader(root, directory, program, problems);
  reader.read(config);
  // One on the command line replaces the other in the file.
  const auto overridden = [&](const char* key) {
    return reader.given(key) && reader.place_of(key).override_index >= 0;
  };
  if (config.train.epochs && overridden("train.max_steps") && !overridden("train.epochs")) config.train.epochs.reset();
  if (config.train.epochs) {
    if (reader.given("train.max_steps") && overridden("train.max_steps") == overridden("train.epochs"))
      problems.add(reader.place_of("train.epochs"),
                   "train.epochs and train.max_steps both say how long the run is: leave one of them out");
    reader.forget("train.max_steps");
  } else {
    resolve_warmup(config);
  }
  for (const RuleProblem& problem : check_rules(config, program, world_size))
    if (reader.readable(problem.needs)) problems.add(reader.place_of(problem.key), problem.text);
  if (late != nullptr && reader.given(late->key)) problems.add(reader.place_of(late->key), late->text);
  problems.throw_if_any();
  return config;
}

}  // namespace

Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const ProgramKeys& program, std::optional<int64_t> world_size) {
  Problems problems(file.string(), overrides);
  std::error_code ignored;
  const auto size = std::filesystem::file_size(file, ignored);
  if (!ignored && size > kMaxFile) {
    problems.add({}, fmt::format("the file has {} bytes; a configuration may have {}", size, kMaxFile));
    problems.throw_if_any();
  }
  return read_config(read_config_text(file), std::filesystem::absolute(file).parent_path(), overrides, program,
                     world_size, problems);
}

std::string with_place(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                       const ProgramKeys& program, const std::string& text) {
  const std::string key = text.substr(0, text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_."));
  if (find_key(key) == nullptr) return text;
  const RuleProblem late{key, {}, text};
  Problems problems(file.string(), overrides);
  try {
    (void)read_config(read_config_text(file), std::filesystem::absolute(file).parent_path(), overrides, program,
                      std::nullopt, problems, /*saved=*/false, &late);
  } catch (const ConfigError& error) {
    const std::string all = error.what(), first = all.substr(0, all.find('\n'));
    if (first.ends_with(text)) return first;
  }
  return text;
}

Config with_steps(const Config& config, int64_t steps, const ProgramKeys& program, std::optional<int64_t> world_size) {
  Config counted = config;
  counted.train.max_steps = steps;
  counted.train.epochs.reset();
  resolve_warmup(counted);
  std::string text;
  for (const RuleProblem& problem : check_rules(counted, program, world_size)) text += "; " + problem.text;
  if (!text.empty())
    throw ConfigError(fmt::format("train.epochs {} is train.max_steps {}{}",
                                  format_exact(config.train.epochs.value_or(0)), steps, text));
  return counted;
}

Config parse_config(const std::string& text, const std::string& name) {
  Problems problems(name, {});
  return read_config(text, "/", {}, {}, std::nullopt, problems, /*saved=*/true);
}

}  // namespace trireme
