// A YAML file as a tree of configuration values.
#include "conf_scalar.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "yaml_tree.h"

namespace trireme {

namespace {

ConfNode converted(const YamlNode& yaml, const std::shared_ptr<const std::string>& source) {
  ConfNode node;
  node.place = {source, yaml.place.line, yaml.place.column};
  switch (yaml.kind) {
    case YamlNode::Kind::kNull: break;
    case YamlNode::Kind::kScalar:
      if (yaml.quoted) {
        node.kind = ConfNode::Kind::kText;
        node.text = yaml.text;
      } else {
        set_yaml_scalar(node, yaml.text);
      }
      break;
    case YamlNode::Kind::kList:
      node.kind = ConfNode::Kind::kList;
      for (const YamlNode& item : yaml.items) node.items.push_back(converted(item, source));
      break;
    case YamlNode::Kind::kMap:
      node.kind = ConfNode::Kind::kMap;
      for (const YamlEntry& entry : yaml.entries)
        node.entries.push_back(
            {entry.key, {source, entry.place.line, entry.place.column}, converted(entry.value, source)});
      break;
  }
  return node;
}

}  // namespace

ConfNode read_conf_file(const std::filesystem::path& file, ConfProblems& problems) {
  const auto source = std::make_shared<const std::string>(file.string());
  std::string text;
  try {
    text = read_text_file(file, ExitCode::kConfig, 4 << 20);
  } catch (const Error& error) {
    problems.add(error.what());
    return {};
  }
  Problems own(*source, {});
  check_raw_text(text, {}, own);
  YamlNode tree;
  if (own.empty()) tree = parse_yaml(text, {}, own);
  for (const std::string& line : own.lines()) problems.add(line);
  return own.empty() ? converted(tree, source) : ConfNode{};
}

}  // namespace trireme
