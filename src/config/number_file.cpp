#include "trireme/config/number_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "problems.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "yaml_tree.h"

namespace trireme {

namespace {

constexpr size_t kMaxNumberFile = 1 << 20, kMaxText = 200;

void read_text_entry(const YamlEntry& entry, NumberFile& read, Problems& problems) {
  const bool string = entry.value.kind == YamlNode::Kind::kScalar && plain_type(entry.value) == Plain::kString &&
                      !entry.value.text.empty();
  if (!string || entry.value.text.size() > kMaxText)
    problems.add(entry.value.place, fmt::format("{} must be a text of 1 to {} bytes, not {}", entry.key, kMaxText,
                                                node_text(entry.value)));
  else
    read.texts[entry.key] = entry.value.text;
}

void read_number_entry(const YamlEntry& entry, const NumberKey& key, NumberFile& read, Problems& problems) {
  std::string hint;
  const auto value = read_number(entry.value, hint);
  if (!value)
    problems.add(entry.value.place, fmt::format("{} must be a number, not {}{}{}", key.name, node_text(entry.value),
                                                hint.empty() ? "" : ".", hint));
  else if (!(*value >= key.least && *value <= key.most))
    problems.add(entry.value.place, fmt::format("{} must be from {:g} to {:g}, not {}", key.name, key.least, key.most,
                                                node_text(entry.value)));
  else
    read.numbers[key.name] = *value;
}

}  // namespace

NumberFile read_number_file(const std::filesystem::path& file, const std::vector<std::string>& texts,
                            const std::vector<NumberKey>& numbers) {
  Problems problems(file.string(), {});
  std::string text;
  try {
    text = read_text_file(file, ExitCode::kConfig, kMaxNumberFile);
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
  check_raw_text(text, {}, problems);
  problems.throw_if_any();
  const YamlNode root = parse_yaml(text, {}, problems);
  if (problems.empty() && root.kind != YamlNode::Kind::kMap)
    problems.add(root.place, "the file has no lines of the form 'name: number'");
  NumberFile read;
  std::vector<std::string> names = texts;
  for (const NumberKey& key : numbers) names.push_back(key.name);
  for (const YamlEntry& entry : root.entries) {
    const auto number =
        std::find_if(numbers.begin(), numbers.end(), [&](const NumberKey& key) { return key.name == entry.key; });
    if (std::find(texts.begin(), texts.end(), entry.key) != texts.end())
      read_text_entry(entry, read, problems);
    else if (number != numbers.end())
      read_number_entry(entry, *number, read, problems);
    else
      problems.add(entry.place, fmt::format("unknown key '{}'.{}", shown(entry.key), did_you_mean(entry.key, names)));
  }
  for (const std::string& name : texts)
    if (root.find(name) == nullptr && problems.empty()) problems.add(root.place, fmt::format("'{}' is missing", name));
  problems.throw_if_any();
  return read;
}

}  // namespace trireme
