#pragma once
// Private to apps/: the options of `trireme calibrate`, which the program behind it takes too.

#include <CLI/CLI.hpp>

#include <string>

namespace trireme {

struct CalibrateOptions {
  std::string output;
  double seconds = 1;
};

inline void add_calibrate_options(CLI::App& app, CalibrateOptions& options) {
  app.add_option("--output", options.output, "YAML file to write, for parallel.rates");
  app.add_option("--seconds", options.seconds, "Length of each measurement")
      ->check(CLI::Range(0.05, 60.0))
      ->capture_default_str();
}

}  // namespace trireme
