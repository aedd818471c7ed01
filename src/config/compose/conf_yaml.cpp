// Configuration values as YAML: written as PyYAML's block style does it for OmegaConf.save(), and read.
#include "conf_parts.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "yaml_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace trireme {

namespace {

using Kind = ConfNode::Kind;

bool are_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// 1:30:00, a number to YAML 1.1; 01:30:00 is a text.
bool is_sexagesimal(std::string_view text) {
  if (text.front() == '-' || text.front() == '+') text.remove_prefix(1);
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() < 2 || text.front() == '0' || !are_digits(parts.front())) return false;
  return std::all_of(parts.begin() + 1, parts.end(), [](const std::string& part) {
    return are_digits(part) && (part.size() == 1 || (part.size() == 2 && part[0] <= '5'));
  });
}

/// 2001-12-14, a date to YAML 1.1.
bool is_date(std::string_view text) {
  return text.size() == 10 && text[4] == '-' && text[7] == '-' && are_digits(text.substr(0, 4)) &&
         are_digits(text.substr(5, 2)) && are_digits(text.substr(8));
}

/// Whether a reader would take the plain text for something else than this text.
bool needs_quotes(const std::string& text) {
  if (text.empty() || text == "-" || text == "---" || text == "..." || text == "=" || text == "<<" || text == "y" ||
      text == "Y" || text == "n" || text == "N")
    return true;
  if (!yaml_scalar(text, {}).is(Kind::kText)) return true;
  if (text.front() == ' ' || text.back() == ' ') return true;
  if (std::string_view(",[]{}#&*!|>'\"%@`").find(text.front()) != std::string_view::npos) return true;
  if ((text.front() == '-' || text.front() == '?' || text.front() == ':') && (text.size() == 1 || text[1] == ' '))
    return true;
  if (text.find(": ") != std::string::npos || text.find(" #") != std::string::npos || text.back() == ':') return true;
  if (text.front() == '?') return true;
  return is_sexagesimal(text) || is_date(text);
}

std::string scalar(const ConfNode& node) {
  switch (node.kind) {
    case Kind::kNull: return "null";
    case Kind::kBool: return node.boolean ? "true" : "false";
    case Kind::kNumber: {
      std::string text = python_number(node.number);
      if (text == "nan" || text == "inf" || text == "-inf") return text[0] == '-' ? "-.inf" : "." + text;
      // YAML 1.1 wants a dot: 1e-05 is written 1.0e-05.
      if (const size_t e = text.find('e'); e != std::string::npos && text.find('.') == std::string::npos)
        text.insert(e, ".0");
      return text;
    }
    case Kind::kText: break;
    default: return node.str();
  }
  bool special = false;
  for (const char c : node.text) special |= static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  if (special) {
    std::string text = "\"";
    for (const char c : node.text) {
      if (c == '\n')
        text += "\\n";
      else if (c == '\t')
        text += "\\t";
      else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
        text += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
      else if (c == '"' || c == '\\')
        text += std::string("\\") + c;
      else
        text += c;
    }
    return text + '"';
  }
  if (!needs_quotes(node.text)) return node.text;
  std::string text = "'";
  for (const char c : node.text) text += c == '\'' ? "''" : std::string(1, c);
  return text + "'";
}

/// A scalar, or an empty list or map.
std::string flat(const ConfNode& node) {
  return node.is(Kind::kMap) ? "{}" : node.is(Kind::kList) ? "[]" : scalar(node);
}

void write(const ConfNode& node, const std::string& indent, std::string& out);

/// What follows "key:" or "-".
void write_value(const ConfNode& node, const std::string& indent, bool in_list, std::string& out) {
  if (node.entries.empty() && node.items.empty()) {
    out += " " + flat(node) + "\n";
  } else if (in_list) {
    // The first key is beside the dash.
    std::string body;
    write(node, indent + "  ", body);
    out += " " + body.substr(indent.size() + 2);
  } else {
    out += "\n";
    write(node, node.is(Kind::kMap) ? indent + "  " : indent, out);
  }
}

void write(const ConfNode& node, const std::string& indent, std::string& out) {
  for (const ConfEntry& entry : node.entries) {
    out += indent + scalar(ConfNode(entry.key)) + ":";
    write_value(entry.value, indent, false, out);
  }
  for (const ConfNode& item : node.items) {
    out += indent + "-";
    write_value(item, indent, true, out);
  }
}

}  // namespace

std::string conf_yaml(const ConfNode& node) {
  if (node.entries.empty() && node.items.empty()) return flat(node) + "\n";
  std::string out;
  write(node, "", out);
  return out;
}

namespace {

ConfNode converted(const YamlNode& yaml, const std::shared_ptr<const std::string>& source) {
  const ConfPlace place = {source, yaml.place.line, yaml.place.column};
  if (yaml.kind == YamlNode::Kind::kScalar)
    return yaml.quoted ? ConfNode(yaml.text, place) : yaml_scalar(yaml.text, place);
  ConfNode node(yaml.kind == YamlNode::Kind::kNull   ? ConfNode::Kind::kNull
                : yaml.kind == YamlNode::Kind::kList ? ConfNode::Kind::kList
                                                     : ConfNode::Kind::kMap,
                place);
  for (const YamlNode& item : yaml.items) node.items.push_back(converted(item, source));
  for (const YamlEntry& entry : yaml.entries)
    node.entries.push_back({entry.key, {source, entry.place.line, entry.place.column}, converted(entry.value, source)});
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
