#pragma once
// Flat YAML files of numbers: "name: 1.5", read as strictly as configurations.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme {

struct NumberKey {
  std::string name;
  double least, most;  // allowed range
};

struct NumberFile {
  std::map<std::string, std::string> texts;
  std::map<std::string, double> numbers;  // of the keys that the file gives
};

/// Reads a file that has every key of `texts` and any of `numbers`. All problems (unknown and duplicate keys, other
/// types, numbers out of range, syntax, a file above 1 MiB) are in one ConfigError, one line each: `file:line:column:
/// what is wrong`.
NumberFile read_number_file(const std::filesystem::path& file, const std::vector<std::string>& texts,
                            const std::vector<NumberKey>& numbers);

}  // namespace trireme
