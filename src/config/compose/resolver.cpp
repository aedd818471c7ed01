#include "conf_parts.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace trireme {

namespace {

using Kind = ConfNode::Kind;

/// Why a value has no meaning. resolve_text() says where the value stands; resolve() makes it a problem.
struct ResolveError {
  std::string text;
  std::string place = {};  // "file:3:4: a.b", set once
};

bool is_name(std::string_view text) {
  return !text.empty() && !is_digit(text[0]) && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// a.b[0].c -> a, b, 0, c
std::vector<std::string> parts_of(std::string_view key) {
  std::vector<std::string> parts;
  std::string part;
  const auto end_part = [&] {
    if (!part.empty()) parts.push_back(std::exchange(part, ""));
  };
  for (const char c : key) {
    if (c == '.' || c == '[' || c == ']')
      end_part();
    else
      part += c;
  }
  end_part();
  return parts;
}

double number_of(const ConfNode& node, const std::string& function) {
  if (node.is(Kind::kInteger)) return static_cast<double>(node.integer);
  if (node.is(Kind::kNumber)) return node.number;
  throw ResolveError{
      fmt::format("{} takes numbers, not {}", function, node.is(Kind::kText) ? "'" + node.text + "'" : node.str())};
}

ConfNode arithmetic(const std::string& name, const std::vector<ConfNode>& arguments, const ConfPlace& place) {
  if (arguments.size() != 2) throw ResolveError{fmt::format("{} takes two numbers, not {}", name, arguments.size())};
  const double a = number_of(arguments[0], name), b = number_of(arguments[1], name);
  if (name == "multiply") {
    int64_t product = 0;
    if (!arguments[0].is(Kind::kInteger) || !arguments[1].is(Kind::kInteger)) return ConfNode(a * b, place);
    if (__builtin_mul_overflow(arguments[0].integer, arguments[1].integer, &product))
      throw ResolveError{fmt::format("{} times {} exceeds 64 bits", arguments[0].integer, arguments[1].integer)};
    return ConfNode(product, place);
  }
  if (b == 0) throw ResolveError{name + " by zero"};
  const double quotient = name == "divide_ceil" ? std::ceil(a / b) : std::floor(a / b);
  if (!(std::abs(quotient) < 9e18)) throw ResolveError{fmt::format("{} of {} and {} is no integer", name, a, b)};
  return ConfNode(static_cast<int64_t>(quotient), place);
}

}  // namespace

std::optional<ConfNode> ConfResolver::at(const std::string& path) {
  const std::vector<std::string> parts = parts_of(path);
  const ConfNode* node = &composition_.root;
  for (const std::string& part : parts) {
    node = node->is(Kind::kMap) ? node->find(part) : nullptr;
    if (node == nullptr) return std::nullopt;
  }
  return resolve(*node, parts);
}

ConfNode ConfResolver::resolve(const ConfNode& node, const Path& path) {
  if (node.is(Kind::kList) || node.is(Kind::kMap)) {
    ConfNode result = node;
    Path below = path;
    below.emplace_back();
    for (size_t i = 0; i < node.items.size(); ++i) {
      below.back() = std::to_string(i);
      result.items[i] = resolve(node.items[i], below);
    }
    for (size_t i = 0; i < node.entries.size(); ++i) {
      below.back() = node.entries[i].key;
      result.entries[i].value = resolve(node.entries[i].value, below);
    }
    return result;
  }
  if (!node.is(Kind::kText)) return node;
  try {
    return resolve_text(node, path);
  } catch (const ResolveError& error) {
    problems_.add(fmt::format("{}: {}", error.place, error.text));
  }
  return {};
}

/// Throws ResolveError.
ConfNode ConfResolver::resolve_text(const ConfNode& node, const Path& path) {
  const auto here = [&] { return fmt::format("{}: {}", node.place.text(), join(path, ".")); };
  try {
    return resolve_placed(node, path);
  } catch (const ElementError& error) {
    throw ResolveError{error.text, here()};
  } catch (const ResolveError& error) {
    if (!error.place.empty()) throw;
    throw ResolveError{error.text, here()};
  }
}

ConfNode ConfResolver::resolve_placed(const ConfNode& node, const Path& path) {
  if (node.text == "???") throw ResolveError{fmt::format("??? must be set: add {}=…", join(path, "."))};
  if (node.text.find("${") == std::string::npos) return node;
  const std::string own = join(path, ".");
  if (const auto first = std::find(active_.begin(), active_.end(), own); !own.empty() && first != active_.end())
    throw ResolveError{fmt::format("a circle of interpolations: {} -> {}", join({first, active_.end()}, " -> "), own)};
  active_.push_back(own);
  struct Leave {
    std::vector<std::string>& stack;
    ~Leave() { stack.pop_back(); }
  } leave{active_};

  return expand(node.text, node, path);
}

ConfNode ConfResolver::expand(std::string_view text, const ConfNode& node, const Path& path) {
  // The whole text is one interpolation: the value keeps its type.
  if (text.starts_with("${") && closing_brace(text, 0) == text.size() - 1)
    return interpolate(text.substr(2, text.size() - 3), node, path);
  return ConfNode(expand_nested(text, node, path), node.place);
}

/// `text` with every interpolation replaced by its value's text; \${ is a literal ${.
std::string ConfResolver::expand_nested(std::string_view text, const ConfNode& node, const Path& path) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    size_t slashes = i;
    while (slashes < text.size() && text[slashes] == '\\') ++slashes;
    const bool opens = text.substr(slashes).starts_with("${");
    if (slashes > i && !opens) {
      result += text.substr(i, slashes - i);
      i = slashes;
    } else if (opens) {
      result += std::string((slashes - i) / 2, '\\');
      const bool escaped = (slashes - i) % 2 == 1;
      i = slashes;
      if (escaped) {
        result += "${";
        i += 2;
        continue;
      }
      const size_t end = closing_brace(text, i);
      if (end == std::string_view::npos) throw ResolveError{"an interpolation ${ is never closed"};
      result += interpolate(text.substr(i + 2, end - i - 2), node, path).str();
      i = end + 1;
    } else {
      result += text[i++];
    }
  }
  return result;
}

ConfNode ConfResolver::interpolate(std::string_view expression, const ConfNode& node, const Path& path) {
  const size_t colon = expression.find(':');
  const std::string_view name = trimmed(expression.substr(0, colon));
  if (colon != std::string_view::npos && is_name(name))
    return call(std::string(name), expression.substr(colon + 1), node, path);
  return select(std::string(trimmed(expand_nested(expression, node, path))), path);
}

ConfNode ConfResolver::call(const std::string& name, std::string_view arguments, const ConfNode& node,
                            const Path& path) {
  static const std::vector<std::string> known = {"multiply", "divide_ceil", "divide_floor", "oc.env", "hydra"};
  if (std::find(known.begin(), known.end(), name) == known.end())
    throw ResolveError{fmt::format("there is no resolver '{}' here (there are {}).{}", name, join(known, ", "),
                                   did_you_mean(name, known))};
  if (name == "hydra") {
    const std::string asked = expand_nested(trimmed(arguments), node, path);
    constexpr std::string_view kChoices = "runtime.choices.";
    if (!asked.starts_with(kChoices))
      throw ResolveError{fmt::format("of hydra: only hydra:runtime.choices.GROUP has a meaning here, not '{}'", asked)};
    const auto choice = composition_.choices.find(asked.substr(kChoices.size()));
    if (choice == composition_.choices.end())
      throw ResolveError{fmt::format("the defaults list has no group '{}'", asked.substr(kChoices.size()))};
    return choice->second ? ConfNode(*choice->second, node.place) : ConfNode(Kind::kNull, node.place);
  }
  std::vector<ConfNode> values = parse_elements(arguments, node.place);
  const auto resolved = [&](const ConfNode& value) {
    return value.is(Kind::kText) && value.text.find("${") != std::string::npos ? expand(value.text, node, path) : value;
  };
  if (name != "oc.env") {
    for (ConfNode& value : values) value = resolved(value);
    return arithmetic(name, values, node.place);
  }
  if (values.size() > 2) throw ResolveError{"oc.env takes a name and a default"};
  const std::string variable = resolved(values[0]).str();
  if (const char* found = std::getenv(variable.c_str())) return ConfNode(std::string(found), node.place);
  if (values.size() < 2) throw ResolveError{fmt::format("the environment has no {}", variable)};
  const ConfNode otherwise = resolved(values[1]);
  if (otherwise.is(Kind::kNull)) return otherwise;
  return ConfNode(otherwise.str(), node.place);  // as OmegaConf: the default of oc.env is a text
}

ConfNode ConfResolver::select(const std::string& key, const Path& path) {
  size_t dots = 0;
  while (dots < key.size() && key[dots] == '.') ++dots;
  Path target;
  if (dots > 0) {
    if (dots > path.size()) throw ResolveError{fmt::format("'{}' leads above the root", key)};
    target.assign(path.begin(), path.end() - static_cast<long>(dots));
  }
  const std::vector<std::string> parts = parts_of(std::string_view(key).substr(dots));
  if (parts.empty() && dots == 0) throw ResolveError{"an empty interpolation ${}"};
  const ConfNode& root = composition_.root;
  if (const ConfNode* section = root.find(composition_.section); section != nullptr && dots == 0)
    if (root.find(parts[0]) == nullptr && section->find(parts[0]) != nullptr) target = {composition_.section};
  target.insert(target.end(), parts.begin(), parts.end());
  return lookup(target, key);
}

ConfNode ConfResolver::lookup(const Path& path, const std::string& shown) {
  ConfNode held;  // a value that an interpolation on the way gave
  const ConfNode* node = &composition_.root;
  bool resolved = false;
  Path at;
  for (const std::string& part : path) {
    if (!resolved && node->is(Kind::kText) && node->text.find("${") != std::string::npos) {
      held = resolve_text(*node, at);
      node = &held;
      resolved = true;
    }
    const ConfNode* next = nullptr;
    std::vector<std::string> there;
    if (node->is(Kind::kMap)) {
      next = node->find(part);
      there = node->keys();
    } else if (node->is(Kind::kList)) {
      const auto index = parse_whole<size_t>(part);
      if (index && *index < node->items.size()) next = &node->items[*index];
    }
    if (next == nullptr)
      throw ResolveError{
          fmt::format("the interpolation '{}' finds no '{}'.{}", shown, part, did_you_mean(part, there))};
    node = next;
    at.push_back(part);
  }
  if (resolved) return *node;
  return node->is(Kind::kText) ? resolve_text(*node, at) : resolve(*node, at);
}

}  // namespace trireme
