#pragma once
// Sentences for wrong command lines, in place of CLI11's.

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace trireme {

/// What is wrong with the arguments that `app` refused with `error`: "data megatron: unknown option '--output'. Did you
/// mean '--output-prefix'? (see trireme data megatron --help)". The sentence ends with the command whose --help
/// explains the option.
std::string command_line_problem(const CLI::App& app, int argc, char** argv, const CLI::ParseError& error);

/// Makes every option of `app` and its commands that takes a real number refuse nan and infinities. CLI11's limits
/// accept them, because a comparison with nan is false.
void refuse_endless_numbers(CLI::App& app);

}  // namespace trireme
