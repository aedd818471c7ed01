#include "trireme/base/text.h"
#include "trireme/cli/interface.h"

#include <fmt/format.h>

namespace trireme {
namespace {

// roff: a backslash starts an escape, a '.' or ''' at the start of a line a request, and '-' is a hyphen.
std::string roff(const std::string& text) {
  std::string result;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
    line_start = c == '\n';
  }
  return result;
}

/// "a|b|c", which may break behind each |.
std::string roff_choices(const std::vector<std::string>& choices) {
  std::string text;
  for (const std::string& choice : choices) text += (text.empty() ? "" : "|\\:") + roff(choice);
  return text;
}

std::string synopsis(const InterfaceCommand& command) {
  std::string line = ".B " + roff(join(command.path, " ")) + "\n";
  for (const InterfaceOption& option : command.options) {
    if (option.names.empty() || !option.required) continue;
    line += fmt::format("\\fB{}\\fR \\fI{}\\fR\n", roff(option.names.front()), roff(option.value));
  }
  if (!command.subcommands.empty()) line += "\\fICOMMAND\\fR\n";
  line += "[\\fIOPTIONS\\fR]\n";
  for (const InterfaceOption& option : command.options)
    if (option.names.empty())
      line += fmt::format("{0}\\fI{1}\\fR{2}\n", option.required ? "" : "[", roff(option.positional),
                          option.required ? "" : "]");
  return line;
}

std::string option_list(const InterfaceCommand& command) {
  std::string text;
  for (const InterfaceOption& option : command.options) {
    text += ".TP\n";
    if (option.names.empty()) text += fmt::format("\\fI{}\\fR", roff(option.positional));
    for (size_t i = 0; i < option.names.size(); ++i)
      text += fmt::format("{}\\fB{}\\fR", i == 0 ? "" : ", ", roff(option.names[i]));
    if (!option.choices.empty())
      text += fmt::format(" \\fI{}\\fR", roff_choices(option.choices));
    else if (!option.names.empty() && !option.value.empty())
      text += fmt::format(" \\fI{}\\fR", roff(option.value));
    text += fmt::format("\n{}{}\n", roff(option.help), option.required ? " (required)" : "");
  }
  return text;
}

}  // namespace

std::string man_page(const std::vector<InterfaceCommand>& commands, const InterfaceNotes& notes) {
  const InterfaceCommand& program = commands.front();
  const std::string name = program.path.front();
  std::string title = name;
  for (char& c : title) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const std::string summary = program.help.substr(0, program.help.find_first_of(".\n"));
  std::string page = fmt::format(
      ".\\\" Generated from the program's own description of its options.\n.TH {} 1 \"\" \"{}\" \"Trireme\"\n", title,
      notes.version);
  page += fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}.SH DESCRIPTION\n{}\n", roff(name), roff(summary),
                      synopsis(program), roff(program.help));
  page += ".SH OPTIONS\n" + option_list(program);
  if (commands.size() > 1) page += ".SH COMMANDS\n";
  for (size_t i = 1; i < commands.size(); ++i) {
    page += fmt::format(".SS {}\n{}.PP\n{}\n", roff(join(commands[i].path, " ")), synopsis(commands[i]),
                        roff(commands[i].help));
    page += option_list(commands[i]);
  }
  if (!notes.configuration.empty()) page += fmt::format(".SH CONFIGURATION\n.nf\n{}\n.fi\n", roff(notes.configuration));
  page +=
      ".SH EXIT STATUS\n0 when done; share/trireme/docs/errors.md lists the others. The last line on standard error "
      "says what failed, where, and what to try.\n";
  return page;
}

}  // namespace trireme
