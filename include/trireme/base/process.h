#pragma once
// This process: its host, limits from its environment, its last words.

#include <string>

namespace trireme {

std::string host_name();

/// A time limit in seconds from the environment, or `otherwise`; ConfigError when it is not a positive number.
double positive_seconds(const char* variable, double otherwise);

/// "rank 3 on node7: reason" on stderr.
void print_failure(int rank, const std::string& reason);

}  // namespace trireme
