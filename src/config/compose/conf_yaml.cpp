// YAML as PyYAML's block style writes it for OmegaConf.save().
#include "conf_scalar.h"

#include "trireme/base/text.h"

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
  ConfNode plain;
  set_yaml_scalar(plain, text);
  if (!plain.is(Kind::kText)) return true;
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

void write(const ConfNode& node, const std::string& indent, std::string& out);

/// What follows "key:" or "-".
void write_value(const ConfNode& node, const std::string& indent, bool in_list, std::string& out) {
  if (node.is(Kind::kMap) && !node.entries.empty()) {
    if (in_list) {
      // The first key is beside the dash.
      std::string body;
      write(node, indent + "  ", body);
      out += " " + body.substr(indent.size() + 2);
    } else {
      out += "\n";
      write(node, indent + "  ", out);
    }
  } else if (node.is(Kind::kList) && !node.items.empty()) {
    if (in_list) {
      std::string body;
      write(node, indent + "  ", body);
      out += " " + body.substr(indent.size() + 2);
    } else {
      out += "\n";
      write(node, indent, out);
    }
  } else {
    out += " " + (node.is(Kind::kMap) ? "{}" : node.is(Kind::kList) ? "[]" : scalar(node)) + "\n";
  }
}

void write(const ConfNode& node, const std::string& indent, std::string& out) {
  for (const ConfEntry& entry : node.entries) {
    ConfNode key;
    key.kind = Kind::kText;
    key.text = entry.key;
    out += indent + scalar(key) + ":";
    write_value(entry.value, indent, false, out);
  }
  for (const ConfNode& item : node.items) {
    out += indent + "-";
    write_value(item, indent, true, out);
  }
}

}  // namespace

std::string conf_yaml(const ConfNode& node) {
  std::string out;
  if ((node.is(Kind::kMap) && !node.entries.empty()) || (node.is(Kind::kList) && !node.items.empty()))
    write(node, "", out);
  else
    out = (node.is(Kind::kMap) ? "{}" : node.is(Kind::kList) ? "[]" : scalar(node)) + "\n";
  return out;
}

}  // namespace trireme
