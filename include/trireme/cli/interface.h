#pragma once
// The command lines of all programs: the format of --help, sentences for wrong command lines in place of CLI11's, and
// shell completions and man pages, generated from CLI11's description of a program.

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
class Option;
class ParseError;
}  // namespace CLI

namespace trireme {

/// Facts of a program that CLI11 does not know.
struct InterfaceNotes {
  std::string version;             // "trireme 0.1.0 (0123456789ab)"
  std::vector<std::string> keys;   // completions of --set: "optimizer.lr"
  std::string configuration;       // the man page's section of the configuration keys, preformatted; may be empty
  std::string key_reference = {};  // the page of all configuration keys, Markdown; may be empty
};

/// One option of a command; options_of() skips hidden options (group "").
struct InterfaceOption {
  std::vector<std::string> names;  // "--output", "-o"; empty: positional
  std::string positional, value;   // "text"; "FILE", empty for flags
  std::string help;
  std::vector<std::string> choices;  // of CLI::IsMember
  bool required = false;
};

/// A program or subcommand; its path is, for example, {"trireme", "data", "pack"}.
struct InterfaceCommand {
  std::vector<std::string> path;
  std::string help;
  std::vector<InterfaceOption> options;
  std::vector<std::string> subcommands, subcommand_helps;
};

/// `app` and all its subcommands, parents first.
std::vector<InterfaceCommand> interface_of(const CLI::App& app);

std::string bash_completion(const std::vector<InterfaceCommand>& commands, const InterfaceNotes& notes);
std::string zsh_completion(const std::vector<InterfaceCommand>& commands, const InterfaceNotes& notes);
std::string fish_completion(const std::vector<InterfaceCommand>& commands, const InterfaceNotes& notes);
/// roff with the man macros; UTF-8.
std::string man_page(const std::vector<InterfaceCommand>& commands, const InterfaceNotes& notes);

/// Adds the hidden option --write-interface DIR to `app`. When it is given, parsing ends with CLI::Success after
/// writing DIR/man/PROGRAM.1, DIR/bash/PROGRAM, DIR/zsh/_PROGRAM and DIR/fish/PROGRAM.fish, and DIR/keys.md where there
/// is a key reference.
void add_interface_option(CLI::App& app, InterfaceNotes notes);

/// Set on an app before its subcommands are added. An option is one line, "--gpus-per-host N", with its meaning, limits
/// and default on its right, wrapped for a terminal of 100 columns.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// What is wrong with the arguments that `app` refused with `error`: "data megatron: unknown option '--output'. Did you
/// mean '--output-prefix'? (see trireme data megatron --help)". The sentence ends with the command whose --help
/// explains the option.
std::string command_line_problem(const CLI::App& app, int argc, char** argv, const CLI::ParseError& error);

/// Makes every option of `app` and its commands that takes a number refuse an empty text, nan and infinities, and
/// integers beyond 64 bits, or below 0 where there is no sign. CLI11 takes an empty text for 0, its limits accept nan,
/// because a comparison with nan is false, it cuts large integers, and takes -1 for 2^64 - 1.
void refuse_odd_numbers(CLI::App& app);

}  // namespace trireme
