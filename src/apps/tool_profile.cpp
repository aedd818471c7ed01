// `trireme profile`: what the traces of a run say.
#include "tools.h"

#include "trireme/base/error.h"
#include "trireme/formats/kineto/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

namespace {

/// The traces of a run or of a folder by rank, or the one file that was named.
std::vector<TraceSummary> read_summaries(std::filesystem::path where) {
  if (std::filesystem::is_directory(where / "profile") || std::filesystem::exists(where / "metrics.jsonl"))
    where /= "profile";
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(where)) {
    for (const auto& entry : std::filesystem::directory_iterator(where)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with('.') && (name.ends_with(".json") || name.ends_with(".json.gz")))
        files.push_back(entry.path());
    }
  } else if (std::filesystem::exists(where)) {
    files.push_back(where);
  } else {
    throw DataError(
        fmt::format("{} does not exist: name the output.dir of a run with the section 'profile'", where.string()));
  }
  if (files.empty())
    throw DataError(fmt::format("{} has no trace (*.json, *.json.gz): a run writes them with the section 'profile'",
                                where.string()));
  std::sort(files.begin(), files.end());
  std::vector<TraceSummary> summaries;
  for (const auto& file : files) summaries.push_back(summarise(read_trace(file)));
  std::stable_sort(summaries.begin(), summaries.end(), [](const TraceSummary& a, const TraceSummary& b) {
    return std::pair(a.rank, a.cycle) < std::pair(b.rank, b.cycle);
  });
  return summaries;
}

}  // namespace

void add_profile_tool(CLI::App& app) {
  CLI::App* profile = app.add_subcommand("profile", "Read the traces that a run recorded: summarise");
  profile->require_subcommand(1);
  struct Options {
    std::string folder, output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* tool = profile->add_subcommand(
      "summarise", "Time by class, exposed communication and idle time of each rank, as text and as an HTML page");
  tool->add_option("folder", options->folder,
                   "output.dir of a run, a folder with traces of LibTorch's profiler, or one trace")
      ->required();
  tool->add_option("--output", options->output, "HTML page to write");
  tool->callback([options] {
    require_output("profile summarise", "--output", options->output, kPageOutput);
    const std::vector<TraceSummary> summaries = read_summaries(options->folder);
    std::string text = ranks_table(summaries);
    for (const TraceSummary& summary : summaries)
      text +=
          fmt::format("\n{}: {}\n{}", summary.file.filename().string(), trace_label(summary), summary_table(summary));
    std::fputs(text.c_str(), stdout);
    if (options->output.empty()) return;
    write_output(options->output, summary_page(options->folder, summaries));
    std::printf("\npage: %s\n", options->output.c_str());
  });
}

}  // namespace trireme
