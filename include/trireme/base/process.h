#pragma once
// This process: host name, time limits from its environment, threads, and its output.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

std::string host_name();

/// The words of this process's command line.
std::vector<std::string> command_line_words();
/// Equal for processes of one host: its name and the kernel's boot id. Different hosts may share a name. Containers of
/// one host with different names count as hosts, as in NCCL.
std::string host_identity();

/// A time limit in seconds from environment variable `variable`, or `otherwise` if it is not set. ConfigError when it
/// is not a number between 0 and 1e6.
double positive_seconds(const char* variable, double otherwise);

/// The value of an environment variable; `otherwise` where there is none, or an empty one.
std::string environment(const char* variable, const char* otherwise = "");

/// Calls work(i) for i in [0, count) on `threads` threads (0: one per core). After an exception no further i is
/// started; the exception of the lowest failed i is thrown.
void parallel_for(size_t count, unsigned threads, const std::function<void(size_t)>& work);

/// Characters per line if stdout is a terminal; 0 if it is not, or its width is unknown.
size_t terminal_columns();
/// Prints a line of a run on stdout. If stdout cannot be written, the line is lost and the run goes on, with one
/// warning.
void print_line(const std::string& text);
/// Prints "rank 3 on node7: reason" on stderr.
void print_failure(int rank, const std::string& reason);

}  // namespace trireme
