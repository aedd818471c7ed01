#include "trireme/cli/interface.h"

#include "trireme/base/text.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

namespace trireme {
namespace {

using Words = std::vector<std::string>;

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  std::vector<const CLI::App*> shown;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!sub->get_group().empty()) shown.push_back(sub);
  return shown;
}

/// The command that the arguments name, and what follows its name.
struct Level {
  const CLI::App* command;
  std::string path;  // "trireme data pack"
  Words rest;

  /// "data pack: "; empty for the program itself, whose name run_main() writes before every message.
  std::string subject() const {
    const size_t space = path.find(' ');
    return space == std::string::npos ? "" : path.substr(space + 1) + ": ";
  }
};

Level level_of(const CLI::App& app, const Words& arguments) {
  Level level{&app, app.get_name(), {}};
  size_t used = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (const CLI::App* sub : subcommands(*level.command)) {
      if (sub->get_name() != arguments[i]) continue;
      level.command = sub;
      level.path += " " + arguments[i];
      used = i + 1;
      break;
    }
    if (used != i + 1) break;
  }
  level.rest.assign(arguments.begin() + static_cast<long>(used), arguments.end());
  return level;
}

Words option_names(const CLI::App& command) {
  Words names;
  for (const CLI::Option* option : command.get_options())
    if (!option->get_group().empty())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// An option that begins with the word, else one that a typing error away spells.
std::string option_hint(const std::string& word, const Words& names) {
  const auto longer = std::find_if(names.begin(), names.end(),
                                   [&](const std::string& name) { return word.size() > 4 && name.starts_with(word); });
  return longer != names.end() ? fmt::format(" Did you mean '{}'?", *longer) : did_you_mean(word, names);
}

std::optional<std::string> unknown_option(const Level& level) {
  const Words names = option_names(*level.command);
  for (const std::string& word : level.rest) {
    if (word == "--") return std::nullopt;
    const std::string name = split(word, '=').front();
    if (!name.starts_with("--") || level.command->get_option_no_throw(name) != nullptr) continue;
    return fmt::format("{}unknown option '{}'.{}", level.subject(), name, option_hint(name, names));
  }
  return std::nullopt;
}

std::optional<std::string> missing_subcommand(const Level& level) {
  Words names;
  for (const CLI::App* sub : subcommands(*level.command)) names.push_back(sub->get_name());
  if (names.empty()) return std::nullopt;
  if (level.rest.empty()) return fmt::format("{}a subcommand is missing: {}", level.subject(), join(names, ", "));
  return fmt::format("{}unknown subcommand '{}'.{}", level.subject(), level.rest.front(),
                     did_you_mean(level.rest.front(), names));
}

std::string missing_options(const Level& level) {
  Words missing;
  for (const CLI::Option* option : level.command->get_options())
    if (option->get_required() && option->count() == 0)
      missing.push_back(option->get_positional() ? fmt::format("the argument {}", option->get_name(true))
                                                 : option->get_name());
  if (missing.empty()) return "";
  return fmt::format("{}{} {} missing", level.subject(), join(missing, ", "), missing.size() == 1 ? "is" : "are");
}

/// The text between two markers, or up to the end where `end` is empty.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t from = text.find(begin);
  if (from == std::string::npos) return "";
  const size_t to = end.empty() ? text.size() : text.find(end, from + begin.size());
  return to == std::string::npos ? "" : text.substr(from + begin.size(), to - from - begin.size());
}

std::string kind_of(const CLI::App& command, const std::string& option_name) {
  const CLI::Option* option = command.get_option_no_throw(option_name);
  const std::string type = option == nullptr ? "" : split(option->get_type_name(), ':').front();
  return type == "INT" ? "an integer" : type == "UINT" ? "an integer >= 0" : type == "FLOAT" ? "a number" : "";
}

/// From CLI11's "Could not convert: --workers = x", "--ranks: Value 0 not in range 1 to 8" (of later versions:
/// "[1 - 8]"), "--split: x not in {a,b}".
std::string wrong_value(const Level& level, const std::string& text) {
  const std::string converted = between(text, "Could not convert: ", " = ");
  if (!converted.empty()) {
    const std::string kind = kind_of(*level.command, converted);
    return fmt::format("{} must be {}, not '{}'", converted, kind.empty() ? "another value" : kind,
                       between(text, " = ", ""));
  }
  const std::string name = split(text, ':').front();
  if (const std::string value = between(text, ": Value ", " not in range "); !value.empty()) {
    const std::string kind = kind_of(*level.command, name);
    std::string limits = between(text, " not in range ", "");
    if (const std::string inside = between(limits, "[", "]"); !inside.empty())
      limits = between("[" + inside, "[", " - ") + " to " + between(inside, " - ", "");
    return fmt::format("{} must be {} from {}, not '{}'", name, kind.empty() ? "a value" : kind, limits, value);
  }
  if (const std::string value = between(text, ": ", " not in {"); !value.empty()) {
    const Words choices = split(between(text, " not in {", "}"), ',');
    return fmt::format("{} must be one of {}, not '{}'.{}", name, join(choices, ", "), value,
                       did_you_mean(value, choices));
  }
  return text;
}

std::string sentence(const Level& level, const CLI::ParseError& error) {
  const std::string text = error.what();
  if (const auto unknown = unknown_option(level)) return *unknown;
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr ||
      dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    if (const auto subcommand = missing_subcommand(level)) return *subcommand;
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const std::string missing = missing_options(level);
    return missing.empty() ? text : missing;
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const Words extra = level.command->remaining();
    return extra.empty() ? text : fmt::format("{}unexpected argument '{}'", level.subject(), extra.front());
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && text.find(" missing") != std::string::npos)
    return fmt::format("{} needs a value", split(text, ':').front());
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) {
    const std::string first = text.substr(0, text.find(' '));
    return fmt::format("{} and {} exclude each other: give one of them", first, between(text, " excludes ", ""));
  }
  if (dynamic_cast<const CLI::RequiresError*>(&error) != nullptr)
    return fmt::format("{} needs {} too", text.substr(0, text.find(' ')), between(text, " requires ", ""));
  return wrong_value(level, text);
}

}  // namespace

std::string command_line_problem(const CLI::App& app, int argc, char** argv, const CLI::ParseError& error) {
  const Level level = level_of(app, Words(argv + 1, argv + std::max(argc, 1)));
  return fmt::format("{} (see {} --help)", sentence(level, error), level.path);
}

void refuse_odd_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool real = type.starts_with("FLOAT"), integer = type.starts_with("INT") || type.starts_with("UINT");
    if (!real && !integer) continue;
    option->check(
        [real, has_sign = !type.starts_with("UINT")](const std::string& text) {
          if (text.empty()) return std::string("an empty value is no number");
          if (real) return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : text + " is not a finite number";
          if (!has_sign && text.starts_with('-')) return text + " is below 0";
          errno = 0;
          if (has_sign)
            (void)std::strtoll(text.c_str(), nullptr, 0);
          else
            (void)std::strtoull(text.c_str(), nullptr, 0);
          return errno == ERANGE ? text + " is more than a number of 64 bits holds" : std::string();
        },
        "");
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) refuse_odd_numbers(*command);
}

}  // namespace trireme
