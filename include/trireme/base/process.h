#pragma once
// This process: host name, time limits from its environment, and what it prints.

#include <cstddef>
#include <string>
#include <vector>

namespace trireme {

std::string host_name();

/// The words that this process was started with.
std::vector<std::string> command_line_words();
/// Equal for processes of one host: its name and the kernel's boot id. Hosts may share a name; containers of one host
/// with names of their own count as hosts, as they do for NCCL.
std::string host_identity();

/// A time limit in seconds from environment variable `variable`, or `otherwise` if it is not set. ConfigError when it
/// is not a number between 0 and 1e6.
double positive_seconds(const char* variable, double otherwise);

/// Characters in a line of the terminal that stdout is; 0 where it is none or does not say.
size_t terminal_columns();
/// Prints a line of a run on stdout. Where it cannot be written the run goes on, with one warning, and the line is
/// lost.
void print_line(const std::string& text);
/// Prints "rank 3 on node7: reason" on stderr.
void print_failure(int rank, const std::string& reason);

}  // namespace trireme
