#include "trireme/base/lora.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <string_view>

namespace trireme {

namespace {

constexpr size_t kLongestPattern = 4096;

/// What Python's re and ECMAScript's grammar read in different ways, or only one of them reads; empty: nothing. The
/// syntax itself is std::regex's to check.
std::string difference(std::string_view pattern) {
  const auto next = [&](size_t i) { return i < pattern.size() ? pattern[i] : '\0'; };
  const auto is_quantifier = [](char c) { return c == '*' || c == '+' || c == '?' || c == '}'; };
  bool in_set = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (static_cast<unsigned char>(c) >= 0x80 || std::iscntrl(static_cast<unsigned char>(c)))
      return "a special character";
    if (c == '\\') {
      const char escaped = next(++i);
      if (std::isalnum(static_cast<unsigned char>(escaped)) &&
          std::string_view(in_set ? "dDsSwW" : "dDsSwWbB").find(escaped) == std::string_view::npos)
        return fmt::format("\\{}", escaped);
      continue;
    }
    if (in_set) {
      if (c == '[') return "[ in a set";
      if (c == ']') in_set = false;
      if ((c == '-' || c == '&' || c == '~' || c == '|') && next(i + 1) == c) return fmt::format("{0}{0} in a set", c);
      continue;
    }
    if (c == '[') {
      in_set = true;
      if (next(i + 1) == '^') ++i;
      if (next(i + 1) == ']') return "a set that begins with ]";
    } else if (c == '(' && next(i + 1) == '?') {
      const char kind = next(i + 2);
      if (kind != ':' && kind != '=' && kind != '!') return fmt::format("(?{}", kind);
      i += 2;
    } else if (c == '{') {
      size_t digits = i + 1;
      while (is_digit(next(digits))) ++digits;
      if (digits == i + 1) return "{ without a count";
    } else if (is_quantifier(c) && (is_quantifier(next(i + 1)) || next(i + 1) == '{') && next(i + 1) != '?') {
      return fmt::format("{}{}", c, next(i + 1));
    }
  }
  return "";
}

/// A regular expression that is matched in polynomial time: a pattern such as "(.+)+x" would take forever otherwise.
std::regex compile(const std::string& pattern) {
  using namespace std::regex_constants;
  return std::regex(pattern, ECMAScript | __polynomial | nosubs);  // each state would copy the groups
}

/// Whether the pattern matches the whole module path or, with `ends`, its end after a dot.
bool matches(const std::string& pattern, const std::string& module, bool ends) {
  thread_local std::map<std::pair<std::string, bool>, std::regex> compiled;
  auto found = compiled.find({pattern, ends});
  if (found == compiled.end()) {
    if (const std::string problem = pattern_problem(pattern); !problem.empty())
      throw ConfigError(fmt::format("the pattern '{}' {}", pattern, problem));
    found = compiled.emplace(std::pair(pattern, ends), compile(ends ? "(.*\\.)?(" + pattern + ")" : pattern)).first;
  }
  return std::regex_match(module, found->second);
}

template <class Number>
Number value_of(const std::vector<std::pair<std::string, Number>>& pattern, const std::string& module, Number otherwise,
                const char* name) {
  const std::pair<std::string, Number>* found = nullptr;
  for (const auto& entry : pattern) {
    if (!key_matches(entry.first, module)) continue;
    if (found != nullptr && found->second != entry.second)
      throw ConfigError(fmt::format(
          "lora.{} gives {} two values, {} by '{}' and {} by '{}': let one key match it (peft takes the first, and its "
          "files do not keep the order of the keys)",
          name, module, found->second, found->first, entry.second, entry.first));
    if (found == nullptr) found = &entry;
  }
  return found == nullptr ? otherwise : found->second;
}

bool names_module(const std::vector<std::string>& names, const std::string& module) {
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return module == name || module.ends_with("." + name); });
}

/// The first number that is a part of the path and has two parts before it: "model.layers.3.mlp.up_proj" -> 3.
std::optional<int64_t> layer_of(const std::string& module) {
  const std::vector<std::string> parts = split(module, '.');
  for (size_t i = 2; i + 1 < parts.size(); ++i)
    if (!parts[i].empty() && parts[i].size() < 10 && parts[i].find_first_not_of("0123456789") == std::string::npos)
      return std::stoll(parts[i]);
  return std::nullopt;
}

}  // namespace

bool ModuleSelector::all_linear() const {
  return std::ranges::equal(pattern, std::string_view(kAllLinear),
                            [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
}

std::string pattern_problem(const std::string& pattern) {
  if (pattern.empty()) return "is empty";
  if (pattern.size() > kLongestPattern) return fmt::format("is longer than {} characters", kLongestPattern);
  if (const std::string what = difference(pattern); !what.empty())
    return fmt::format("has {}, which is not supported: write it in another way, or the modules' names as a list",
                       what);
  try {
    (void)compile(pattern);
  } catch (const std::regex_error&) {
    return "is no regular expression that this program reads: write the names of the modules as a list";
  }
  return "";
}

bool selects(const ModuleSelector& selector, const std::string& module) {
  if (selector.all_linear()) return true;
  return selector.pattern.empty() ? names_module(selector.names, module)
                                  : matches(selector.pattern, module, /*ends=*/false);
}

bool is_saved(const LoraOptions& lora, const std::string& module) { return names_module(lora.modules_to_save, module); }

bool is_excluded(const LoraOptions& lora, const std::string& module) {
  return !lora.exclude_modules.empty() && selects(lora.exclude_modules, module);
}

bool is_targeted(const LoraOptions& lora, const std::string& module) {
  if (is_saved(lora, module) || is_excluded(lora, module)) return false;
  if (!selects(lora.target_modules, module)) return false;
  const std::vector<std::string>& names = lora.target_modules.names;
  // As in peft, a whole path means its module whatever its layer.
  if (lora.layers_to_transform.empty() || std::ranges::find(names, module) != names.end()) return true;
  const std::optional<int64_t> layer = layer_of(module);
  return layer && std::ranges::find(lora.layers_to_transform, *layer) != lora.layers_to_transform.end();
}

bool key_matches(const std::string& key, const std::string& module) { return matches(key, module, /*ends=*/true); }

LoraStrength strength_of(const LoraOptions& lora, const std::string& module) {
  LoraStrength strength;
  strength.r = value_of(lora.rank_pattern, module, lora.r, "rank_pattern");
  strength.alpha = value_of(lora.alpha_pattern, module, lora.alpha, "alpha_pattern");
  const auto r = static_cast<double>(strength.r);
  strength.scale = strength.alpha / (lora.use_rslora ? std::sqrt(r) : r);
  return strength;
}

}  // namespace trireme
