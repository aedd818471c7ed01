#include "trireme/cli/interface.h"

#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <CLI/CLI.hpp>

#include <utility>

namespace trireme {
namespace {

// CLI11's type name of a choice: "TEXT:{train,eval}".
std::vector<std::string> choices_of(const std::string& type) {
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos || close <= open + 1) return {};
  return split(type.substr(open + 1, close - open - 1), ',');
}

std::string value_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

InterfaceOption describe_option(const CLI::Option& option) {
  InterfaceOption described;
  for (const std::string& name : option.get_lnames()) described.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
  if (described.names.empty()) described.positional = option.get_name(true);
  described.value = value_of(option);
  described.help = option.get_description();
  described.choices = choices_of(option.get_type_name());
  described.required = option.get_required();
  if (const std::string value = option.get_default_str(); !value.empty()) described.help += " (default " + value + ")";
  return described;
}

void describe_command(const CLI::App& app, std::vector<std::string> path, std::vector<InterfaceCommand>& commands) {
  path.push_back(app.get_name());
  InterfaceCommand command;
  command.path = path;
  command.help = app.get_description();
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty()) command.options.push_back(describe_option(*option));
  const std::vector<const CLI::App*> children = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* child : children) {
    if (child->get_group().empty()) continue;
    command.subcommands.push_back(child->get_name());
    command.subcommand_helps.push_back(child->get_description());
  }
  commands.push_back(std::move(command));
  for (const CLI::App* child : children)
    if (!child->get_group().empty()) describe_command(*child, path, commands);
}

void write(const std::filesystem::path& path, const std::string& text) {
  make_directories(path.parent_path());
  write_file_atomic(path, text);
}

}  // namespace

std::vector<InterfaceCommand> interface_of(const CLI::App& app) {
  std::vector<InterfaceCommand> commands;
  describe_command(app, {}, commands);
  return commands;
}

void add_interface_option(CLI::App& app, InterfaceNotes notes) {
  const auto write_all = [&app, notes = std::move(notes)](const std::string& folder) {
    const std::vector<InterfaceCommand> commands = interface_of(app);
    const std::filesystem::path root = folder;
    const std::string& program = commands.front().path.front();
    write(root / "man" / (program + ".1"), man_page(commands, notes));
    write(root / "bash" / program, bash_completion(commands, notes));
    write(root / "zsh" / ("_" + program), zsh_completion(commands, notes));
    write(root / "fish" / (program + ".fish"), fish_completion(commands, notes));
    if (!notes.key_reference.empty()) write(root / "keys.md", notes.key_reference);
    throw CLI::Success();
  };
  app.add_option_function<std::string>("--write-interface", write_all, "write completions and the man page below DIR")
      ->group("")
      ->trigger_on_parse();
}

}  // namespace trireme
