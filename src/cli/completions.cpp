// Completions for bash, zsh and fish. Each walks over the words before the cursor to find the subcommand, then offers
// its subcommands and options; after an option with choices its choices, after --set the configuration keys, else
// files.
#include "trireme/base/text.h"
#include "trireme/cli/interface.h"

#include <fmt/format.h>

namespace trireme {
namespace {

std::string place(const InterfaceCommand& command) { return join(command.path, "/"); }

// Single quotes, for all three shells: inside them only the quote itself (fish: and the backslash) is special.
std::string quoted(const std::string& text, bool fish = false) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'')
      result += fish ? "\\'" : "'\\''";
    else if (c == '\\' && fish)
      result += "\\\\";
    else
      result += c;
  }
  return result + "'";
}

std::vector<std::string> option_names(const InterfaceCommand& command) {
  std::vector<std::string> names;
  for (const InterfaceOption& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

std::string function_name(const InterfaceCommand& program) { return "_" + program.path.front(); }

std::string first_line(const InterfaceNotes& notes) { return "# " + notes.version + ". Generated from its options.\n"; }

// The tables that bash and zsh share: both have associative arrays with this syntax.
std::string tables(const std::vector<InterfaceCommand>& commands, const InterfaceNotes& notes) {
  std::string subcommands, options, choices;
  for (const InterfaceCommand& command : commands) {
    const std::string at = place(command);
    if (!command.subcommands.empty())
      subcommands += fmt::format("    [{}]={}\n", at, quoted(join(command.subcommands, " ")));
    options += fmt::format("    [{}]={}\n", at, quoted(join(option_names(command), " ")));
    for (const InterfaceOption& option : command.options)
      for (const std::string& name : option.names) {
        if (!option.choices.empty())
          choices += fmt::format("    [{}:{}]={}\n", at, name, quoted(join(option.choices, " ")));
        else if (option.value.empty())
          choices += fmt::format("    [{}:{}]=-\n", at, name);  // a flag: no value follows
      }
  }
  return fmt::format(
      "  local -A subcommands=(\n{}  )\n  local -A options=(\n{}  )\n"
      "  local -A choices=(\n{}  )\n  local keys={}\n",
      subcommands, options, choices, quoted(join(notes.keys, " ")));
}

}  // namespace

std::string bash_completion(const std::vector<InterfaceCommand>& commands, const InterfaceNotes& notes) {
  const std::string name = commands.front().path.front(), function = function_name(commands.front());
  return first_line(notes) + function + "() {\n" + tables(commands, notes) + "  local at=" + name + R"sh( i
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ " ${subcommands[$at]:-} " == *" ${COMP_WORDS[i]} "* ]]; then at+=/${COMP_WORDS[i]}; fi
  done
  COMPREPLY=()
  if [[ $before == --set && -n $keys ]]; then
    mapfile -t COMPREPLY < <(compgen -S = -W "$keys" -- "$word")
    compopt -o nospace 2>/dev/null
  elif [[ ${choices[$at:$before]:--} != - ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${choices[$at:$before]}" -- "$word")
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${options[$at]}" -- "$word")
  elif [[ -n ${subcommands[$at]:-} ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${subcommands[$at]}" -- "$word")
  else
    compopt -o default 2>/dev/null
  fi
}
)sh" + "complete -F " +
         function + " " + name + "\n";
}

std::string zsh_completion(const std::vector<InterfaceCommand>& commands, const InterfaceNotes& notes) {
  const std::string name = commands.front().path.front(), function = function_name(commands.front());
  std::string helps;
  const auto described = [](std::string item, const std::string& help) {
    // _describe splits at the first colon that has no backslash.
    return quoted(item + ":" + help.substr(0, help.find('\n')));
  };
  for (const InterfaceCommand& command : commands) {
    std::string subcommands, options;
    for (size_t i = 0; i < command.subcommands.size(); ++i)
      subcommands += " " + described(command.subcommands[i], command.subcommand_helps[i]);
    for (const InterfaceOption& option : command.options)
      for (const std::string& option_name : option.names) options += " " + described(option_name, option.help);
    helps += fmt::format("    {})\n      commands=({})\n      flags=({}) ;;\n", place(command), subcommands, options);
  }
  return "#compdef " + name + "\n" + first_line(notes) + function + "() {\n" + tables(commands, notes) +
         "  local at=" + name + R"sh( word before=${words[CURRENT-1]}
  local -a commands flags
  for word in ${words[2,CURRENT-1]}; do
    if [[ " ${subcommands[$at]} " == *" $word "* ]]; then at+=/$word; fi
  done
  case $at in
)sh" + helps +
         R"sh(  esac
  if [[ $before == --set && -n $keys ]]; then
    compadd -S = -- ${=keys}
  elif [[ -n ${choices[$at:$before]} && ${choices[$at:$before]} != - ]]; then
    compadd -- ${=choices[$at:$before]}
  elif [[ ${words[CURRENT]} == -* ]]; then
    _describe -o option flags
  elif ((${#commands})); then
    _describe command commands
  else
    _files
  fi
}
)sh" + function +
         " \"$@\"\n";
}

std::string fish_completion(const std::vector<InterfaceCommand>& commands, const InterfaceNotes& notes) {
  const std::string name = commands.front().path.front();
  std::string places;
  for (const InterfaceCommand& command : commands) places += " " + place(command);
  std::string text = first_line(notes) + fmt::format(R"fish(function __{0}_at
    set -l at {0}
    for word in (commandline -opc)[2..]
        if contains -- $at/$word{1}
            set at $at/$word
        end
    end
    test $at = $argv[1]
end
)fish",
                                                     name, places);
  for (const InterfaceCommand& command : commands) {
    const std::string here = fmt::format("complete -c {} -n '__{}_at {}'", name, name, place(command));
    for (size_t i = 0; i < command.subcommands.size(); ++i)
      text +=
          fmt::format("{} -f -a {} -d {}\n", here, command.subcommands[i], quoted(command.subcommand_helps[i], true));
    for (const InterfaceOption& option : command.options) {
      if (option.names.empty()) continue;
      text += here;
      for (const std::string& option_name : option.names)
        text += option_name.starts_with("--") ? " -l " + option_name.substr(2) : " -s " + option_name.substr(1);
      if (!option.value.empty()) text += " -r";
      if (!option.choices.empty()) text += " -f -a " + quoted(join(option.choices, " "), true);
      if (option.names.front() == "--set" && !notes.keys.empty())
        text += " -f -a " + quoted(join(notes.keys, "= ") + "=", true);
      text += " -d " + quoted(option.help, true) + "\n";
    }
  }
  return text;
}

}  // namespace trireme
